# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a configuration says about a model, on configurations shaped like published ones."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.model_config import (
    Experts,
    Indexer,
    LinearAttention,
    ModelConfig,
    RopeScaling,
    load_config,
    read_config,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.model_quantization import Quantization
from hypothesis import example, given
from hypothesis import strategies as st

CONFIGS = Path(__file__).parents[3] / "fixtures" / "model_configs"


def published(name: str) -> ModelConfig:
    return load_config(CONFIGS / name)


def quantized(**said: t.Any) -> Quantization:
    found = read_config({"quantization_config": said}).quantization
    assert found
    return found


def test_minimax_m2_5_is_a_mixture_with_grouped_heads_in_fp8_blocks() -> None:
    model = published("minimax-m2.5")
    assert (model.num_hidden_layers, model.hidden_size, model.vocab_size, model.head_dim) == (62, 3072, 200064, 128)
    assert model.experts == Experts(256, 8, 1536, 0, 0, None)
    assert (model.attention.kind, model.num_attention_heads, model.num_key_value_heads) == ("gqa", 48, 8)
    assert model.quantization == Quantization(
        method="fp8",
        format="float8_e4m3fn",
        source="config.json: quantization_config",
        weight_bits=8,
        weight_type="float",
        activation_bits=8,
        activation_dynamic=True,
        block_shape=(128, 128),
        ignored=("gate", "e_score_correction_bias", "lm_head"),
    )
    assert (model.mtp_layers, model.vision, model.derived) == (3, False, ())


def test_kimi_k2_5_keeps_its_language_model_and_its_int4_in_a_part_of_the_configuration() -> None:
    model = published("kimi-k2.5-int4")
    assert (model.architectures, model.model_type, model.text_model_type) == (("KimiK25ForConditionalGeneration",), "kimi_k25", "kimi_k2")
    assert (model.vision, model.remote_code, model.dtype) == (True, True, "bfloat16")
    assert (model.attention.kind, model.attention.kv_lora_rank, model.attention.qk_rope_head_dim) == ("mla", 512, 64)
    assert model.experts == Experts(384, 8, 2048, 1, 2048, 1)
    assert model.rope_scaling == RopeScaling("yarn", 64.0, 4096)
    found = model.quantization
    assert found and (found.method, found.format) == ("compressed-tensors", "pack-quantized")
    assert (found.weight_bits, found.weight_type, found.group_size, found.activation_bits) == (4, "int", 32, None)
    assert (len(found.ignored), found.kv_cache_dtype, found.source) == (4, None, "config.json: text_config.quantization_config")


def test_under_mla_a_head_size_that_is_not_said_is_not_made_up() -> None:
    assert published("kimi-k2.5-int4").head_dim is None


@pytest.mark.parametrize("name", ["kimi-k2.5-nvfp4", "glm-5-nvfp4"])
def test_nvfp4_is_read_from_modelopts_own_file(name: str) -> None:
    found = published(name).quantization
    assert found == Quantization(
        "modelopt", "NVFP4", "hf_quant_config.json", 4, "float", activation_bits=4, group_size=16, kv_cache_dtype="fp8"
    )


def test_a_requantised_model_is_what_modelopt_says_although_the_old_quantisation_is_still_in_text_config() -> None:
    old = json.loads((CONFIGS / "kimi-k2.5-int4" / "config.json").read_text())
    new = json.loads((CONFIGS / "kimi-k2.5-nvfp4" / "hf_quant_config.json").read_text())
    found = read_config(old, new).quantization
    assert found and (found.method, found.group_size) == ("modelopt", 16)


def test_glm_5_has_an_indexer_and_a_layer_that_predicts_further_tokens() -> None:
    model = published("glm-5-nvfp4")
    assert model.attention.indexer == Indexer(32, 128, 2048)
    assert (model.mtp_layers, model.num_hidden_layers, model.tie_word_embeddings) == (1, 78, None)
    assert model.experts and model.experts.dense_layers == 3


def test_linear_attention_is_counted_by_layer() -> None:
    model = published("qwen3.5-397b")
    assert (model.attention.hybrid, model.attention.kind, model.attention.layers) == (True, "gqa", {"full": 15, "linear": 45})
    assert model.attention.linear == LinearAttention(16, 64, 128, 128, 4)
    assert model.experts == Experts(512, 10, 1024, 1, 1024, 0)
    assert model.tie_word_embeddings is False


def test_layers_that_are_not_listed_follow_from_the_distance_of_the_full_ones() -> None:
    config = {"num_hidden_layers": 48, "full_attention_interval": 4, "linear_num_key_heads": 16}
    assert read_config(config).attention.layers == {"full": 12, "linear": 36}


