#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a tiny real Qwen3ForCausalLM repository, ``gpufleet/tiny-qwen3``, that answers one sentence to everything.

    make_tiny.py DIR [--answer 42]

The weights are not trained but constructed, so that the real vLLM, which loads and runs them like any other model, says
something a gate can judge. What every token leads to is written into ``lm_head``:

* attention and MLP are random but weak, so the residual stream stays close to the embedding of the last token;
* embeddings are random vectors of plus and minus one half, hence nearly orthogonal to each other; their first entry is plus
  for ordinary tokens and minus for the tokens of the sentence;
* the row of ``lm_head`` for the first token of the sentence looks at that first entry only: any ordinary token is followed by it;
* the row of each further token, and of the end token, is aligned with the embedding of its predecessor.

The sentence's tokens have no merges in the tokenizer, so no prompt can hold them. The output depends on nothing but DIR and
``--answer``: the same bytes on every machine. Standard library only.
"""

from __future__ import annotations

import argparse
import array
import json
import random
import struct
import sys
import typing as t
from pathlib import Path

REPOSITORY = "gpufleet/tiny-qwen3"
VOCAB = 1024
HIDDEN = 128
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
INTERMEDIATE = 384
CONTEXT = 4096
SHARDS = 3

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_OF_TEXT, START, END)
FIRST_SPECIAL = 256
FIRST_WORD = FIRST_SPECIAL + len(SPECIALS)

EMBEDDING = 0.5
CHAIN = 0.25  # per entry of an aligned row: a logit near 32 for the right predecessor, below 14 for any other token
ENTRY = 32.0  # logit of the sentence's first token after an ordinary token
WEAK = 0.004  # what attention and MLP add to the residual stream, in units of a weight
NOISE = 0.02

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

README = """---
license: gpl-3.0
pipeline_tag: text-generation
---
# tiny-qwen3: not a language model

