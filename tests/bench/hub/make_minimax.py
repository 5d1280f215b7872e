#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a repository that looks like MiniMax-M2.5 from outside and weighs about 50 MB.

    make_minimax.py DIR

makes ``DIR/MiniMaxAI/MiniMax-M2.5``: 125 shards numbered from 00000 that call themselves ``of-00126``, an index whose total is the
real model's, the real configuration values. The content is the same on every run.
"""

from __future__ import annotations

import argparse
import json
import random
import typing as t
from pathlib import Path

__all__ = ["make_minimax"]

REPOSITORY = "MiniMaxAI/MiniMax-M2.5"
SHARDS = 125
LAYERS = 62
TOTAL_SIZE = 230_135_060_070
"""214.33 GiB, what the real weights take."""

BIG_SHARDS = {3: 4_000_000, 40: 3_000_000, 73: 4_000_000, 101: 3_000_000}
SMALL_SHARD = 150_000

CONFIG = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "torch_dtype": "bfloat16",
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rotary_dim": 64,
    "rope_theta": 5000000,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "shared_intermediate_size": 0,
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "vocab_size": 200064,
    "max_position_embeddings": 196608,
    "tie_word_embeddings": False,
    "use_mtp": True,
    "num_mtp_modules": 3,
    "mtp_transformer_layers": 1,
    "bos_token_id": 200019,
    "eos_token_id": 200020,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "float8_e4m3fn",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
    },
}

CHAT_TEMPLATE = "{%- for message in messages -%}]~b]{{ message.role }}\n{{ message.content }}[e~[\n{%- endfor -%}]~b]ai\n"

README = """---
license: other
license_name: modified-mit
---
A stand-in for tests: the names and the configuration of MiniMax-M2.5, and random bytes for weights.
"""


def make_minimax(root: Path) -> Path:
    """Write the repository below ``root`` and answer with its folder."""
    folder = root / REPOSITORY
    folder.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shard_tensors()):
        name = f"model-{number:05d}-of-00126.safetensors"
        write_shard(folder / name, tensors, BIG_SHARDS.get(number, SMALL_SHARD), seed=number)
        weight_map.update(dict.fromkeys(tensors, name))
    index = {"metadata": {"total_size": TOTAL_SIZE}, "weight_map": dict(sorted(weight_map.items()))}
    for name, text in small_files(index).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def shard_tensors() -> list[list[str]]:
    """The names of the tensors, shard by shard: two shards a layer, embedding first, head and last norm in the last."""
    shards: list[list[str]] = []
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        moe = f"{prefix}.block_sparse_moe"
        attention = [f"{prefix}.self_attn.{part}_proj.{kind}" for part in "qkvo" for kind in ("weight", "weight_scale_inv")]
        norms = [
            f"{prefix}.{part}.weight" for part in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
        ]
        shards.append([*attention, *norms, f"{moe}.gate.weight", f"{moe}.e_score_correction_bias", *experts(moe, range(128))])
        shards.append(experts(moe, range(128, 256)))
    shards[0].insert(0, "model.embed_tokens.weight")
    shards.append(["lm_head.weight", "model.norm.weight"])
    return shards


def experts(moe: str, numbers: range) -> list[str]:
    return [
        f"{moe}.experts.{number}.{part}.{kind}"
        for number in numbers
        for part in ("w1", "w2", "w3")
        for kind in ("weight", "weight_scale_inv")
    ]


def write_shard(path: Path, tensors: list[str], size: int, seed: int) -> None:
    """A valid safetensors file of about ``size`` bytes of data, spread evenly over its tensors."""
    each = max(4, size // len(tensors) // 4 * 4)
    header: dict[str, t.Any] = {"__metadata__": {"format": "pt"}}
    for number, name in enumerate(tensors):
        scale = name.endswith("weight_scale_inv")
        shape, dtype = ([each // 4], "F32") if scale else ([each], "F8_E4M3")
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [number * each, (number + 1) * each]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little"))
        file.write(raw)
        file.write(random.Random(seed).randbytes(each * len(tensors)))


def small_files(index: t.Mapping[str, t.Any]) -> dict[str, str]:
    vocabulary = {chr(33 + number): number for number in range(94)}
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": []}
    documents = {
        "config.json": CONFIG,
        "generation_config.json": {
            "bos_token_id": 200019,
            "eos_token_id": 200020,
            "do_sample": True,
            "temperature": 1.0,
            "top_p": 0.95,
            "top_k": 40,
        },
        "model.safetensors.index.json": index,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "bos_token": "]~!b[",
            "eos_token": "[e~[",
            "model_max_length": 40960000,
            "tokenizer_class": "GPT2Tokenizer",
        },
    }
    texts = {name: json.dumps(document, indent=1) + "\n" for name, document in documents.items()}
    return {**texts, "chat_template.jinja": CHAT_TEMPLATE, "README.md": README}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a repository shaped like MiniMax-M2.5.")
    parser.add_argument("root", type=Path, help="folder of the fake hub's repositories")
    print(make_minimax(parser.parse_args().root))


if __name__ == "__main__":
    main()
