# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model's configuration says about its size and shape. PRIVATE to the collection.

The language model of a multimodal one stands in a part of its own (``text_config``); a number is looked up there first. What the
configuration does not say is None. Two numbers are computed where they are not said, as the engine does it, and then named in
``derived``: the KV heads (as many as attention heads) and the size of a head (hidden size by attention heads).
"""

from __future__ import annotations

import json
import typing as t
from contextlib import contextmanager
from pathlib import Path

from .errors import VllmError
from .model_quantization import Quantization, read_quantization
from .safetensors import stranger

__all__ = [
    "Attention",
    "Experts",
    "Indexer",
    "LinearAttention",
    "ModelConfig",
    "RopeScaling",
    "config_facts",
    "load_config",
    "read_config",
    "read_json",
    "reading",
]

CONFIG_NAME = "config.json"
QUANT_NAME = "hf_quant_config.json"

_LANGUAGE_PARTS = ("text_config", "llm_config", "language_config")
_OTHER_PARTS = ("vision_config", "visual", "audio_config")
_LARGEST = 1 << 40
"""No size of a model comes near; a larger number is a mistake or meant to exhaust memory."""
_MAX_JSON = 256 * 1024 * 1024


class Experts(t.NamedTuple):
    """The routed experts of a mixture; ``shared`` are those that every token takes."""

    routed: t.Optional[int]
    per_token: t.Optional[int]
    intermediate_size: t.Optional[int]
    shared: t.Optional[int]
    shared_intermediate_size: t.Optional[int]
    dense_layers: t.Optional[int]


class Indexer(t.NamedTuple):
    """The small attention that chooses which tokens a sparse one looks at."""

    heads: t.Optional[int]
    head_dim: int
    topk: t.Optional[int]


class LinearAttention(t.NamedTuple):
    """Heads of the layers whose state does not grow with the length."""

    key_heads: t.Optional[int]
    value_heads: t.Optional[int]
    key_head_dim: t.Optional[int]
    value_head_dim: t.Optional[int]
    conv_kernel_dim: t.Optional[int]


class Attention(t.NamedTuple):
    """How the layers with full attention work, and how many layers of which kind there are where the configuration tells them apart."""

    kind: t.Optional[str]
    hybrid: bool
    layers: t.Optional[dict[str, int]]
    sliding_window: t.Optional[int]
    kv_lora_rank: t.Optional[int]
    q_lora_rank: t.Optional[int]
    qk_nope_head_dim: t.Optional[int]
    qk_rope_head_dim: t.Optional[int]
    v_head_dim: t.Optional[int]
    indexer: t.Optional[Indexer]
    linear: t.Optional[LinearAttention]


class RopeScaling(t.NamedTuple):
    """How positions beyond the trained ones are reached."""

    type: t.Optional[str]
    factor: t.Optional[float]
    original_max_position_embeddings: t.Optional[int]


class ModelConfig(t.NamedTuple):
    """A model as its configuration describes it."""

    architectures: tuple[str, ...]
    model_type: t.Optional[str]
    text_model_type: t.Optional[str]
    dtype: t.Optional[str]
    num_hidden_layers: t.Optional[int]
    hidden_size: t.Optional[int]
    intermediate_size: t.Optional[int]
    num_attention_heads: t.Optional[int]
    num_key_value_heads: t.Optional[int]
    head_dim: t.Optional[int]
    vocab_size: t.Optional[int]
    max_position_embeddings: t.Optional[int]
    rope_scaling: t.Optional[RopeScaling]
    tie_word_embeddings: t.Optional[bool]
    mtp_layers: t.Optional[int]
    vision: bool
    remote_code: bool
    experts: t.Optional[Experts]
    attention: Attention
    quantization: t.Optional[Quantization]
    derived: tuple[str, ...]


def load_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder."""
    with reading(folder):
        if not folder.is_dir():
            raise VllmError(
                f"{folder} is no folder on this host.", code="model_missing", remedy="Name the folder that holds the model's config.json."
            )
        path, beside = folder / CONFIG_NAME, folder / QUANT_NAME
        if not path.exists():
            raise _no_config(folder)
        return read_config(read_json(path), read_json(beside) if beside.exists() else None)


