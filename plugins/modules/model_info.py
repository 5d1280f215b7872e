#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a model folder."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_info
short_description: Read what a model is and what its weights take
version_added: 0.1.0
description:
  - Reads the configuration of a model folder and the headers of its safetensors files, and returns what sizing needs.
  - Needs no GPU and nothing but Python. Reads no weights, so it takes about a second for a model of hundreds of gigabytes.
  - A number that the configuration does not say is null. Only RV(num_key_value_heads) and RV(head_dim) are computed where they are
    not said, as the engine does it, and are then named in RV(derived).
  - The language model of a multimodal one is described by a part of the configuration (C(text_config)). What that part does not say
    is looked up in the whole.
options:
  path:
    description: The folder that holds C(config.json) and the weights.
    type: path
    required: true
  load_format:
    description:
      - The C(--load-format) that vLLM is going to use. A folder may hold the same weights twice, and this decides which set counts.
      - With V(mistral) the C(consolidated*.safetensors) files count, else those that C(model.safetensors.index.json) names, or
        C(model.safetensors), or where there is neither, all other safetensors files. Never both sets.
      - With V(dummy) the configuration alone is read, and RV(weights) is null.
      - V(pt), V(npcache), V(gguf), V(tensorizer) and V(sharded_state) read other files and are refused.
    type: str
    default: auto
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.read_only
attributes:
  check_mode:
    support: full
    details: Reads only.
notes:
  - A damaged or missing file is a failure that names it in RV(missing) or RV(damaged). Whether the bytes of the weights are the
    published ones is for M(gpufleet.vllm.model_download) to prove.
seealso:
  - module: gpufleet.vllm.model_download
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Read a model
  gpufleet.vllm.model_info:
    path: /var/lib/gpufleet/models/MiniMaxAI/MiniMax-M2.5/1f3a2b4c5d6e7f8091a2b3c4d5e6f708192a3b4c
  register: model

- name: Say what it weighs
  ansible.builtin.debug:
    msg: "{{ model.architectures | first }}: {{ (model.weights.bytes / 1024**3) | round(2) }} GiB, {{ model.experts.routed }} experts"

- name: Read the configuration before the weights are there
  gpufleet.vllm.model_info:
    path: /srv/models/kimi-k2.5
    load_format: dummy
  register: model
"""

RETURN = r"""
architectures:
  description: The classes that the configuration names.
  returned: success
  type: list
  elements: str
  sample: [MiniMaxM2ForCausalLM]
model_type:
  description: The type that the configuration names.
  returned: success
  type: str
  sample: minimax_m2
text_model_type:
  description: The type of the language model, which differs from RV(model_type) in a multimodal model.
  returned: success
  type: str
  sample: minimax_m2
dtype:
  description: The type that the model computes in (C(dtype), formerly C(torch_dtype)).
  returned: success
  type: str
  sample: bfloat16
num_hidden_layers:
  description: Decoder layers, without those that predict further tokens.
  returned: success
  type: int
  sample: 62
hidden_size:
  description: Width of the model.
  returned: success
  type: int
  sample: 3072
intermediate_size:
  description: Width of the dense layers; in some mixtures, that of the experts.
  returned: success
  type: int
  sample: 1536
num_attention_heads:
  description: Attention heads.
  returned: success
  type: int
  sample: 48
num_key_value_heads:
  description: Heads of keys and values; as many as attention heads where it is not said.
  returned: success
  type: int
  sample: 8
head_dim:
  description:
    - Size of a head; RV(hidden_size) by RV(num_attention_heads) where it is not said.
    - Null where it is not said and the attention is MLA, whose sizes are in RV(attention).
  returned: success
  type: int
  sample: 128
vocab_size:
  description: Entries of the vocabulary.
  returned: success
  type: int
  sample: 200064
max_position_embeddings:
  description: Longest context.
  returned: success
  type: int
  sample: 196608
rope_scaling:
  description: How positions beyond the trained ones are reached; null where they are not.
  returned: success
  type: dict
  sample: {type: yarn, factor: 64.0, original_max_position_embeddings: 4096}
  contains:
    type:
      description: The method.
      type: str
      returned: success
      sample: yarn
    factor:
      description: By how much.
      type: float
      returned: success
      sample: 64.0
    original_max_position_embeddings:
      description: The trained length.
      type: int
      returned: success
      sample: 4096
tie_word_embeddings:
  description: Whether the head is the embedding; null where it is not said.
  returned: success
  type: bool
  sample: false
mtp_layers:
  description: Layers that predict further tokens, as the configuration counts them. The weights may lack them all the same.
  returned: success
  type: int
  sample: 3
