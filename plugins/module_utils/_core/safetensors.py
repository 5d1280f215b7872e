# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The safetensors file format, as far as a proof of wholeness needs it. PRIVATE to the collection.

A file is eight bytes of header length (little endian), that many bytes of JSON, then the data. Every tensor names its slice of
the data; whole means that the slices follow one another without a gap and end exactly at the last byte of the file.

What is accepted here is what the format's own reader accepts, to the letter: the engine loads with that one, so a stricter proof
would refuse files that serve, and a laxer one would pass files that do not. tests/fuzz compares the two.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import typing as t
from functools import partial
from itertools import accumulate
from pathlib import Path

__all__ = ["Malformed", "Tensor", "announce_headers", "parse_header", "read_header", "stranger"]

_LENGTH_BYTES = 8
_READ_AT_ONCE = 1 << 17
"""Holds most headers: a second read is a second wait for a cold disk."""

# The limits of the format's own reader.
_MAX_HEADER = 100_000_000
_MAX_DEPTH = 127
_MAX_COUNT = (1 << 64) - 1
_MAX_EXPONENT = (1 << 31) - 1

_FIELDS = ("dtype", "shape", "data_offsets")
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
    with path.open("rb", buffering=_READ_AT_ONCE) as file:
        size = os.fstat(file.fileno()).st_size
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
        raw = file.read(length)
    return parse_header(raw, size - _LENGTH_BYTES - length)


def announce_headers(paths: t.Iterable[Path]) -> None:
    """Let the disk begin with all headers at once, before the first of them is waited for."""
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, _READ_AT_ONCE, os.POSIX_FADV_WILLNEED)


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
        text = raw.decode("utf-8")
    except ValueError as exc:
        raise Malformed(f"has a header that is no text ({exc})") from exc
    return _plainly_whole(text, data_bytes) or _closely_examined(text, _LENGTH_BYTES + len(raw), data_bytes)


_ENTRY = re.compile(
    r'"([^"\\\x00-\x1f]*)": ?\{"dtype": ?"([A-Z0-9_]+)", ?"shape": ?\[([0-9, ]{0,99})\], ?"data_offsets": ?\[([0-9]+), ?([0-9]+)\]\}'
)
"""A tensor as programs write it: the format's own writer without blanks, Python's with one behind each colon and comma."""


def _plainly_whole(text: str, data_bytes: int) -> dict[str, Tensor]:
    """The tensors of a header as programs write them; nothing where something is unusual, or wrong.

    A large model has a hundred thousand tensors, and this takes about the time that reading JSON alone would take. Types and shapes,
    of which there are few, say how many bytes each tensor takes; where all of them start and end follows, digit by digit.
    """
    before, *pieces = _ENTRY.split(text)
    names, dtypes, shapes, starts, ends, behind = (pieces[place::6] for place in range(6))
    kinds = list(zip(dtypes, shapes))
    known = {kind: _plain_shape(*kind) for kind in set(kinds)}
    if any(size is None for _shape, size in known.values()) or not _is_plain_frame(before, behind):
        return {}
    stops = list(accumulate(known[kind][1] or 0 for kind in kinds))
    if stops[-1] != data_bytes or ends != list(map(str, stops)) or starts != ["0", *ends[:-1]]:
        return {}
    values = zip(dtypes, (known[kind][0] for kind in kinds), [0, *stops], stops)
    tensors = dict(zip(names, map(_make_tensor, values)))
    return tensors if len(tensors) == len(names) and "__metadata__" not in tensors else {}


_make_tensor: t.Callable[[tuple[t.Any, ...]], Tensor] = partial(tuple.__new__, Tensor)
"""As ``Tensor._make``, which runs Python for each."""


def _plain_shape(dtype: str, text: str) -> tuple[tuple[int, ...], t.Optional[int]]:
    """A shape and the bytes it takes; None where the text is not what a program would write."""
    shape = tuple(int(digits) for digits in re.findall("[0-9]+", text))
    return shape, _size(dtype, shape) if ",".join(map(str, shape)) == text.replace(", ", ",") else None


def _is_plain_frame(before: str, behind: t.Sequence[str]) -> bool:
    """Whether the text around the tensors makes them one object: at most metadata before them, and blanks at the end."""
    if not behind or behind[-1].rstrip(" ") != "}" or set(behind[:-1]) - {",", ", "}:
        return False
    if before == "{":
        return True
    if not before.rstrip(" ").endswith(","):
        return False
    try:
        ((name, value),) = _decode(before.rstrip(" ")[:-1] + "}")
    except (ValueError, RecursionError):
        return False
    return name == "__metadata__" and _is_metadata(value)


def _decode(text: str) -> t.Any:
    """JSON as the format's own reader takes it; an object becomes a tuple of pairs, so that nothing that occurs twice is lost."""
    document = _DECODER.decode(text)
    if "\\u" in text:
        # Fails where an escape is half of a surrogate pair, which Python lets pass.
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    return document


def _integer(text: str) -> t.Union[int, float]:
    """A whole number; what does not fit its type, or is the zero below zero, is no whole number to the format's own reader."""
    return _float(text) if text == "-0" or len(text) > len(str(_MAX_COUNT)) else int(text)


def _float(text: str) -> float:
    """Any other number: allowed where nobody reads it, unless too large even for that."""
    if not _is_finite(text):
        raise ValueError("a number is out of range")
    return math.nan


def _constant(text: str) -> t.NoReturn:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(object_pairs_hook=tuple, parse_float=_float, parse_int=_integer, parse_constant=_constant)
_NUMBER = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?(?:[eE](?:\+|(-))?([0-9]+))?")


