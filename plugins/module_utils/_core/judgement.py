# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell an answer from what broken weights and broken numbers say. PRIVATE to the collection."""

from __future__ import annotations

import math
import re
import typing as t
import unicodedata

from .answers import Answer, Question

__all__ = ["Complaint", "is_about_content", "judge", "says_not_finite"]

_SHORTEST_REPETITION = 12
_SHORTEST_LOOP, _TURNS_OF_A_LOOP = 40, 8
_MOST_DEBRIS = 0.1
# What vLLM writes for minus infinity, which no token that was chosen has.
_MINUS_INFINITY = -9999.0
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")
_INDIC = ("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA")
_OTHERS = ("LATIN", "CYRILLIC", "ARABIC", "HEBREW", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "GEORGIAN", "ARMENIAN", "ETHIOPIC")
# Languages that write with several of these; letters of mathematics, Greek ones among them, are of no script here.
_SCRIPT = {**dict.fromkeys(_EAST_ASIAN, "East Asian"), **{name: name.capitalize() for name in _INDIC + _OTHERS}}
_SCRIPTS = 3
_OPEN_THOUGHT = re.compile(r"^\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


class Complaint(t.NamedTuple):
    """What is wrong with an answer, as a stable word and as a sentence."""

    code: str
    text: str


def judge(answer: Answer, question: Question) -> t.Optional[Complaint]:
    """None for a good answer."""
    broken = _broken_numbers(answer)
    if broken:
        return Complaint("broken_numbers", broken)
    if answer.probe == "embeddings":
        return None
    if _is_empty(answer):
        return Complaint("empty_answer", "nothing was generated")
    for text in (answer.text, answer.reasoning):
        nonsense = _nonsense(text)
        if nonsense:
            return Complaint("degenerate_answer", f"{nonsense}: {_beginning(text)!r}")
    said = _OPEN_THOUGHT.sub("", answer.text).strip()
    if not said or question.expected.search(_plain(said)):
        return None  # nothing said yet: a reasoning model that was still thinking when its tokens were spent
    return Complaint("wrong_answer", f"asked {question.text!r}, it answered {said[:80]!r}")


def is_about_content(complaint: Complaint) -> bool:
    """What a model that knows nothing may say as well; broken numbers and silence are no matter of knowledge."""
    return complaint.code in ("degenerate_answer", "wrong_answer")


def says_not_finite(text: str) -> bool:
    """What a server says that cannot put its numbers into JSON."""
    return "out of range float" in text.lower()


def _broken_numbers(answer: Answer) -> str:
    if answer.norm is not None and not (math.isfinite(answer.norm) and answer.norm > 0):
        return "the embedding is all zero or not a number"
    if any(not math.isfinite(value) or value <= _MINUS_INFINITY for value in answer.logprobs):
        return f"logprobs are not finite, and it said {_beginning(answer.text or answer.reasoning)!r}"
    return "logprobs are not finite, so the server cannot write them down" if says_not_finite(answer.logprobs_refused) else ""


def _is_empty(answer: Answer) -> bool:
    """Tokens that show no text can be hidden thoughts, but only where their limit ended them."""
    if answer.text.strip() or answer.reasoning.strip():
        return False
    return answer.tokens < 2 or answer.finish_reason == "stop"


def _nonsense(text: str) -> str:
    if _is_one_thing_again_and_again("".join(text.split())):
        return "the answer is one thing over and over"
    if _debris(text) > _MOST_DEBRIS:
        return "the answer is full of characters that no text has"
    scripts = _scripts(text)
    return f"the answer mixes {len(scripts)} scripts ({', '.join(sorted(scripts))})" if len(scripts) >= _SCRIPTS else ""


def _is_one_thing_again_and_again(squeezed: str) -> bool:
    """A few characters again and again, as broken numbers give it, from the start or at the end; a repeated word in a sentence is none."""
    length = len(squeezed)
    if length >= _SHORTEST_REPETITION and any(_repeats(squeezed, size) for size in range(1, length // 4 + 1)):
        return True
    tail = squeezed[length // 2 :]
    return len(tail) >= _SHORTEST_LOOP and any(_repeats(tail, size) for size in range(1, len(tail) // _TURNS_OF_A_LOOP + 1))


def _repeats(text: str, size: int) -> bool:
    return text[size:] == text[:-size]


def _debris(text: str) -> float:
    """The share of characters that stand for broken bytes, or for nothing at all."""
    broken = [char for char in text if char == "\ufffd" or (unicodedata.category(char) in ("Cc", "Co", "Cs") and char not in "\n\r\t")]
    return len(broken) / max(1, len(text))


def _scripts(text: str) -> set[str]:
    """The scripts of its letters. Answers in any language have one or two of them: their own, and the Latin letters of names."""
    letters = {char for char in unicodedata.normalize("NFKC", text) if char.isalpha()}
    words = {unicodedata.name(char, "").partition(" ")[0] for char in letters}
    return {_SCRIPT[word] for word in words if word in _SCRIPT}


def _plain(text: str) -> str:
    """Digits of any script as ours."""
    return "".join(str(unicodedata.digit(char, char)) for char in text)


def _beginning(text: str) -> str:
    return text.strip()[:40]
