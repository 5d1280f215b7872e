# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files make a model whole, and whether the ones on disk are they. PRIVATE to the collection.

The index's ``weight_map`` decides which shards exist. Names and numbers in names decide nothing: a model may have 125 shards
that call themselves ``of-00126`` and count from zero.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import typing as t
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path, PurePosixPath

from .errors import VllmError
from .hub import FileSpec
from .receipt import RECEIPT_NAME, Entry, identify
from .safetensors import Malformed, read_header, stranger

__all__ = [
    "INDEX_NAME",
    "Damage",
    "Index",
    "Selection",
    "inconsistent",
    "is_published",
    "matches",
    "missing_tensors",
    "prove",
    "prove_all",
    "read_index",
    "select",
    "some",
    "unexpected",
]

INDEX_NAME = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_WEIGHTS = (
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.gguf",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "*.tflite",
    "*.ot",
    "*.npz",
)
_COPIES = ("original/*", "metal/*", "onnx/*", "consolidated*")
_CHUNK = 4 * 1024 * 1024

Index = dict[str, set[str]]
"""The tensors each shard has to hold, by the shard's path."""


class Damage(ValueError):
    """Why a file is not what it has to be, as a clause that follows the file's name.

    ``kind`` is ``missing``, ``damaged``, or ``published`` where the file is exactly as published and unsound all the same.
    """

    def __init__(self, why: str, kind: str = "damaged") -> None:
        super().__init__(why)
        self.kind = kind


class Selection(t.NamedTuple):
    """The files that are wanted, which of them are weights, and what was left out as a second copy of the weights."""

    files: dict[str, FileSpec]
    shards: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def total(self) -> int:
        return sum(spec.size or 0 for spec in self.files.values())


def read_index(raw: bytes) -> Index:
    """The shards an index names and the tensors it puts into each."""
    try:
        weight_map = json.loads(raw.decode("utf-8"))["weight_map"]
        shards: Index = {}
        for tensor, shard in weight_map.items():
            shards.setdefault(_safe(shard), set()).add(tensor)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise inconsistent(f"{INDEX_NAME} is no index ({exc}).", [INDEX_NAME]) from exc
    if not shards:
        raise inconsistent(f"{INDEX_NAME} names no shard.", [INDEX_NAME])
    return shards


def select(
    manifest: t.Mapping[str, FileSpec],
    index: t.Optional[Index],
    include: t.Sequence[str] = (),
    exclude: t.Sequence[str] = (),
) -> Selection:
    """The wanted files: the shards of the index, and every other file that the patterns allow.

    Without ``include``, weights outside the index are left out where an index or a single safetensors file holds them already.
    """
    for path in manifest:
        _safe(path)
    shards = set(index or ())
    absent = sorted(shards - set(manifest))
    if absent:
        raise inconsistent(
            f"{INDEX_NAME} names {some(absent)}, which the repository does not hold; every file it does hold can be fetched.", absent
        )
    if not shards and _SINGLE in manifest:
        shards = {_SINGLE}
    allowed = [path for path in manifest if (not include or matches(path, include)) and not matches(path, exclude)]
    doubles = {
        path for path in allowed if not include and shards and path not in shards and (matches(path, _WEIGHTS) or matches(path, _COPIES))
    }
    wanted = {path for path in allowed if path not in doubles}
    if index or not include:
        wanted |= shards
    if not wanted:
        raise VllmError(
            "include and exclude leave no file of the repository.", code="nothing_selected", remedy="Widen include or narrow exclude."
        )
    weights = shards & wanted or {path for path in wanted if matches(path, _WEIGHTS)}
    return Selection({path: manifest[path] for path in sorted(wanted)}, tuple(sorted(weights)), tuple(sorted(doubles)))