def _is_finite(text: str) -> bool:
    """Whether the format's own reader can hold a number, by its own arithmetic: it drops digits and rounds twice."""
    whole, fraction, negative, exponent = t.cast("re.Match[str]", _NUMBER.fullmatch(text)).groups("")
    significand, used = _accumulate(0, whole, _MAX_COUNT)
    power = len(whole) - used
    significand, used = _accumulate(significand, fraction, _MAX_COUNT)
    size, digits = _accumulate(0, exponent, _MAX_EXPONENT)
    power += (-size if negative else size) - used
    if significand == 0 or digits < len(exponent):
        return significand == 0 or bool(negative)
    return power < 0 or (power <= 308 and float(significand) * float(f"1e{power}") < math.inf)


def _accumulate(number: int, digits: str, limit: int) -> tuple[int, int]:
    """A number with as many of the digits appended as fit under the limit, and how many these are."""
    zeros = 0 if number else len(digits) - len(digits.lstrip("0"))
    for used, digit in enumerate(digits[zeros:], zeros):
        longer = number * 10 + int(digit)
        if longer > limit:
            return number, used
        number = longer
    return number, len(digits)


def _closely_examined(text: str, data_start: int, data_bytes: int) -> dict[str, Tensor]:
    """The tensors of any header, or what is wrong with it."""
    try:
        document = _decode(text)
    except (ValueError, RecursionError) as exc:
        raise Malformed(f"has a header that is no JSON ({exc})") from exc
    if not isinstance(document, tuple):
        raise Malformed("has a header that is no JSON object")
    metadata = [value for name, value in document if name == "__metadata__"]
    if len(metadata) > 1 or not all(map(_is_metadata, metadata)):
        raise Malformed("has a header whose __metadata__ is no map of text")
    # Of two tensors with one name the later counts, as for the format's own reader.
    tensors = {name: _tensor(name, entry) for name, entry in document if name != "__metadata__"}
    _check_coverage(tensors, data_start, data_bytes)
    return tensors


def _is_metadata(value: t.Any) -> bool:
    return value is None or (isinstance(value, tuple) and all(isinstance(text, str) for _name, text in value))


def _tensor(name: str, entry: t.Any) -> Tensor:
    """One entry of the header, well formed; whether its numbers fit one another is the next question."""
    try:
        dtype, shape, offsets = _fields(entry)
        start, end = offsets
        numbers = [*shape, start, end]
    except (TypeError, ValueError) as exc:
        raise Malformed(f"has a header entry without type, shape or offsets ({name})") from exc
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise Malformed(f"has a header entry without type, shape or offsets ({name})")
    if not all(map(_is_count, numbers)):
        raise Malformed(f"has a tensor with impossible numbers ({name})")
    dtype = dtype if isinstance(dtype, str) else _wrapped(dtype)
    if dtype not in _BITS:
        raise Malformed(f"has a tensor of an unknown type ({name}: {dtype})")
    return Tensor(dtype, tuple(shape), start, end)


def _fields(entry: t.Any) -> t.Sequence[t.Any]:
    """Type, shape and offsets of an entry, which may be a bare array of them; raises ``ValueError`` or ``TypeError``."""
    if not isinstance(entry, tuple):
        return t.cast("t.Sequence[t.Any]", entry)
    known = [(name, value) for name, value in entry if name in _FIELDS]
    fields = dict(known)
    if len(known) != len(fields) or len(fields) != len(_FIELDS):
        raise ValueError("a field is missing or occurs twice")
    for name, value in entry:
        if name not in _FIELDS:
            _check_unread(value, 3)
    return [fields[name] for name in _FIELDS]


def _check_unread(value: t.Any, depth: int) -> None:
    """A value that means nothing, and yet must be one that the format's own reader can hold."""
    if not isinstance(value, (list, tuple)):
        return
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    for inner in value:
        _check_unread(inner[1] if isinstance(value, tuple) else inner, depth + 1)


def _wrapped(dtype: t.Any) -> str:
    """The type that is written as an object with nothing in it, ``{"U8": null}``: another spelling of the name."""
    if isinstance(dtype, tuple) and len(dtype) == 1 and dtype[0][1] is None:
        return t.cast(str, dtype[0][0])
    return "none"


def _size(dtype: t.Any, shape: t.Sequence[t.Any]) -> t.Optional[int]:
    """The bytes of a tensor; None where there is no such tensor."""
    if dtype not in _BITS or not all(map(_is_count, shape)):
        return None
    count = 1
    for dimension in shape:
        count *= dimension
        if count > _MAX_COUNT:  # also where a later zero would make it small again
            return None
    bits = count * _BITS[dtype]
    return bits // 8 if bits <= _MAX_COUNT and bits % 8 == 0 else None


def _is_count(number: t.Any) -> bool:
    """A true in JSON is no number, although Python takes it for one."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _MAX_COUNT


def _check_coverage(tensors: t.Mapping[str, Tensor], data_start: int, data_bytes: int) -> None:
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1][2:]):
        start, end = tensor.start, tensor.end
        if end < start:
            raise Malformed(f"has a tensor with impossible offsets ({name})")
        if start != position:
            raise Malformed(f"has a gap or an overlap in its data (before {name})")
        if _size(tensor.dtype, tensor.shape) != end - start:
            raise Malformed(f"has a tensor whose shape does not fit its bytes ({name})")
        position = end
    if position > data_bytes:
        raise Malformed(f"is cut short: its header declares {data_start + position} bytes, {data_start + data_bytes} are there")
    if position < data_bytes:
        raise Malformed(f"has {data_bytes - position} bytes after its last tensor")
