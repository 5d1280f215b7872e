# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a wait goes on: a deadline that moves while the start visibly does. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .effects import Clock
from .health_types import DRAINED, Obstacle, Want
from .health_unit import UnitWatch

__all__ = ["Deadline"]


class Deadline:
    """``timeout`` from the start, or ``stall_timeout`` from the last progress, whichever is later.

    Where steps are counted and none is done for ``stall_timeout``, it is over sooner. Draining moves nothing: what is in flight may
    go on for ever.
    """

    def __init__(self, want: Want, clock: Clock) -> None:
        self._want = want
        self._clock = clock
        self._started = self._moved_at = clock()
        self._first: t.Any = None
        self._mark: t.Any = None
        self._has_moved = False

    def note(self, mark: t.Any) -> bool:
        """Take in what can be seen of the start; whether it changed."""
        if mark == self._mark:
            return False
        if self._mark is not None:
            self._moved_at = self._clock()
        self._first = self._first or mark
        self._has_moved = self._has_moved or mark != self._first
        self._mark = mark
        return True

    def verdict(self, watch: UnitWatch, obstacle: Obstacle) -> t.Optional[Obstacle]:
        """Why the wait is over, or None while it goes on."""
        now, want = self._clock(), self._want
        still = now - self._moved_at
        if watch.tracker.is_counting and still > want.stall_timeout:
            reason = f"{want.who} stands still while {watch.tracker.describe()}: nothing moved for {still:.0f} s"
            return Obstacle(reason, "stalled", "Look at the processes and the GPUs, then restart the unit.", evidence=watch.last_lines())
        patience = want.stall_timeout if self._has_moved and want.level != DRAINED else 0
        if now > max(self._started + want.timeout, self._moved_at + patience):
            reason = f"{want.who} did not reach level {want.level} in {now - self._started:.0f} s: {obstacle.reason}"
            return Obstacle(reason, "timeout", "Raise timeout if it is only slow.", evidence=watch.last_lines())
        return None
