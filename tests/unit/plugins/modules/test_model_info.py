# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""model_info, really run on folders with real safetensors files."""

from __future__ import annotations

import json
import shutil
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpufleet.vllm.plugins.modules import model_info
from support.running import ROOT, Answer, load_file, run_module

CONFIGS = ROOT / "tests" / "unit" / "fixtures" / "model_configs"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def minimax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder shaped like MiniMax-M2.5's, with small contents."""
    return t.cast(Path, load_file(ROOT / "tests" / "bench" / "hub" / "make_minimax.py").make_minimax(tmp_path_factory.mktemp("hub")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration and no weights yet."""
    made = tmp_path / "model"
    shutil.copytree(CONFIGS / "minimax-m2.5", made)
    return made


def read(folder: Path, **options: t.Any) -> Answer:
    return run_module("model_info", folder.parent, path=str(folder), **options)


def write_weights(path: Path, tensors: t.Mapping[str, int]) -> None:
    """A whole safetensors file of 8-bit tensors; the file is sparse, so that even real sizes take no disk."""
    header, position = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "F8_E4M3", "shape": [size], "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + position)


def write_index(folder: Path, weight_map: t.Mapping[str, str], name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def test_a_whole_model_is_read_from_its_headers(minimax: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in minimax.iterdir()}
    answer = read(minimax)
    assert answer["changed"] is False
    assert (answer["num_hidden_layers"], answer["experts"]["routed"], answer["quantization"]["block_shape"]) == (62, 256, [128, 128])
    weights = answer["weights"]
    assert (weights["tensors"], len(weights["files"]), len(weights["layers"])) == (96_103, 125, 62)
    assert sum(tally["bytes"] for tally in weights["by_class"].values()) == weights["bytes"]
    assert sum(tally["bytes"] for tally in weights["by_dtype"].values()) == weights["bytes"]
    assert weights["by_class"]["experts"]["tensors"] == 62 * 256 * 3
    assert {path.name: path.stat().st_mtime_ns for path in minimax.iterdir()} == before


def test_check_mode_reads_the_same(folder: Path) -> None:
    write_weights(folder / "model.safetensors", {"lm_head.weight": 8})
    assert read(folder, _ansible_check_mode=True)["weights"] == read(folder)["weights"]


def test_the_same_weights_published_twice_count_once(folder: Path) -> None:
    shards = {f"t{number}": f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)}
    for tensor, shard in shards.items():
        write_weights(folder / shard, {tensor: 16_000_000_000})
    write_weights(folder / "consolidated.safetensors", {"t": 48_000_000_000})
    write_index(folder, shards)
    sharded, consolidated = read(folder)["weights"], read(folder, load_format="mistral")["weights"]
    assert sharded["bytes"] == consolidated["bytes"] == 48_000_000_000
    assert (sharded["files"], sharded["left_out"]) == (sorted(shards.values()), ["consolidated.safetensors"])
    assert (consolidated["files"], consolidated["left_out"]) == (["consolidated.safetensors"], sorted(shards.values()))


def test_without_an_index_the_single_file_is_the_model(folder: Path) -> None:
    write_weights(folder / "model.safetensors", {"lm_head.weight": 8})
    write_weights(folder / "consolidated.00.safetensors", {"output.weight": 8})
    assert read(folder)["weights"]["files"] == ["model.safetensors"]


def test_a_consolidated_set_has_an_index_of_its_own(folder: Path) -> None:
    for number in (0, 1):
        write_weights(folder / f"consolidated-{number}.safetensors", {"output.weight": 8})
    write_index(folder, {"output.weight": "consolidated-1.safetensors"}, "consolidated.safetensors.index.json")
    assert read(folder, load_format="mistral")["weights"]["files"] == ["consolidated-1.safetensors"]


def test_the_configuration_can_be_read_before_the_weights_are_there(folder: Path) -> None:
    answer = read(folder, load_format="dummy")
    assert answer["weights"] is None
    assert answer["hidden_size"] == 3072


def test_a_multimodal_model_is_read_through_its_language_part(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CONFIGS / "kimi-k2.5-nvfp4", tmp_path / "model"))
    write_weights(
        folder / "model.safetensors",
        {"vision_tower.patch_embed.proj.weight": 24, "language_model.model.layers.1.self_attn.kv_b_proj.weight": 40},
    )
    answer = read(folder)
    assert (answer["vision"], answer["attention"]["kind"], answer["quantization"]["kv_cache_dtype"]) == (True, "mla", "fp8")
    assert (answer["weights"]["by_class"]["vision"]["bytes"], answer["weights"]["layers"]) == (24, [0, 40])


def test_a_missing_shard_is_named(folder: Path) -> None:
    write_weights(folder / "a.safetensors", {"t1": 8})
    write_index(folder, {"t1": "a.safetensors", "t2": "b.safetensors"})
    answer = read(folder)
    assert (answer["failed"], answer["code"], answer["missing"]) == (True, "shard_missing", ["b.safetensors"])
    assert f"{folder} lacks b.safetensors, of 2 files that {INDEX} names." in answer["msg"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"", "is empty"),
        ((2).to_bytes(8, "little") + b"{}" + bytes(4), "has 4 bytes after its last tensor"),
    ],
)
def test_a_damaged_shard_is_named_with_what_is_wrong(folder: Path, content: bytes, why: str) -> None:
    shard = folder / "model.safetensors"
    shard.write_bytes(content)
    answer = read(folder)
    assert (answer["code"], answer["damaged"]) == ("shard_damaged", ["model.safetensors"])
    assert f"{shard} {why}" in answer["msg"]


def test_a_folder_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    answer = read(tmp_path / "nothing")
    assert answer["code"] == "model_missing"
    assert f"{tmp_path / 'nothing'} is no folder" in answer["msg"]


def test_a_folder_without_a_configuration_says_what_it_has_instead(tmp_path: Path) -> None:
    (tmp_path / "model-q4.gguf").touch()
    answer = read(tmp_path)
    assert answer["code"] == "config_missing"
    assert "has no config.json. It has model-q4.gguf" in answer["msg"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.json", "{", "is no JSON"),
        ("config.json", "[]", "holds no JSON object but a list"),
        ("config.json", "version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        ("hf_quant_config.json", "{]", "is no JSON"),
        (INDEX, "<!DOCTYPE html>", "is an HTML or XML page"),
    ],
)
def test_a_file_that_is_no_json_is_named(folder: Path, name: str, content: str, why: str) -> None:
    (folder / name).write_text(content)
    answer = read(folder)
    assert answer["code"] == "config_invalid"
    assert f"{folder / name} {why}" in answer["msg"]


@pytest.mark.parametrize("weight_map", [{}, {"t": "../../etc/shadow"}, {"t": "/etc/shadow"}, {"t": 1}])
def test_an_index_that_names_no_files_of_the_folder_is_refused(folder: Path, weight_map: t.Any) -> None:
    write_index(folder, weight_map)
    assert read(folder)["code"] == "index_invalid"


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    assert read(folder)["code"] == "weights_missing"
    write_weights(folder / "model.safetensors", {"t": 8})
    answer = read(folder, load_format="mistral")
    assert answer["code"] == "weights_missing"
    assert "It has model.safetensors, which load_format mistral does not read." in answer["msg"]


def test_formats_without_safetensors_are_refused(folder: Path) -> None:
    assert read(folder, load_format="gguf")["code"] == "load_format_unsupported"


def undocumented(value: t.Any, documented: t.Mapping[str, t.Any], path: str = "") -> list[str]:
    """The fields of a result that the documentation does not have; sums by name are described as a whole."""
    missing = []
    for name, inner in value.items():
        if name not in documented:
            missing.append(f"{path}{name}")
        elif isinstance(inner, dict) and "contains" in documented[name]:
            missing += undocumented(inner, documented[name]["contains"], f"{path}{name}.")
    return missing


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.iterdir()))
def test_every_returned_field_is_documented(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CONFIGS / name, tmp_path / "model"))
    write_weights(folder / "model.safetensors", {"lm_head.weight": 8})
    answer = read(folder)
    assert "failed" not in answer
    # Older controllers are also told how the module was called.
    assert set(undocumented(answer, yaml.safe_load(model_info.RETURN))) - {"invocation"} == {"changed"}
