# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The growing delay of automatic restarts."""

from __future__ import annotations

import math
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.restart_pause import (
    LONGEST,
    failures_of,
    is_asked,
    is_enough,
    pause_before,
    recent,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unit import UnitState
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_795_977_419.0
RUN = "5c" * 16
UNIT = UnitState("vllm-m.service", n_restarts=3, invocation_id=RUN, restart_delay=10.0, start_limit_interval=3600.0)


def ago(*seconds: float) -> list[float]:
    return [NOW - one for one in seconds]


@pytest.mark.parametrize(("failures", "whole"), [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (40, 300)])
def test_each_failure_doubles_the_delay_up_to_five_minutes(failures: int, whole: float) -> None:
    pause = pause_before(ago(*range(failures)), NOW, UNIT, RUN)
    assert (0 if pause is None else pause.seconds) == whole - 10
    assert pause is None or (pause.whole, pause.interval) == (whole, 3600)


def test_one_line_says_why_how_long_and_which_failure() -> None:
    pause = pause_before(ago(300, 100, 5), NOW, UNIT, RUN)
    assert pause and pause.describe("engine_died") == (
        "pausing 30 s before this automatic restart, 40 s with RestartSec: 3 failures within 3600 s, the last one engine_died"
    )


@pytest.mark.parametrize(
    ("state", "invocation"),
    [
        (UNIT._replace(n_restarts=0), RUN),
        (UNIT, "0f" * 16),
        (UNIT, None),
        (UNIT._replace(restart_delay=0.0), RUN),
        (UNIT._replace(restart_delay=math.inf), RUN),
        (UNIT._replace(restart_delay=600.0), RUN),
    ],
    ids=["asked for", "by hand", "by hand, elsewhere", "no delay", "never", "longer than the longest"],
)
def test_some_starts_do_not_pause(state: UnitState, invocation: t.Optional[str]) -> None:
    assert pause_before(ago(30, 20, 10), NOW, state, invocation) is None


@pytest.mark.parametrize(
    ("failures", "state", "invocation", "enough"),
    [
        (5, UNIT, RUN, "5 failures within 3600 s"),
        (9, UNIT, RUN, "9 failures within 3600 s"),
        (4, UNIT, RUN, None),
        (9, UNIT._replace(n_restarts=0), RUN, None),
        (9, UNIT, "0f" * 16, None),
        (9, UNIT, None, None),
    ],
    ids=["enough", "more", "not yet", "asked for", "by hand", "by hand, elsewhere"],
)
def test_after_five_failures_of_late_an_automatic_restart_is_one_too_many(
    failures: int, state: UnitState, invocation: t.Optional[str], enough: t.Optional[str]
) -> None:
    assert is_enough(ago(*range(failures)), NOW, state, invocation) == enough
    assert is_enough(ago(*range(3601, 3610)), NOW, state, invocation) is None


def test_a_start_is_asked_for_where_nothing_restarted_the_unit_before() -> None:
    assert is_asked(UNIT._replace(n_restarts=0), RUN)
    assert not is_asked(UNIT, RUN)
    assert not is_asked(UNIT, RUN, restarts_then=2)
    assert is_asked(UNIT, RUN, restarts_then=3), "somebody did not wait for systemd's own restart"
    assert not is_asked(UNIT._replace(n_restarts=0), "0f" * 16)


def test_a_clean_run_that_is_longer_than_the_interval_forgets() -> None:
    assert recent(ago(4000, 3700, 3601, 3599, 0), NOW, UNIT) == ago(3599, 0)
    assert pause_before(ago(4000, 3700, 1), NOW, UNIT, RUN) is None


def test_a_clock_that_was_ahead_makes_no_failures() -> None:
    assert recent([NOW + 86400, NOW - 1], NOW, UNIT) == ago(1)


def test_without_a_start_limit_or_an_answer_an_hour_counts() -> None:
    for state in (UNIT._replace(start_limit_interval=0.0), None):
        assert recent(ago(3601, 3599), NOW, state) == ago(3599)


def test_with_an_endless_interval_the_record_stays_short() -> None:
    kept = recent(ago(*range(500)), NOW, UNIT._replace(start_limit_interval=math.inf))
    assert (len(kept), kept[-1]) == (32, NOW)


@pytest.mark.parametrize(
    ("record", "times"),
    [
        (None, []),
        ({"release": "a", "failures": [1.5, 2]}, [1.5, 2.0]),
        ({"release": "a"}, []),
        ({"release": "a", "failures": None}, []),
        ({"release": "a", "failures": ["x", None, 3]}, [3.0]),
        ({"release": "b", "failures": [1, 2]}, []),
    ],
)
def test_only_failures_of_this_release_are_read(record: t.Optional[dict[str, t.Any]], times: list[float]) -> None:
    assert failures_of(record, "a") == times


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.floats(0, 1e4), st.sampled_from([0.0, 60.0, 3600.0, math.inf]), st.integers(0, 9))
def test_no_pause_is_negative_or_makes_the_delay_longer_than_allowed(times: list[float], delay: float, interval: float, count: int) -> None:
    state = UNIT._replace(restart_delay=delay, start_limit_interval=interval, n_restarts=count)
    pause = pause_before([NOW + one for one in times], NOW, state, RUN)
    assert pause is None or (pause.seconds > 0 and delay < pause.whole <= LONGEST and count)
