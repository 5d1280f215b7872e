# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model's weights are quantised, as its configuration says it. PRIVATE to the collection.

Every method has words of its own for the same few facts: bits of weights and activations, the group or block that shares a scale,
the modules left as they were, the type of the KV cache. What a method does not say stays None. Mixed precision says several
things at once: a fact is then None unless all groups agree on it.
"""

from __future__ import annotations

import re
import typing as t

__all__ = ["Quantization", "read_quantization"]


class Quantization(t.NamedTuple):
    """What the weights were made of. ``format`` is the method's own word for its layout, ``source`` the file and field it stood in."""

    method: t.Optional[str]
    format: t.Optional[str]
    source: str
    weight_bits: t.Optional[int] = None
    weight_type: t.Optional[str] = None
    activation_bits: t.Optional[int] = None
    activation_dynamic: t.Optional[bool] = None
    group_size: t.Optional[int] = None
    block_shape: t.Optional[tuple[int, ...]] = None
    ignored: tuple[str, ...] = ()
    kv_cache_dtype: t.Optional[str] = None


class _Algorithm(t.NamedTuple):
    """What the name of a format settles by definition."""

    weight_bits: t.Optional[int] = None
    activation_bits: t.Optional[int] = None
    group_size: t.Optional[int] = None
    weight_type: t.Optional[str] = "float"


_ALGORITHMS = {
    "NVFP4": _Algorithm(4, 4, 16),
    "W4A16_NVFP4": _Algorithm(4, None, 16),
    "MXFP4": _Algorithm(4, None, 32),
    "MXFP8": _Algorithm(8, 8, 32),
    "FP8": _Algorithm(8, 8),
    "FP8_PER_CHANNEL_PER_TOKEN": _Algorithm(8, 8),
    "FP8_PB_WO": _Algorithm(8),
    "W4A8_AWQ": _Algorithm(4, 8, None, "int"),
    "W4A16_AWQ": _Algorithm(4, None, None, "int"),
}
_NOTHING = _Algorithm(weight_type=None)
_SIZE = re.compile(r"[0-9]{1,9}")
_BITS_IN_NAME = re.compile(r"(?:int|fp)([0-9]{1,2})")


def read_quantization(document: t.Mapping[str, t.Any], source: str) -> t.Optional[Quantization]:
    """The quantisation that a ``quantization_config`` or a whole ``hf_quant_config.json`` describes; None where it describes none."""
    inner = document.get("quantization")
    if isinstance(inner, dict):  # ModelOpt's own file
        document = {"quant_method": "modelopt", **inner} if inner.get("quant_algo") else {}
    if not document:
        return None
    method = _text(document.get("quant_method"))
    method = method.lower() if method else None
    reader = _READERS.get(method or "", _by_groups if "config_groups" in document else _plain_bits)
    found = reader(document, Quantization(method, None, source))
    return found._replace(ignored=_ignored(document), kv_cache_dtype=_kv_cache_dtype(document))


def _fp8(document: t.Mapping[str, t.Any], found: Quantization) -> Quantization:
    """Hugging Face's ``fp8``: 8-bit floats, scaled by tensor or by block."""
    scheme = _text(document.get("activation_scheme"))
    return found._replace(
        format=_text(document.get("fmt")),
        weight_bits=8,
        weight_type="float",
        activation_bits=8 if scheme else None,
        activation_dynamic=scheme == "dynamic" if scheme else None,
        block_shape=_shape(document.get("weight_block_size")),
    )


def _modelopt(document: t.Mapping[str, t.Any], found: Quantization) -> Quantization:
    """ModelOpt names an algorithm, and newer versions say the same again in groups."""
    name = _text(document.get("quant_algo"))
    known = _ALGORITHMS.get((name or "").upper(), _NOTHING)
    groups = _by_groups(document, found)
    return groups._replace(
        format=name,
        weight_bits=_either(groups.weight_bits, known.weight_bits),
        weight_type=_either(groups.weight_type, known.weight_type),
        activation_bits=_either(groups.activation_bits, known.activation_bits),
        group_size=_either(_number(document.get("group_size")), _either(groups.group_size, known.group_size)),
    )


def _by_groups(document: t.Mapping[str, t.Any], found: Quantization) -> Quantization:
    """compressed-tensors: a scheme for each group of modules."""
    named = document.get("config_groups")
    groups = [group for group in named.values() if isinstance(group, dict)] if isinstance(named, dict) else []
    weights = [_mapping(group.get("weights")) for group in groups]
    inputs = [_mapping(group.get("input_activations")) for group in groups]
    return found._replace(
        format=_text(document.get("format")),
        weight_bits=_common(_number(weight.get("num_bits")) for weight in weights),
        weight_type=_common(_text(weight.get("type")) for weight in weights),
        activation_bits=_common(_number(given.get("num_bits")) for given in inputs),
        activation_dynamic=_common(_dynamic(given) for given in inputs),
        group_size=_common(_number(weight.get("group_size")) for weight in weights),
        block_shape=_common(_shape(weight.get("block_structure")) for weight in weights),
    )


