# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways in which a plain folder may hold a model, and what in it tells commit and published hashes. PRIVATE to the collection.

The first of these that applies is believed:

1. our own receipt, ``.gpufleet-receipt.json``, in the folder, or below a store that holds ``<org>--<name>/<commit>/``;
2. the Hub client's cache, ``models--<org>--<name>/``: ``refs/`` name the commits, and files are links to blobs named by their digest;
3. a folder that the Hub client filled (``hf download --local-dir``): its records under ``.cache/huggingface``;
4. a file ``SHA256SUMS``, which knows hashes and no commit;
5. nothing: then files and sizes are known, hashes and commit are not.

What the folder says is only what has to be; whether the files are that is proven elsewhere. Nothing here is written to.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import typing as t
from pathlib import Path, PurePosixPath

from .errors import VllmError
from .hub import COMMIT, FileSpec
from .receipt import RECEIPT_NAME, Receipt, read_receipt
from .snapshot import INDEX_NAME, read_index, some

__all__ = ["SUMS_NAME", "Listing", "Snapshot", "find_snapshots", "list_files", "unreadable"]

SUMS_NAME = "SHA256SUMS"
_CACHED = "models--"
_CLIENT = Path(".cache", "huggingface")
_RECORD = ".metadata"
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_SUM = re.compile(r"(?P<escaped>\\?)(?P<digest>[0-9a-fA-F]{64}) [ *](?P<name>.+)")
_TAGGED_SUM = re.compile(r"(?P<escaped>\\?)SHA256 \((?P<name>.+)\) = (?P<digest>[0-9a-fA-F]{64})")


class Listing(t.NamedTuple):
    """The files in a folder: sizes by path, and the links that lead nowhere with what they point to."""

    sizes: dict[str, int]
    dangling: dict[str, str]

    @property
    def present(self) -> dict[str, t.Optional[int]]:
        """Sizes by path, links that lead nowhere included."""
        return {**self.sizes, **dict.fromkeys(self.dangling)}


class Snapshot:
    """One state of a model in ``folder``. This one says nothing about commit and hashes; the others below know more."""

    says = "neither commit nor hashes"

    def __init__(self, folder: Path, commit: t.Optional[str] = None, names: t.Sequence[str] = (), repo_id: str = "") -> None:
        self.folder = folder
        self.commit = commit
        self.names = names
        self.repo_id = repo_id

    def stands_for(self, revision: str) -> bool:
        """Whether it is what this branch, tag or commit means."""
        if self.commit is None:
            return COMMIT.fullmatch(revision) is not None
        return revision == self.commit or revision in self.names

    def specs(self, listing: Listing) -> dict[str, FileSpec]:
        """Every file that belongs to the snapshot, as published as far as that is known; some may be absent from the listing."""
        return self._with_shards({path: FileSpec(path, size) for path, size in listing.present.items()})

    def _with_shards(self, specs: t.Mapping[str, FileSpec]) -> dict[str, FileSpec]:
        return dict(sorted({**{path: FileSpec(path, None) for path in self._shards()}, **specs}.items()))

    def _shards(self) -> list[str]:
        """The shards that the index names. A damaged index names none here: its own hash convicts it."""
        with contextlib.suppress(OSError, VllmError):
            return list(read_index((self.folder / INDEX_NAME).read_bytes()))
        return []


class Received(Snapshot):
    """Proven before, with the manifest in the receipt."""

    says = "a receipt"

    def __init__(self, folder: Path, receipt: Receipt) -> None:
        super().__init__(folder, receipt.commit, (receipt.revision,), receipt.repo_id)
        self.receipt = receipt

    def specs(self, listing: Listing) -> dict[str, FileSpec]:
        wanted = {*self.receipt.files, *listing.present}
        return {path: spec for path, spec in self.receipt.manifest.items() if path in wanted and is_visible(inside(path, self.folder))}


