# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers to the few questions a health check asks: small sums and capitals; anything else gets a polite sentence."""

from __future__ import annotations

import itertools
import re
import typing as t

__all__ = ["answer", "words"]

_CAPITALS = {
    "france": "Paris",
    "germany": "Berlin",
    "japan": "Tokyo",
    "italy": "Rome",
    "spain": "Madrid",
    "norway": "Oslo",
    "egypt": "Cairo",
}
_SUM = re.compile(r"(\d{1,9})\s*([-+*x\u00d7]|plus|minus|times)\s*(\d{1,9})")


def answer(prompt: str, mood: str = "") -> str:
    """The answer to the last question of ``prompt``; ``mood`` is the script's word for how wrong it shall be."""
    if mood == "gibberish":
        return "ancé 的 ##ung}} tslib øø whereby ])) orchid 7 kkk ßtra"
    if mood == "exclamation":
        return "!" * 32
    if mood == "empty":
        return ""
    if mood == "wrong":
        return "I think it is 7."
    return mood or _sensible(prompt)


def words(prompt: str, mood: str = "") -> t.Iterator[str]:
    """The same word by word, as tokens are; `endless` goes on until the request's limit."""
    yield from itertools.cycle(["and", "on"]) if mood == "endless" else answer(prompt, mood).split(" ")


def _sensible(prompt: str) -> str:
    question = (
        prompt.rstrip().splitlines()[-2 if prompt.rstrip().endswith(":") and "\n" in prompt.strip() else -1] if prompt.strip() else ""
    )
    found = _SUM.findall(question)
    if found:
        left, sign, right = found[-1]
        return str(_calculate(int(left), sign, int(right)))
    for country, capital in _CAPITALS.items():
        if country in question.lower() and "capital" in question.lower():
            return f"The capital of {country.capitalize()} is {capital}."
    return "I am a stand-in for a language model. I can add, and I know a few capitals."


def _calculate(left: int, sign: str, right: int) -> int:
    if sign in ("+", "plus"):
        return left + right
    return left - right if sign in ("-", "minus") else left * right
