# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a model something that has one right answer, and judge what comes back. PRIVATE to the collection."""

from __future__ import annotations

import json
import math
import re
import typing as t

from .http import Response, Transport

__all__ = ["QUESTIONS", "Answer", "Question", "RequestRefused", "ask", "judge"]

_OPEN_THOUGHT = re.compile(r"^\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
_SHORTEST_REPETITION = 12


class Question(t.NamedTuple):
    """A question and the pattern of its right answer."""

    text: str
    expected: t.Pattern[str]


class Answer(t.NamedTuple):
    """What was generated. ``probe`` names the route that took the question."""

    text: str
    reasoning: str
    tokens: int
    probe: str
    norm: t.Optional[float] = None


class RequestRefused(Exception):
    """The server answered, but not with a generation. ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


QUESTIONS = (
    Question("What is 17 + 25? Answer with the number only.", re.compile(r"\b42\b")),
    Question("What is the capital of France? Answer with one word.", re.compile(r"\bparis\b", re.IGNORECASE)),
)


def ask(
    transport: Transport,
    url: str,
    question: Question,
    *,
    headers: t.Mapping[str, str],
    model: str,
    max_tokens: int,
    timeout: float,
) -> Answer:
    """Put the question by chat; by completion to a model without a chat template; as an embedding to one that generates nothing."""
    for probe, path, body in _attempts(model, question.text, max_tokens):
        response = transport("POST", f"{url}{path}", {**headers, "Content-Type": "application/json"}, json.dumps(body).encode(), timeout)
        if response.status == 200:
            return _read(probe, response)
        if not _is_another_kind_of_model(probe, response):
            break
    raise RequestRefused(response.status, f"{path} answered {response.status}: {_error_text(response)}")


def judge(answer: Answer, question: Question) -> tuple[str, str]:
    """``("", "")`` for a good answer, else a code and a sentence."""
    if answer.probe == "embeddings":
        sound = answer.norm is not None and math.isfinite(answer.norm) and answer.norm > 0
        return ("", "") if sound else ("degenerate_answer", "the embedding is all zero or not a number")
    if answer.tokens == 0 and not answer.text.strip() and not answer.reasoning.strip():
        return "empty_answer", "nothing was generated"
    for text in (answer.text, answer.reasoning):
        if _is_degenerate(text):
            return "degenerate_answer", f"the answer is one thing over and over: {text.strip()[:40]!r}"
    said = _OPEN_THOUGHT.sub("", answer.text).strip()
    if not said:
        return "", ""  # a reasoning model that was still thinking when its tokens were spent
    if question.expected.search(said):
        return "", ""
    return "wrong_answer", f"asked {question.text!r}, it answered {said[:80]!r}"


def _attempts(model: str, text: str, max_tokens: int) -> t.Iterator[tuple[str, str, dict[str, t.Any]]]:
    common = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    yield "chat", "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": text}]}
    yield "completions", "/v1/completions", {**common, "max_tokens": min(max_tokens, 32), "prompt": f"Question: {text}\nAnswer:"}
    yield "embeddings", "/v1/embeddings", {"model": model, "input": text}


def _is_another_kind_of_model(probe: str, response: Response) -> bool:
    if response.status == 404:
        return "does not exist" not in _error_text(response)
    return response.status == 400 and probe == "chat" and "chat template" in _error_text(response)


def _error_text(response: Response) -> str:
    try:
        value = response.json()
    except ValueError:
        return response.body[:200].decode("utf-8", "replace")
    error = value.get("error", value.get("detail", value)) if isinstance(value, dict) else value
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


def _read(probe: str, response: Response) -> Answer:
    try:
        value = response.json()
        if probe == "embeddings":
            vector = value["data"][0]["embedding"]
            return Answer("", "", 0, probe, math.sqrt(sum(float(part) ** 2 for part in vector)))
        choice = value["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        return Answer(
            str(message.get("content") or ""), str(reasoning), int((value.get("usage") or {}).get("completion_tokens") or 0), probe
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise RequestRefused(response.status, f"the answer by {probe} is not what vLLM sends ({type(exc).__name__}: {exc})") from exc


def _is_degenerate(text: str) -> bool:
    """A few characters again and again, as broken numbers give it; one repeated word in a sentence is none."""
    squeezed = "".join(text.split())
    if len(squeezed) < _SHORTEST_REPETITION:
        return False
    return any(squeezed == (squeezed[:size] * (len(squeezed) // size + 1))[: len(squeezed)] for size in range(1, len(squeezed) // 4 + 1))
