# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_memory_wait, really run against the fake library."""

from __future__ import annotations

import json
import threading
import time
import typing as t
from pathlib import Path

import pytest

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