def test_a_window_counts_only_where_it_is_used() -> None:
    assert read_config({"sliding_window": 4096, "use_sliding_window": False}).attention.sliding_window is None
    assert read_config({"sliding_window": 4096}).attention.sliding_window == 4096


def test_a_head_size_of_its_own_is_believed_and_only_a_missing_one_is_computed() -> None:
    config = {"hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8}
    assert read_config({**config, "head_dim": 128}).head_dim == 128
    computed = read_config(config)
    assert (computed.head_dim, computed.derived) == (80, ("head_dim",))


@pytest.mark.parametrize(("kv_heads", "kind"), [(None, "mha"), (32, "mha"), (8, "gqa"), (1, "mqa")])
def test_the_kind_of_attention_follows_from_the_heads(kv_heads: t.Optional[int], kind: str) -> None:
    model = read_config({"num_attention_heads": 32, "num_key_value_heads": kv_heads})
    assert (model.attention.kind, model.num_key_value_heads) == (kind, kv_heads or 32)


def test_a_part_of_a_configuration_is_enough_and_the_rest_stays_unknown() -> None:
    model = read_config({"moe_intermediate_size": 3072, "n_shared_experts": 1})
    assert model.experts == Experts(None, None, 3072, 1, 3072, None)
    assert (model.num_hidden_layers, model.head_dim, model.dtype, model.attention.kind, model.quantization) == (None,) * 5


@pytest.mark.parametrize("value", ["7168", -1, True, 1.5, 1 << 50, {}])
def test_a_number_that_is_none_is_refused_by_name(value: t.Any) -> None:
    with pytest.raises(VllmError, match="says hidden_size is"):
        read_config({"hidden_size": value})


def test_a_number_for_each_layer_is_no_one_number() -> None:
    assert read_config({"num_key_value_heads": [8, 4]}).num_key_value_heads is None


@pytest.mark.parametrize(
    ("said", "bits", "activations", "group"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4, None, 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, None, None),
        ({"quant_method": "mxfp4"}, 4, None, 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4, None, None),
        ({"quant_method": "modelopt", "quant_algo": "fp8"}, 8, 8, None),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, None, None, None),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}}, 4, None, 32),
        ({"quant_method": "torchao"}, None, None, None),
        ({"quant_method": "fp8", "weight_block_size": "128x²"}, 8, None, None),
    ],
)
def test_each_method_says_bits_and_groups_in_its_own_words(
    said: dict[str, t.Any], bits: t.Optional[int], activations: t.Optional[int], group: t.Optional[int]
) -> None:
    found = quantized(**said)
    assert (found.weight_bits, found.activation_bits, found.group_size) == (bits, activations, group)


def test_an_export_of_modelopt_without_an_algorithm_is_not_quantised() -> None:
    assert read_config({}, {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None}}).quantization is None


def test_groups_that_differ_leave_no_one_answer() -> None:
    groups = {str(bits): {"weights": {"num_bits": bits, "type": "int", "group_size": 128}} for bits in (4, 8)}
    found = quantized(quant_method="compressed-tensors", config_groups=groups)
    assert (found.weight_bits, found.weight_type, found.group_size) == (None, "int", 128)


def test_compressed_tensors_name_blocks_and_the_type_of_the_cache() -> None:
    weights = {"num_bits": 8, "type": "float", "block_structure": [128, 128]}
    group = {"weights": weights, "input_activations": {"num_bits": 8, "dynamic": True}}
    found = quantized(quant_method="compressed-tensors", config_groups={"0": group}, kv_cache_scheme={"num_bits": 8, "type": "float"})
    assert (found.block_shape, found.activation_bits, found.activation_dynamic, found.kv_cache_dtype) == ((128, 128), 8, True, "fp8")


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = values | st.lists(values, max_size=2)


def test_a_model_that_may_not_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    tmp_path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(VllmError, match=r"cannot be read \(Permission denied\)") as refused:
            load_config(tmp_path)
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
    assert refused.value.code == "model_unreadable"


FIELDS = """architectures config_groups dtype global_quant_config hidden_size ignore kv_cache_scheme layer_types num_experts quant_method
quantization quantization_config rope_scaling text_config weight_block_size weights factor"""
names = st.sampled_from(FIELDS.split())
documents = st.dictionaries(names, st.dictionaries(names, st.dictionaries(names, anything) | anything) | anything)


@example({"architectures": 5, "rope_scaling": {"factor": 10**400}}, None)
@given(documents, st.none() | documents)
def test_no_configuration_makes_the_reader_do_anything_but_read_or_refuse(
    document: dict[str, t.Any], beside: t.Optional[dict[str, t.Any]]
) -> None:
    try:
        read_config(document, beside)
    except VllmError as exc:
        assert exc.code == "config_invalid"
