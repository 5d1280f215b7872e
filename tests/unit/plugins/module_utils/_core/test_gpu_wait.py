# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting, with readings and a clock made up for the purpose."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import gpu_wait
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_readings import Reading
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpus import Gpu, GpuProcess, ReadError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.procs import ProcessInfo

GIB = 1024**3
ENGINE = GpuProcess(21960, "C", int(13.8 * GIB), "VLLM::EngineCore", "vllm", "vllm-a.service", "S", 100)
WORKER = GpuProcess(21977, "C", int(15.5 * GIB), "VLLM::Worker_TP0", "vllm", "vllm-a.service", "S", 101)


def gpu(free: float, total: float = 96.0, index: int = 0, processes: t.Sequence[GpuProcess] = ()) -> Gpu:
    """A GPU with that many GiB free."""
    size = int(total * GIB)
    return Gpu(
        index,
        f"GPU-{index}",
        f"0000:0{index}:00.0",
        "card",
        size,
        size - int(free * GIB),
        int(free * GIB),
        0,
        "nvml_v2",
        processes=tuple(processes),
    )


class Bench:
    """Plays readings one after the other, the last one for ever, against a clock that only sleep moves."""

    def __init__(self, *readings: t.Sequence[Gpu]) -> None:
        self.readings = list(readings)
        self.now = 0.0
        self.said: list[str] = []
        self.known: dict[int, ProcessInfo] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def memory(self) -> t.Sequence[Reading]:
        gpus = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return [Reading(gpu, {one.pid: self.known[one.pid] for one in gpu.processes if one.pid in self.known}) for gpu in gpus]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(
        self, threshold: gpu_wait.Threshold, targets: t.Sequence[str] = (), timeout: float = 30.0, stable: int = 3
    ) -> gpu_wait.WaitResult:
        return gpu_wait.wait_until_free(
            self.memory,
            targets,
            threshold,
            stable_samples=stable,
            interval=1.0,
            timeout=timeout,
            clock=lambda: self.now,
            sleep=self.sleep,
            report=lambda record: self.said.append(record["what"]),
        )

    def run(self, options: t.Mapping[str, t.Any]) -> int:
        release = {"gpus": [], "gpu_wait": options}
        return gpu_wait.run(release, lambda _deadline: self, clock=lambda: self.now, sleep=self.sleep, say=self.said.append)


MIN_70 = gpu_wait.make_threshold(min_free=70 * GIB)


def test_stable_but_too_small_is_never_free() -> None:
    holder = GpuProcess(4411, "C", 41 * GIB, "python3")
    result = Bench([gpu(38.2, 80.0, processes=[holder])]).wait(MIN_70)
    text = gpu_wait.describe(result)
    assert (result.free, result.verdict, result.waited_seconds) == (False, "held", 30.0)
    assert all(word in text for word in ("38.2", "70", "4411", "pid 4411"))


def test_the_share_is_of_the_total() -> None:
    unified = gpu(8.88, 121.69)
    text = gpu_wait.describe(Bench([unified]).wait(gpu_wait.make_threshold(utilization=0.85)))
    assert "8.88 GiB" in text
    assert "103.4 GiB" in text
    assert Bench([gpu(40.0, 121.69)]).wait(gpu_wait.make_threshold(utilization=0.3)).free


def test_engine_processes_that_outlived_their_parent_are_named() -> None:
    result = Bench([gpu(1.1, 32.0, processes=[ENGINE, WORKER])]).wait(gpu_wait.make_threshold(min_free=int(27.2 * GIB)))
    text = gpu_wait.describe(result)
    assert all(word in text for word in ("21960", "VLLM::EngineCore", "21977", "1.10 GiB of 32.0 GiB free", "needs 27.2 GiB"))
    assert "systemctl stop vllm-a.service" in text
    assert "utilization" not in text


def test_memory_that_flaps_or_still_moves_starts_the_count_again() -> None:
    free, held, moving = [gpu(90)], [gpu(10)], [gpu(92)]
    assert Bench(free, free, held, free).wait(MIN_70).samples == 6
    assert Bench(free, free, moving).wait(MIN_70).samples == 5


def test_slow_movement_is_movement() -> None:
    creeping = [[gpu(80 + step / 64)] for step in range(12)]
    assert Bench(*creeping).wait(MIN_70, stable=4).samples > 12


def test_memory_that_falls_to_the_end_is_being_released() -> None:
    result = Bench(*([gpu(step)] for step in range(10, 70))).wait(MIN_70)
    assert result.verdict == "releasing"
    assert "raise timeout" in gpu_wait.describe(result)


