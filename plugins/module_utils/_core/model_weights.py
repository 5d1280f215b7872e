# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model's weights take, told by the headers of its safetensors files. PRIVATE to the collection.

No data is read: names, types and shapes say what every tensor is. The engine treats the classes differently (experts are spread,
norms are on every GPU), so bytes are kept by layer, class and role; the sums that people want to see are made from that.
"""

from __future__ import annotations

import fnmatch
import math
import re
import typing as t
from pathlib import Path, PurePosixPath

from .errors import VllmError
from .model_config import ModelConfig, read_json, reading
from .safetensors import Malformed, Tensor, read_header
from .snapshot import index_name, some

__all__ = ["CLASSES", "Part", "Tally", "WeightFiles", "Weights", "measure", "part_of", "read_weights", "weight_files", "weights_facts"]

CLASSES = (
    "embedding",
    "lm_head",
    "attention",
    "dense_mlp",
    "experts",
    "shared_experts",
    "router",
    "norms",
    "scales",
    "vision",
    "mtp",
    "other",
)

_SINGLE = "model.safetensors"
_CONSOLIDATED = "consolidated*.safetensors"
_OTHER_FORMATS = ("gguf", "npcache", "pt", "sharded_state", "tensorizer")

_VISION = {"aligner", "audio_tower", "connector", "embed_audio", "embed_vision", "image_newline", "mlp1", "mm_projector"}
_VISION |= {"multi_modal_projector", "patch_merger", "pre_mm_projector_norm", "vision_adapter", "vision_embed_tokens"}
_VISION |= {"vision_encoder", "vision_language_adapter", "vision_model", "vision_tower", "visual"}
_MTP = {"mtp", "mtp_block", "mtp_layers", "nextn"}
_EMBEDDING = {"embed_in", "embed_tokens", "embedding", "embeddings", "tok_embeddings", "word_embeddings", "wpe", "wte"}
_HEAD = {"embed_out", "lm_head"}
_ROUTER = {"e_score_correction_bias", "expert_bias", "gate", "router", "shared_expert_gate", "wg"}
_SHARED = {"shared_expert", "shared_experts", "shared_mlp"}
_EXPERTS = {"block_sparse_moe", "experts", "moe"}
_MLP = {"feed_forward", "ffn", "mlp"}
_LINEAR = {"linear_attn", "mamba", "mixer"}
_ATTENTION = {"attention", "attn", "self_attention", "self_attn", *_LINEAR}
_ROLES = {
    **dict.fromkeys(("q_proj", "o_proj", "q_b_proj", "kv_b_proj", "wq", "wo", "wq_b", "wkv_b"), "heads"),
    **dict.fromkeys(("k_proj", "v_proj", "wk", "wv"), "key_value"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa", "wq_a", "wkv_a_with_mqa"), "latent"),
    **dict.fromkeys(("qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack"), "fused"),
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_NORM = re.compile(r"norm|^ln(?:_|\d|$)")
_SCALE = re.compile(r"(?:^|_)(?:scales?|scale_inv|scale_2|shape|zero_point|qzeros|g_idx|absmax|quant_map)$")
_LEAVES = {"bias", "qweight", "weight", "weight_packed"}
_PACKED = {"I8", "I32", "U8", "U32"}
"""Types that are no weight's own but hold weights of few bits."""


_Key = t.TypeVar("_Key")


class Part(t.NamedTuple):
    """Which part of the model a tensor is.

    ``layer`` counts decoder layers; ``kind`` is one of :data:`CLASSES` but never ``scales``: a scale is of the kind whose weights it
    scales, and ``scale`` says so. ``role`` tells the parts of attention apart, since each is split over GPUs in its own way: ``heads``
    (queries, output, and what unfolds a latent), ``key_value``, ``latent`` (what folds into one), ``indexer``, ``linear``, ``fused``.
    """

    layer: t.Optional[int]
    kind: str
    role: str = ""
    scale: bool = False


class Tally(t.NamedTuple):
    """A sum of tensors. ``parameters`` is None where a packed type does not say how many a byte holds."""

    tensors: int = 0
    bytes: int = 0
    parameters: t.Optional[int] = 0

    def plus(self, other: Tally) -> Tally:
        known = self.parameters is not None and other.parameters is not None
        parameters = (self.parameters or 0) + (other.parameters or 0) if known else None
        return Tally(self.tensors + other.tensors, self.bytes + other.bytes, parameters)


