# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_memory_wait, really run against the fake library."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest
from support.running import ROOT
from support.units import UnitGroup, is_possible

MIB = 1024**2
QUICK = {"interval": 0.05, "stable_samples": 3}


def test_free_gpus_are_free_at_once(gpu_machine: t.Any) -> None:
    result = gpu_machine.module("gpu_memory_wait", utilization=0.95, **QUICK)
    assert (result["changed"], result["free"], result["verdict"], result["holders"]) == (False, True, "free", [])
    assert len(result["gpus"]) == 8
    assert result["samples"] == 3
    assert result["waited_seconds"] < 2


def test_every_target_counts_and_the_holder_is_named(gpu_machine: t.Any) -> None:
    holder = gpu_machine.holder("--gpu", "2", "--mib", "60000")
    result = gpu_machine.module("gpu_memory_wait", gpus=["0", "1", "2", "3"], utilization=0.95, timeout=0.3, **QUICK)
    assert (result["failed"], result["code"], result["verdict"], result["free"]) == (True, "gpu_memory_held", "held", False)
    assert f"pid {holder.pid} python" in result["msg"]
    assert "1 of 4 GPUs" in result["msg"]
    assert "GPU 2 (0000:41:00.0) has 36.4 GiB of 95.6 GiB free and needs 90.8 GiB" in result["msg"]
    assert "58.6 GiB" in result["msg"]
    assert [(one["pid"], one["gpu"], one["bytes"]) for one in result["holders"]] == [(holder.pid, 2, 60000 * MIB)]
    assert [gpu["free"] for gpu in result["gpus"]] == [True, True, False, True]


def test_a_holder_elsewhere_does_not_matter(gpu_machine: t.Any) -> None:
    gpu_machine.holder("--gpu", "5", "--mib", "60000")
    assert gpu_machine.module("gpu_memory_wait", gpus=["0", "1", "2", "3"], max_used="1G", **QUICK)["free"] is True


def test_it_goes_on_by_itself_when_the_memory_is_freed(gpu_machine: t.Any, tmp_path: Path) -> None:
    holder = gpu_machine.holder("--gpu", "2", "--mib", "60000", "--linger", "0.3")
    progress = tmp_path / "progress.json"
    seen: list[dict[str, t.Any]] = []

    def free_it_once_it_waits() -> None:
        end = time.monotonic() + 20
        while not progress.exists() and time.monotonic() < end:
            time.sleep(0.01)
        seen.append(json.loads(progress.read_text()))
        holder.kill()
        holder.wait()

    helper = threading.Thread(target=free_it_once_it_waits)
    helper.start()
    result = gpu_machine.module("gpu_memory_wait", min_free="90G", timeout=20, progress_path=str(progress), **QUICK)
    helper.join()
    assert (result["free"], result["gpus"][2]["used_first"], result["gpus"][2]["used_last"]) == (True, 60000 * MIB, 0)
    assert seen[0]["what"].startswith(f"waiting for 1 of 8 GPUs: GPU 2 held by pid {holder.pid} python")
    assert (seen[0]["done"], seen[0]["total"], seen[0]["unit"]) == (7, 8, "GPUs")
    assert "8 of 8 GPUs is free" in json.loads(progress.read_text())["what"]


def test_check_mode_looks_once_and_does_not_fail(gpu_machine: t.Any) -> None:
    holder = gpu_machine.holder("--gpu", "2", "--mib", "60000")
    result = gpu_machine.module("gpu_memory_wait", check_mode=True, max_used=1073741824)
    assert (result.get("failed"), result["changed"], result["free"], result["verdict"], result["samples"]) == (
        None,
        False,
        False,
        "held",
        1,
    )
    assert result["holders"][0]["pid"] == holder.pid