vision:
  description: Whether there is a part for images or sound.
  returned: success
  type: bool
  sample: false
remote_code:
  description: Whether the configuration names Python code of the repository (C(auto_map)).
  returned: success
  type: bool
  sample: false
derived:
  description: The fields that were computed because the configuration does not say them.
  returned: success
  type: list
  elements: str
  sample: []
experts:
  description: The experts of a mixture; null in a dense model.
  returned: success
  type: dict
  contains:
    routed:
      description: How many there are to choose from.
      type: int
      returned: success
      sample: 256
    per_token:
      description: How many of them a token takes.
      type: int
      returned: success
      sample: 8
    intermediate_size:
      description: Width of one; RV(intermediate_size) where no width of its own is said.
      type: int
      returned: success
      sample: 1536
    shared:
      description: How many experts every token takes besides; one where only a width is said.
      type: int
      returned: success
      sample: 0
    shared_intermediate_size:
      description: Width of the shared experts together; that of as many routed ones where it is not said.
      type: int
      returned: success
      sample: 0
    dense_layers:
      description: How many layers have no experts.
      type: int
      returned: success
      sample: null
attention:
  description: How attention works.
  returned: success
  type: dict
  contains:
    kind:
      description: V(mha), V(gqa), V(mqa) or V(mla), for the layers with full attention.
      type: str
      returned: success
      sample: gqa
    hybrid:
      description: Whether other layers have linear attention, whose state does not grow with the length.
      type: bool
      returned: success
      sample: false
    layers:
      description:
        - Number of layers by kind (V(full), V(linear), V(sliding), V(other)); null where the configuration does not tell them apart.
        - Computed from the distance of the full ones (C(full_attention_interval)) where they are not listed.
      type: dict
      returned: success
      sample: {full: 15, linear: 45}
    sliding_window:
      description: How many tokens layers with a window look back.
      type: int
      returned: success
      sample: null
    kv_lora_rank:
      description: Size of the latent that MLA keeps instead of keys and values.
      type: int
      returned: success
      sample: 512
    q_lora_rank:
      description: Size of MLA's latent of queries.
      type: int
      returned: success
      sample: 1536
    qk_nope_head_dim:
      description: Part of an MLA head without positions.
      type: int
      returned: success
      sample: 128
    qk_rope_head_dim:
      description: Part of an MLA head with positions, kept besides the latent.
      type: int
      returned: success
      sample: 64
    v_head_dim:
      description: Size of a head of values under MLA.
      type: int
      returned: success
      sample: 128
    indexer:
      description: The part of sparse attention that chooses tokens, with a cache of its own; null where there is none.
      type: dict
      returned: success
      sample: {heads: 32, head_dim: 128, topk: 2048}
      contains:
        heads:
          description: Its heads.
          type: int
          returned: success
          sample: 32
        head_dim:
          description: Size of each.
          type: int
          returned: success
          sample: 128
        topk:
          description: How many tokens it chooses.
          type: int
          returned: success
          sample: 2048
    linear:
      description: Heads of linear attention; null where there is none.
      type: dict
      returned: success
      sample: {key_heads: 16, value_heads: 64, key_head_dim: 128, value_head_dim: 128, conv_kernel_dim: 4}
      contains:
        key_heads:
          description: Heads of keys.
          type: int
          returned: success
          sample: 16
        value_heads:
          description: Heads of values.
          type: int
          returned: success
          sample: 64
        key_head_dim:
          description: Size of a head of keys.
          type: int
          returned: success
          sample: 128
        value_head_dim:
          description: Size of a head of values.
          type: int
          returned: success
          sample: 128
        conv_kernel_dim:
          description: Width of the convolution.
          type: int
          returned: success
          sample: 4
quantization:
  description:
    - How the weights are quantised; null where they are not.
    - Read from C(quantization_config) of C(config.json), else C(hf_quant_config.json), else C(text_config), in the engine's order.
    - Where several groups of modules differ in a field, it is null.
  returned: success
  type: dict
  contains:
    method:
      description: The method, as vLLM's C(--quantization) calls it.
      type: str
      returned: success
      sample: fp8
    format:
      description: The method's own word for its layout, such as V(pack-quantized), V(NVFP4) or V(float8_e4m3fn).
      type: str
      returned: success
      sample: float8_e4m3fn
    source:
      description: Where it stood.
      type: str
      returned: success
      sample: "config.json: quantization_config"
    weight_bits:
      description: Bits of a quantised weight.
      type: int
      returned: success
      sample: 8
    weight_type:
      description: V(int) or V(float).
      type: str
      returned: success
      sample: float
    activation_bits:
      description: Bits of activations; null where they stay in the model's type.
      type: int
      returned: success
      sample: 8
    activation_dynamic:
      description: Whether scales of activations are found while the model runs.
      type: bool
      returned: success
      sample: true
    group_size:
      description: How many weights of a row share a scale; 16 with NVFP4 and 32 with MXFP4 and MXFP8 by definition.
      type: int
      returned: success
      sample: null
    block_shape:
      description: The block of a weight that shares a scale, rows and columns.
      type: list
      elements: int
      returned: success
      sample: [128, 128]
    ignored:
      description: The modules, or patterns of modules, that are not quantised.
      type: list
      elements: str
      returned: success
      sample: [gate, e_score_correction_bias, lm_head]
    ignored_count:
      description: How many entries RV(quantization.ignored) has.
      type: int
      returned: success
      sample: 3
    kv_cache_dtype:
      description: The type of the KV cache that the model has scales for.
      type: str
      returned: success
      sample: fp8
