# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_info, really run against the fake library through nvidia-ml-py and through its own binding."""

from __future__ import annotations

import typing as t

import pytest

MIB = 1024**2


def test_everything_about_a_gpu(gpu_machine: t.Any) -> None:
    result = gpu_machine.module("gpu_info", gpus=["0000:81:00.0"])
    assert (result["changed"], result["available"], result["count"], result["errors"]) == (False, True, 8, [])
    assert (result["driver_version"], result["cuda_version"], result["nvml_version"]) == ("580.159.04", "13.0", "13.580.159.04")
    assert result["binding"].startswith("nvidia-ml-py ")
    (gpu,) = result["gpus"]
    assert (gpu["index"], gpu["pci_bus_id"], gpu["numa_node"], gpu["memory_numa_node"]) == (4, "0000:81:00.0", 1, None)
    assert gpu["memory"] == {
        "total": 97887 * MIB,
        "used": 0,
        "free": 97250 * MIB,
        "reserved": 637 * MIB,
        "source": "nvml_v2",
        "unified": False,
    }
    assert (gpu["mig"], gpu["ecc"], gpu["remap_pending"], gpu["recovery_action"], gpu["errors"]) == (False, True, False, "none", [])


def test_both_bindings_read_the_same(gpu_machine: t.Any) -> None:
    gpu_machine.holder("--gpu", "1", "--mib", "5000")
    gpu_machine.nvml.add_lines(["process 2 999999 NA C", "gpu 3 recovery 2", "gpu 3 remapped 1 0 1 0"], gpu_machine.dir)
    with_library = gpu_machine.module("gpu_info")
    gpu_machine.without_binding()
    without = gpu_machine.module("gpu_info")
    assert without.pop("binding") == "minimal"
    assert with_library.pop("binding") != "minimal"
    assert without == with_library
    assert without["gpus"][3]["recovery_action"] == "node_reboot"
    assert without["gpus"][3]["remap_pending"] is True


def test_a_process_is_named_with_its_user_and_bytes(gpu_machine: t.Any) -> None:
    holder = gpu_machine.holder("--gpu", "2", "--mib", "60000")
    (process,) = gpu_machine.module("gpu_info")["gpus"][2]["processes"]
    assert (process["pid"], process["bytes"], process["type"]) == (holder.pid, 60000 * MIB, "C")
    assert process["name"].startswith("python")
    assert process["user"]


def test_a_lost_gpu_does_not_hide_the_others(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDevice*", 15, gpu=2, folder=gpu_machine.dir)
    gpus = gpu_machine.module("gpu_info")["gpus"]
    assert gpus[2]["uuid"] is None
    assert gpus[2]["errors"] == [{"reading": "handle", "code": 15, "error": "GPU is lost"}]
    assert all(gpu["uuid"] and not gpu["errors"] for gpu in gpus if gpu["index"] != 2)


def test_an_older_driver_is_read_by_v1_and_said_so(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 0 memory v1"], gpu_machine.dir)
    memory = gpu_machine.module("gpu_info", gpus=["0"])["gpus"][0]["memory"]
    assert (memory["source"], memory["used"], memory["reserved"]) == ("nvml_v1", 637 * MIB, None)


def test_a_unified_part_shows_the_hosts_memory(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 0 memory none"], gpu_machine.dir)
    memory = gpu_machine.module("gpu_info", gpus=["0"])["gpus"][0]["memory"]
    assert (memory["source"], memory["unified"]) == ("system", True)
    assert 0 < memory["free"] <= memory["total"]


@pytest.mark.parametrize("binding", ["nvidia-ml-py", "minimal"])
def test_no_library_is_a_failure_with_the_loaders_reason(gpu_machine: t.Any, binding: str) -> None:
    gpu_machine.without_driver()
    if binding == "minimal":
        gpu_machine.without_binding()
    result = gpu_machine.module("gpu_info")
    assert result["failed"] is True
    assert result["code"] == "nvml_library_missing"
    assert "libnvidia-ml.so.1: cannot open shared object file" in result["msg"]
    assert "Install the NVIDIA driver's libraries" in result["msg"]


def test_a_preflight_can_ask_without_failing(gpu_machine: t.Any) -> None:
    gpu_machine.without_driver()
    result = gpu_machine.module("gpu_info", required=False)
    assert (result.get("failed"), result["available"], result["count"], result["gpus"]) == (None, False, 0, [])
    assert "cannot open shared object file" in result["reason"]


@pytest.mark.parametrize(
    ("code", "name", "word"),
    [
        (4, "nvml_no_permission", "root"),
        (9, "nvml_driver_not_loaded", "modprobe nvidia"),
        (18, "nvml_driver_mismatch", "reboot"),
        (999, "nvml_unknown_error", "Xid"),
    ],
)
def test_a_driver_that_cannot_be_used_is_explained(gpu_machine: t.Any, code: int, name: str, word: str) -> None:
    gpu_machine.nvml.fail("nvmlInit*", code, folder=gpu_machine.dir)
    result = gpu_machine.module("gpu_info")
    assert (result["failed"], result["code"]) == (True, name)
    assert word in result["msg"]
    assert "Traceback" not in result["msg"]


def test_nvml_that_hangs_ends_at_the_deadline(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.hang("nvmlDeviceGetHandleByIndex_v2", 60, folder=gpu_machine.dir)
    result = gpu_machine.module("gpu_info", nvml_timeout=0.5)
    assert (result["failed"], result["code"], result["verdict"]) == (True, "nvml_hung", "wedged")


def test_an_unknown_gpu_is_refused_with_those_there_are(gpu_machine: t.Any) -> None:
    result = gpu_machine.module("gpu_info", gpus=["GPU-cafe"], required=False)
    assert (result["failed"], result["code"]) == (True, "gpu_unknown")
    assert "GPU-f00d0007" in result["msg"]
