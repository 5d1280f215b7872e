# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit of a server over the time of a wait: whether it lives, how far its start is, and why it ended. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .diagnose import diagnose
from .health_types import Effects, Obstacle, Want
from .journal import read_entries, read_invocation
from .listeners import Listener
from .phases import DESCRIPTIONS, StartTracker
from .unit import UnitState, show_unit

__all__ = ["UnitWatch"]


class UnitWatch:
    """Looks at the unit again and again, and reads what its current start writes."""

    def __init__(self, want: Want, effects: Effects) -> None:
        self.tracker = StartTracker()
        self.state: t.Optional[UnitState] = None
        self._want = want
        self._effects = effects
        self._cursor: t.Optional[str] = None
        self._last_time = 0.0
        self._recent: list[str] = []

    def look(self) -> tuple[t.Optional[UnitState], UnitState]:
        """The state at the last look, and now."""
        before, self.state = self.state, show_unit(self._effects.runner, self._want.unit)
        return before, self.state

    def check(self) -> t.Optional[Obstacle]:
        """What keeps the unit from being alive."""
        before, state = self.look()
        if not state.exists:
            return Obstacle(f"{state.name} does not exist ({state.load_state})", "unit_not_found", "Deploy it first, or correct the name.")
        if before and state.n_restarts > before.n_restarts:
            return self._failure(before.invocation_id or state.invocation_id, state)
        if state.is_settling:
            doing = f"has a job queued ({state.active_state})" if state.job else f"is stopping ({state.sub_state})"
            return Obstacle(f"{state.name} {doing}")
        if state.waits_for_restart or state.active_state == "failed":
            return self._failure(state.invocation_id, state)
        if state.active_state == "inactive":
            return _not_running(state)
        return self._coming_up(before, state)

    def owns(self, listener: Listener) -> bool:
        """Whether a listening socket is held by a process of the unit."""
        main_pid = self.state.main_pid if self.state else 0
        return listener.unit == self._want.unit or bool(listener.pid and listener.pid == main_pid)

    @property
    def mark(self) -> t.Any:
        """Changes when anything about the start moves."""
        lines = self.tracker.lines_seen if self.state and self.state.is_preparing else 0
        return (self.tracker.mark, lines, self.state and self.state.invocation_id)

    def last_lines(self) -> list[str]:
        return self._recent[-6:]

    def _coming_up(self, before: t.Optional[UnitState], state: UnitState) -> t.Optional[Obstacle]:
        self._follow(before, state)
        if state.is_running:
            return None
        if state.is_preparing:
            said = f": {self.tracker.last_line}" if self.tracker.last_line else ""
            return Obstacle(f"{state.name} is {DESCRIPTIONS['waiting_for_gpus']}{said}")
        return Obstacle(f"{state.name} is {state.active_state} ({state.sub_state})")

    def _follow(self, before: t.Optional[UnitState], state: UnitState) -> None:
        """Read what this start wrote since the last look; a new start begins a new account."""
        if before and before.invocation_id != state.invocation_id:
            self.tracker, self._cursor, self._recent = StartTracker(), None, []
        for entry in read_entries(self._effects.runner, state.invocation_id, self._cursor):
            self.tracker.feed(entry.time, entry.lines)
            self._cursor, self._last_time = entry.cursor, entry.time
            self._recent = [*self._recent, *entry.lines][-40:]

    def _failure(self, invocation_id: str, state: UnitState) -> Obstacle:
        """The unit's start or run is over: say why, from the journal of exactly that one."""
        lines = read_invocation(self._effects.runner, state.name, invocation_id)
        found = diagnose(lines)
        self.tracker = StartTracker()
        self.tracker.feed(self._last_time, lines)
        while_doing = DESCRIPTIONS.get(found.phase, found.phase)
        if found.cause == "stopped":
            reason = f"{state.name} was stopped while {while_doing}"
            return Obstacle(reason, "unit_not_running", "Start it again.", found.cause, found.evidence)
        ended = f" ({state.describe_end()})" if found.cause == "unknown" and not state.is_running else ""
        again = f" It was restarted {state.n_restarts} times." if state.n_restarts > 1 else ""
        reason = f"{state.name} failed while {while_doing}: {found.message.rstrip('.')}{ended}.{again}"
        return Obstacle(reason, "unit_failed", found.remedy, found.cause, found.evidence, found.remedies)


def _not_running(state: UnitState) -> Obstacle:
    if state.was_skipped:
        reason = f"{state.name} was not started, because a condition of its unit is not met"
        return Obstacle(reason, "unit_not_running", f"systemctl status {state.name} names the condition: meet it or take it out.")
    return Obstacle(f"{state.name} is not running", "unit_not_running", f"Start it: systemctl start {state.name}.")