class WeightFiles(t.NamedTuple):
    """The files whose tensors count, and the safetensors files beside them that do not."""

    names: tuple[str, ...]
    left_out: tuple[str, ...]


class Weights(t.NamedTuple):
    """All tensors, summed by part and by the type they are stored in."""

    parts: dict[Part, Tally]
    dtypes: dict[str, Tally]

    def by(self, key: t.Callable[[Part], _Key]) -> dict[_Key, Tally]:
        """Sums over the parts that have the same key."""
        sums: dict[_Key, Tally] = {}
        for part, tally in self.parts.items():
            sums[key(part)] = sums.get(key(part), Tally()).plus(tally)
        return sums

    @property
    def total(self) -> Tally:
        return self.by(lambda part: None).get(None, Tally())


def read_weights(folder: Path, files: WeightFiles, config: ModelConfig) -> Weights:
    """The weights in these files of a folder."""
    with reading(folder):
        return measure((_header(folder, name) for name in files.names), config)


def measure(headers: t.Iterable[t.Mapping[str, Tensor]], config: ModelConfig) -> Weights:
    """The weights that headers describe, one for each file; from an iterator, one at a time is in memory."""
    layers, bits = config.num_hidden_layers, config.quantization.weight_bits if config.quantization else None
    known: dict[str, Part] = {}
    sums: dict[tuple[Part, str], list[int]] = {}
    for header in headers:
        for name, tensor in header.items():
            # A mixture has a hundred thousand names that differ in the expert's number alone: what they are is found once.
            alike = _EXPERT.sub(".experts.", name)
            part = known.get(alike) or known.setdefault(alike, part_of(alike, layers))
            found = sums.setdefault((part, tensor.dtype), [0, 0, 0])
            found[0] += 1
            found[1] += tensor.end - tensor.start
            found[2] += math.prod(tensor.shape)
    weights = Weights({}, {})
    for (part, dtype), (count, size, elements) in sums.items():
        tally = Tally(count, size, _parameters(part, dtype, size, elements, bits))
        weights.parts[part] = weights.parts.get(part, Tally()).plus(tally)
        weights.dtypes[dtype] = weights.dtypes.get(dtype, Tally()).plus(tally)
    return weights


def weight_files(folder: Path, load_format: str = "auto") -> WeightFiles:
    """One whole set of weights, as the engine chooses it: a folder may hold the same weights twice."""
    if load_format in _OTHER_FORMATS:
        raise VllmError(
            f"load_format {load_format} reads other files than safetensors, which cannot be sized.",
            code="load_format_unsupported",
            remedy="Use a model published as safetensors.",
            details={"load_format": load_format},
        )
    with reading(folder):
        there = sorted(path.name for path in folder.glob("*.safetensors"))
        names = _chosen(folder, there, load_format)
    if not names:
        raise _no_weights(folder, load_format, there)
    return WeightFiles(tuple(names), tuple(name for name in there if name not in names))


def _chosen(folder: Path, there: t.Sequence[str], load_format: str) -> list[str]:
    """The files of an index, else those that the names tell; empty where there are none."""
    doubles = [name for name in there if fnmatch.fnmatchcase(name, _CONSOLIDATED)]
    indexed = _indexed(folder, index_name(load_format))
    if indexed or load_format == "mistral":
        return indexed or doubles
    return [_SINGLE] if _SINGLE in there else [name for name in there if name not in doubles] or doubles


def weights_facts(weights: Weights, files: WeightFiles) -> dict[str, t.Any]:
    """The sums that people and playbooks look at."""
    classes = weights.by(lambda part: "scales" if part.scale else part.kind)
    scales = weights.by(lambda part: part.kind if part.scale else "")
    roles = weights.by(lambda part: part.role)
    layers = weights.by(lambda part: -1 if part.layer is None else part.layer)
    return {
        **weights.total._asdict(),
        "files": list(files.names),
        "left_out": list(files.left_out),
        "by_dtype": {dtype: tally._asdict() for dtype, tally in sorted(weights.dtypes.items())},
        "by_class": {kind: classes.get(kind, Tally())._asdict() for kind in CLASSES},
        "scales": {kind: tally.bytes for kind, tally in sorted(scales.items()) if kind},
        "attention": {role: tally.bytes for role, tally in sorted(roles.items()) if role},
        "layers": [layers.get(layer, Tally()).bytes for layer in range(max(layers, default=-1) + 1)],
    }