def _quark(document: t.Mapping[str, t.Any], found: Quantization) -> Quantization:
    """Quark: types by name, such as ``fp4`` in groups of 32."""
    scheme = _mapping(document.get("global_quant_config"))
    weight, given = _mapping(scheme.get("weight")), _mapping(scheme.get("input_tensors"))
    kind = _text(weight.get("dtype"))
    return found._replace(
        format=kind,
        weight_bits=_named_bits(kind),
        weight_type=None if kind is None else "float" if "fp" in kind else "int",
        activation_bits=_named_bits(_text(given.get("dtype"))),
        activation_dynamic=_dynamic(given),
        group_size=_number(weight.get("group_size")),
    )


def _mxfp4(document: t.Mapping[str, t.Any], found: Quantization) -> Quantization:
    known = _ALGORITHMS["MXFP4"]
    return found._replace(weight_bits=known.weight_bits, weight_type=known.weight_type, group_size=known.group_size)


def _bitsandbytes(document: t.Mapping[str, t.Any], found: Quantization) -> Quantization:
    four, eight = document.get("load_in_4bit") is True, document.get("load_in_8bit") is True
    return found._replace(format=_text(document.get("bnb_4bit_quant_type")), weight_bits=4 if four else 8 if eight else None)


def _plain_bits(document: t.Mapping[str, t.Any], found: Quantization) -> Quantization:
    """GPTQ, AWQ and their kin: whole numbers of so many bits in groups; a group of -1 is a whole column, so there is no size."""
    bits = _number(_first(document, "bits", "w_bit", "weight_bits"))
    return found._replace(
        format=_text(_first(document, "checkpoint_format", "packing_format", "version")),
        weight_bits=bits,
        weight_type="int" if bits else None,
        group_size=_number(_first(document, "group_size", "q_group_size")),
    )


_READERS: dict[str, t.Callable[[t.Mapping[str, t.Any], Quantization], Quantization]] = {
    "fp8": _fp8,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "modelopt_mxfp8": _modelopt,
    "compressed-tensors": _by_groups,
    "quark": _quark,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
}


def _ignored(document: t.Mapping[str, t.Any]) -> tuple[str, ...]:
    """The modules, or patterns of modules, that were left in the model's own type."""
    names = _first(document, "ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "exclude")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _kv_cache_dtype(document: t.Mapping[str, t.Any]) -> t.Optional[str]:
    """The type that the checkpoint has scales of the KV cache for, in vLLM's words."""
    named = _text(document.get("kv_cache_quant_algo"))
    if named:
        return named.lower()
    scheme = _mapping(document.get("kv_cache_scheme"))
    bits, kind = _number(scheme.get("num_bits")), _text(scheme.get("type"))
    return f"{'fp' if kind == 'float' else kind}{bits}" if bits and kind else None


def _dynamic(scheme: t.Mapping[str, t.Any]) -> t.Optional[bool]:
    """Whether scales are found while the model runs; some formats say "local" for a part of them."""
    said = scheme.get("dynamic", scheme.get("is_dynamic"))
    return None if said is None else bool(said)


def _shape(value: t.Any) -> t.Optional[tuple[int, ...]]:
    """A block as ``[128, 128]`` or ``"128x128"``."""
    if isinstance(value, str):
        value = [int(part) if _SIZE.fullmatch(part) else None for part in value.split("x")]
    sizes = [_number(part) for part in value] if isinstance(value, list) else []
    return tuple(size for size in sizes if size) if sizes and all(sizes) else None


def _named_bits(kind: t.Optional[str]) -> t.Optional[int]:
    digits = _BITS_IN_NAME.search(kind or "")
    return int(digits.group(1)) if digits else None


_T = t.TypeVar("_T")


def _common(values: t.Iterable[t.Optional[_T]]) -> t.Optional[_T]:
    """The one value that all groups have."""
    found = list(values)
    return found[0] if found and all(value == found[0] for value in found) else None


def _either(value: t.Optional[_T], fallback: t.Optional[_T]) -> t.Optional[_T]:
    return fallback if value is None else value


def _first(document: t.Mapping[str, t.Any], *names: str) -> t.Any:
    return next((document[name] for name in names if document.get(name) is not None), None)


def _number(value: t.Any) -> t.Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: t.Any) -> t.Optional[str]:
    return value if isinstance(value, str) and value else None


def _mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    """A scheme; some files put it into a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, dict) else {}