def test_memory_of_no_process_is_said_to_be_so(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.set_used(0, [(0, 16900)], gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", gpus=["0"], utilization=0.92, timeout=0.2, **QUICK)
    assert result["gpus"][0]["unattributed"] == 16900 * MIB
    assert "16.5 GiB held by no process that NVML lists" in result["msg"]
    assert "PID namespaces" in result["msg"]


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_lost_target_fails_at_once(gpu_machine: t.Any, check_mode: bool) -> None:
    gpu_machine.nvml.fail("nvmlDeviceGetMemoryInfo*", 15, gpu=2, folder=gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", check_mode=check_mode, gpus=["1", "2"], max_used="1G", timeout=60, **QUICK)
    assert (result["failed"], result["code"], result["verdict"], result["samples"]) == (True, "gpu_lost", "lost", 1)
    assert "GPU 2 (0000:41:00.0): GPU is lost" in result["msg"]


def test_a_lost_gpu_that_is_no_target_is_a_warning(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDevice*", 15, gpu=2, folder=gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", gpus=["0", "1"], max_used="1G", **QUICK)
    assert result["free"] is True
    assert "GPU 2" in json.dumps(result["warnings"])


def test_a_target_named_by_the_uuid_of_a_lost_card_is_called_lost(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDevice*", 15, gpu=2, folder=gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", gpus=[gpu_machine.nvml.default_gpu(2).uuid], max_used="1G", **QUICK)
    assert (result["failed"], result["code"]) == (True, "gpu_lost")
    assert "GPU 2 cannot be used (GPU is lost)" in result["msg"]


def test_a_reset_that_is_required_fails_at_once(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", 16, gpu=1, folder=gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", max_used="1G", timeout=60, **QUICK)
    assert (result["code"], result["samples"]) == ("gpu_lost", 1)
    assert "needs a reset" in result["msg"]


def test_a_driver_of_another_version_fails_at_once(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlInit*", 18, folder=gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", max_used="1G", timeout=600)
    assert (result["failed"], result["code"]) == (True, "nvml_driver_mismatch")
    assert "library 580.159.04" in result["msg"]
    assert "reboot" in result["msg"]


def test_nvml_that_hangs_mid_wait_ends_at_its_deadline(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.set_used(0, [(0, 60000)], gpu_machine.dir)
    gpu_machine.nvml.hang("nvmlDeviceGetMemoryInfo*", 60, gpu=3, start=1.5, folder=gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", max_used="1G", timeout=60, nvml_timeout=0.5, **QUICK)
    assert (result["failed"], result["code"], result["verdict"]) == (True, "nvml_hung", "wedged")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one of the following is required"),
        ({"max_used": "1G", "utilization": 0.9}, "mutually exclusive"),
        ({"utilization": 1.0}, "95.6 GiB free on GPU 0, which has 95.0 GiB when idle"),
    ],
)
def test_bad_options_are_refused(gpu_machine: t.Any, options: dict[str, t.Any], words: str) -> None:
    result = gpu_machine.module("gpu_memory_wait", **options)
    assert result["failed"] is True
    assert words in result["msg"]


def test_an_older_driver_is_allowed_its_reserve(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 0 memory v1"], gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", gpus=["0"], max_used=100 * MIB, **QUICK)
    gpu = result["gpus"][0]
    assert (result["free"], gpu["memory_source"], gpu["used_last"], gpu["unattributed"]) == (True, "nvml_v1", 637 * MIB, 0)
    assert "1.00 GiB more than max_used is allowed for it" in json.dumps(result["warnings"])
    holder = gpu_machine.holder("--gpu", "0", "--mib", "2000")
    held = gpu_machine.module("gpu_memory_wait", gpus=["0"], max_used=100 * MIB, timeout=0.2, **QUICK)
    assert (held["verdict"], held["holders"][0]["pid"]) == ("held", holder.pid)


def test_where_gpu_and_host_share_one_memory_processes_are_what_max_used_means(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 0 memory none"], gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", gpus=["0"], max_used="1G", **QUICK)
    gpu = result["gpus"][0]
    assert (result["free"], gpu["memory_source"], gpu["needed_free"], gpu["unattributed"]) == (True, "system", None, None)
    assert gpu["memory_total"] == 1024 * int(Path("/proc/meminfo").read_text().split()[1])
    holder = gpu_machine.holder("--gpu", "0", "--mib", "60000")
    held = gpu_machine.module("gpu_memory_wait", gpus=["0"], max_used="1G", timeout=0.2, **QUICK)
    assert (held["verdict"], held["holders"][0]["pid"]) == ("held", holder.pid)


def test_a_gpu_that_the_driver_wants_reset_fails_at_once(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 1 recovery 1"], gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", gpus=["1"], max_used="1G", timeout=60, **QUICK)
    assert (result["code"], result["samples"], result["gpus"][0]["recovery_action"]) == ("gpu_lost", 1, "gpu_reset")
    assert "needs a reset (GPU 1 (0000:21:00.0): the driver asks for gpu_reset)" in result["msg"]


def test_a_gpu_that_the_driver_wants_drained_is_free_with_a_warning(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 1 recovery 4"], gpu_machine.dir)
    result = gpu_machine.module("gpu_memory_wait", gpus=["1"], max_used="1G", **QUICK)
    assert result["free"] is True
    assert "GPU 1: the driver asks for drain_and_reset when it is drained." in json.dumps(result["warnings"])


@pytest.mark.parametrize("function", ["nvmlInit*", "nvmlDeviceGetHandleByIndex*", "nvmlDeviceGetComputeRunningProcesses*"])
def test_nvml_that_hangs_from_the_first_call_on_ends_at_its_deadline(gpu_machine: t.Any, function: str) -> None:
    gpu_machine.nvml.hang(function, 60, folder=gpu_machine.dir)
    began = time.monotonic()
    result = gpu_machine.module("gpu_memory_wait", max_used="1G", timeout=60, nvml_timeout=0.3)
    assert (result["code"], result["verdict"]) == ("nvml_hung", "wedged")
    assert time.monotonic() - began < 10


def divide(machine: t.Any, *used: int) -> list[str]:
    """GPU 0 divided into MIG devices of 24000 MiB with that much used; answers with their UUIDs."""
    uuids = [f"MIG-0000000{place}-1111-2222-3333-444444444444" for place in range(len(used))]
    parts = [f"gpu 0 mig_device {2 * place} {place} 0 24000 {mib} {uuids[place]} card MIG 1g.24gb" for place, mib in enumerate(used)]
    machine.nvml.add_lines(["gpu 0 mig 1", *parts], machine.dir)
    return uuids


@pytest.mark.parametrize("binding", ["nvidia-ml-py", "minimal"])
def test_mig_devices_are_targets_of_their_own(gpu_machine: t.Any, binding: str) -> None:
    if binding == "minimal":
        gpu_machine.without_binding()
    free, held = divide(gpu_machine, 0, 20000)
    answer = gpu_machine.module("gpu_memory_wait", gpus=[free], utilization=0.9, **QUICK)
    assert (answer["free"], answer["gpus"][0]["mig_device"], answer["gpus"][0]["uuid"]) == (True, True, free)
    assert answer["binding"].startswith(binding)
    answer = gpu_machine.module("gpu_memory_wait", gpus=["1", held[:12], free], utilization=0.9, timeout=0.2, **QUICK)
    assert [gpu["free"] for gpu in answer["gpus"]] == [True, False, True]
    assert f"GPU 0 ({held}) has 3.91 GiB of 23.4 GiB free and needs 21.1 GiB" in answer["msg"]


# -- what an earlier run left behind -------------------------------------------------------------------------------------------

needs_groups = pytest.mark.skipif(not is_possible(), reason="control groups cannot be made here")
UNIT = "vllm-tiny.service"
REAP = {"gpus": ["2"], "max_used": "1G", "reap": "own", "unit": UNIT, **QUICK}
HOLD = [sys.executable, str(ROOT / "tests" / "bench" / "nvml" / "fake_nvml.py"), "hold", "--gpu=2", "--mib=60000"]


class Manager:
    """A machine with a unit's control group, and a systemctl that says what is written down for it."""

    def __init__(self, machine: t.Any, group: UnitGroup, folder: Path) -> None:
        self.machine = machine
        self.group = group
        self._answer = folder / "shown"
        systemctl = folder / "bin" / "systemctl"
        systemctl.parent.mkdir()
        systemctl.write_text(f'#!/bin/sh\n[ "$1" = show ] && exec cat {self._answer}\n')
        systemctl.chmod(0o755)
        machine.environment["PATH"] = f"{systemctl.parent}:{machine.environment['PATH']}"
        self.says(ActiveState="inactive", SubState="dead")

    def says(self, **properties: t.Any) -> None:
        self._answer.write_text("".join(f"{name}={value}\n" for name, value in {"LoadState": "loaded", **properties}.items()))

    def holder(self) -> t.Any:
        return self.group.start(HOLD, env=self.machine.environment)


@pytest.fixture
def manager(gpu_machine: t.Any, tmp_path: Path) -> t.Iterator[Manager]:
    with UnitGroup(UNIT) as group:
        yield Manager(gpu_machine, group, tmp_path)


@needs_groups
def test_what_a_dead_unit_left_behind_is_ended_and_reported(manager: Manager, tmp_path: Path) -> None:
    left = manager.holder()
    progress = tmp_path / "progress.json"
    result = manager.machine.module("gpu_memory_wait", timeout=30, progress_path=str(progress), **REAP)
    assert (result["changed"], result["free"], result["holders"]) == (True, True, [])
    assert [(one["pid"], one["unit"], one["signal"], one["gone"]) for one in result["reaped"]] == [(left.pid, UNIT, "TERM", True)]
    assert left.wait() == -signal.SIGTERM


@needs_groups
def test_off_by_default_it_names_them_and_the_way_out(manager: Manager) -> None:
    left = manager.holder()
    result = manager.machine.module("gpu_memory_wait", gpus=["2"], max_used="1G", timeout=0.3, **QUICK)
    assert (result["changed"], result["failed"], result["reaped"], left.poll()) == (False, True, [], None)
    assert f"systemctl stop {UNIT}" in result["msg"]


@needs_groups
def test_check_mode_names_them_and_ends_nothing(manager: Manager) -> None:
    left = manager.holder()
    result = manager.machine.module("gpu_memory_wait", check_mode=True, **REAP)
    assert (result["changed"], result["verdict"], left.poll()) == (True, "held", None)
    assert [(one["pid"], one["signal"]) for one in result["reaped"]] == [(left.pid, None)]


@needs_groups
@pytest.mark.parametrize(
    "state",
    [
        {"ActiveState": "active", "SubState": "running", "MainPID": "{pid}"},
        {"ActiveState": "activating", "SubState": "start-pre", "ControlPID": "{pid}"},
        {"ActiveState": "deactivating", "SubState": "stop-sigterm", "MainPID": "{pid}"},
        {"ActiveState": "active", "SubState": "exited", "MainPID": "0"},
    ],
    ids=["running", "starting", "stopping", "unknown"],
)
def test_what_runs_or_may_run_is_waited_for_and_not_touched(manager: Manager, state: dict[str, str]) -> None:
    running = manager.holder()
    manager.says(**{name: value.format(pid=running.pid) for name, value in state.items()})
    result = manager.machine.module("gpu_memory_wait", timeout=0.7, **REAP)
    assert (result["code"], result["changed"], running.poll()) == ("gpu_memory_held", False, None)


@needs_groups
def test_an_older_process_beside_a_living_main_process_is_a_left_over(manager: Manager) -> None:
    left = manager.holder()
    time.sleep(0.03)  # start times are told in hundredths of a second
    main = manager.group.start([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
    manager.says(ActiveState="active", SubState="running", MainPID=main.pid)
    result = manager.machine.module("gpu_memory_wait", timeout=30, **REAP)
    assert [one["pid"] for one in result["reaped"]] == [left.pid]
    assert main.poll() is None


@needs_groups
def test_a_failure_says_what_was_ended_all_the_same(manager: Manager) -> None:
    left = manager.holder()
    manager.machine.nvml.fail("nvmlDeviceGetMemoryInfo*", 15, gpu=2, folder=manager.machine.dir)
    result = manager.machine.module("gpu_memory_wait", timeout=30, **REAP)
    assert (result["code"], result["changed"], [one["pid"] for one in result["reaped"]]) == ("gpu_lost", True, [left.pid])


@pytest.mark.parametrize("unit", [{}, {"unit": "vllm-tiny"}, {"unit": "session-3.scope"}])
def test_left_overs_are_those_of_a_service(gpu_machine: t.Any, unit: dict[str, str]) -> None:
    result = gpu_machine.module("gpu_memory_wait", max_used="1G", reap="own", **unit)
    assert (result["code"], result["changed"]) == ("bad_configuration", False)
    assert "Name the deployment's own service" in result["msg"]
