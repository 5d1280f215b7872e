# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The readiness ladder of a vLLM server, and the wait for one of its rungs. PRIVATE to the collection.

alive: the unit runs. listening: the port is open, the unit's own processes hold it, and nothing else of theirs is open to the network.
healthy: /health says so. serving: the key is taken, and the intended model is served from the intended path. answering: a question with
one right answer gets it. Apart from these, drained: nothing is in flight.
"""

from __future__ import annotations

import typing as t

from .health_answers import check_answering
from .health_deadline import Deadline
from .health_drain import Drain
from .health_listeners import check_listeners
from .health_server import Server
from .health_types import DRAINED, LEVELS, Effects, Facts, Health, Obstacle, Want
from .health_unit import UnitWatch
from .phases import DESCRIPTIONS
from .redaction import without_secrets

__all__ = ["DRAINED", "LEVELS", "Effects", "Health", "Want", "look_once", "wait_ready"]

_INTERVAL = 0.5


def wait_ready(want: Want, effects: Effects) -> Health:
    """Climb until ``want.level``. The deadline moves while the start visibly does; what cannot get better ends the wait at once."""
    ladder = _Ladder(want, effects, looks=2)
    deadline = Deadline(want, effects.clock)
    said = ""
    while True:
        reached, obstacle = ladder.climb()
        if obstacle is None or obstacle.code:
            return ladder.health(reached, obstacle)
        moved = deadline.note((reached, ladder.watch.mark))
        if moved or obstacle.reason != said:
            effects.report(ladder.progress(obstacle))
            said = obstacle.reason
        over = deadline.verdict(ladder.watch, obstacle)
        if over:
            return ladder.health(reached, over)
        effects.sleep(_INTERVAL)


def look_once(want: Want, effects: Effects) -> Health:
    """How far the server is now."""
    ladder = _Ladder(want, effects, looks=1)
    return ladder.health(*ladder.climb())


class _Ladder:
    """One server over the time of a wait."""

    def __init__(self, want: Want, effects: Effects, *, looks: int) -> None:
        self._want = want
        self._effects = effects
        self._facts = Facts(answer=None, latency=None, tokens_per_second=None, version=None, probe=None, address=None)
        self._facts.update(listeners=[], notes=[])
        self.watch = UnitWatch(want, effects)
        self._server = Server(want, effects, self.watch, self._facts)
        self._drain = Drain(want, effects, self._server, self.watch, self._facts, looks=looks)
        self._started = effects.clock()
        self._reached_at: dict[str, float] = {}

    def climb(self) -> tuple[str, t.Optional[Obstacle]]:
        """Check rung after rung; the last one reached and what stands before the next."""
        reached = ""
        for level, check in self._rungs():
            obstacle = check()
            if obstacle:
                return reached, obstacle
            if level == "alive" and not self._want.unit:
                continue
            reached = level
            self._reached_at.setdefault(level, self._effects.clock())
        return reached, None

    def _rungs(self) -> list[tuple[str, t.Callable[[], t.Optional[Obstacle]]]]:
        if self._want.level == DRAINED:
            return [(DRAINED, self._drain.check)]
        want, effects, facts, server = self._want, self._effects, self._facts, self._server
        checks = (
            self._alive,
            lambda: check_listeners(want, effects, self.watch, facts) or server.check_listening(),
            server.check_healthy,
            server.check_serving,
            lambda: check_answering(want, effects, server, facts),
        )
        return list(zip(LEVELS, checks))[: LEVELS.index(want.level) + 1]

    def _alive(self) -> t.Optional[Obstacle]:
        if self._want.unit:
            return self.watch.check()
        self._facts.note("the unit was not given, so neither its state nor the owner of the port was checked")
        return None

    def progress(self, obstacle: Obstacle) -> dict[str, t.Any]:
        """A record for people: it never holds the key, whatever the server wrote."""
        tracker, key = self.watch.tracker, self._want.api_key
        if tracker.done is None:
            return {"what": without_secrets(obstacle.reason, {key})}
        return {"what": DESCRIPTIONS[tracker.phase], "done": tracker.done, "total": tracker.total, "unit": tracker.unit}

    def health(self, reached: str, obstacle: t.Optional[Obstacle]) -> Health:
        failed = obstacle or Obstacle("")
        facts = {**self._facts, "cause": failed.cause or failed.code, "evidence": list(failed.evidence)}
        state = self.watch.state
        facts.update(
            remedies=[dict(remedy) for remedy in failed.remedies],
            phases=self._phases(),
            phase=self.watch.tracker.phase if self._want.unit else None,
            waited_seconds=round(self._effects.clock() - self._started, 3),
            restarts=state.n_restarts if state else None,
            unit_end=state.describe() if state and obstacle else None,
        )
        reason = failed.reason or f"{self._want.who} is {reached}"
        return Health(reached, obstacle is None, reason, failed.code, failed.remedy, facts)

    def _phases(self) -> list[dict[str, t.Any]]:
        """The start's own phases where the journal tells them, else how long each rung took to reach."""
        if self.watch.tracker.lines_seen:
            return self.watch.tracker.phases()
        ends = list(self._reached_at.items())
        begins = [self._started, *(moment for _level, moment in ends)]
        return [{"name": level, "seconds": round(moment - begin, 3)} for (level, moment), begin in zip(ends, begins)]
