# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files make a model whole. PRIVATE to the collection.

The index's ``weight_map`` decides which shards exist. Names and numbers in names decide nothing: a model may have 125 shards
that call themselves ``of-00126`` and count from zero.
"""

from __future__ import annotations

import fnmatch
import json
import os
import typing as t
from pathlib import Path, PurePosixPath

from .errors import VllmError
from .hub import FileSpec
from .receipt import RECEIPT_NAME

__all__ = [
    "INDEX_NAME",
    "Index",
    "Selection",
    "absent_shards",
    "inconsistent",
    "index_name",
    "matches",
    "missing_tensors",
    "read_index",
    "select",
    "some",
    "unexpected",
]

INDEX_NAME = "model.safetensors.index.json"
_MISTRAL_INDEX = "consolidated.safetensors.index.json"
_MISTRAL_WEIGHTS = ("consolidated*.safetensors",)
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

Index = dict[str, set[str]]
"""The tensors each shard has to hold, by the shard's path."""


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
            if shard not in shards:
                shards[_safe(shard)] = set()
            shards[shard].add(tensor)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise inconsistent(f"{INDEX_NAME} is no index ({exc}).", [INDEX_NAME]) from exc
    if not shards:
        raise inconsistent(f"{INDEX_NAME} names no shard.", [INDEX_NAME])
    return shards


def index_name(load_format: str) -> str:
    """The index that belongs to vLLM's ``--load-format``."""
    return _MISTRAL_INDEX if load_format == "mistral" else INDEX_NAME


def absent_shards(manifest: t.Container[str], index: t.Optional[Index]) -> list[str]:
    """The shards that the index names and the repository does not hold."""
    return sorted(shard for shard in index or () if shard not in manifest)


def select(
    manifest: t.Mapping[str, FileSpec],
    index: t.Optional[Index],
    include: t.Sequence[str] = (),
    exclude: t.Sequence[str] = (),
    load_format: str = "auto",
) -> Selection:
    """The wanted files: the shards of the index, and every other file that the patterns allow.

    Without ``include``, weights outside the index are left out where an index or a single safetensors file holds them already.
    """
    for path in manifest:
        _safe(path)
    shards = _weights_of(manifest, index, load_format)
    allowed = [path for path in manifest if (not include or matches(path, include)) and not matches(path, exclude)]
    doubles = {path for path in allowed if not include and shards and path not in shards and matches(path, (*_WEIGHTS, *_COPIES))}
    if load_format == "mistral":
        doubles.discard(_MISTRAL_INDEX)
    wanted = {path for path in allowed if path not in doubles}
    if index or not include:
        wanted |= shards
    if not wanted:
        raise VllmError(
            "include and exclude leave no file of the repository.", code="nothing_selected", remedy="Widen include or narrow exclude."
        )
    weights = shards & wanted or {path for path in wanted if matches(path, _WEIGHTS)}
    return Selection({path: manifest[path] for path in sorted(wanted)}, tuple(sorted(weights)), tuple(sorted(doubles)))


def _weights_of(manifest: t.Mapping[str, FileSpec], index: t.Optional[Index], load_format: str) -> set[str]:
    """The weights that are loaded: those of the index, else the one file that holds them all; empty where only the listing can tell."""
    if index:
        return set(index)
    if load_format == "mistral":
        return {path for path in manifest if "/" not in path and matches(path, _MISTRAL_WEIGHTS)}
    return {_SINGLE} & set(manifest)


def matches(path: str, patterns: t.Sequence[str]) -> bool:
    """Whether a path, or its last part, fits one of the shell patterns; a trailing ``/`` means everything below."""
    names = (path, PurePosixPath(path).name)
    return any(fnmatch.fnmatchcase(name, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns for name in names)


def missing_tensors(index: Index, tensors: t.Mapping[str, t.AbstractSet[str]]) -> dict[str, list[str]]:
    """The tensors that the index puts into a shard and its header does not name, by shard, among the shards whose headers were read."""
    lacking = {shard: sorted(index[shard] - tensors[shard]) for shard in index.keys() & tensors.keys()}
    return {shard: names for shard, names in lacking.items() if names}


def unexpected(folder: Path, wanted: t.Container[str]) -> list[str]:
    """Weights and leftovers of downloads in the folder that nobody asked for."""
    found = []
    for root, _folders, names in os.walk(folder):
        for name in names:
            path = (Path(root) / name).relative_to(folder).as_posix()
            if path not in wanted and name != RECEIPT_NAME and matches(name, (*_WEIGHTS, "*.incomplete")):
                found.append(path)
    return sorted(found)


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


def _safe(path: str) -> str:
    """A path that stays inside the folder."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0] in {".cache", RECEIPT_NAME}:
        raise inconsistent(f"The repository names a file outside its own folder ({path}).", [path])
    return path