def part_of(name: str, layers: t.Optional[int] = None) -> Part:
    """The part of the model that a tensor of this name is; a layer beyond the last of ``layers`` predicts further tokens."""
    words = name.split(".")
    scale = bool(_SCALE.search(words[-1])) or "quant_state" in words
    owner = words[-2] if len(words) > 1 and (scale or words[-1] in _LEAVES) else words[-1]
    if _VISION.intersection(words):
        return Part(None, "vision", scale=scale)
    found = _LAYER.search(name)
    layer = int(found.group(1)) if found else None
    if _MTP.intersection(words) or (layer is not None and layers and layer >= layers):
        return Part(None, "mtp", scale=scale)
    kind = _kind(words, owner)
    return Part(layer, kind, _role(words, owner) if kind == "attention" else "", scale)


def _kind(words: t.Sequence[str], owner: str) -> str:
    """The class by the words of a name. Order matters: a gate inside a mixture is its router, a norm inside attention is a norm."""
    if _NORM.search(owner):
        return "norms"
    if "mixer" in words and owner in {"up_proj", "down_proj", "gate_proj"} and not _EXPERTS.union(_SHARED).intersection(words):
        return "dense_mlp"  # Nemotron-H calls every layer's inside a mixer
    if words[0] == "output":
        return "lm_head"  # Mistral's own format
    order = (
        ("router", _ROUTER),
        ("shared_experts", _SHARED),
        ("experts", _EXPERTS),
        ("attention", _ATTENTION),
        ("dense_mlp", _MLP),
        ("lm_head", _HEAD),
        ("embedding", _EMBEDDING),
    )
    return next((kind for kind, names in order if names.intersection(words)), "other")


def _role(words: t.Sequence[str], owner: str) -> str:
    if "indexer" in words:
        return "indexer"
    if "mixer" not in words and _LINEAR.intersection(words):
        return "linear"
    return _ROLES.get(owner, "linear" if "mixer" in words else "other")


def _parameters(part: Part, dtype: str, size: int, elements: int, bits: t.Optional[int]) -> t.Optional[int]:
    """How many weights of the model tensors of one type hold; scales are none."""
    if part.scale:
        return 0
    if dtype in _PACKED and part.kind not in {"norms", "other", "router"}:
        return size * 8 // bits if bits else None
    return elements


def _indexed(folder: Path, index: str) -> list[str]:
    """The files that an index names; empty where there is no index."""
    path = folder / index
    if not path.exists():
        return []
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(map(_is_inside, weight_map.values())):
        raise VllmError(
            f"{path} is no index: its weight_map has to name a file of the folder for each tensor.",
            code="index_invalid",
            remedy="Fetch the file again, for instance with gpufleet.vllm.model_download.",
        )
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise VllmError(
            f"{folder} lacks {some(missing)}, of {len(names)} files that {index} names.",
            code="shard_missing",
            remedy="Run gpufleet.vllm.model_download, which fetches what is missing.",
            details={"missing": missing},
        )
    return names


def _is_inside(name: t.Any) -> bool:
    path = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("/")
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _no_weights(folder: Path, load_format: str, there: t.Sequence[str]) -> VllmError:
    wanted = _CONSOLIDATED if load_format == "mistral" else "*.safetensors"
    beside = f" It has {some(there)}, which load_format {load_format} does not read." if there else ""
    return VllmError(
        f"{folder} has no weights ({wanted}).{beside}",
        code="weights_missing",
        remedy="Fetch the weights first, or set load_format to dummy to read the configuration alone.",
    )


def _header(folder: Path, name: str) -> dict[str, Tensor]:
    path = folder / name
    try:
        return read_header(path)
    except Malformed as exc:
        raise VllmError(
            f"{path} {exc}.",
            code="shard_damaged",
            remedy="Run gpufleet.vllm.model_download with verify set to sha256, which fetches what is damaged.",
            details={"damaged": [name]},
        ) from exc