class Cached(Snapshot):
    """A snapshot in the Hub client's cache: a link's first target is a blob named by the digest that the Hub gave it."""

    says = "the cache of the Hub client"

    def specs(self, listing: Listing) -> dict[str, FileSpec]:
        listed = _listed(self.folder.parent.parent / "trees" / f"{self.folder.name}.json")
        return self._with_shards({path: _spec(path, size, self._digest(path), listed.get(path)) for path, size in listing.present.items()})

    def _digest(self, path: str) -> str:
        file = self.folder / path
        return Path(os.readlink(file)).name if file.is_symlink() else ""


class Downloaded(Snapshot):
    """A folder that the Hub client filled. Files it kept no record of are not published, unless the index names them."""

    says = "the records of the Hub client"

    def __init__(self, folder: Path, commit: str, digests: t.Mapping[str, str]) -> None:
        super().__init__(folder, commit)
        self.digests = digests

    def stands_for(self, revision: str) -> bool:
        """The records keep no branch, so any name stands for the one commit that is there."""
        return revision == self.commit or not COMMIT.fullmatch(revision)

    def specs(self, listing: Listing) -> dict[str, FileSpec]:
        listed, shards = _listed(self.folder / _CLIENT / "trees" / f"{self.commit}.json"), set(self._shards())
        known = {path: size for path, size in listing.present.items() if path in self.digests or path in listed or path in shards}
        return self._with_shards({path: _spec(path, size, self.digests.get(path, ""), listed.get(path)) for path, size in known.items()})


class Summed(Snapshot):
    """A folder with SHA256SUMS, which is no part of the model itself. Files it does not name have no known hash."""

    says = f"a file {SUMS_NAME}"

    def specs(self, listing: Listing) -> dict[str, FileSpec]:
        sums = {path: digest for path, digest in _read_sums(self.folder / SUMS_NAME).items() if is_visible(path)}
        paths = {*sums, *listing.present} - {SUMS_NAME}
        return self._with_shards({path: FileSpec(path, listing.sizes.get(path), sha256=sums.get(path)) for path in paths})


def find_snapshots(folder: Path, repo_id: t.Optional[str] = None) -> list[Snapshot]:
    """The snapshots of a repository in a folder, by the first layout that applies; none where nothing tells. Without ``repo_id`` of any."""
    try:
        found = (layout(folder, repo_id) for layout in (_received, _cached, _downloaded, _summed))
        return next((snapshots for snapshots in found if snapshots), [])
    except OSError as exc:
        raise unreadable([exc.filename or folder], str(exc.strerror)) from exc


def list_files(folder: Path) -> Listing:
    """The files below a folder, links followed. Hidden files and folders are no part of a model, nor are unfinished downloads."""
    listing, seen = Listing({}, {}), {os.path.realpath(folder)}
    for root, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and _is_new(Path(root, name), seen)]
        for name in names:
            if not name.startswith(".") and not name.endswith(".incomplete"):
                _enter(listing, Path(root, name), Path(root, name).relative_to(folder).as_posix())
    return listing


def _enter(listing: Listing, path: Path, name: str) -> None:
    try:
        if path.is_symlink() and not path.exists():
            listing.dangling[name] = os.readlink(path)
        elif path.is_file():
            listing.sizes[name] = path.stat().st_size
    except OSError as exc:
        raise unreadable([path], str(exc.strerror)) from exc


def is_visible(path: str) -> bool:
    return not any(part.startswith(".") for part in PurePosixPath(path).parts)