def read_config(document: t.Mapping[str, t.Any], hf_quant_config: t.Optional[t.Mapping[str, t.Any]] = None) -> ModelConfig:
    """A model described by its config.json, whole or in part, and ModelOpt's own file beside it."""
    config = _Config(document)
    attention = _attention(config)
    heads, kv_heads = config.count("num_attention_heads", "n_head", "n_heads", "num_heads"), _kv_heads(config)
    head_dim, hidden = config.count("head_dim"), config.count("hidden_size", "n_embd", "d_model", "dim")
    derived = []
    if kv_heads is None and heads is not None:
        kv_heads = heads
        derived.append("num_key_value_heads")
    if head_dim is None and attention.kv_lora_rank is None and hidden and heads:
        head_dim = hidden // heads
        derived.append("head_dim")
    return ModelConfig(
        architectures=_architectures(document.get("architectures")),
        model_type=config.text_of("model_type", part=document),
        text_model_type=config.text_of("model_type", part=config.language),
        dtype=_dtype(config),
        num_hidden_layers=config.count("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", "ffn_hidden_size", "n_inner"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=config.count("vocab_size", "padded_vocab_size"),
        max_position_embeddings=config.count("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length"),
        rope_scaling=_rope_scaling(config),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        mtp_layers=config.count("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules"),
        vision=any(config.has(name) for name in _OTHER_PARTS),
        remote_code=config.has("auto_map"),
        experts=_experts(config),
        attention=attention._replace(kind=_kind(attention, heads, kv_heads)),
        quantization=_quantization(document, config.language, hf_quant_config),
        derived=tuple(derived),
    )


def read_json(path: Path) -> dict[str, t.Any]:
    """The object in a JSON file of a model folder."""
    with path.open("rb") as file:
        raw = file.read(_MAX_JSON + 1)
    wrong = stranger(raw[:64], len(raw)) or ("is larger than any such file" if len(raw) > _MAX_JSON else "")
    if not wrong:
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError) as exc:
            wrong = f"is no JSON ({exc})"
        else:
            if isinstance(document, dict):
                return document
            wrong = f"holds no JSON object but a {type(document).__name__}"
    raise VllmError(
        f"{path} {wrong}.", code="config_invalid", remedy="Fetch the file again, for instance with gpufleet.vllm.model_download."
    )


@contextmanager
def reading(folder: Path) -> t.Iterator[None]:
    """While this lasts, what may not be read is said in the words of the collection."""
    try:
        yield
    except OSError as exc:
        raise VllmError(
            f"{exc.filename or folder} cannot be read ({exc.strerror}).",
            code="model_unreadable",
            remedy="Run the task as a user who may read the model, or look at the disk.",
        ) from exc


def config_facts(config: ModelConfig) -> dict[str, t.Any]:
    """The configuration as plain data."""
    facts: dict[str, t.Any] = _plain(config)
    if config.quantization:
        facts["quantization"]["ignored_count"] = len(config.quantization.ignored)
    return facts