weights:
  description: The tensors of the files that count; null with O(load_format=dummy).
  returned: success
  type: dict
  contains:
    bytes:
      description: All of them.
      type: int
      returned: success
      sample: 230135060070
    tensors:
      description: How many.
      type: int
      returned: success
      sample: 96103
    parameters:
      description:
        - How many weights the model has, those of packed types counted one by one and scales not at all.
        - Null where the type does not say how many a byte holds.
      type: int
      returned: success
      sample: 228700000000
    files:
      description: The files that count.
      type: list
      elements: str
      returned: success
      sample: [model-00000-of-00126.safetensors, model-00001-of-00126.safetensors]
    left_out:
      description: Other safetensors files beside them, such as a second copy of the same weights.
      type: list
      elements: str
      returned: success
      sample: []
    by_dtype:
      description: Sums by the type that tensors are stored in, each with C(tensors), C(bytes) and C(parameters).
      type: dict
      returned: success
      sample: {F8_E4M3: {tensors: 47864, bytes: 227476045824, parameters: 227476045824}}
    by_class:
      description:
        - Sums by class, each with C(tensors), C(bytes) and C(parameters). The classes are V(embedding), V(lm_head), V(attention),
          V(dense_mlp), V(experts), V(shared_experts), V(router), V(norms), V(scales), V(vision), V(mtp) and V(other).
        - V(scales) are the scales and other marks of quantisation, of whatever class. V(mtp) are the layers that predict further
          tokens. Together the classes are all tensors.
      type: dict
      returned: success
      sample: {lm_head: {tensors: 1, bytes: 1229193216, parameters: 614596608}}
    scales:
      description: Bytes of scales by the class whose weights they scale.
      type: dict
      returned: success
      sample: {attention: 674560, experts: 54853632}
    attention:
      description:
        - Bytes of attention by how it is split, scales counted in. V(heads) are queries, output and what unfolds MLA's latent,
          V(key_value) are keys and values, V(latent) is what folds into the latent, V(indexer) and V(linear) as in RV(attention),
          V(fused) are queries, keys and values in one tensor, V(other) the rest.
      type: dict
      returned: success
      sample: {heads: 2341470208, key_value: 390245632}
    layers:
      description: Bytes of each decoder layer, in order.
      type: list
      elements: int
      returned: success
      sample: [3670016, 3670016]
missing:
  description: Files of the index that the folder lacks.
  returned: failure by a missing file
  type: list
  elements: str
  sample: [model-00003-of-00126.safetensors]
damaged:
  description: Files that are no whole safetensors files.
  returned: failure by a damaged file
  type: list
  elements: str
  sample: [model-00003-of-00126.safetensors]
code:
  description:
    - A stable word for what went wrong, such as V(model_missing), V(config_missing), V(config_invalid), V(weights_missing),
      V(shard_missing), V(shard_damaged), V(index_invalid), V(load_format_unsupported) or V(model_unreadable).
  returned: failure
  type: str
  sample: shard_missing
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.model_config import config_facts, load_config
from ..module_utils._core.model_weights import read_weights, weight_files, weights_facts


def read(folder: Path, load_format: str) -> dict[str, t.Any]:
    """Everything there is to know of the model in a folder."""
    config = load_config(folder)
    facts = config_facts(config)
    if load_format == "dummy":
        return {**facts, "weights": None}
    files = weight_files(folder, load_format)
    return {**facts, "weights": weights_facts(read_weights(folder, files, config), files)}


def main() -> None:
    """Read, and say what is wrong with the folder where something is."""
    arguments = {"path": {"type": "path", "required": True}, "load_format": {"type": "str", "default": "auto"}}
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    try:
        facts = read(Path(module.params["path"]), module.params["load_format"])
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