def inside(path: str, folder: Path) -> str:
    """A path that stays inside the folder, without a leading ``./``."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise VllmError(
            f"{folder} names a file outside itself ({path}).",
            code="source_inconsistent",
            remedy="Do not use this folder before you know who wrote that.",
        )
    return PurePosixPath(path).as_posix()


def unreadable(paths: t.Sequence[object], reason: str = "permission denied") -> VllmError:
    return VllmError(
        f"{some([str(path) for path in paths])} cannot be read ({reason}).",
        code="source_unreadable",
        remedy="Let the user that runs this read the whole folder.",
        details={"unreadable": [str(path) for path in paths]},
    )


# -- the layouts ---------------------------------------------------------------------------------------------------------------


def _received(folder: Path, repo_id: t.Optional[str]) -> list[Snapshot]:
    """The folder itself, or its snapshots where it is a store or one repository's part of a store; the newest first."""
    store = f"{repo_id.replace('/', '--')}/" if repo_id else "*/"
    paths = [folder / RECEIPT_NAME, *folder.glob(f"[!.]*/{RECEIPT_NAME}"), *folder.glob(f"{store}[!.]*/{RECEIPT_NAME}")]
    receipts = {path: read_receipt(path.parent) for path in paths if _is_readable(path)}
    known = {path: receipt for path, receipt in receipts.items() if receipt}
    ours = [path for path, receipt in known.items() if repo_id in {None, receipt.repo_id}]
    if known and not ours:
        raise _other_repository(folder, sorted({receipt.repo_id for receipt in known.values()}), repo_id)
    newest = sorted(ours, key=lambda path: -path.stat().st_mtime_ns)
    return [Received(path.parent, known[path]) for path in newest]


def _cached(folder: Path, repo_id: t.Optional[str]) -> list[Snapshot]:
    """The folder may be the cache, one repository in it, or one snapshot of that."""
    folder = Path(os.path.realpath(folder))
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith(_CACHED):
        homes = [folder.parent.parent]
    else:
        homes = [folder] if folder.name.startswith(_CACHED) else sorted(folder.glob(f"{_CACHED}*"))
    ours = [home for home in homes if repo_id in {None, _repository(home)}]
    if homes and not ours:
        raise _other_repository(folder, [_repository(home) for home in homes], repo_id)
    found = [snapshot for home in ours for snapshot in _cached_snapshots(home) if folder in {snapshot.folder, *snapshot.folder.parents}]
    if ours and not found:
        raise _no_snapshot(folder)
    return found


def _cached_snapshots(home: Path) -> list[Snapshot]:
    paths = [path for path in sorted((home / "snapshots").glob("*")) if COMMIT.fullmatch(path.name)]
    refs = {ref.relative_to(home / "refs").as_posix(): _text(ref).strip() for ref in (home / "refs").rglob("*") if ref.is_file()}
    names = {path: sorted(name for name, commit in refs.items() if commit == path.name) for path in paths}
    return [Cached(path, path.name, names[path], _repository(home)) for path in paths]


def _repository(home: Path) -> str:
    return home.name[len(_CACHED) :].replace("--", "/")


def _downloaded(folder: Path, repo_id: t.Optional[str]) -> list[Snapshot]:
    """Records are three lines: commit, the digest of the content, the time. One whose file is gone says nothing any more."""
    records = folder / _CLIENT / "download"
    commits: dict[str, list[str]] = {}
    digests = {}
    for record in sorted(records.rglob(f"*{_RECORD}")):
        path = record.relative_to(records).as_posix()[: -len(_RECORD)]
        commit, digest, *_rest = [*_text(record).split("\n"), "", ""]
        if COMMIT.fullmatch(commit.strip()) and os.path.lexists(folder / path):
            commits.setdefault(commit.strip(), []).append(path)
            digests[path] = digest.strip().strip('"')
    if len(commits) > 1:
        raise _mixed(folder, commits)
    return [Downloaded(folder, commit, digests) for commit in commits]


def _summed(folder: Path, repo_id: t.Optional[str]) -> list[Snapshot]:
    return [Summed(folder)] if (folder / SUMS_NAME).is_file() else []


# -- what they are read from ---------------------------------------------------------------------------------------------------


