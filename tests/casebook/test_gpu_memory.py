# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people whose GPU memory was not free, and the answer they should have had.

Each test is one situation that was reported in public, reduced to the facts that decide it: the real module on a machine whose driver's
library is a fake.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import nvml_failure
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.diagnose import diagnose
from support.gpu_machine import FAKE_NVML
from support.running import wait_for
from support.units import UnitGroup, is_possible

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


# -- drivers -------------------------------------------------------------------------------------------------------------------

NEW_LIBRARY, OLD_MODULE = "550.107.02", "550.90.07"


def test_both_versions_of_a_driver_that_was_updated_halfway_are_named() -> None:
    texts = {"/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {OLD_MODULE}  Fri May 31 09:35:42 UTC 2024\n"}
    loaded = nvml_failure.kernel_module_version(lambda path: texts.get(path, ""))
    said = str(nvml_failure.explain_nvml_failure(18, "version mismatch", kernel_version=loaded, library_version=NEW_LIBRARY))
    assert all(words in said for words in (OLD_MODULE, NEW_LIBRARY, "reboot"))


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        (4, "nvml_no_permission", "Run this as root"),
        (9, "nvml_driver_not_loaded", "modprobe nvidia"),
        (12, "nvml_library_missing", "Install the NVIDIA driver's libraries"),
        (999, "nvml_unknown_error", "restart the container"),
    ],
)
def test_a_play_does_not_wait_for_a_driver_that_cannot_be_used(gpu_machine: t.Any, code: int, name: str, words: str) -> None:
    gpu_machine.nvml.fail("nvmlInit*", code, folder=gpu_machine.dir)
    began = time.monotonic()
    answer = wait(gpu_machine, max_used="1G", timeout=600)
    assert (answer["code"], words in answer["msg"], time.monotonic() - began < 10) == (name, True, True)


