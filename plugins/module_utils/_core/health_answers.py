# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rung above serving: a question with one right answer, put to the model and judged. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .answers import QUESTIONS, Answer, Question, RequestRefused, ask
from .health_server import Server
from .health_types import Effects, Facts, Obstacle, Want
from .http import Unreachable
from .judgement import Complaint, is_about_content, judge, says_not_finite

__all__ = ["check_answering"]

_MAX_TOKENS = 512
_SUSPECTS = "First suspects: a damaged or missing shard, the wrong quantization or dtype, the kernel options of this release."


def check_answering(want: Want, effects: Effects, server: Server, facts: Facts) -> t.Optional[Obstacle]:
    """One right answer to one of the questions is enough."""
    complaint: t.Optional[Complaint] = None
    for question in QUESTIONS:
        server.has_made_tokens()
        try:
            answer = _put(question, want, effects, server, facts)
        except Unreachable as exc:
            return _no_answer(exc, want, server)
        except RequestRefused as exc:
            return _refused(exc, want, server)
        complaint = judge(answer, question)
        if complaint is None or (want.answer_check == "any" and is_about_content(complaint)):
            return None
    if complaint is None:
        return None
    return Obstacle(f"{want.who} is healthy but does not answer sensibly: {complaint.text}", complaint.code, _SUSPECTS)


def _put(question: Question, want: Want, effects: Effects, server: Server, facts: Facts) -> Answer:
    asked = effects.clock()
    answer = ask(
        effects.transport,
        server.root,
        question,
        headers=server.headers(),
        model=facts["model"],
        max_tokens=min(_MAX_TOKENS, (facts.get("max_model_len") or 2048) // 2),
        logprobs=want.logprobs,
        deadline=asked + want.answer_timeout,
        clock=effects.clock,
    )
    _keep(answer, question, effects.clock() - asked, facts)
    return answer


def _keep(answer: Answer, question: Question, seconds: float, facts: Facts) -> None:
    speed = round(answer.tokens / seconds, 2) if answer.tokens and seconds > 0 else None
    facts.update(answer=answer.text or answer.reasoning, question=question.text, probe=answer.probe, tokens=answer.tokens)
    facts.update(latency=round(seconds, 3), tokens_per_second=speed)
    if answer.logprobs_refused:
        facts.note(f"the server refused to give logprobs ({answer.logprobs_refused}), so they were not checked")
    if answer.tokens and not answer.text:
        facts.note(f"{answer.tokens} tokens were generated, all of them before an answer: the model was still thinking")


def _no_answer(exc: Unreachable, want: Want, server: Server) -> Obstacle:
    if exc.code != "timeout":
        return Obstacle(exc.message.rstrip("."))
    if server.has_made_tokens():
        return Obstacle(f"no answer in {want.answer_timeout:g} s, busy: tokens are being produced")
    reason = f"{want.who}: /health answered 200, and a request got no answer in {want.answer_timeout:g} s: generation timed out"
    return Obstacle(reason, "generation_timeout", "The engine hangs: look at its processes and the GPUs, then restart the unit.")


def _refused(exc: RequestRefused, want: Want, server: Server) -> Obstacle:
    if says_not_finite(str(exc)):
        return Obstacle(f"{want.who} is healthy but its numbers are not finite: {exc}", "broken_numbers", _SUSPECTS)
    if exc.status == 401:
        return server.key_refused(exc.status)
    if exc.status >= 500 or exc.status == 429:
        return Obstacle(f"{want.who}: {exc}")
    return Obstacle(f"{want.who}: {exc}", "request_refused", "Check the arguments of the release against the model.")
