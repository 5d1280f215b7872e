# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A limit in bytes a second, on a clock that only sleeping moves, and with real threads."""

from __future__ import annotations

import threading
import time

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.throttle import Throttle
from hypothesis import given
from hypothesis import strategies as st


class Time:
    """A clock; sleeping moves it at once."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_without_a_limit_nobody_is_held_back() -> None:
    time_ = Time()
    throttle = Throttle(None, time_.clock, time_.sleep)
    throttle.spent(10**12)
    assert time_.slept == 0


def test_bytes_that_came_by_themselves_slower_than_the_limit_cost_no_wait() -> None:
    time_ = Time()
    throttle = Throttle(1000, time_.clock, time_.sleep)
    throttle.spent(100)
    before = time_.slept
    for _second in range(10):
        time_.now += 1
        throttle.spent(900)
    assert time_.slept == before


def test_a_quiet_spell_is_made_up_for_by_one_second_only() -> None:
    time_ = Time()
    throttle = Throttle(1000, time_.clock, time_.sleep)
    throttle.spent(1)
    time_.now += 3600
    before = time_.slept
    throttle.spent(1000)
    assert time_.slept == before
    throttle.spent(5000)
    assert time_.slept - before == pytest.approx(5.0)


def test_a_chunk_that_is_taken_back_counts_for_nothing() -> None:
    time_ = Time()
    throttle = Throttle(1000, time_.clock, time_.sleep)
    throttle.spent(-5000)
    throttle.spent(1000)
    assert time_.slept == pytest.approx(1.0)


@given(
    limit=st.integers(1, 10**9),
    steps=st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 5)), min_size=1, max_size=50),
)
def test_never_more_than_the_limit_since_the_first_byte_and_a_second_of_burst(limit: int, steps: list[tuple[int, float]]) -> None:
    time_ = Time()
    throttle = Throttle(limit, time_.clock, time_.sleep)
    began, moved = time_.now, 0
    for count, quiet in steps:
        throttle.spent(count)
        moved += count
        assert moved <= limit * (time_.now - began) * 1.000001 + 1
        time_.now += quiet


def test_threads_share_one_limit() -> None:
    throttle = Throttle(1_000_000, time.monotonic, time.sleep)

    def move() -> None:
        for _chunk in range(10):
            throttle.spent(10_000)

    began = time.monotonic()
    threads = [threading.Thread(target=move) for _thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.39 <= time.monotonic() - began < 2
