# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import typing as t
from pathlib import Path
from random import Random

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.safetensors import Malformed, Tensor, read_header
from fuzz.safetensors_inputs import DTYPES, any_file, packed
from hypothesis import given, settings
from hypothesis import strategies as st

A = {"dtype": "F8_E4M3", "shape": [2, 4], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}
BOTH = {"a": Tensor("F8_E4M3", (2, 4), 0, 8), "b": Tensor("F32", (2,), 8, 16)}
COMPACT = (",", ":")

U8 = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
EMPTY = '"dtype":"U8","shape":[0],"data_offsets":[0,0]'


def written(header: t.Any, data: bytes) -> bytes:
    return packed(header if isinstance(header, (bytes, str)) else json.dumps(header), data)


def unread(value: str) -> bytes:
    """A file with a value in a field that nobody reads."""
    return packed(f'{{"a":{{{EMPTY},"x":{value}}}}}')


def shaped(shape: str, dtype: str = "U8", data: int = 0) -> bytes:
    return packed(f'{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{data}]}}}}', bytes(data))


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"__metadata__": {"format": "pt"}, "a": A, "b": B}, separators=COMPACT) + "   ",
        json.dumps({"__metadata__": {"format": 'a "pt"'}, "a": A, "b": B}),
        json.dumps({"a": A, "b": B}, indent=2),
        json.dumps({"b": B, "__metadata__": None, "a": A}),
    ],
    ids=["compact", "with blanks", "indented", "in another order"],
)
def test_a_whole_file_names_its_tensors_however_it_is_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed(text, bytes(16)))
    assert read_header(path) == BOTH


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"abc", "no safetensors file"),
        (bytes([255]) * 16, "no safetensors file"),
        ((4000).to_bytes(8, "little") + b"{}", "cut short inside its header"),
        (written(b"[1]", b""), "no JSON object"),
        (written(b"{", b""), "no JSON"),
        (written(b'{"\xff": 1}', b""), "no text"),
        (written(b"[" * 5000, b""), "no JSON"),
        (written({"a": A, "b": B}, bytes(15)), "cut short: its header declares 154 bytes, 153 are there"),
        (written({"a": A, "b": B}, bytes(17)), "1 bytes after its last tensor"),
        (written({"b": B}, bytes(16)), "gap or an overlap"),
        (written({"a": {**A, "dtype": "F7"}}, bytes(8)), "unknown type"),
        (written({"a": {**A, "shape": [3]}}, bytes(8)), "does not fit its bytes"),
        (written({"a": {**A, "shape": [-8]}}, bytes(8)), "impossible numbers"),
        (written({"a": {**A, "data_offsets": [8, 0]}}, bytes(8)), "impossible offsets"),
        (written({"a": {"dtype": "F32"}}, b""), "without type, shape or offsets"),
        (written({"__metadata__": {"a": 1}}, b""), "no map of text"),
    ],
)
def test_anything_else_is_refused_with_its_reason(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(Malformed, match=why):
        read_header(path)


ACCEPTED = {
    "no tensor at all": packed("{}"),
    "blanks before the header": packed(" \n{}"),
    "a tensor twice, the later counts": packed(f'{{"a":{{{EMPTY.replace("[0]", "[7]")}}},"a":{U8}}}', b"x"),
    "metadata null": packed('{"__metadata__":null}'),
    "a name twice in the metadata": packed('{"__metadata__":{"a":"b","a":"c"}}'),
    "a name escaped": packed('{"\\u005f_metadata__":{"a":"\\ud83d\\ude00"}}'),
    "an entry as an array": packed('{"a":["U8",[1],[0,1]]}', b"x"),
    "a type as an object": packed('{"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "an unknown field, twice": packed(f'{{"a":{{{EMPTY},"x":1,"x":[2]}}}}'),
    "an unknown field nested as deep as allowed": unread(nested(125)),
    "a number near the largest": unread("1797693134862315" + "0" * 293),
    "a tiny number": unread("1e-99999999999999999999"),
    "a zero with an exponent too large": unread("0.0e99999999999999999999"),
    "a number of 5000 digits divided again": unread("1" + "0" * 4999 + "e-4900"),
    "no dimension": shaped("[]", data=1),
    "a zero before too many elements": shaped("[0,18446744073709551615,18446744073709551615]"),
    "half a byte twice": shaped("[1,2]", "F4", 1),
}
REFUSED = {
    "a field twice": packed('{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "metadata twice": packed('{"__metadata__":null,"__metadata__":null}'),
    "metadata as an array": packed('{"__metadata__":[]}'),
    "metadata not followed by a comma": packed(f'{{"__metadata__":{{}}}}"a":{U8}}}', b"x"),
    "a number twice in the metadata, text the second time": packed('{"__metadata__":{"a":1,"a":"c"}}'),
    "a tensor twice, one of them malformed": packed(f'{{"a":1,"a":{U8}}}', b"x"),
    "an entry as an array that is too long": packed('{"a":["U8",[1],[0,1],0]}', b"x"),
    "a type as an object with content": packed('{"a":{"dtype":{"U8":{}},"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "an unknown field nested too deep": unread(nested(126)),
    "half a surrogate pair where nobody reads it": unread('"\\ud800"'),
    "half a surrogate pair in a name": packed(f'{{"\\udc00":{U8}}}', b"x"),
    "a number out of range": unread("1e309"),
    "the largest number, which the format's own reader rounds up": unread("17976931348623157" + "0" * 292),
    "a whole number out of range": unread("1" + "0" * 309),
    "an exponent out of range": unread("1e99999999999999999999"),
    "not a number": unread("NaN"),
    "infinity": unread("Infinity"),
    "a control character": unread('"\x1f"'),
    "a byte order mark": packed("\ufeff{}"),
    "a byte behind the header": packed("{}\x00"),
    "a zero below zero": shaped("[-0]"),
    "a dimension with a point": shaped("[1.0]", data=1),
    "a dimension with an exponent": shaped("[1e0]", data=1),
    "a dimension true": shaped("[true]", data=1),
    "a dimension with a leading zero": shaped("[01]", data=1),
    "a shape that is an object": shaped("{}", data=1),
    "a dimension larger than any number": shaped("[18446744073709551616,0]"),
    "too many elements before a zero": shaped("[18446744073709551615,2,0]"),
    "half a byte": shaped("[1]", "F4", 1),
    "a tensor of more bits than a number holds": packed(
        '{"a":{"dtype":"U8","shape":[2305843009213693952],"data_offsets":[0,2305843009213693952]}}'
    ),
    "a length of zero": bytes(8),
    "a length without a header": b"\x01" + bytes(7),
    "seven bytes": b"\x00" * 7,
    "the largest length": b"\xff" * 8 + b"{}",
}


def accepts(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        read_header(path)
    except Malformed:
        return False
    return True


@pytest.mark.parametrize(
    ("content", "accepted"),
    [*((content, True) for content in ACCEPTED.values()), *((content, False) for content in REFUSED.values())],
    ids=[*ACCEPTED, *REFUSED],
)
def test_what_the_formats_own_reader_accepts_is_accepted_and_nothing_else(tmp_path: Path, content: bytes, accepted: bool) -> None:
    assert accepts(tmp_path / "file", content) == accepted
    assert package_accepts(content) == accepted


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_takes_its_bytes(tmp_path: Path, dtype: str) -> None:
    content = shaped("[8]", dtype, DTYPES[dtype])
    assert accepts(tmp_path / "file", content)
    assert package_accepts(content)


@pytest.mark.parametrize(("length", "why"), [(100_000_000, "cut short inside"), (100_000_001, "no header length")])
def test_a_header_may_have_a_hundred_million_bytes(tmp_path: Path, length: int, why: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(Malformed, match=why):
        read_header(path)


@settings(max_examples=600, deadline=None)
@given(random=st.randoms(use_true_random=True))
def test_made_up_files_are_judged_as_by_the_formats_own_reader(tmp_path_factory: pytest.TempPathFactory, random: Random) -> None:
    content = any_file(random)
    assert accepts(tmp_path_factory.getbasetemp() / "file", content) == package_accepts(content), content


def package_accepts(content: bytes) -> bool:
    safetensors = pytest.importorskip("safetensors")
    try:
        safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return False
    return True
