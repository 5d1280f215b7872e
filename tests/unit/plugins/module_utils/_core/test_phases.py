# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a start is, from the log lines of real starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.phases import StartTracker

LOGS = Path(__file__).resolve().parents[3] / "fixtures" / "vllm_logs"


def follow(name: str) -> tuple[StartTracker, list[str]]:
    tracker, seen = StartTracker(), ["starting"]
    for number, line in enumerate((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()):
        tracker.feed(float(number), [line])
        if tracker.phase != seen[-1]:
            seen.append(tracker.phase)
    return tracker, seen


@pytest.mark.parametrize("log", ["gpu-startup-ok", "startup-ok", "json-logging"])
def test_a_start_goes_through_its_phases_and_ends_serving(log: str) -> None:
    _tracker, seen = follow(log)
    assert seen[0] == "starting" and seen[-1] == "serving"
    assert {"reading_configuration", "starting_engine", "loading_weights", "allocating_kv_cache", "starting_api"} <= set(seen)


def test_shards_are_counted_and_standing_still_is_told_from_being_done() -> None:
    tracker = StartTracker()
    tracker.feed(0.0, ["(Worker pid=3) INFO 11-29 18:00:00 [gpu_model_runner.py:1] Starting to load model /m..."])
    assert not tracker.is_counting
    tracker.feed(1.0, ["Loading safetensors checkpoint shards:  32% Completed | 41/125 [00:20<00:41, 2.0it/s]"])
    assert tracker.is_counting and tracker.describe() == "loading weights, 41/125 shards"
    tracker.feed(2.0, ["Loading safetensors checkpoint shards: 100% Completed | 125/125 [01:02<00:00, 2.0it/s]"])
    assert not tracker.is_counting


def test_a_slow_rank_does_not_turn_the_clock_back() -> None:
    tracker = StartTracker()
    tracker.feed(0.0, ["(EngineCore pid=2) INFO 11-29 18:00:00 [k.py:1] GPU KV cache size: 4,096 tokens"])
    tracker.feed(1.0, ["(Worker_TP1 pid=4) INFO 11-29 18:00:01 [d.py:1] Loading weights took 3.00 seconds"])
    assert tracker.phase == "allocating_kv_cache"


def test_phases_have_seconds_and_the_open_one_only_when_asked() -> None:
    tracker = StartTracker()
    tracker.feed(10.0, ["first"])
    tracker.feed(14.5, ["(EngineCore pid=2) INFO 11-29 18:00:00 [core.py:1] Initializing a V1 LLM engine (v0.33.0) with config: x"])
    assert tracker.phases() == [{"name": "starting", "seconds": 4.5}]
    assert tracker.phases(20.0)[-1] == {"name": "starting_engine", "seconds": 5.5}
