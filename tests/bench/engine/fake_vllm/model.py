# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fake engine reads of a model folder: config.json, the index, the headers of the shards; and vLLM's refusals."""

from __future__ import annotations

import json
import struct
import typing as t
from pathlib import Path

from .options import Options

__all__ = ["Model", "StartFailure", "check_shard", "indexed_shards", "kv_bytes_per_token", "missing_shards", "read_model", "weight_bytes"]

_HEADER_LIMIT = 100_000_000
_TOOL_PARSERS = [
    "apertus",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "glm45",
    "glm47",
    "granite",
    "hermes",
    "hunyuan_a13b",
    "internlm",
    "jamba",
    "kimi_k2",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "minimax_m2",
    "mistral",
    "openai",
    "phi4_mini_json",
    "pythonic",
    "qwen3_coder",
    "qwen3_xml",
    "seed_oss",
    "step3",
    "xlam",
]
_REASONING_PARSERS = [
    "deepseek_r1",
    "deepseek_v3",
    "ernie45",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "hunyuan_a13b",
    "kimi_k2",
    "minimax_m2",
    "minimax_m2_append_think",
    "mistral",
    "openai_gptoss",
    "qwen3",
    "seed_oss",
    "step3",
]


class StartFailure(Exception):
    """The start ends here; the text is the last line of vLLM's traceback."""


class Model(t.NamedTuple):
    """The figures the engine needs."""

    path: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_length: int
    moe_intermediate: int
    block: int
    config: dict[str, t.Any]


def read_model(options: Options) -> Model:
    """The model named by the options, or vLLM's refusal of it."""
    config_file = Path(options.model) / "config.json"
    if not Path(options.model).is_dir() and str(options.model).count("/") > 1:
        raise StartFailure(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
            f"'{options.model}'. Use `repo_type` argument if needed."
        )
    if not config_file.exists():
        raise StartFailure(
            f"pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, Invalid repository ID or "
            f"local directory specified: '{options.model}'.\nPlease verify the following requirements:\n1. Provide a valid Hugging Face "
            "repository ID.\n2. Specify a local directory that contains a recognized configuration file."
        )
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError:
        raise StartFailure(f"OSError: It looks like the config file at '{config_file}' is not a valid JSON file.") from None
    model = _figures(str(options.model), config)
    _check_parsers(options)
    return model._replace(max_length=_max_length(options, model))


def _figures(path: str, config: dict[str, t.Any]) -> Model:
    text = {**config, **config.get("text_config", {})}
    heads = int(text.get("num_attention_heads", 1))
    quantisation = text.get("quantization_config") or {}
    return Model(
        path=path,
        architecture=(config.get("architectures") or ["UnknownForCausalLM"])[0],
        layers=int(text.get("num_hidden_layers", 1)),
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads", heads)),
        head_dim=int(text.get("head_dim") or text.get("hidden_size", heads) // heads),
        vocabulary=int(text.get("vocab_size", 32000)),
        max_length=int(text.get("max_position_embeddings", 2048)),
        moe_intermediate=int(text.get("moe_intermediate_size") or text.get("intermediate_size", 0)) if text.get("num_local_experts") else 0,
        block=int((quantisation.get("weight_block_size") or [0])[0]),
        config=config,
    )


def _max_length(options: Options, model: Model) -> int:
    wanted = options.max_model_len
    if wanted in (None, -1):
        return model.max_length
    if wanted > model.max_length:
        raise StartFailure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, User-specified "
            f"max_model_len ({wanted}) is greater than the derived max_model_len "
            f"(max_position_embeddings={model.max_length}.0 or model_max_length=None in model's config.json). "
            "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    return int(wanted)


def _check_parsers(options: Options) -> None:
    if options.enable_auto_tool_choice and not options.tool_call_parser:
        raise StartFailure("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser")
    if options.enable_auto_tool_choice and options.tool_call_parser not in _TOOL_PARSERS:
        raise StartFailure(f"KeyError: 'invalid tool call parser: {options.tool_call_parser} (chose from {{ {','.join(_TOOL_PARSERS)} }})'")
    if options.reasoning_parser and options.reasoning_parser not in _REASONING_PARSERS:
        known = ", ".join(_REASONING_PARSERS)
        raise StartFailure(f"KeyError: \"Reasoning parser '{options.reasoning_parser}' not found. Available parsers: {known}\"")


def indexed_shards(model: Model) -> list[Path]:
    """The weight files in the order of their names: what the index says, else what lies there."""
    folder = Path(model.path)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [folder / name for name in sorted(names)]
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise StartFailure(f"RuntimeError: Cannot find any model weights with `{model.path}`")
    return shards


def missing_shards(shards: t.Sequence[Path]) -> None:
    """vLLM looks for all files of the index before it reads one."""
    missing = {str(shard) for shard in shards if not shard.exists()}
    if missing:
        raise StartFailure(f"FileNotFoundError: Weight files referenced in index but missing: {missing}")


def check_shard(shard: Path) -> None:
    """The checks of the safetensors library on opening a file, with its words."""
    size = shard.stat().st_size
    if size < 8:
        raise _damaged("header too small")
    with shard.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(_HEADER_LIMIT, size - 8):
            raise _damaged("header too large")
        text = file.read(length)
    try:
        header = json.loads(text)
    except ValueError:
        raise _damaged("invalid JSON in header: expected value at line 1 column 1") from None
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if end != size - 8 - length:
        raise _damaged("incomplete metadata, file not fully covered")


def _damaged(reason: str) -> StartFailure:
    return StartFailure(f"safetensors._safetensors_rust.SafetensorError: Error while deserializing header: {reason}")


def weight_bytes(model: Model, shards: t.Sequence[Path]) -> int:
    """What the weights take on the GPUs together: the index's own total (the files of a test model are small stand-ins)."""
    index = Path(model.path) / "model.safetensors.index.json"
    if index.exists():
        total = json.loads(index.read_text(encoding="utf-8")).get("metadata", {}).get("total_size")
        if total:
            return int(total)
    return sum(shard.stat().st_size for shard in shards)


def kv_bytes_per_token(model: Model, tensor_parallel: int, cache_dtype: t.Optional[str]) -> int:
    """Bytes of KV cache one token takes on one GPU."""
    element = 1 if str(cache_dtype or "").startswith("fp8") else 2
    return 2 * model.layers * max(1, model.kv_heads // tensor_parallel) * model.head_dim * element