def test_a_driver_that_hangs_is_given_up_and_not_waited_for(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.hang("nvmlDeviceGetMemoryInfo*", 60, folder=gpu_machine.dir)
    answer = wait(gpu_machine, max_used="1G", timeout=600, nvml_timeout=0.5)
    assert (answer["code"], answer["verdict"]) == ("nvml_hung", "wedged")
    assert "state D" in answer["msg"]


# -- NVSwitch machines ---------------------------------------------------------------------------------------------------------


def nvswitch(machine: t.Any, fabric: str) -> None:
    """Two idle H200s whose fabric is in that state."""
    cards, lines = machine.nvml.h200s(2)
    machine.nvml.write_gpus(machine.dir, cards, lines=[*lines, f"gpu 0 fabric {fabric}", f"gpu 1 fabric {fabric}"])


def test_all_memory_is_free_and_the_fabric_does_not_come_up(gpu_machine: t.Any) -> None:
    nvswitch(gpu_machine, "2")
    answer = wait(gpu_machine, gpus=[], max_used="1G")
    assert (answer["code"], answer["verdict"], answer["gpus"][0]["fabric"]["state"]) == ("gpu_fabric_not_up", "held", "in_progress")
    assert all(words in answer["msg"] for words in ("802", "nvidia-fabricmanager", "GPU 0", "GPU 1"))
    assert "out of memory" not in answer["msg"] and "not installed" not in answer["msg"]
    assert wait(gpu_machine, gpus=[], max_used="1G", check_mode=True).get("failed") is None


def test_a_fabric_manager_of_another_version_fails_the_fabric_and_the_wait_at_once(gpu_machine: t.Any) -> None:
    nvswitch(gpu_machine, "3 999")
    answer = wait(gpu_machine, gpus=[], max_used="1G", timeout=60)
    assert (answer["code"], answer["verdict"], answer["samples"]) == ("gpu_lost", "lost", 1)
    assert "Unknown Error" in answer["msg"] and "of the driver's version" in answer["msg"]


def test_a_fabric_that_comes_up_meanwhile_lets_the_wait_go_on(gpu_machine: t.Any, tmp_path: Path) -> None:
    nvswitch(gpu_machine, "2")
    progress = tmp_path / "progress.json"

    def complete() -> None:
        wait_for(progress.exists, 20)
        nvswitch(gpu_machine, "3")

    manager = threading.Thread(target=complete)
    manager.start()
    answer = wait(gpu_machine, gpus=[], max_used="1G", timeout=30, progress_path=str(progress))
    manager.join()
    assert (answer["free"], answer["gpus"][1]["fabric"]) == (True, {"state": "completed", "status": "ok", "health": "healthy"})


def test_the_journal_of_a_cuda_that_is_not_initialised_points_at_the_fabric_manager() -> None:
    asked = "Did you run some cuda functions before calling NumCudaDevices() that might have already set an error?"
    found = diagnose([f"RuntimeError: Unexpected error from cudaGetDeviceCount(). {asked} Error 802: system not yet initialized"])
    assert (found.cause, found.at_fault) == ("fabric_not_ready", "host")
    assert "802" in found.message and "nvidia-fabricmanager" in found.remedy


# -- how memory comes back -----------------------------------------------------------------------------------------------------


def test_what_the_driver_reserves_on_an_idle_card_is_not_held(gpu_machine: t.Any) -> None:
    nvswitch(gpu_machine, "3")
    newer = wait(gpu_machine, gpus=[], max_used="100M")
    gpu_machine.nvml.add_lines(["gpu 0 memory v1"], gpu_machine.dir)
    older = wait(gpu_machine, gpus=["0"], max_used="100M")
    assert (newer["free"], newer["gpus"][0]["used_last"]) == (True, 0)
    assert (older["free"], older["gpus"][0]["used_last"] // 2**20) == (True, 615)


def test_one_of_four_cards_is_late_and_all_four_are_waited_for(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.set_used(3, [(0, 60000), (2.5, 0)], gpu_machine.dir)
    answer = wait(gpu_machine, gpus=["0", "1", "2", "3"], max_used="1G", timeout=30)
    assert (answer["free"], [gpu["used_last"] for gpu in answer["gpus"]]) == (True, [0, 0, 0, 0])
    assert answer["samples"] >= QUICK["stable_samples"]


def test_memory_that_comes_and_goes_is_free_when_it_stays(gpu_machine: t.Any) -> None:
    flapping = [(0, 60000), *((2 + 0.1 * step, 0 if step % 2 else 60000) for step in range(12)), (3.2, 0)]
    gpu_machine.nvml.set_used(0, flapping, gpu_machine.dir)
    answer = wait(gpu_machine, max_used="1G", timeout=30, interval=0.05, stable_samples=6)
    assert answer["free"] is True
    assert gpu_machine.nvml.elapsed(gpu_machine.dir) >= 3.2


def test_memory_outlives_its_holder_for_a_while(gpu_machine: t.Any) -> None:
    dead = gpu_machine.holder("--gpu", "0", "--mib", "60000", "--linger", "4")
    dead.kill()
    dead.wait()
    early = wait(gpu_machine, max_used="1G", timeout=0.2)
    assert (early["verdict"], early["holders"]) == ("held", [])
    assert wait(gpu_machine, max_used="1G", timeout=30)["free"] is True


def test_a_killed_holder_that_nobody_has_reaped_holds_nothing(gpu_machine: t.Any) -> None:
    dead = gpu_machine.holder("--gpu", "0", "--mib", "60000")
    dead.kill()
    wait_for(lambda: Path(f"/proc/{dead.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert wait(gpu_machine, max_used="1G", timeout=10)["free"] is True


# -- who holds it --------------------------------------------------------------------------------------------------------------


def test_a_holder_whose_share_the_driver_does_not_tell_is_a_holder(gpu_machine: t.Any) -> None:
    tenant = holder(gpu_machine, "python3", 60000)
    gpu_machine.nvml.add_lines([f"process 0 {tenant.pid} NA C", "process 0 4194001 NA C"], gpu_machine.dir)
    answer = wait(gpu_machine, max_used="1G")
    assert (answer["verdict"], answer["gpus"][0]["unattributed"]) == ("held", None)
    assert f"pid {tenant.pid} python3" in answer["msg"] and "an unknown amount" in answer["msg"]


@pytest.mark.skipif(not is_possible(), reason="control groups cannot be made here")
def test_another_service_that_mapped_the_dead_engines_memory_is_named_by_its_unit(gpu_machine: t.Any) -> None:
    hold = [sys.executable, str(FAKE_NVML), "hold", "--gpu=0", "--mib=60000"]
    with UnitGroup("kv-cache-server.service") as other:
        tenant = other.start(hold, env=gpu_machine.environment)
        answer = wait(gpu_machine, max_used="1G", reap="own", unit="vllm-minimax-m25.service")
        assert (answer["reaped"], tenant.poll()) == ([], None)
    assert f"pid {tenant.pid} " in answer["msg"]
    assert "systemctl stop kv-cache-server.service" in answer["msg"]


def test_an_mps_server_is_stopped_by_its_own_control(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines([f"process 0 {os.getpid()} 60000 M"], gpu_machine.dir)
    assert "nvidia-cuda-mps-control" in wait(gpu_machine, max_used="1G")["msg"]


# -- which cards ---------------------------------------------------------------------------------------------------------------


def test_more_cards_than_are_wanted_do_not_matter(gpu_machine: t.Any) -> None:
    for index in (4, 5, 6, 7):
        gpu_machine.nvml.set_used(index, [(0, 90000)], gpu_machine.dir)
    assert wait(gpu_machine, gpus=["0", "1", "2", "3"], utilization=0.95)["free"] is True


def test_the_start_of_a_uuid_is_a_name_unless_it_is_that_of_several(gpu_machine: t.Any) -> None:
    uuid = gpu_machine.nvml.default_gpu(2).uuid
    named, ambiguous = wait(gpu_machine, gpus=[uuid[:12]], max_used="1G"), wait(gpu_machine, gpus=[uuid[:8]], max_used="1G")
    assert (named["free"], named["gpus"][0]["uuid"]) == (True, uuid)
    assert ambiguous["code"] == "gpu_ambiguous" and uuid in ambiguous["msg"]


def test_a_card_without_a_memory_of_its_own_is_judged_by_its_processes(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 0 memory none"], gpu_machine.dir)
    assert wait(gpu_machine, max_used="1G")["gpus"][0]["memory_source"] == "system"
    tenant = holder(gpu_machine, "python3", 60000)
    assert wait(gpu_machine, max_used="1G")["holders"][0]["pid"] == tenant.pid


def test_a_divided_card_that_may_not_be_read_is_its_parts(gpu_machine: t.Any) -> None:
    part = "MIG-00000000-1111-2222-3333-444444444444"
    gpu_machine.nvml.add_lines(["gpu 0 mig 1", f"gpu 0 mig_device 0 1 0 48000 0 {part} card MIG 2g.48gb"], gpu_machine.dir)
    gpu_machine.nvml.fail("nvmlDeviceGetMemoryInfo", 4, gpu=0, folder=gpu_machine.dir)
    gpu_machine.nvml.fail("nvmlDeviceGetMemoryInfo_v2", 4, gpu=0, folder=gpu_machine.dir)
    answer = wait(gpu_machine, utilization=0.9)
    assert answer.get("gpus") and (answer["gpus"][0]["uuid"], answer["gpus"][0]["mig_device"]) == (part, True), answer
