# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model folder holds, held against what it has to hold. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import typing as t
from pathlib import Path

from . import download_verdicts as verdicts
from .download_job import Effects, Request
from .hub import FileSpec
from .receipt import RECEIPT_NAME, Entry, Receipt, identify
from .snapshot import INDEX_NAME, Damage, Index, Selection, is_published, matches, missing_tensors, prove_all, read_index, select

__all__ = ["Survey", "Surveyor"]

_SINGLE = "model.safetensors"


class Survey(t.NamedTuple):
    """Each wanted file's verdict: proven, or not and why. ``good`` grows as files are fetched; ``bad`` stays as it was found."""

    manifest: dict[str, FileSpec]
    tensors: t.Optional[Index]
    selection: Selection
    good: dict[str, Entry]
    bad: dict[str, Damage]

    def wanting(self) -> list[FileSpec]:
        """The files that have to be fetched."""
        return [self.selection.files[name] for name in sorted(self.bad)]

    def shards(self, *, missing: bool) -> list[str]:
        """The shards that are missing, or else those that are damaged."""
        return [name for name in self.selection.shards if name in self.bad and (self.bad[name].kind == "missing") == missing]

    def check_tensors(self, where: t.Callable[[str], Path]) -> None:
        """Every tensor of the index has to be in the shard it names."""
        lacking = missing_tensors(self.tensors or {}, where)
        if lacking:
            raise verdicts.lacking_tensors(lacking)


class Surveyor:
    """Looks at one folder for one commit."""

    def __init__(self, request: Request, effects: Effects, commit: str, folder: Path, staging: Path) -> None:
        self.request = request
        self.effects = effects
        self.commit = commit
        self.folder = folder
        self.staging = staging
        self.attributes_changed = False

    def survey(self, receipt: t.Optional[Receipt]) -> Survey:
        """Prove what is there, at the level that is asked for."""
        manifest = self._manifest(receipt)
        index = self._index(manifest)
        selection = select(manifest, index, self.request.include, self.request.exclude)
        if self.folder.is_dir() and not self.request.check:
            self.settle(self.folder, selection.files)
            if receipt and self.attributes_changed:
                receipt = receipt._replace(files=self._settled(receipt))
        good, bad = self._judge(selection, receipt)
        broken = verdicts.broken_as_published(self.request.repo_id, bad)
        if broken:
            raise broken
        return Survey(manifest, index, selection, good, bad)

    def settle(self, folder: Path, names: t.Iterable[str]) -> None:
        """Owner and mode of files and of the folders they lie in: before hashing, since a change of either moves the ctime."""
        paths = {folder, folder / RECEIPT_NAME}
        for name in names:
            path = folder / name
            paths.update((path, *(parent for parent in path.parents if folder in parent.parents)))
        for path in sorted(paths):
            if path.exists() and self.effects.settle(path):
                self.attributes_changed = True

    def prove(self, folder: Path, specs: t.Sequence[FileSpec], *, content: bool) -> tuple[dict[str, Entry], dict[str, Damage]]:
        """Prove files, and show how far that is where their content is read."""
        total, done, count = sum(spec.size or 0 for spec in specs), 0, 0

        def proven(spec: FileSpec) -> None:
            nonlocal done, count
            done, count = done + (spec.size or 0), count + 1
            if content and folder.is_dir():
                self.effects.report(
                    {"what": "proving", "done": done, "total": total, "unit": "B", "files": count, "files_total": len(specs)}
                )

        return prove_all(folder, specs, content=content, done=proven)

    def _settled(self, receipt: Receipt) -> dict[str, Entry]:
        """The receipt's entries after our own change of owner or mode, for files that differ in nothing but ctime."""
        entries = dict(receipt.files)
        for name, entry in receipt.files.items():
            with contextlib.suppress(OSError):
                now = identify(self.folder / name, entry.sha256)
                entries[name] = now if now._replace(ctime_ns=0) == entry._replace(ctime_ns=0) else entry
        return entries

    def _manifest(self, receipt: t.Optional[Receipt]) -> dict[str, FileSpec]:
        if receipt and receipt.commit == self.commit:
            return receipt.manifest
        return self._found_here() if self.request.offline else self.effects.hub.files(self.commit)

    def _found_here(self) -> dict[str, FileSpec]:
        """What can be known without hub and receipt: the files on disk and those that the index on disk names."""
        paths = [path.relative_to(self.folder) for path in self.folder.rglob("*") if not path.is_dir()] if self.folder.is_dir() else []
        manifest = {path.as_posix(): FileSpec(path.as_posix(), None) for path in paths if not path.parts[0].startswith(".")}
        if INDEX_NAME in manifest:
            manifest.update((shard, FileSpec(shard, None)) for shard in read_index((self.folder / INDEX_NAME).read_bytes()))
        elif _SINGLE not in manifest:
            raise verdicts.nothing_to_prove(self.folder)
        if self.request.verify == "sha256":
            raise verdicts.hashes_unknown(self.request.repo_id)
        return manifest

    def _index(self, manifest: t.Mapping[str, FileSpec]) -> t.Optional[Index]:
        """The index as published: from the disk where it is there and right, else from the hub."""
        spec = manifest.get(INDEX_NAME)
        include, exclude = self.request.include, self.request.exclude
        if spec is None or (include and not matches(INDEX_NAME, include)) or matches(INDEX_NAME, exclude):
            return None
        for folder in (self.folder, self.staging):
            with contextlib.suppress(OSError):
                raw = (folder / INDEX_NAME).read_bytes()
                if is_published(raw, spec):
                    return read_index(raw)
        if self.request.offline:
            raise verdicts.unrepaired(self.folder, {INDEX_NAME: Damage("is missing or damaged", "missing")})
        raw = self.effects.hub.read(self.commit, INDEX_NAME)
        if not is_published(raw, spec):
            raise verdicts.corrupt_source(self.effects.hub.endpoint, {INDEX_NAME: Damage("has other content than published")})
        return read_index(raw)

    def _judge(self, selection: Selection, receipt: t.Optional[Receipt]) -> tuple[dict[str, Entry], dict[str, Damage]]:
        """Each wanted file's verdict. What an earlier proof said about the very same file is kept, whatever the level."""
        level, known = self.request.verify, self._known(selection, receipt)
        trusted = known if level == "receipt" else {}
        rest = [spec for name, spec in selection.files.items() if name not in trusted]
        content = level == "sha256" or (level == "receipt" and not self.request.check)
        good, bad = self.prove(self.folder, rest, content=content)
        good = {name: known.get(name, entry) if entry.sha256 is None else entry for name, entry in good.items()}
        return {**trusted, **good}, bad

    def _known(self, selection: Selection, receipt: t.Optional[Receipt]) -> dict[str, Entry]:
        """The files that an earlier proof by hash still speaks for."""
        if receipt is None:
            return {}
        same = {
            name: entry for name, entry in receipt.files.items() if entry.sha256 and receipt.manifest.get(name) == selection.files.get(name)
        }
        return {name: entry for name, entry in same.items() if entry.holds_for(self.folder / name)}
