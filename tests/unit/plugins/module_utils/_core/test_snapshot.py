# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import FileSpec
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.snapshot import absent_shards, read_index, select


def manifest(*names: str) -> dict[str, FileSpec]:
    return {name: FileSpec(name, 10) for name in names}


def index(*shards: str) -> dict[str, set[str]]:
    return {shard: {f"tensor of {shard}"} for shard in shards}


def test_the_index_decides_which_shards_exist_not_the_numbers_in_their_names() -> None:
    shards = [f"model-{number:05d}-of-00126.safetensors" for number in range(125)]
    selection = select(manifest("model.safetensors.index.json", "config.json", *shards), index(*shards))
    assert list(selection.shards) == shards
    assert selection.left_out == ()


def test_shards_in_a_folder_are_followed() -> None:
    assert select(manifest("weights/a.safetensors", "config.json"), index("weights/a.safetensors")).shards == ("weights/a.safetensors",)


def test_other_copies_of_the_weights_are_left_out_by_default_only() -> None:
    files = manifest(
        "model.safetensors", "pytorch_model.bin", "tf.h5", "original/params.json", "metal/model.bin", "tokenizer.model", "config.json"
    )
    selection = select(files, None)
    assert sorted(selection.files) == ["config.json", "model.safetensors", "tokenizer.model"]
    assert sorted(select(files, None, include=["*.bin", "config.json"]).files) == ["config.json", "metal/model.bin", "pytorch_model.bin"]


def test_a_repository_without_safetensors_is_taken_as_it_is() -> None:
    assert select(manifest("pytorch_model.bin", "config.json"), None).shards == ("pytorch_model.bin",)


def test_patterns_never_drop_an_indexed_shard() -> None:
    files = manifest("a.safetensors", "b.safetensors", "model.safetensors.index.json", "README.md", "docs/x.md")
    selection = select(files, index("a.safetensors", "b.safetensors"), exclude=["b*", "*.md", "docs/"])
    assert sorted(selection.files) == ["a.safetensors", "b.safetensors", "model.safetensors.index.json"]


def test_shards_that_the_repository_does_not_hold_are_named() -> None:
    files = manifest("a.safetensors", "model.safetensors.index.json")
    assert absent_shards(files, index("a.safetensors", "c.safetensors")) == ["c.safetensors"]
    assert absent_shards(files, None) == []


def test_with_load_format_mistral_the_consolidated_weights_are_the_wanted_ones() -> None:
    files = manifest("consolidated.safetensors", "params.json", "model-1.safetensors", "model.safetensors.index.json")
    selection = select(files, None, load_format="mistral")
    assert (selection.shards, selection.left_out) == (("consolidated.safetensors",), ("model-1.safetensors",))
    assert select(files, index("model-1.safetensors")).shards == ("model-1.safetensors",)


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", ".cache/x", ".gpufleet-receipt.json"])
def test_a_path_outside_the_folder_is_refused(path: str) -> None:
    with pytest.raises(VllmError, match="outside its own folder"):
        select(manifest(path), None)
    with pytest.raises(VllmError, match="outside its own folder"):
        read_index(json.dumps({"weight_map": {"a": path}}).encode())


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}', b"\xff"])
def test_something_that_is_no_index_is_refused(raw: bytes) -> None:
    with pytest.raises(VllmError, match="Downloading again will not help"):
        read_index(raw)
