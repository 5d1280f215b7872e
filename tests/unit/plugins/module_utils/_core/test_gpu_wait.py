# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting, with readings and a clock made up for the purpose."""

from __future__ import annotations

import math
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import gpu_wait
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_readings import Reading
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpus import Gpu, GpuProcess, ReadError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.procs import ProcessInfo
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.reap import GRACE, Member, Reaper

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
        self.reading_takes = 0.0

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def memory(self) -> t.Sequence[Reading]:
        self.now += self.reading_takes
        gpus = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return [Reading(gpu, {one.pid: self.known[one.pid] for one in gpu.processes if one.pid in self.known}) for gpu in gpus]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(
        self,
        threshold: gpu_wait.Threshold,
        targets: t.Sequence[str] = (),
        timeout: float = 30.0,
        stable: int = 3,
        interval: float = 1.0,
        reaper: t.Optional[Reaper] = None,
    ) -> gpu_wait.WaitResult:
        return gpu_wait.wait_until_free(
            self.memory,
            targets,
            threshold,
            stable_samples=stable,
            interval=interval,
            timeout=timeout,
            clock=lambda: self.now,
            sleep=self.sleep,
            report=lambda record: self.said.append(record["what"]),
            reaper=reaper,
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


# -- ends that take long, and ends that never come -----------------------------------------------------------------------------


def known(process: GpuProcess, **facts: t.Any) -> dict[int, ProcessInfo]:
    """What /proc says of a process on a GPU."""
    info = ProcessInfo(process.pid, process.name or "", process.user, process.unit, process.state or "S", process.start_time or 0, False)
    return {process.pid: info._replace(**facts)}


def test_a_killed_process_that_the_kernel_takes_apart_for_half_a_minute_is_waited_for() -> None:
    # 67 GiB on the GPU and 243 GiB of pinned host memory were seen to take 26 s: SIGKILL is taken, and the memory stands still.
    bench = Bench(*[[gpu(1, processes=[ENGINE._replace(state="R")])]] * 27, [gpu(90)])
    bench.known = known(ENGINE, state="R", exiting=True)
    result = bench.wait(MIN_70, timeout=180)
    assert (result.verdict, result.waited_seconds) == ("free", 29.0)
    assert "pid 21960 VLLM::EngineCore (vllm-a.service, user vllm) that is ending 13.8 GiB" in bench.said[0]


def test_one_that_ends_for_longer_than_the_wait_is_being_released() -> None:
    bench = Bench([gpu(1, processes=[ENGINE._replace(state="D")])])
    bench.known = known(ENGINE, state="D", exiting=True)
    result = bench.wait(MIN_70, timeout=60)
    text = gpu_wait.describe(result)
    assert (result.verdict, result.waited_seconds, result.holders[0]["ending"]) == ("releasing", 60.0, True)
    assert "raise timeout" in text and "hangs in the driver until the host is rebooted" in text


def test_a_flicker_of_memory_is_no_release() -> None:
    flicker = [[gpu(10 + step % 2 / 64, processes=[ENGINE])] for step in range(40)]
    assert Bench(*flicker).wait(MIN_70).verdict == "held"


def test_memory_shared_with_the_host_may_flicker_more() -> None:
    shared = [[gpu(90 - step % 2 / 4)._replace(memory_source="system", memory_reserved=None)] for step in range(40)]
    assert Bench(*shared).wait(MIN_70).samples == 3
    own = [[gpu(90 - step % 2 / 4)] for step in range(40)]
    assert Bench(*own).wait(MIN_70).free is False


def test_a_gpu_that_is_no_longer_listed_is_lost_and_said_to_be() -> None:
    result = Bench([gpu(10), gpu(10, index=1)], [gpu(10)]).wait(MIN_70)
    assert (result.verdict, result.samples) == ("lost", 4)
    assert "GPU 1 (0000:01:00.0): NVML lists it no longer" in gpu_wait.describe(result)


def test_a_gpu_lost_in_mid_wait_ends_it_at_once() -> None:
    lost = Gpu(0, errors=(ReadError("handle", 15, "GPU is lost"),))
    result = Bench([gpu(10)], [gpu(10)], [lost]).wait(MIN_70)
    assert (result.verdict, result.samples) == ("lost", 3)


@pytest.mark.parametrize(
    ("action", "verdict"), [("none", "free"), (None, "free"), ("drain_p2p", "free"), ("gpu_reset", "lost"), ("node_reboot", "lost")]
)
def test_a_gpu_that_needs_a_reset_by_the_drivers_word_is_not_waited_for(action: t.Optional[str], verdict: str) -> None:
    result = Bench([gpu(90)._replace(recovery_action=action)]).wait(MIN_70)
    assert result.verdict == verdict
    assert ("drain_p2p" in " ".join(result.notes)) is (action == "drain_p2p")


def test_what_the_driver_advises_is_passed_on_when_the_wait_ends_in_vain() -> None:
    text = gpu_wait.describe(Bench([gpu(1)._replace(recovery_action="drain_and_reset")]).wait(MIN_70))
    assert "The driver itself asks for drain_and_reset." in text


# -- the pace ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freed_at", [0.31, 0.3, 0.349])
def test_by_default_it_returns_within_a_quarter_of_a_second_of_the_memory_being_free(freed_at: float) -> None:
    bench = Bench([gpu(90)])
    pace = gpu_wait.DEFAULTS
    held = [gpu(1, processes=[ENGINE])]
    bench.readings = [*[held] * math.ceil(freed_at / pace["interval"]), [gpu(90)]]
    result = bench.wait(MIN_70, stable=pace["stable_samples"], interval=pace["interval"])
    assert result.free
    assert result.waited_seconds - freed_at <= 0.25


@pytest.mark.parametrize(("reading_takes", "between"), [(0.0, 1.0), (0.7, 1.0), (0.9, 1.1), (3.0, 3.2)])
def test_it_looks_at_its_interval_however_long_a_look_takes_but_never_without_a_pause(reading_takes: float, between: float) -> None:
    bench = Bench([gpu(90)])
    bench.reading_takes = reading_takes
    assert bench.wait(MIN_70, stable=3).waited_seconds == pytest.approx(2 * between + reading_takes)


# -- what can be waited for ----------------------------------------------------------------------------------------------------


def mig(name: str, free: float, processes: t.Sequence[GpuProcess] = ()) -> Gpu:
    return gpu(free, 20.0, processes=processes)._replace(uuid=f"MIG-{name}", name="card MIG 1g.20gb")


def test_a_mig_device_is_waited_for_by_itself() -> None:
    readings = [gpu(10, processes=[ENGINE, WORKER]), mig("a", 1, [ENGINE]), mig("b", 19)]
    assert Bench(readings).wait(gpu_wait.make_threshold(utilization=0.9), ["MIG-b"]).free
    result = Bench(readings).wait(gpu_wait.make_threshold(utilization=0.9), ["MIG-a", "MIG-b"])
    assert [(one["mig_device"], one["uuid"], one["free"]) for one in result.gpus] == [(True, "MIG-a", False), (True, "MIG-b", True)]
    assert [(one["pid"], one["gpu"], one["gpu_uuid"]) for one in result.holders] == [(ENGINE.pid, 0, "MIG-a")]
    assert "1 of 2 GPUs did not become free in 30 s: GPU 0 (MIG-a) has 1.00 GiB of 20.0 GiB free and needs 18.0 GiB" in gpu_wait.describe(
        result
    )


def test_a_gpu_divided_anew_in_mid_wait_is_lost_not_taken_for_free() -> None:
    result = Bench([gpu(10), mig("a", 1)], [gpu(10), mig("c", 19)]).wait(gpu_wait.make_threshold(utilization=0.9), ["MIG-a"])
    assert result.verdict == "lost"


# -- what to do about it -------------------------------------------------------------------------------------------------------

STRANGER = GpuProcess(4411, "C", 41 * GIB, "python3", "alice", "session-3.scope", "S", 7)


@pytest.mark.parametrize(
    ("process", "facts", "words"),
    [
        (STRANGER, {}, "Stop what holds it (pid 4411) or choose other GPUs."),
        (STRANGER._replace(unit="job.service"), {}, "Stop what holds it (systemctl stop job.service) or choose other GPUs."),
        (STRANGER, {"container": "docker://0123456789ab"}, "Stop what holds it (container docker://0123456789ab) or choose other GPUs."),
        (STRANGER._replace(type="M"), {}, "echo quit | nvidia-cuda-mps-control"),
        (ENGINE, {}, "If vllm-a.service does not run, these are left over from it: gpu_memory_wait with reap=own"),
        (GpuProcess(4411, "C", GIB), {}, "PID namespaces"),
    ],
)
def test_each_kind_of_holder_has_its_way_out(process: GpuProcess, facts: dict[str, t.Any], words: str) -> None:
    bench = Bench([gpu(10, processes=[process])])
    bench.known = known(process, **facts) if process.name else {}
    assert words in gpu_wait.describe(bench.wait(MIN_70))


def test_the_container_of_a_holder_is_named() -> None:
    bench = Bench([gpu(10, processes=[STRANGER])])
    bench.known = known(STRANGER, container="podman://0123456789ab")
    result = bench.wait(MIN_70)
    assert result.holders[0]["container"] == "podman://0123456789ab"
    assert "pid 4411 python3 (podman://0123456789ab, user alice) 41.0 GiB" in gpu_wait.describe(result)


def test_memory_whose_holders_do_not_tell_their_share_is_not_called_nobodys() -> None:
    result = Bench([gpu(10, processes=[STRANGER._replace(bytes=None)])]).wait(MIN_70)
    assert result.gpus[0]["unattributed"] is None
    assert "of no listed process" not in gpu_wait.describe(result)
    assert "an unknown amount" in gpu_wait.describe(result)


# -- with a reaper -------------------------------------------------------------------------------------------------------------


class LeftOver:
    """One process that was left behind and dies of the given signal; its memory is free from the next reading on."""

    def __init__(self, bench: Bench, dies_of: str) -> None:
        self.member = Member(ENGINE.pid, 100, "VLLM::EngineCore", "vllm", "vllm-a.service")
        self.bench = bench
        self.dies_of = dies_of
        self.dead = False
        self.reaper = Reaper("vllm-a.service", self, bench.said.append)

    def left_behind(self) -> t.Sequence[Member]:
        return [] if self.dead else [self.member]

    def lives(self, member: Member) -> bool:
        return not self.dead

    def signal(self, member: Member, name: str) -> bool:
        if name == self.dies_of:
            self.dead = True
            self.bench.readings = [[gpu(90)]]
        return True


@pytest.mark.parametrize(("dies_of", "seconds"), [("TERM", 2.0), ("KILL", GRACE + 2.0)])
def test_what_was_left_behind_is_ended_and_the_wait_goes_on(dies_of: str, seconds: float) -> None:
    bench = Bench([gpu(1, processes=[ENGINE])])
    result = bench.wait(MIN_70, reaper=LeftOver(bench, dies_of).reaper)
    assert (result.verdict, result.waited_seconds) == ("free", seconds)
    assert [(one["pid"], one["signal"], one["gone"]) for one in result.reaped] == [(ENGINE.pid, dies_of, True)]


def test_memory_that_is_free_is_not_enough_while_something_is_left() -> None:
    bench = Bench([gpu(90)])
    result = bench.wait(MIN_70, reaper=LeftOver(bench, "KILL").reaper)
    assert (result.verdict, result.waited_seconds) == ("free", GRACE + 1.0)


def test_but_one_that_cannot_die_and_holds_nothing_does_not_stop_a_start() -> None:
    bench = Bench([gpu(90)])
    result = bench.wait(MIN_70, timeout=180, reaper=LeftOver(bench, "nothing").reaper)
    assert (result.verdict, result.waited_seconds, result.reaped[0]["gone"]) == ("free", 20.0, False)


@pytest.mark.parametrize(("options", "default", "reaps"), [({}, "own", True), ({}, "none", False), ({"reap": "none"}, "own", False)])
def test_reaping_is_chosen_by_the_release_and_else_by_whoever_waits(options: dict[str, str], default: str, reaps: bool) -> None:
    assert gpu_wait.wants_reaping(options, default) is reaps
    with pytest.raises(VllmError, match="reap is 'all'"):
        gpu_wait.wants_reaping({"reap": "all"}, default)


# -- the NVLink fabric ---------------------------------------------------------------------------------------------------------


def joined(state: str, status: t.Optional[str] = None, free: float = 90, index: int = 0) -> Gpu:
    """A GPU of an NVSwitch machine."""
    return gpu(free, index=index)._replace(details={"fabric": {"state": state, "status": status, "health": None}})


UP, COMING = joined("completed", "ok"), joined("in_progress")


def test_a_fabric_in_progress_is_waited_for_although_all_memory_is_free() -> None:
    bench = Bench([COMING], [COMING], [UP])
    result = bench.wait(MIN_70)
    assert (result.free, result.samples, result.gpus[0]["fabric"]["state"]) == (True, 5, "completed")
    reason = "its NVLink fabric is not up yet, so CUDA fails with error 802: look at nvidia-fabricmanager.service"
    assert bench.said[0] == f"waiting for 1 of 1 GPUs: GPU 0: {reason}"
    assert len(bench.said) == 2


def test_a_fabric_that_does_not_come_up_is_the_cause_and_may_be_tried_again() -> None:
    result = Bench([COMING, gpu(1, index=1, processes=[ENGINE])]).wait(MIN_70)
    with pytest.raises(VllmError) as caught:
        gpu_wait.unless_free(result)
    text = str(caught.value)
    assert (result.verdict, caught.value.code, gpu_wait.exit_status(caught.value)) == ("held", "gpu_fabric_not_up", 75)
    assert text.startswith("The NVLink fabric of GPU 0 (0000:00:00.0) was not up after 30 s, so CUDA fails there with error 802")
    assert "nvidia-fabricmanager.service" in text
    assert "out of memory" not in text and "not installed" not in text


def test_a_fabric_that_failed_is_not_waited_for() -> None:
    result = Bench([joined("completed", "Unknown Error")]).wait(MIN_70, timeout=600)
    text = gpu_wait.describe(result)
    assert (result.verdict, result.waited_seconds) == ("lost", 0.0)
    assert "failed (GPU 0 (0000:00:00.0): Unknown Error), so CUDA does not start" in text
    assert "nvidia-fabricmanager.service" in text


def test_a_fabric_that_breaks_during_the_wait_ends_it() -> None:
    held = joined("completed", "ok", free=1)
    assert Bench([held], [held], [joined("completed", "Invalid State", free=1)]).wait(MIN_70).samples == 3


@pytest.mark.parametrize("state", ["not_supported", "not_started", None])
def test_a_machine_without_a_fabric_does_not_wait_for_one(state: t.Any) -> None:
    assert Bench([joined(state)]).wait(MIN_70).samples == 3


def test_the_fabric_of_others_does_not_matter() -> None:
    assert Bench([UP, joined("in_progress", index=1)]).wait(MIN_70, targets=["0"]).free


def test_one_look_at_a_fabric_in_progress_is_no_failure() -> None:
    seen = gpu_wait.read_once(Bench([COMING]).memory, [], MIN_70, clock=lambda: 0.0)
    assert (seen.free, seen.verdict) == (False, "held")