def test_a_holder_that_was_killed_and_cannot_die_ends_the_wait() -> None:
    stuck = ENGINE._replace(kill_pending=True, state="D")
    result = Bench([gpu(1, processes=[stuck])]).wait(MIN_70, timeout=600)
    assert (result.verdict, result.waited_seconds) == ("wedged", 10.0)
    assert "21960" in gpu_wait.describe(result)
    assert "reboot" in gpu_wait.describe(result)


def test_a_kill_that_is_taken_in_time_does_not() -> None:
    stuck, gone = [gpu(1, processes=[ENGINE._replace(kill_pending=True)])], [gpu(90)]
    assert Bench(*[stuck] * 8, gone).wait(MIN_70, timeout=600).free


def test_one_bad_reading_is_forgiven_and_three_are_not() -> None:
    bad = [Gpu(0, errors=(ReadError("memory", 999, "Unknown Error"),))]
    good = [gpu(90)]
    assert Bench(good, bad, good).wait(MIN_70).samples == 5
    assert Bench(good, bad).wait(MIN_70).verdict == "lost"


def test_each_change_is_said_once() -> None:
    two_held = [gpu(10, index=0, processes=[ENGINE]), gpu(10, index=1, processes=[WORKER])]
    one_held = [gpu(90, index=0), gpu(10, index=1, processes=[WORKER])]
    bench = Bench(two_held, two_held, one_held, one_held, [gpu(90, index=0), gpu(90, index=1)])
    bench.wait(MIN_70)
    assert [line.split(":")[0] for line in bench.said] == [
        "waiting for 2 of 2 GPUs",
        "waiting for 1 of 2 GPUs",
        "memory of 2 of 2 GPUs is free after 4.0 s; seeing whether it stays still",
    ]
    holder = "pid 21977 VLLM::Worker_TP0 (vllm-a.service, user vllm) 15.5 GiB"
    assert bench.said[1] == f"waiting for 1 of 2 GPUs: GPU 1 held by {holder}, 70.5 GiB of no listed process"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "given: none"),
        ({"max_used": 1, "min_free": 1}, "given: max_used, min_free"),
        ({"utilization": 1.2}, "utilization is 1.2"),
        ({"min_free": -1}, "min_free is -1"),
        ({"min_free": 200 * GIB}, "min_free asks for 200.0 GiB free on GPU 0, which has 96.0 GiB when idle"),
        ({"max_used": 1, "timeout": 0.1, "stable_samples": 5}, "timeout is 0.1 s"),
        ({"max_used": 1, "interval": 0}, "interval is 0"),
        ({"max_used": 1, "patience": 3}, "no option patience"),
        ({"max_used": "1G"}, "max_used is '1G'"),
        ({"max_used": 1, "timeout": [60]}, "timeout is [60]"),
    ],
)
def test_a_release_that_waits_wrongly_is_refused_with_78(options: dict[str, t.Any], words: str) -> None:
    bench = Bench([gpu(96)])
    assert bench.run(options) == 78
    assert words in bench.said[-1]


def test_numbers_that_came_as_text_are_numbers() -> None:
    bench = Bench([gpu(90)])
    assert bench.run({"utilization": "0.9", "timeout": "600", "stable_samples": "4", "interval": "0.05"}) == 0


@pytest.mark.parametrize(
    ("reading", "status"),
    [
        ([gpu(90)], 0),
        ([gpu(1, processes=[ENGINE])], 75),
        ([gpu(1, processes=[ENGINE._replace(kill_pending=True)])], 70),
        ([Gpu(0, errors=(ReadError("handle", 15, "GPU is lost"),))], 70),
        ([], 69),
    ],
)
def test_exit_status_of_the_host_helper(reading: t.Sequence[Gpu], status: int) -> None:
    bench = Bench(reading)
    assert bench.run({"min_free": 70 * GIB, "timeout": 20}) == status
    assert bench.said


def test_nvml_that_does_not_answer_is_69() -> None:
    assert gpu_wait.exit_status(VllmError("hangs", code="nvml_hung")) == 69


@pytest.mark.parametrize("verdict", ["held", "lost"])
def test_a_failure_carries_every_fact(verdict: str) -> None:
    result = Bench([gpu(1, processes=[ENGINE])]).wait(MIN_70)._replace(verdict=verdict)
    with pytest.raises(VllmError) as caught:
        gpu_wait.unless_free(result)
    assert caught.value.details == result.facts()
    assert "notes" not in caught.value.details
