# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model folder holds, held against what it has to hold. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import typing as t
from pathlib import Path, PurePosixPath

from . import download_verdicts as verdicts
from .download_job import Effects, Request
from .hub import FileSpec
from .proof import Damage, Meter, Proof, is_published, prove_all
from .receipt import RECEIPT_NAME, Entry, Receipt, identify
from .snapshot import Index, Selection, absent_shards, index_name, matches, missing_tensors, read_index, select

__all__ = ["Survey", "Surveyor"]

_SINGLE = "model.safetensors"


class Survey(t.NamedTuple):
    """Each wanted file's verdict: proven, or not and why. ``good`` and ``tensors`` grow as files come in; ``bad`` stays as it was found."""

    manifest: dict[str, FileSpec]
    weight_map: t.Optional[Index]
    selection: Selection
    good: dict[str, Entry]
    bad: dict[str, Damage]
    tensors: dict[str, frozenset[str]]

    def wanting(self) -> list[FileSpec]:
        """The files that have to be fetched."""
        return [self.selection.files[name] for name in sorted(self.bad)]

    def shards(self, *, missing: bool) -> list[str]:
        """The shards that are missing, or else those that are damaged."""
        return [name for name in self.selection.shards if name in self.bad and (self.bad[name].kind == "missing") == missing]

    def take(self, proof: Proof) -> None:
        """Count in what has come."""
        self.good.update(proof.good)
        self.tensors.update(proof.tensors)

    def check_tensors(self) -> None:
        """Every tensor of the index has to be in the shard it names; for shards that a receipt speaks for that was seen before."""
        lacking = missing_tensors(self.weight_map or {}, self.tensors)
        if lacking:
            raise verdicts.lacking_tensors(lacking)

    def unindexed(self) -> list[str]:
        """The tensors that a shard holds and the index puts nowhere."""
        index = self.weight_map or {}
        return sorted(name for shard in index.keys() & self.tensors.keys() for name in self.tensors[shard] - index[shard])


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
        request = self.request
        manifest = self._manifest(receipt)
        index = self._index(manifest)
        absent = absent_shards(manifest, index)
        if absent:
            raise verdicts.index_disagrees(index_name(request.load_format), absent, self._holds_all(manifest))
        selection = select(manifest, index, request.include, request.exclude, request.load_format)
        if self._hashes_matter() and not all(spec.sha256 or spec.git_sha1 for spec in selection.files.values()):
            raise verdicts.hashes_unknown(self.effects.source.address, offline=request.offline)
        known = self._known(selection, receipt)
        if self.folder.is_dir() and not request.check:
            self.settle(self.folder, selection.files)
            known = {name: identify(self.folder / name, entry.sha256) for name, entry in known.items()}
        proof = self._judge(selection, known)
        broken = verdicts.broken_as_published(request.repo_id, proof.bad)
        if broken:
            raise broken
        return Survey(manifest, index, selection, *proof)

    def settle(self, folder: Path, names: t.Iterable[str]) -> None:
        """Owner and mode of files and of the folders they lie in: before hashing, since a change of either moves the ctime."""
        paths = {folder, folder / RECEIPT_NAME}
        for name in names:
            paths.add(folder / name)
            if "/" in name:
                paths.update(folder / parent for parent in PurePosixPath(name).parents)
        for path in sorted(paths):
            if path.exists() and not path.is_symlink() and self.effects.settle(path, False):
                self.attributes_changed = True

    def prove(self, folder: Path, specs: t.Sequence[FileSpec], *, content: bool, keep_cache: bool = False) -> Proof:
        """Prove files, and show how far that is where their content is read."""
        meter = Meter(self.effects.report, "proving", specs) if content and folder.is_dir() else None
        return prove_all(folder, specs, content=content, keep_cache=keep_cache, meter=meter)

    def _hashes_matter(self) -> bool:
        """What is fetched has to be proven by its hash, unless less was asked for in so many words."""
        return self.request.verify == "sha256" or (self.request.verify == "receipt" and not self.request.offline)

    def _holds_all(self, manifest: t.Mapping[str, FileSpec]) -> bool:
        """Whether the folder holds every file of the repository in its published size."""
        paths = ((self.folder / spec.path, spec.size) for spec in manifest.values())
        return all(path.is_file() and size in {None, path.stat().st_size} for path, size in paths)

    def _manifest(self, receipt: t.Optional[Receipt]) -> dict[str, FileSpec]:
        if receipt and receipt.commit == self.commit:
            return receipt.manifest
        return self._found_here() if self.request.offline else self.effects.source.files(self.commit)

    def _found_here(self) -> dict[str, FileSpec]:
        """What can be known without a source and a receipt: the files on disk and those that the index on disk names."""
        name = index_name(self.request.load_format)
        paths = [path.relative_to(self.folder) for path in self.folder.rglob("*") if not path.is_dir()] if self.folder.is_dir() else []
        manifest = {path.as_posix(): FileSpec(path.as_posix(), None) for path in paths if not path.parts[0].startswith(".")}
        if name in manifest:
            manifest.update((shard, FileSpec(shard, None)) for shard in read_index((self.folder / name).read_bytes()))
        elif _SINGLE not in manifest:
            raise verdicts.nothing_to_prove(self.folder)
        return manifest

    def _index(self, manifest: t.Mapping[str, FileSpec]) -> t.Optional[Index]:
        """The index as published: from the disk where it is there and right, else from the source."""
        name = index_name(self.request.load_format)
        spec = manifest.get(name)
        include, exclude = self.request.include, self.request.exclude
        if spec is None or (include and not matches(name, include)) or matches(name, exclude):
            return None
        for folder in (self.folder, self.staging):
            with contextlib.suppress(OSError):
                raw = (folder / name).read_bytes()
                if is_published(raw, spec):
                    return read_index(raw)
        if self.request.offline:
            raise verdicts.unrepaired(self.folder, {name: Damage("is missing or damaged", "missing")})
        raw = self.effects.source.read(self.commit, name)
        if not is_published(raw, spec):
            raise verdicts.corrupt_source(self.effects.source.address, {name: Damage("has other content than published")})
        return read_index(raw)

    def _judge(self, selection: Selection, known: t.Mapping[str, Entry]) -> Proof:
        """Each wanted file's verdict. What an earlier proof said about the very same file is kept, whatever the level."""
        level = self.request.verify
        trusted = known if level == "receipt" else {}
        rest = [spec for name, spec in selection.files.items() if name not in trusted]
        content = level == "sha256" or (level == "receipt" and not self.request.check)
        proof = self.prove(self.folder, rest, content=content)
        good = {name: known.get(name, entry) if entry.sha256 is None else entry for name, entry in proof.good.items()}
        return proof._replace(good={**trusted, **good})

    def _known(self, selection: Selection, receipt: t.Optional[Receipt]) -> dict[str, Entry]:
        """The files that an earlier proof by hash still speaks for."""
        if receipt is None:
            return {}
        return {
            name: receipt.files[name]
            for name in receipt.holding(self.folder)
            if receipt.files[name].sha256 and receipt.manifest.get(name) == selection.files.get(name)
        }
