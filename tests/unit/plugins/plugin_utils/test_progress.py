# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.plugin_utils.progress import Pace, describe, in_bytes, in_time


@pytest.mark.parametrize(
    ("record", "rate", "line"),
    [
        (
            {"what": "weights", "done": 71.2e9, "total": 215e9, "unit": "B", "files": 41, "files_total": 125},
            412e6,
            "weights: 41/125 files  71.2/215.0 GB  412 MB/s  5m49s left",
        ),
        ({"what": "waiting for GPU 2, held by process 41 (python)"}, 0.0, "waiting for GPU 2, held by process 41 (python)"),
        ({"what": "loading", "done": 3, "total": 9, "unit": "shards"}, 0.5, "loading: 3/9 shards  0.5 shards/s  12s left"),
        ({"what": "weights", "done": 0, "total": 5000, "unit": "B"}, 0.0, "weights: 0.0/5.0 kB"),
    ],
)
def test_a_record_becomes_one_line(record: dict[str, t.Any], rate: float, line: str) -> None:
    assert describe(record, rate) == line


def test_the_pace_follows_the_last_half_minute() -> None:
    pace = Pace()
    assert pace.rate(0, 0) == 0
    assert pace.rate(10, 100) == 10
    for second in range(20, 200, 10):
        latest = pace.rate(second, 100 + (second - 10) * 50)
    assert latest == 50


def test_a_counter_that_starts_again_starts_a_new_pace() -> None:
    pace = Pace()
    pace.rate(0, 500)
    assert pace.rate(10, 0) == 0
    assert pace.rate(20, 100) == 10


def test_amounts_read_well() -> None:
    assert [in_bytes(count) for count in (0, 999, 1500, 53.2e6, 230e9)] == ["0.0 B", "999 B", "1.5 kB", "53.2 MB", "230 GB"]
    assert [in_time(seconds) for seconds in (0.2, 59, 348, 7300)] == ["0s", "59s", "5m48s", "2h01m"]
