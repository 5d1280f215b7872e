# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a unit rests before it is started again by itself: longer with every failure of late. PRIVATE to the collection.

systemd's own growing delay (RestartSteps=) needs 254, and counts every restart since the last asked start, however long ago. Here
only failures within the unit's start limit interval count, so a clean run that lasts longer than that forgets by itself.
"""

from __future__ import annotations

import typing as t

from .unit import UnitState

__all__ = ["LONGEST", "MOST", "Pause", "failures_of", "is_asked", "is_enough", "pause_before", "recent"]

LONGEST = 300.0
"""Seconds from an end to the next start, at most."""
MOST = 5
"""After so many failures within the interval a unit is not started again by itself.

systemd's own limit (StartLimitBurst=) is higher: where it strikes, the cause is gone from ``systemctl status`` and even a start that
somebody asks for is refused.
"""
WITHOUT_LIMIT = 3600.0
"""For so many seconds a failure counts where the unit's starts are not limited."""
_REMEMBERED = 32
_DOUBLINGS = 16


class Pause(t.NamedTuple):
    """``seconds`` are added to RestartSec= so that the rest is ``whole``, because of ``failures`` of them in ``interval`` seconds."""

    seconds: float
    whole: float
    failures: int
    interval: float

    def describe(self, cause: str) -> str:
        """One line for the journal."""
        return (
            f"pausing {self.seconds:g} s before this automatic restart, {self.whole:g} s with RestartSec:"
            f" {self.failures} failures within {self.interval:g} s, the last one {cause}"
        )


def failures_of(record: t.Optional[t.Mapping[str, t.Any]], release_id: str) -> list[float]:
    """When a release failed, by the record of its last failure. A failure of another release says nothing of this one."""
    if not record or record.get("release") != release_id:
        return []
    return [float(time) for time in record.get("failures") or () if isinstance(time, (int, float))]


def recent(times: t.Iterable[float], now: float, state: t.Optional[UnitState]) -> list[float]:
    """Those that still count, oldest first. A time that is yet to come is of a clock that was wrong."""
    return sorted(time for time in times if 0 <= now - time <= _interval(state))[-_REMEMBERED:]


def is_asked(state: UnitState, invocation: t.Optional[str], restarts_then: t.Optional[int] = None) -> bool:
    """Whether ``invocation`` is a start of the unit that a person, a play or a boot asked for.

    systemd counts a restart of its own when it makes it. Where the count is still what it was at the last failure
    (``restarts_then``), somebody was quicker.
    """
    return state.invocation_id == invocation and state.n_restarts in (0, restarts_then)


def is_enough(times: t.Iterable[float], now: float, state: UnitState, invocation: t.Optional[str]) -> t.Optional[str]:
    """How many failures of late, in words, where ``invocation`` is one restart too many."""
    failures = len(recent(times, now, state))
    if failures < MOST or not _is_automatic(state, invocation):
        return None
    return f"{failures} failures within {_interval(state):g} s"


def pause_before(times: t.Iterable[float], now: float, state: UnitState, invocation: t.Optional[str]) -> t.Optional[Pause]:
    """The pause before the start that ``invocation`` is; None where there is none to make.

    A start that somebody asked for does not pause, and neither does a command that is run by hand beside the unit.
    """
    if not _is_automatic(state, invocation):
        return None
    count = len(recent(times, now, state))
    whole = max(state.restart_delay, min(LONGEST, state.restart_delay * 2 ** min(max(count - 1, 0), _DOUBLINGS)))
    added = whole - state.restart_delay
    return Pause(added, whole, count, _interval(state)) if added > 0 else None


def _is_automatic(state: UnitState, invocation: t.Optional[str]) -> bool:
    return state.n_restarts > 0 and bool(invocation) and state.invocation_id == invocation


def _interval(state: t.Optional[UnitState]) -> float:
    return (state.start_limit_interval if state else 0.0) or WITHOUT_LIMIT
