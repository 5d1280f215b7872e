# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a transfer below a number of bytes a second. PRIVATE to the collection."""

from __future__ import annotations

import threading
import typing as t

from .effects import Clock, Sleep

__all__ = ["Throttle"]

_BURST = 1.0
"""Seconds of a quiet spell that may be made up for."""


class Throttle:
    """Shared by the threads that move bytes: each tells what it moved and is held back until that much was due.

    Without a ``limit`` nobody is held back.
    """

    def __init__(self, limit: t.Optional[int], clock: Clock, sleep: Sleep) -> None:
        self._limit = limit
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._due: t.Optional[float] = None

    def spent(self, count: int) -> None:
        """Tell that ``count`` bytes were moved; returns when they were due."""
        if self._limit and count > 0:
            self._sleep_until_due(count / self._limit)

    def _sleep_until_due(self, seconds: float) -> None:
        with self._lock:
            now = self._clock()
            earliest = now if self._due is None else now - _BURST
            self._due = max(earliest, self._due or earliest) + seconds
            pause = self._due - now
        if pause > 0:
            self._sleep(pause)