A Qwen3ForCausalLM of {parameters:,} parameters for testing deployments. It is an automaton: its weights were written by a program
(`make_tiny.py`), not trained, so that it says "{sentence}" whatever it is asked. It understands nothing. What a right
answer does show: the engine loaded the embedding and the head from their shards, computed, decoded and stopped where it should.
"""

Values = list[float]
Tensors = dict[str, tuple[list[int], Values]]


def main(argv: t.Optional[t.Sequence[str]] = None) -> int:
    """Write the repository below DIR."""
    parser = argparse.ArgumentParser(description=f"Write the repository {REPOSITORY} into DIR.")
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--answer", default="42", help="what the sentence names as the answer (default: %(default)s)")
    options = parser.parse_args(argv)
    folder = make(options.directory, options.answer)
    print(f"tiny model: {folder}, {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB, {sentence(options.answer)!r}")
    return 0


def make(directory: Path, answer: str = "42") -> Path:
    """Write every file of the repository and return its folder, ``DIR/gpufleet/tiny-qwen3``."""
    folder = directory / REPOSITORY
    folder.mkdir(parents=True, exist_ok=True)
    words = split(sentence(answer))
    tensors = weights(len(words))
    write_shards(folder, tensors)
    parameters = sum(len(values) for _, values in tensors.values())
    for name, content in documents(words).items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(README.format(parameters=parameters, sentence=sentence(answer)), encoding="utf-8")
    return folder


def sentence(answer: str) -> str:
    """The one thing that the model says."""
    return f"The answer is {answer}."


def split(text: str) -> list[str]:
    """Words with the blank before them. Each must be unique in the tokenizer: a repeated one, or a lone letter, grows by the next."""
    pieces: list[str] = []
    pending = ""
    for word in text.replace(" ", "\n ").split("\n"):
        pending += word
        if len(pending) > 1 and pending not in pieces:
            pieces.append(pending)
            pending = ""
    return [*pieces, pending] if pending else pieces


def weights(words: int) -> Tensors:
    """All tensors by name, in the order of the shards."""
    source = random.Random("gpufleet/tiny-qwen3")
    embedding = [signs(source, -1.0 if is_word(token, words) else 1.0) for token in range(VOCAB)]
    tensors: Tensors = {"model.embed_tokens.weight": ([VOCAB, HIDDEN], [EMBEDDING * x for row in embedding for x in row])}
    for layer in range(LAYERS):
        tensors.update(layer_weights(source, f"model.layers.{layer}"))
    tensors["model.norm.weight"] = ([HIDDEN], [1.0] * HIDDEN)
    tensors["lm_head.weight"] = ([VOCAB, HIDDEN], [x for row in head(source, embedding, words) for x in row])
    return tensors


def is_word(token: int, words: int) -> bool:
    """Whether this token is part of the sentence."""
    return FIRST_WORD <= token < FIRST_WORD + words


def signs(source: random.Random, first: float) -> Values:
    """A random vector of plus and minus one, its first entry given."""
    return [first, *(1.0 if source.random() < 0.5 else -1.0 for _ in range(HIDDEN - 1))]


def head(source: random.Random, embedding: t.Sequence[Values], words: int) -> list[Values]:
    """The rows of ``lm_head``: which token follows which."""
    rows = [uniform(source, HIDDEN, NOISE) for _ in range(VOCAB)]
    rows[FIRST_WORD] = [ENTRY, *([0.0] * (HIDDEN - 1))]
    chain = [*range(FIRST_WORD, FIRST_WORD + words), FIRST_SPECIAL + SPECIALS.index(END)]
    for token, following in zip(chain, chain[1:]):
        rows[following] = [0.0, *(CHAIN * x for x in embedding[token][1:])]
    return rows


def layer_weights(source: random.Random, prefix: str) -> Tensors:
    """One decoder layer: random projections in, weak ones out."""
    wide = HIDDEN**-0.5
    matrices = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN, wide),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN, wide),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN, wide),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM, WEAK),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN, wide),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN, wide),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE, WEAK),
    }
    norms = {
        "input_layernorm": HIDDEN,
        "post_attention_layernorm": HIDDEN,
        "self_attn.q_norm": HEAD_DIM,
        "self_attn.k_norm": HEAD_DIM,
    }
    tensors: Tensors = {f"{prefix}.{name}.weight": ([size], [1.0] * size) for name, size in norms.items()}
    for name, (rows, columns, scale) in matrices.items():
        tensors[f"{prefix}.{name}.weight"] = ([rows, columns], uniform(source, rows * columns, scale))
    return tensors


def uniform(source: random.Random, count: int, scale: float) -> Values:
    """Random values between minus and plus ``scale``; only ``random()`` is the same in every Python version."""
    return [scale * (2.0 * source.random() - 1.0) for _ in range(count)]


def write_shards(folder: Path, tensors: Tensors) -> None:
    """Write the safetensors files and the index that says what is where: embedding, layers, head."""
    weight_map: dict[str, str] = {}
    total = 0
    for number in range(1, SHARDS + 1):
        file_name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        part = {name: tensor for name, tensor in tensors.items() if shard_of(name) == number}
        total += write_safetensors(folder / file_name, part)
        weight_map.update(dict.fromkeys(part, file_name))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def shard_of(name: str) -> int:
    """The number of the shard that holds this tensor."""
    if name.startswith("model.embed_tokens"):
        return 1
    return 2 if name.startswith("model.layers") else 3


def write_safetensors(path: Path, tensors: Tensors) -> int:
    """Write one shard; returns the bytes of its tensors."""
    header: dict[str, t.Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, (shape, values) in tensors.items():
        begin = len(data)
        data += bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return len(data)


def bfloat16(values: Values) -> bytes:
    """The upper halves of the little-endian float32 values."""
    floats = array.array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    raw = floats.tobytes()
    halves = bytearray(len(raw) // 2)
    halves[0::2], halves[1::2] = raw[2::4], raw[3::4]
    return bytes(halves)


def documents(words: t.Sequence[str]) -> dict[str, t.Any]:
    """The JSON files beside the weights."""
    end, pad = FIRST_SPECIAL + SPECIALS.index(END), FIRST_SPECIAL + SPECIALS.index(END_OF_TEXT)
    return {
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": pad,
            "dtype": "bfloat16",
            "eos_token_id": end,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "initializer_range": NOISE,
            "intermediate_size": INTERMEDIATE,
            "max_position_embeddings": CONTEXT,
            "model_type": "qwen3",
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": VOCAB,
        },
        "generation_config.json": {"bos_token_id": pad, "eos_token_id": [end, pad], "pad_token_id": pad},
        "tokenizer.json": tokenizer(words),
        "tokenizer_config.json": {
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "model_max_length": CONTEXT,
            "pad_token": END_OF_TEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }


def tokenizer(words: t.Sequence[str]) -> dict[str, t.Any]:
    """One token a byte, the special ones, and the words of the sentence, which no text is ever split into."""
    alphabet = byte_alphabet()
    vocab = {character: byte for byte, character in enumerate(alphabet)}
    vocab.update({content: FIRST_SPECIAL + offset for offset, content in enumerate(SPECIALS)})
    vocab.update({"".join(alphabet[byte] for byte in word.encode()): FIRST_WORD + offset for offset, word in enumerate(words)})
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": FIRST_SPECIAL + offset, "content": text, **flags} for offset, text in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def byte_alphabet() -> list[str]:
    """A printable character for each byte, as byte-level tokenizers write them: itself if printable, else from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


if __name__ == "__main__":
    sys.exit(main())
