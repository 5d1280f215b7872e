# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The safetensors file format, as far as a proof of wholeness needs it. PRIVATE to the collection.

A file is eight bytes of header length (little endian), that many bytes of JSON, then the data. Every tensor names its slice of
the data; whole means that the slices follow one another without a gap and end exactly at the last byte of the file.
"""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

__all__ = ["Malformed", "Tensor", "parse_header", "read_header", "stranger"]

_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000
"""The limit of the format's own reader."""

_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


class Malformed(ValueError):
    """Why a file is no whole safetensors file, as a clause that follows the file's name."""


class Tensor(t.NamedTuple):
    """One tensor of a header: its type, its shape and its slice of the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a whole safetensors file; raises :class:`Malformed` where the file is anything else."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(64)
        wrong = stranger(head, size)
        if wrong:
            raise Malformed(wrong)
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if size < _LENGTH_BYTES or length > _MAX_HEADER:
            raise Malformed("is no safetensors file (its first eight bytes are no header length)")
        if length > size - _LENGTH_BYTES:
            raise Malformed(f"is cut short inside its header ({size} bytes, the header alone takes {length + _LENGTH_BYTES})")
        file.seek(_LENGTH_BYTES)
        return parse_header(file.read(length), size - _LENGTH_BYTES - length)


def stranger(head: bytes, size: int) -> str:
    """What a file obviously is instead of content, told by its first bytes; empty when nothing is obvious."""
    if size == 0:
        return "is empty"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer instead of the content (the repository was cloned without LFS)"
    if head.lstrip()[:1] == b"<" and head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "is an HTML or XML page instead of the content (a proxy or a login page answered)"
    return ""


def parse_header(raw: bytes, data_bytes: int) -> dict[str, Tensor]:
    """The tensors a header names, proven to cover ``data_bytes`` bytes without a gap."""
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as exc:
        raise Malformed(f"has a header that is no JSON ({exc})") from exc
    if not raw.startswith(b"{") or not isinstance(document, dict):
        raise Malformed("has a header that is no JSON object")
    _check_metadata(document.pop("__metadata__", None))
    tensors = {name: _tensor(name, entry) for name, entry in document.items()}
    _check_coverage(tensors, data_bytes)
    return tensors


def _without_duplicates(pairs: t.Sequence[tuple[str, t.Any]]) -> dict[str, t.Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _check_metadata(metadata: t.Any) -> None:
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
        raise Malformed("has a header whose __metadata__ is no map of text")


def _tensor(name: str, entry: t.Any) -> Tensor:
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        start, end = offsets
        numbers = [*shape, start, end]
    except (KeyError, TypeError, ValueError) as exc:
        raise Malformed(f"has a header entry without type, shape or offsets ({name})") from exc
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise Malformed(f"has a tensor of an unknown type ({name}: {dtype})")
    if not all(map(_is_count, numbers)) or start > end:
        raise Malformed(f"has a tensor with impossible offsets ({name})")
    bits = _BITS[dtype]
    for dimension in shape:
        bits *= dimension
    if bits != (end - start) * 8:
        raise Malformed(f"has a tensor whose shape does not fit its bytes ({name})")
    return Tensor(dtype, tuple(shape), start, end)


def _is_count(number: t.Any) -> bool:
    """A true in JSON is no number, although Python takes it for one."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _check_coverage(tensors: t.Mapping[str, Tensor], data_bytes: int) -> None:
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start != position:
            raise Malformed(f"has a gap or an overlap in its data (before {name})")
        position = tensor.end
    if position > data_bytes:
        raise Malformed(f"is cut short: its header declares {position} bytes of data, {data_bytes} are there")
    if position < data_bytes:
        raise Malformed(f"has {data_bytes - position} bytes after its last tensor")