def matches(path: str, patterns: t.Sequence[str]) -> bool:
    """Whether a path, or its last part, fits one of the shell patterns; a trailing ``/`` means everything below."""
    names = (path, PurePosixPath(path).name)
    return any(fnmatch.fnmatchcase(name, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns for name in names)


def prove(path: Path, spec: FileSpec, *, content: bool) -> Entry:
    """Prove one file, by its hash if ``content`` or else by its structure; raises :class:`Damage`."""
    if path.is_symlink() and not path.exists():
        raise Damage(f"is a link to {os.readlink(path)}, which does not exist here (copy the folder with links followed)")
    if not path.exists():
        raise Damage("is missing", "missing")
    before = identify(path)
    if spec.size is not None and before.size != spec.size:
        raise Damage(_wrong_size(path, before.size, spec.size))
    digest = _content(path, spec, before.size) if content and (spec.sha256 or spec.git_sha1) else None
    if spec.path.endswith(".safetensors"):
        _structure(path, published=digest is not None)
    if identify(path) != before:
        raise Damage("was changed while it was being read")
    return before._replace(sha256=digest)


def prove_all(
    folder: Path,
    specs: t.Sequence[FileSpec],
    *,
    content: bool,
    done: t.Callable[[FileSpec], None] = lambda spec: None,
) -> tuple[dict[str, Entry], dict[str, Damage]]:
    """Prove many files, hashing on every core. Returns the proven ones, and for the others why not."""
    good: dict[str, Entry] = {}
    bad: dict[str, Damage] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(os.sched_getaffinity(0)))) as pool:
        jobs = {pool.submit(prove, folder / spec.path, spec, content=content): spec for spec in specs}
        for job in as_completed(jobs):
            spec = jobs[job]
            try:
                good[spec.path] = job.result()
            except Damage as damage:
                bad[spec.path] = damage
            except OSError as exc:
                bad[spec.path] = Damage(f"cannot be read ({exc.strerror})")
            done(spec)
    return good, bad


def missing_tensors(index: Index, where: t.Callable[[str], Path]) -> dict[str, list[str]]:
    """The tensors that the index puts into a shard and its header does not name, by shard; ``where`` finds a shard's file."""
    lacking = {shard: sorted(tensors - set(read_header(where(shard)))) for shard, tensors in index.items()}
    return {shard: tensors for shard, tensors in lacking.items() if tensors}


def unexpected(folder: Path, wanted: t.Container[str]) -> list[str]:
    """Weights and leftovers of downloads in the folder that nobody asked for."""
    found = []
    for root, _folders, names in os.walk(folder):
        for name in names:
            path = (Path(root) / name).relative_to(folder).as_posix()
            if path not in wanted and name != RECEIPT_NAME and matches(name, (*_WEIGHTS, "*.incomplete")):
                found.append(path)
    return sorted(found)


def _structure(path: Path, *, published: bool) -> None:
    try:
        read_header(path)
    except Malformed as exc:
        raise Damage(str(exc), "published" if published else "damaged") from exc


def is_published(raw: bytes, spec: FileSpec) -> bool:
    """Whether these bytes are the content published for a file."""
    if spec.sha256:
        return hashlib.sha256(raw).hexdigest() == spec.sha256
    blob = hashlib.sha1(b"blob %d\0" % len(raw), usedforsecurity=False)
    blob.update(raw)
    return spec.git_sha1 in {None, blob.hexdigest()}


def inconsistent(message: str, names: t.Sequence[str]) -> VllmError:
    """The published repository contradicts itself."""
    return VllmError(
        message,
        code="repository_inconsistent",
        remedy="Downloading again will not help: choose another revision or tell its publisher.",
        details={"damaged": list(names)},
    )


def some(names: t.Sequence[str], most: int = 5) -> str:
    """A few of many names, for a sentence."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _wrong_size(path: Path, size: int, expected: int) -> str:
    with path.open("rb") as file:
        what = stranger(file.read(64), size)
    return what or f"has {size} bytes instead of {expected}"


def _content(path: Path, spec: FileSpec, size: int) -> str:
    """The sha256 of the content, once it equals what is published."""
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if spec.sha256 is None else None
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while True:
            count = file.readinto(buffer)
            if not count:
                break
            sha256.update(buffer[:count])
            if blob:
                blob.update(buffer[:count])
    found, expected = (blob.hexdigest(), spec.git_sha1) if blob else (sha256.hexdigest(), spec.sha256)
    if found != expected:
        raise Damage(f"has other content than published ({'git sha1' if blob else 'sha256'} {found} instead of {expected})")
    return sha256.hexdigest()


def _safe(path: str) -> str:
    """A path that stays inside the folder."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0] in {".cache", RECEIPT_NAME}:
        raise inconsistent(f"The repository names a file outside its own folder ({path}).", [path])
    return path
