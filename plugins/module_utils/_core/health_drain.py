# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a server has nothing left to answer, before it is stopped. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .health_listeners import check_owner
from .health_server import FINAL, Server
from .health_types import Effects, Facts, Obstacle, Want
from .health_unit import UnitWatch
from .http import Unreachable
from .metrics import sum_of

__all__ = ["Drain"]

_RUNNING = ("vllm:num_requests_running",)
_WAITING = ("vllm:num_requests_waiting",)
_DONE = ("vllm:request_success_total", "vllm:generation_tokens_total", "vllm:prompt_tokens_total")


class Drain:
    """Nothing runs, nothing waits, and nothing was done since the look before: a request on its way in is not counted yet."""

    def __init__(self, want: Want, effects: Effects, server: Server, watch: UnitWatch, facts: Facts, *, looks: int) -> None:
        self._want = want
        self._effects = effects
        self._server = server
        self._watch = watch
        self._facts = facts
        self._looks = looks
        self._done: t.Optional[float] = None
        self._quiet = 0

    def check(self) -> t.Optional[Obstacle]:
        """A server that is not there has nothing to answer either."""
        if self._want.unit and self._is_gone():
            return None
        foreign = check_owner(self._want, self._effects, self._watch, self._facts) if self._want.unit else None
        if foreign:
            return foreign
        try:
            response = self._server.get("/metrics")
        except Unreachable as exc:
            if exc.code == "refused" and self._want.unit:
                self._facts.note(f"{self._want.unit} refuses connections, so it answers nobody")
                return None
            return Obstacle(exc.message.rstrip("."), exc.code if exc.code in FINAL else "", exc.remedy)
        return self._judge(response.body.decode("utf-8", "replace"), response.status)

    def _is_gone(self) -> bool:
        _before, state = self._watch.look()
        if state.exists and state.main_pid:
            return False
        self._facts.note(f"{state.name} is {state.active_state or 'not there'} and has no process, so it answers nobody")
        return True

    def _judge(self, text: str, status: int) -> t.Optional[Obstacle]:
        running, waiting = sum_of(text, _RUNNING), sum_of(text, _WAITING)
        if running is None or waiting is None:
            reason = f"{self._want.who}: /metrics ({status}) does not count requests"
            return Obstacle(reason, "no_metrics", "Take disable-log-stats out of the engine's arguments.")
        self._facts.update(requests_running=int(running), requests_waiting=int(waiting))
        before, self._done = self._done, sum_of(text, _DONE)
        self._quiet = 0 if running + waiting else 1 if self._done != before else self._quiet + 1
        if self._quiet >= self._looks:
            return None
        return Obstacle(f"{self._want.who} has {running:.0f} requests running and {waiting:.0f} waiting")
