# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people whose GPU memory was not free, and the answer they should have had.

Each test is one situation that was reported in public, reduced to the facts that decide it: the real module on a machine whose driver's
library is a fake.
"""

from __future__ import annotations

import subprocess
import sys
import time
import typing as t

import pytest
from support.gpu_machine import FAKE_NVML

QUICK = {"interval": 0.05, "stable_samples": 3, "timeout": 0.3}
TITLED = f"""
import ctypes, runpy, sys
ctypes.CDLL(None).prctl(15, sys.argv.pop(1).encode()[:15], 0, 0, 0)
sys.path.insert(0, {str(FAKE_NVML.parent)!r})
runpy.run_path({str(FAKE_NVML)!r}, run_name="__main__")
"""


def holder(machine: t.Any, title: str, mib: int) -> subprocess.Popen[str]:
    """A process of that title with memory on GPU 0."""
    command = [title, "-c", TITLED, title, "hold", "--gpu=0", f"--mib={mib}"]
    child = subprocess.Popen(command, executable=sys.executable, env=machine.environment, stdout=subprocess.PIPE, text=True)
    machine._children.append(child)
    assert child.stdout and "holds" in child.stdout.readline()
    return child


def card(machine: t.Any, total_gib: float, nobodys_mib: int = 0) -> None:
    """GPU 0 has that much memory, some of it held by no process."""
    machine.nvml.add_lines([f"gpu 0 total {total_gib * 1024:.0f}", "gpu 0 reserved 0", f"gpu 0 timeline 0:{nobodys_mib}"], machine.dir)


def wait(machine: t.Any, **options: t.Any) -> t.Any:
    return machine.module("gpu_memory_wait", **{"gpus": ["0"], **QUICK, **options})


def test_an_engine_that_outlived_its_api_server_keeps_the_memory(gpu_machine: t.Any) -> None:
    card(gpu_machine, 32.0, nobodys_mib=1642)
    engine, worker = holder(gpu_machine, "VLLM::EngineCore", 14100), holder(gpu_machine, "VLLM::Worker_TP0", 15900)
    answer = wait(gpu_machine, min_free=int(27.2 * 2**30))
    assert (answer["failed"], answer["verdict"], answer["changed"]) == (True, "held", False)
    for words in (
        f"pid {engine.pid} VLLM::EngineCore",
        f"pid {worker.pid} VLLM::Worker_TP0",
        "1.10 GiB of 32.0 GiB free and needs 27.2 GiB",
    ):
        assert words in answer["msg"]
    assert "utilization" not in answer["msg"]
    assert (engine.poll(), worker.poll()) == (None, None)


def test_memory_that_stands_still_and_is_too_small_is_not_free(gpu_machine: t.Any) -> None:
    card(gpu_machine, 79.3)
    tenant = holder(gpu_machine, "python3", 42100)
    answer = wait(gpu_machine, min_free="70G")
    assert answer["verdict"] == "held"
    assert all(words in answer["msg"] for words in ("38.2 GiB of 79.3 GiB free", "needs 70.0 GiB", f"pid {tenant.pid} "))


@pytest.mark.parametrize(("utilization", "free_gib", "is_free"), [(0.85, 8.88, False), (0.3, 40.0, True)])
def test_what_is_enough_is_a_share_of_the_total(gpu_machine: t.Any, utilization: float, free_gib: float, is_free: bool) -> None:
    card(gpu_machine, 121.69, nobodys_mib=round((121.69 - free_gib) * 1024))
    answer = wait(gpu_machine, utilization=utilization)
    assert answer["free"] is is_free
    assert is_free or all(words in answer["msg"] for words in ("8.88 GiB", "103.4 GiB"))


def test_a_driver_updated_under_its_kernel_module_is_not_waited_for(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["nvml 12.550.107.02"], gpu_machine.dir)
    gpu_machine.nvml.fail("nvmlInit*", 18, folder=gpu_machine.dir)
    began = time.monotonic()
    answer = wait(gpu_machine, max_used="1G", timeout=600)
    assert answer["code"] == "nvml_driver_mismatch"
    assert time.monotonic() - began < 10
    assert "library 550.107.02" in answer["msg"] and "reboot" in answer["msg"]


def test_a_card_off_the_bus_matters_only_where_it_is_asked_for(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDevice*", 15, gpu=2, folder=gpu_machine.dir)
    others, asked_for = wait(gpu_machine, gpus=["0", "1"], max_used="1G"), wait(gpu_machine, gpus=["1", "2"], max_used="1G", timeout=60)
    assert others["free"] is True and "GPU 2" in str(others["warnings"])
    assert (asked_for["verdict"], asked_for["samples"]) == ("lost", 1)
    assert "GPU 2" in asked_for["msg"] and "lost" in asked_for["msg"]
    assert "Traceback" not in f"{others}{asked_for}"


def test_holders_are_those_that_the_gpu_lists_whatever_they_are_called(gpu_machine: t.Any) -> None:
    card(gpu_machine, 46.0)
    first, second = holder(gpu_machine, "python3", 11200), holder(gpu_machine, "VLLM::Worker", 11100)
    answer = wait(gpu_machine, min_free="40G")
    assert answer["verdict"] == "held"
    assert str(first.pid) in answer["msg"] and f"{second.pid} VLLM::Worker" in answer["msg"]


def test_memory_without_a_listed_process_points_at_containers_and_at_the_driver(gpu_machine: t.Any) -> None:
    card(gpu_machine, 46.0, nobodys_mib=22300)
    answer = wait(gpu_machine, min_free="40G")
    assert all(words in answer["msg"] for words in ("21.8 GiB held by no process that NVML lists", "PID namespaces", "the driver leaks"))


def test_a_listed_process_that_is_not_there_is_said_to_be_ended_or_elsewhere(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["process 0 4194000 60000 C"], gpu_machine.dir)
    answer = wait(gpu_machine, max_used="1G")
    assert "pid 4194000 (not visible here: ended, or of another PID namespace) 58.6 GiB" in answer["msg"]


def test_a_card_lost_while_it_is_waited_for_ends_the_wait(gpu_machine: t.Any) -> None:
    holder(gpu_machine, "python3", 60000)
    gpu_machine.nvml.fail("nvmlDeviceGetMemoryInfo*", 15, gpu=0, start=1.5, folder=gpu_machine.dir)
    answer = wait(gpu_machine, max_used="1G", timeout=60)
    assert answer["code"] == "gpu_lost"
    assert answer["waited_seconds"] < 30