def _plain(value: t.Any) -> t.Any:
    """Named tuples as mappings, other tuples as lists, all the way down."""
    if hasattr(value, "_asdict"):
        return {name: _plain(inner) for name, inner in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return value


class _Config:
    """config.json as the engine reads it: what the language model's part does not say, the whole may."""

    def __init__(self, document: t.Mapping[str, t.Any]) -> None:
        self.language = _language_part(document)
        self._parts = (document,) if self.language is document else (self.language, document)

    def get(self, *names: str) -> t.Any:
        """The first of the names that is said, wherever."""
        return next((part[name] for name in names for part in self._parts if part.get(name) is not None), None)

    def has(self, name: str) -> bool:
        """Whether there is anything of that name."""
        return bool(self.get(name))

    def count(self, *names: str) -> t.Optional[int]:
        """A number of things. A list, one entry a layer, is no one number, so it is None."""
        name = next((name for name in names if self.get(name) is not None), names[0])
        value = self.get(name)
        if value is None or isinstance(value, list):
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
            raise VllmError(
                f"{CONFIG_NAME} says {name} is {value!r:.80}, which is no size of a model.",
                code="config_invalid",
                remedy="Compare the file with the published one, or fetch it again.",
                details={"field": name},
            )
        return value

    def flag(self, name: str) -> t.Optional[bool]:
        value = self.get(name)
        return value if isinstance(value, bool) else None

    def text_of(self, name: str, part: t.Mapping[str, t.Any]) -> t.Optional[str]:
        value = part.get(name)
        return value if isinstance(value, str) else None


def _language_part(document: t.Mapping[str, t.Any]) -> t.Mapping[str, t.Any]:
    outer = document.get("thinker_config")
    document = outer if isinstance(outer, dict) else document
    return next((document[name] for name in _LANGUAGE_PARTS if isinstance(document.get(name), dict)), document)


def _no_config(folder: Path) -> VllmError:
    instead = [path.name for pattern in ("params.json", "*.gguf") for path in sorted(folder.glob(pattern))]
    hint = f" It has {instead[0]}, another format, which is not read here." if instead else ""
    return VllmError(
        f"{folder} has no {CONFIG_NAME}.{hint}",
        code="config_missing",
        remedy="Name the folder of a whole model, with its configuration beside the weights.",
    )


def _architectures(names: t.Any) -> tuple[str, ...]:
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _dtype(config: _Config) -> t.Optional[str]:
    name = config.get("dtype", "torch_dtype")
    return name.rpartition(".")[2] if isinstance(name, str) else None


def _kv_heads(config: _Config) -> t.Optional[int]:
    if config.get("multi_query") is True and not config.has("new_decoder_architecture"):
        return 1
    return config.count("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")


def _experts(config: _Config) -> t.Optional[Experts]:
    """A mixture is one that counts its experts or says how wide they are."""
    count = config.count("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_routed_experts")
    width = config.count("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size")
    if count == 0 or (count is None and width is None):
        return None
    if width is None:
        width = config.count("intermediate_size")  # Mixtral and MiniMax have no other layers, so the plain name means the experts
    shared, shared_width = _shared(config, width)
    alone = config.get("mlp_only_layers")
    return Experts(
        routed=count,
        per_token=config.count("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts"),
        intermediate_size=width,
        shared=shared,
        shared_intermediate_size=shared_width,
        dense_layers=len(alone) if isinstance(alone, list) else config.count("first_k_dense_replace"),
    )


def _shared(config: _Config, width: t.Optional[int]) -> tuple[t.Optional[int], t.Optional[int]]:
    """How many shared experts, and how wide they are together: as wide as that many routed ones unless a width is said."""
    count = config.count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    together = config.count("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")
    if count is None and together is not None:
        count = 1 if together else 0
    if together is None and count is not None and width is not None:
        together = count * width
    return count, together


def _attention(config: _Config) -> Attention:
    """Everything but its kind, which takes the number of heads."""
    layers = _layer_kinds(config)
    return Attention(
        kind=None,
        hybrid=bool(layers and layers.get("linear")),
        layers=layers,
        sliding_window=None if config.flag("use_sliding_window") is False else config.count("sliding_window"),
        kv_lora_rank=config.count("kv_lora_rank"),
        q_lora_rank=config.count("q_lora_rank"),
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        qk_rope_head_dim=config.count("qk_rope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
        indexer=_indexer(config),
        linear=_linear(config),
    )


def _kind(attention: Attention, heads: t.Optional[int], kv_heads: t.Optional[int]) -> t.Optional[str]:
    if attention.kv_lora_rank:
        return "mla"
    if heads is None or kv_heads is None:
        return None
    return "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa"


def _layer_kinds(config: _Config) -> t.Optional[dict[str, int]]:
    """How many layers of each kind, from a list of them or from the distance of the full ones in between."""
    kinds = config.get("layer_types", "layers_block_type", "attn_type_list")
    if isinstance(kinds, list):
        named = [_layer_kind(kind) for kind in kinds]
        return {kind: named.count(kind) for kind in sorted(set(named))}
    layers, interval = config.count("num_hidden_layers"), config.count("full_attention_interval")
    if not layers or not interval or _linear(config) is None:
        return None
    return {"full": layers // interval, "linear": layers - layers // interval}


def _layer_kind(kind: t.Any) -> str:
    """One of full, linear, sliding, other. MiniMax writes numbers: 1 is full, 0 is linear."""
    if kind in (0, 1):
        return "full" if kind else "linear"
    name = str(kind)
    if "linear" in name or "mamba" in name or "recurrent" in name:
        return "linear"
    if "sliding" in name or "chunked" in name:
        return "sliding"
    return "full" if "attention" in name else "other"


def _indexer(config: _Config) -> t.Optional[Indexer]:
    head_dim = config.count("index_head_dim")
    return Indexer(config.count("index_n_heads"), head_dim, config.count("index_topk")) if head_dim else None


def _linear(config: _Config) -> t.Optional[LinearAttention]:
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    found = LinearAttention(*(config.count(f"linear_{name}") for name in names))
    return found if any(found) else None


def _rope_scaling(config: _Config) -> t.Optional[RopeScaling]:
    said = config.get("rope_scaling", "rope_parameters")
    if not isinstance(said, dict):
        return None
    kind, factor, original = said.get("rope_type", said.get("type")), said.get("factor"), said.get("original_max_position_embeddings")
    if factor is None and original is None:
        return None
    return RopeScaling(
        kind if isinstance(kind, str) else None,
        float(factor) if isinstance(factor, (int, float)) and abs(factor) <= _LARGEST else None,
        original if isinstance(original, int) else None,
    )


def _quantization(
    document: t.Mapping[str, t.Any], language: t.Mapping[str, t.Any], hf_quant_config: t.Optional[t.Mapping[str, t.Any]]
) -> t.Optional[Quantization]:
    """The one that counts for the engine, which looks in this order: a requantised model may still carry the old one in ``text_config``."""
    candidates = (
        (document.get("quantization_config"), f"{CONFIG_NAME}: quantization_config"),
        (hf_quant_config, QUANT_NAME),
        (language.get("quantization_config"), f"{CONFIG_NAME}: text_config.quantization_config"),
        (document.get("compression_config"), f"{CONFIG_NAME}: compression_config"),
    )
    said, source = next(((said, source) for said, source in candidates if said and isinstance(said, dict)), ({}, ""))
    return read_quantization(said, source)
