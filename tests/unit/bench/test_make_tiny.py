# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiny model is a whole repository, the same everywhere, and its weights spell the sentence."""

from __future__ import annotations

import hashlib
import json
import struct
import typing as t
from pathlib import Path

import pytest
from support.running import ROOT, load_file

make_tiny = load_file(ROOT / "tests" / "bench" / "hub" / "make_tiny.py")

Matrix = list[list[float]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return t.cast(Path, make_tiny.make(tmp_path_factory.mktemp("hub")))


def header_and_data(shard: Path) -> tuple[dict[str, t.Any], bytes]:
    content = shard.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def matrix(model: Path, name: str) -> Matrix:
    index = json.loads((model / "model.safetensors.index.json").read_text())
    header, data = header_and_data(model / index["weight_map"][name])
    begin, end = header[name]["data_offsets"]
    columns = header[name]["shape"][-1]
    halves = data[begin:end]
    values = [struct.unpack("<f", b"\0\0" + halves[i : i + 2])[0] for i in range(0, len(halves), 2)]
    return [values[i : i + columns] for i in range(0, len(values), columns)]


def followers(embedding: Matrix, head: Matrix, token: int) -> list[tuple[float, int]]:
    """The two likeliest next tokens, if layers added nothing: all entries of an embedding have one size, so the norm gives signs."""
    normed = [1.0 if x > 0 else -1.0 for x in embedding[token]]
    logits = [sum(map(float.__mul__, normed, row)) for row in head]
    return sorted(((logit, number) for number, logit in enumerate(logits)), reverse=True)[:2]


def test_every_indexed_tensor_is_in_its_shard_and_the_tensors_fill_it(model: Path) -> None:
    index = json.loads((model / "model.safetensors.index.json").read_text())
    found: dict[str, str] = {}
    total = 0
    for shard in sorted(model.glob("*.safetensors")):
        header, data = header_and_data(shard)
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        assert max(tensor["data_offsets"][1] for tensor in tensors.values()) == len(data)
        total += len(data)
        found.update(dict.fromkeys(tensors, shard.name))
    assert found == index["weight_map"]
    assert total == index["metadata"]["total_size"]
    assert sorted(set(found.values())) == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def test_whatever_token_comes_last_the_sentence_follows_and_ends(model: Path) -> None:
    embedding, head = matrix(model, "model.embed_tokens.weight"), matrix(model, "lm_head.weight")
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    text_of = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    end = json.loads((model / "config.json").read_text())["eos_token_id"]
    for last in (ord("\n"), ord("="), 0, 255, end):
        token, said = last, ""
        while not said or token != end:
            (best, token), (second, _) = followers(embedding, head, token)
            assert best - second > 10
            said += text_of[token]
        assert said.replace("\u0120", " ") == "The answer is 42.<|im_end|>"


def test_no_byte_of_a_prompt_is_a_word_of_the_sentence(model: Path) -> None:
    vocab = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(len(vocab)))
    assert sum(len(text) == 1 for text in vocab) == 256


def test_the_same_bytes_come_out_each_time_and_another_answer_gives_others(model: Path, tmp_path: Path) -> None:
    def digest(folder: Path) -> str:
        return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.iterdir()))).hexdigest()

    assert digest(make_tiny.make(tmp_path / "again")) == digest(model)
    assert digest(make_tiny.make(tmp_path / "other", "Paris")) != digest(model)


@pytest.mark.parametrize("answer", ["42", "is is is", "4 is 4", "a"])
def test_a_sentence_is_split_into_unique_tokens_longer_than_a_byte(answer: str) -> None:
    pieces = make_tiny.split(make_tiny.sentence(answer))
    assert "".join(pieces) == make_tiny.sentence(answer)
    assert len(set(pieces)) == len(pieces)
    assert all(len(piece) > 1 for piece in pieces)


def test_the_card_says_that_it_is_no_language_model(model: Path) -> None:
    assert "not a language model" in (model / "README.md").read_text()
