# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.safetensors import Malformed, Tensor, parse_header, read_header
from hypothesis import given
from hypothesis import strategies as st

A = {"dtype": "F8_E4M3", "shape": [2, 4], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}


def packed(header: t.Any, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def test_a_whole_file_names_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed({"__metadata__": {"format": "pt"}, "a": A, "b": B}, bytes(16)))
    assert read_header(path) == {"a": Tensor("F8_E4M3", (2, 4), 0, 8), "b": Tensor("F32", (2,), 8, 16)}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"abc", "no safetensors file"),
        (bytes([255]) * 16, "no safetensors file"),
        ((4000).to_bytes(8, "little") + b"{}", "cut short inside its header"),
        (packed(b"[1]", b""), "no JSON object"),
        (packed(b"{", b""), "no JSON"),
        (packed(b'{"a": 1, "a": 2}', b""), "occurs twice"),
        (packed(b"[" * 5000, b""), "no JSON"),
        (packed({"a": A, "b": B}, bytes(15)), "cut short: its header declares 16 bytes of data, 15 are there"),
        (packed({"a": A, "b": B}, bytes(17)), "1 bytes after its last tensor"),
        (packed({"b": B}, bytes(16)), "gap or an overlap"),
        (packed({"a": {**A, "dtype": "F7"}}, bytes(8)), "unknown type"),
        (packed({"a": {**A, "shape": [3]}}, bytes(8)), "does not fit its bytes"),
        (packed({"a": {**A, "data_offsets": [8, 0]}}, bytes(8)), "impossible offsets"),
        (packed({"a": {"dtype": "F32"}}, b""), "without type, shape or offsets"),
        (packed({"__metadata__": {"a": 1}}, b""), "no map of text"),
    ],
)
def test_anything_else_is_refused_with_its_reason(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(Malformed, match=why):
        read_header(path)


entries = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(-2, 9), max_size=3), lambda inner: st.lists(inner, max_size=2)
)
documents = st.dictionaries(
    st.sampled_from(["a", "b", "__metadata__"]), st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), entries) | entries
)


@given(st.binary(max_size=60) | documents.map(lambda document: json.dumps(document).encode()), st.integers(0, 20))
def test_no_header_makes_the_reader_do_anything_but_accept_or_refuse(raw: bytes, data_bytes: int) -> None:
    try:
        tensors = parse_header(raw, data_bytes)
    except Malformed:
        return
    assert max([tensor.end for tensor in tensors.values()], default=0) == data_bytes