class _Listed(t.NamedTuple):
    """What the Hub's own list of files said, which newer clients keep."""

    size: t.Optional[int]
    sha256: t.Optional[str]
    git_sha1: t.Optional[str]


def _listed(path: Path) -> dict[str, _Listed]:
    """The list a newer client keeps for a commit; empty where there is none. Only its owner may read it, so that is no error."""
    try:
        files = json.loads(path.read_bytes())["files"]
        return {
            name: _Listed(
                entry.get("lfs_size", entry["size"]), entry.get("lfs_sha256"), None if "lfs_sha256" in entry else entry["blob_id"]
            )
            for name, entry in files.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _spec(path: str, size: t.Optional[int], digest: str, listed: t.Optional[_Listed]) -> FileSpec:
    """A file by its digest, which is a sha256 of large files and a git hash of others; by the list where it has none of the two."""
    if listed and listed.size is not None:
        size = listed.size
    if _SHA256.fullmatch(digest):
        return FileSpec(path, size, sha256=digest)
    if _SHA1.fullmatch(digest):
        return FileSpec(path, size, git_sha1=digest)
    return FileSpec(path, size, listed.sha256, listed.git_sha1) if listed else FileSpec(path, size)


def _read_sums(path: Path) -> dict[str, str]:
    """The hashes in a file as sha256sum writes it, for text or binary, tagged or not."""
    sums: dict[str, str] = {}
    for number, line in enumerate(_text(path).replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _SUM.fullmatch(line) or _TAGGED_SUM.fullmatch(line)
        if found is None:
            raise _malformed(path, f"line {number} is no line of sha256sum")
        name = inside(_unescaped(found["name"]) if found["escaped"] else found["name"], path.parent)
        digest = found["digest"].lower()
        if sums.setdefault(name, digest) != digest:
            raise _malformed(path, f"it names {name} twice, with different hashes")
    return sums


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as exc:
        raise unreadable([path], str(exc.strerror)) from exc


def _is_readable(path: Path) -> bool:
    """Whether there is such a file; one that may not be read is an error, not a missing one."""
    try:
        path.open("rb").close()
    except OSError as exc:
        if exc.errno in {errno.ENOENT, errno.ENOTDIR}:
            return False
        raise unreadable([path], str(exc.strerror)) from exc
    return True


def _refuse(problem: OSError) -> None:
    raise unreadable([problem.filename], str(problem.strerror)) from problem


def _is_new(folder: Path, seen: set[str]) -> bool:
    """Whether a folder was not walked yet: links may lead in circles."""
    real = os.path.realpath(folder)
    known = real in seen
    seen.add(real)
    return not known


# -- verdicts ------------------------------------------------------------------------------------------------------------------


def _other_repository(folder: Path, held: t.Sequence[str], wanted: t.Optional[str]) -> VllmError:
    return VllmError(
        f"{folder} holds {some(held)}, not {wanted}.",
        code="other_repository",
        remedy="Set source to the folder of that repository, or repo_id to what the folder holds.",
    )


def _mixed(folder: Path, commits: t.Mapping[str, t.Sequence[str]]) -> VllmError:
    parts = [f"{commit} ({some(paths, 2)})" for commit, paths in sorted(commits.items())]
    return VllmError(
        f"{folder} holds files of {len(parts)} commits: {', '.join(parts)}.",
        code="source_inconsistent",
        remedy="Remove the files of the commit that is not wanted, or download the folder anew.",
        details={"commits": sorted(commits)},
    )


def _no_snapshot(folder: Path) -> VllmError:
    return VllmError(
        f"{folder} is a cache of the Hub client without any snapshot.",
        code="source_missing",
        remedy="Copy the folders snapshots, blobs and refs of the model there, with their links.",
    )


def _malformed(path: Path, why: str) -> VllmError:
    return VllmError(f"{path} cannot be understood: {why}.", code="source_inconsistent", remedy="Write it again with sha256sum.")
