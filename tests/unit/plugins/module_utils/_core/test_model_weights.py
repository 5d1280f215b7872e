# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What weights take, told from headers with the shapes of published models."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.model_config import load_config, read_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.model_weights import CLASSES, Part, Weights, measure, part_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.safetensors import Tensor

CONFIGS = Path(__file__).parents[3] / "fixtures" / "model_configs"
GIB = 1 << 30
SIZES = {"F8_E4M3": 1, "U8": 1, "BF16": 2, "F32": 4, "I32": 4, "I64": 8}

Header = dict[str, Tensor]


def tensor(dtype: str, *shape: int) -> Tensor:
    size = SIZES[dtype]
    for length in shape:
        size *= length
    return Tensor(dtype, shape, 0, size)


def fp8(name: str, rows: int, columns: int) -> Header:
    """A weight in blocks of 128 by 128."""
    return {
        f"{name}.weight": tensor("F8_E4M3", rows, columns),
        f"{name}.weight_scale_inv": tensor("F32", -(-rows // 128), -(-columns // 128)),
    }


def int4(name: str, rows: int, columns: int) -> Header:
    """A packed weight in groups of 32."""
    return {
        f"{name}.weight_packed": tensor("I32", rows, columns // 8),
        f"{name}.weight_scale": tensor("BF16", rows, columns // 32),
        f"{name}.weight_shape": tensor("I32", 2),
    }


def minimax(layers: int) -> t.Iterator[Header]:
    """MiniMax-M2.5's tensors, a header for each layer."""
    yield {name: tensor("BF16", 200064, 3072) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    yield {"model.norm.weight": tensor("BF16", 3072)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        attention, moe = f"{prefix}.self_attn", f"{prefix}.block_sparse_moe"
        header = {f"{prefix}.{name}.weight": tensor("BF16", 3072) for name in ("input_layernorm", "post_attention_layernorm")}
        header.update({f"{attention}.q_norm.weight": tensor("BF16", 6144), f"{attention}.k_norm.weight": tensor("BF16", 1024)})
        header.update({f"{moe}.gate.weight": tensor("F32", 256, 3072), f"{moe}.e_score_correction_bias": tensor("F32", 256)})
        for name, rows, columns in (("q", 6144, 3072), ("k", 1024, 3072), ("v", 1024, 3072), ("o", 3072, 6144)):
            header.update(fp8(f"{attention}.{name}_proj", rows, columns))
        for expert in range(256):
            for name, rows, columns in (("w1", 1536, 3072), ("w2", 3072, 1536), ("w3", 1536, 3072)):
                header.update(fp8(f"{moe}.experts.{expert}.{name}", rows, columns))
        yield header


def kimi_experts(layer: int) -> Header:
    header: Header = {}
    for expert in range(384):
        for name, rows, columns in (("gate", 2048, 7168), ("up", 2048, 7168), ("down", 7168, 2048)):
            header.update(int4(f"language_model.model.layers.{layer}.mlp.experts.{expert}.{name}_proj", rows, columns))
    return header


def kind_of(weights: Weights, kind: str, *, scale: bool = False) -> tuple[int, int, t.Optional[int]]:
    return tuple(weights.by(lambda part: (part.kind, part.scale))[kind, scale])  # type: ignore[return-value]


@pytest.fixture(scope="module")
def minimax_m2_5() -> Weights:
    return measure(minimax(62), load_config(CONFIGS / "minimax-m2.5"))


def test_minimax_m2_5_comes_out_as_published(minimax_m2_5: Weights) -> None:
    total = minimax_m2_5.total
    assert total.tensors == 96_103
    scales = minimax_m2_5.by(lambda part: part.scale)[True].bytes // 4
    assert total.parameters is not None
    assert round((total.parameters + scales) / 1e9, 2) == 228.70  # the published figure counts them
    assert abs(total.bytes / GIB - 214.33) < 0.02  # and this one the files' headers


def test_each_class_has_the_bytes_of_its_shapes(minimax_m2_5: Weights) -> None:
    experts = 62 * 256 * 3 * 3072 * 1536
    assert kind_of(minimax_m2_5, "experts") == (62 * 256 * 3, experts, experts)
    assert kind_of(minimax_m2_5, "experts", scale=True)[1] == experts // (128 * 128) * 4
    assert kind_of(minimax_m2_5, "lm_head")[1] == kind_of(minimax_m2_5, "embedding")[1] == 200064 * 3072 * 2
    assert kind_of(minimax_m2_5, "router")[0] == 62 * 2
    assert kind_of(minimax_m2_5, "norms")[0] == 62 * 4 + 1
    assert not {part.kind for part in minimax_m2_5.parts} - set(CLASSES)


def test_attention_is_told_apart_by_how_it_is_split(minimax_m2_5: Weights) -> None:
    roles = minimax_m2_5.by(lambda part: part.role if not part.scale else "")
    assert roles["heads"].bytes == 62 * 2 * 6144 * 3072
    assert roles["key_value"].bytes == 62 * 2 * 1024 * 3072


def test_every_layer_has_its_own_sum(minimax_m2_5: Weights) -> None:
    layers = minimax_m2_5.by(lambda part: part.layer)
    assert len(layers) == 62 + 1
    assert layers[0].bytes == layers[61].bytes
    assert layers[None].tensors == 3


def test_twenty_four_of_its_layers_take_what_the_engine_measured_on_a_gpu() -> None:
    total = measure(minimax(24), load_config(CONFIGS / "minimax-m2.5")).total
    assert abs(total.bytes / GIB - 84.42) < 0.1


def test_packed_four_bit_weights_are_counted_one_by_one() -> None:
    weights = measure((kimi_experts(layer) for layer in (1, 2)), load_config(CONFIGS / "kimi-k2.5-int4"))
    experts = 2 * 384 * 3 * 7168 * 2048
    assert kind_of(weights, "experts") == (2 * 384 * 3, experts // 2, experts)
    assert kind_of(weights, "experts", scale=True) == (2 * 2 * 384 * 3, experts // 32 * 2 + 2 * 384 * 3 * 8, 0)


def test_nvfp4_holds_two_weights_a_byte() -> None:
    name = "model.layers.3.mlp.experts.0.down_proj"
    header = {
        f"{name}.weight": tensor("U8", 6144, 1024),
        f"{name}.weight_scale": tensor("F8_E4M3", 6144, 128),
        f"{name}.weight_scale_2": tensor("F32"),
        f"{name}.input_scale": tensor("F32"),
    }
    weights = measure([header], load_config(CONFIGS / "glm-5-nvfp4"))
    assert weights.total == (4, 6144 * 1024 + 6144 * 128 + 8, 6144 * 2048)


@pytest.mark.parametrize("said", [{}, {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}])
def test_how_many_weights_a_packed_type_holds_is_not_guessed(said: dict[str, t.Any]) -> None:
    weights = measure([{"model.layers.0.mlp.up_proj.weight": tensor("U8", 8, 8)}], read_config(said))
    assert weights.total == (1, 64, None)


def test_a_type_that_holds_no_weights_is_counted_by_its_shape() -> None:
    assert measure([{"rotary.position_ids": tensor("I64", 1, 8)}], read_config({})).total == (1, 64, 8)


def test_headers_are_read_one_at_a_time() -> None:
    at_once = 0

    def headers() -> t.Iterator[Header]:
        nonlocal at_once
        for _ in range(3):
            at_once += 1
            yield {"model.norm.weight": tensor("BF16", 8)}
            at_once -= 1
            assert at_once == 0

    assert measure(headers(), read_config({})).total.tensors == 3


LAYER = "model.layers.4"
MLA = f"{LAYER}.self_attn"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.embed_tokens.weight", Part(None, "embedding")),
        ("language_model.lm_head.weight", Part(None, "lm_head")),
        ("model.norm.weight", Part(None, "norms")),
        (f"{MLA}.q_a_proj.weight", Part(4, "attention", "latent")),
        (f"{MLA}.kv_a_proj_with_mqa.weight", Part(4, "attention", "latent")),
        (f"{MLA}.kv_b_proj.weight", Part(4, "attention", "heads")),
        (f"{MLA}.kv_a_layernorm.weight", Part(4, "norms")),
        (f"{MLA}.indexer.wq_b.weight", Part(4, "attention", "indexer")),
        (f"{MLA}.k_proj.k_scale", Part(4, "attention", "key_value", scale=True)),
        (f"{LAYER}.linear_attn.in_proj_qkvz.weight", Part(4, "attention", "linear")),
        (f"{LAYER}.mlp.gate_proj.weight", Part(4, "dense_mlp")),
        (f"{LAYER}.mlp.gate.weight", Part(4, "router")),
        (f"{LAYER}.mlp.gate.e_score_correction_bias", Part(4, "router")),
        (f"{LAYER}.mlp.shared_experts.up_proj.weight", Part(4, "shared_experts")),
        (f"{LAYER}.mlp.shared_expert_gate.weight", Part(4, "router")),
        (f"{LAYER}.mlp.experts.gate_up_proj_blocks", Part(4, "experts")),
        (f"{LAYER}.mlp.experts.gate_up_proj_scales", Part(4, "experts", scale=True)),
        (f"{LAYER}.mlp.experts.7.w1.weight_shape", Part(4, "experts", scale=True)),
        (f"{LAYER}.mlp.down_proj.qzeros", Part(4, "dense_mlp", scale=True)),
        (f"{LAYER}.mlp.down_proj.weight.quant_state.bitsandbytes__nf4", Part(4, "dense_mlp", scale=True)),
        ("model.layers.78.self_attn.q_a_proj.weight", Part(None, "mtp")),
        ("model.layers.78.eh_proj.weight", Part(None, "mtp")),
        ("mtp.layers.0.mlp.experts.3.up_proj.weight", Part(None, "mtp")),
        ("vision_tower.encoder.blocks.0.mlp.fc0.weight", Part(None, "vision")),
        ("mm_projector.proj.0.weight", Part(None, "vision")),
        ("layers.4.attention.wk.weight", Part(4, "attention", "key_value")),
        ("layers.4.feed_forward.w1.weight", Part(4, "dense_mlp")),
        ("layers.4.ffn_norm.weight", Part(4, "norms")),
        ("tok_embeddings.weight", Part(None, "embedding")),
        ("output.weight", Part(None, "lm_head")),
        ("backbone.layers.4.mixer.A_log", Part(4, "attention", "linear")),
        ("backbone.layers.4.mixer.q_proj.weight", Part(4, "attention", "heads")),
        ("backbone.layers.4.mixer.up_proj.weight", Part(4, "dense_mlp")),
        ("backbone.layers.4.mixer.experts.0.up_proj.weight", Part(4, "experts")),
        ("something.else.entirely", Part(None, "other")),
    ],
)
def test_names_say_what_a_tensor_is(name: str, part: Part) -> None:
    assert part_of(name, layers=78) == part
