# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a model something that has one right answer. PRIVATE to the collection."""

from __future__ import annotations

import json
import math
import re
import typing as t

from .effects import Clock
from .http import Response, Transport

__all__ = ["QUESTIONS", "Answer", "Question", "RequestRefused", "ask"]

_PARIS = "paris|par[ií]ž|parigi|parijs|巴黎|パリ|파리|париж|παρίσι|باريس|पेरिस|ปารีส|פריז"
_SHORTEST_WAIT = 1.0


class Question(t.NamedTuple):
    """A question and the pattern of its right answer, in whatever language the model prefers."""

    text: str
    expected: t.Pattern[str]


class Answer(t.NamedTuple):
    """What was generated. ``probe`` names the route that took the question; ``logprobs_refused`` says why none were given."""

    text: str
    reasoning: str
    tokens: int
    probe: str
    norm: t.Optional[float] = None
    finish_reason: str = ""
    logprobs: t.Sequence[float] = ()
    logprobs_refused: str = ""


class RequestRefused(Exception):
    """The server answered, but not with a generation. ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


QUESTIONS = (
    Question(
        "What is 17 + 25? Answer with the number only.", re.compile(r"(?<![\d.,])42(?![\d])|forty[- ]two|四十二|사십이", re.IGNORECASE)
    ),
    Question("What is the capital of France? Answer with one word.", re.compile(_PARIS, re.IGNORECASE)),
)


def ask(
    transport: Transport,
    root: str,
    question: Question,
    *,
    headers: t.Mapping[str, str],
    model: str,
    max_tokens: int,
    logprobs: bool,
    deadline: float,
    clock: Clock,
) -> Answer:
    """Put the question by chat; by completion to a model without a chat template; as an embedding to one that generates nothing.

    The numbers behind the words are asked for with ``logprobs`` only: vLLM compiles what computes them at the first such request.
    """

    def post(path: str, body: t.Mapping[str, t.Any]) -> Response:
        sent = {**headers, "Content-Type": "application/json"}
        return transport("POST", f"{root}{path}", sent, json.dumps(body).encode(), max(_SHORTEST_WAIT, deadline - clock()))

    for probe, path, body, numbers in _attempts(model, question.text, max_tokens):
        more = numbers if logprobs else {}
        response, refused = post(path, {**body, **more}), ""
        if more and _may_be_about_logprobs(probe, response):
            refused = f"{response.status}: {_error_text(response)}"
            response = post(path, body)
        if response.status == 200:
            return _read(probe, response)._replace(logprobs_refused=refused)
        if not _is_another_kind_of_model(probe, response):
            break
    raise RequestRefused(response.status, f"{path} answered {response.status}: {_error_text(response)}")


def _attempts(model: str, text: str, max_tokens: int) -> t.Iterator[tuple[str, str, dict[str, t.Any], dict[str, t.Any]]]:
    """Each route with its request, and with what asks for the numbers behind the words."""
    common = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    yield "chat", "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": text}]}, {"logprobs": True}
    prompt = {"prompt": f"Question: {text}\nAnswer:", "max_tokens": min(max_tokens, 32)}
    yield "completions", "/v1/completions", {**common, **prompt}, {"logprobs": 0}
    yield "embeddings", "/v1/embeddings", {"model": model, "input": text}, {}


def _may_be_about_logprobs(probe: str, response: Response) -> bool:
    """A refusal that asking again without them could spare us: the model's arguments forbid them, or its numbers cannot be written."""
    return response.status in (400, 422, 500, 501) and not _is_another_kind_of_model(probe, response)


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
            return Answer("", "", 0, probe, _norm(value["data"][0]["embedding"]))
        choice = value["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        return Answer(
            text=str(message.get("content") or ""),
            reasoning=str(message.get("reasoning") or message.get("reasoning_content") or ""),
            tokens=int((value.get("usage") or {}).get("completion_tokens") or 0),
            probe=probe,
            finish_reason=str(choice.get("finish_reason") or ""),
            logprobs=_logprobs(choice.get("logprobs") or {}),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise RequestRefused(response.status, f"the answer by {probe} is not what vLLM sends ({type(exc).__name__}: {exc})") from exc


def _norm(vector: t.Sequence[t.Optional[float]]) -> float:
    """Some writers of JSON have null for what is not a number."""
    return math.sqrt(sum((math.nan if part is None else float(part)) ** 2 for part in vector))


def _logprobs(found: t.Mapping[str, t.Any]) -> list[float]:
    values = [token.get("logprob") for token in found.get("content") or []] or found.get("token_logprobs") or []
    return [float(value) for value in values if value is not None]
