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
    assert result["numa_nodes"][:1] == [0]
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


def test_what_a_plan_and_a_report_need_is_all_there(gpu_machine: t.Any) -> None:
    lines = [
        "gpu 0 pcie 1 5 8 16 3",
        "gpu 0 ecc_errors 7 1 90 2",
        "gpu 0 remapped 3 1 1 0",
        "gpu 0 power 412 500 450 600 300 600",
        "gpu 0 temperature 71 80 95 92 100 90",
        "gpu 0 clocks 1800 1815 12481 2430 2430 12481",
        "gpu 0 throttle 0x44",
        "gpu 0 compute_mode 3",
    ]
    gpu_machine.nvml.add_lines(lines, gpu_machine.dir)
    result = gpu_machine.module("gpu_info", gpus=["0"])
    (gpu,) = result["gpus"]
    assert (result["binding_lacks"], gpu["errors"], gpu["unusable"]) == ([], [], None)
    assert (gpu["serial"], gpu["compute_capability"], gpu["cpu_affinity"]) == ("1700000000000", "12.0", "0-63")
    assert (gpu["compute_mode"], gpu["persistence"]) == ("exclusive_process", True)
    assert gpu["pcie"] == {"generation": 1, "generation_max": 5, "width": 8, "width_max": 16, "replays": 3}
    assert gpu["ecc_errors"] == {"volatile": {"corrected": 7, "uncorrected": 1}, "aggregate": {"corrected": 90, "uncorrected": 2}}
    assert gpu["remapped_rows"] == {"correctable": 3, "uncorrectable": 1, "pending": True, "failed": False}
    assert gpu["power"] == {
        "usage": 412.0,
        "limit": 500.0,
        "limit_enforced": 450.0,
        "limit_default": 600.0,
        "limit_min": 300.0,
        "limit_max": 600.0,
    }
    assert gpu["temperature"] == {"gpu": 71, "memory": 80, "shutdown": 95, "slowdown": 92, "memory_max": 100, "gpu_max": 90}
    assert (gpu["clocks"]["sm"], gpu["clocks"]["sm_max"]) == (1815, 2430)
    assert gpu["clocks"]["throttle_reasons"] == ["sw_power_cap", "hw_thermal_slowdown"]


def test_what_the_part_lacks_is_null_without_an_error_and_named(gpu_machine: t.Any) -> None:
    (gpu,) = gpu_machine.module("gpu_info", gpus=["0"])["gpus"]
    assert (gpu["errors"], gpu["nvlinks"], gpu["mig_devices"]) == ([], [], [])
    assert gpu["retired_pages"] == {"single_bit": None, "double_bit": None, "pending": None}
    assert gpu["fabric"] == {"state": "not_supported", "status": None, "health": None}
    assert {"memory_numa_node", "nvlinks", "retired_pages.single_bit", "temperature.memory"} <= set(gpu["not_supported"])


def test_retired_pages_of_an_older_part_are_counted(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 0 retired 2 1 1"], gpu_machine.dir)
    (gpu,) = gpu_machine.module("gpu_info", gpus=["0"])["gpus"]
    assert gpu["retired_pages"] == {"single_bit": 2, "double_bit": 1, "pending": True}


def links(gpu: t.Any) -> dict[int, tuple[t.Optional[str], int]]:
    return {link["index"]: (link["path"], link["nvlinks"]) for link in gpu["links"]}


def test_every_gpu_says_how_it_reaches_the_others(gpu_machine: t.Any) -> None:
    lines = [
        "level 0 1 10",
        "level 0 2 20",
        "level 4 5 40",
        "p2p 0 1 0 4 5 0 0",
        *(f"gpu {one} nvlinks {count} gpu {pci}" for one, count, pci in ((6, 4, "0000:E1:00"), (7, 4, "0000:C1:00"))),
        "gpu 6 nvlinks 2 down",
    ]
    gpu_machine.nvml.add_lines(lines, gpu_machine.dir)
    gpus = gpu_machine.module("gpu_info")["gpus"]
    assert links(gpus[0]) == {
        1: ("PIX", 0),
        2: ("PXB", 0),
        3: ("PHB", 0),
        **dict.fromkeys((4, 5, 6, 7), ("SYS", 0)),
    }
    assert links(gpus[5])[4] == ("NODE", 0)
    assert links(gpus[7])[6] == ("PHB", 4)
    assert links(gpus[6])[5] == ("PHB", 0)
    assert gpus[0]["links"][0]["p2p"] == {
        "read": "ok",
        "write": "disabled_by_regkey",
        "nvlink": "not_supported",
        "atomics": "ok",
        "pci": "ok",
    }
    assert (gpus[0]["links"][0]["uuid"], gpus[0]["links"][0]["pci_bus_id"]) == (gpus[1]["uuid"], gpus[1]["pci_bus_id"])
    assert [link["active"] for link in gpus[6]["nvlinks"]] == [True] * 4 + [False] * 2
    assert gpus[6]["nvlinks"][0] == {"link": 0, "active": True, "version": 4, "remote_type": "gpu", "remote_pci_bus_id": "0000:e1:00.0"}
    assert gpus[6]["nvlinks"][4] == {"link": 4, "active": False, "version": None, "remote_type": None, "remote_pci_bus_id": None}


def test_gpus_joined_through_switches_count_all_their_nvlinks(gpu_machine: t.Any) -> None:
    cards, lines = gpu_machine.nvml.h200s(2)
    gpu_machine.nvml.write_gpus(gpu_machine.dir, cards, lines=[*lines, "gpu 0 fabric 3", "gpu 1 fabric 3"])
    gpus = gpu_machine.module("gpu_info")["gpus"]
    assert [links(gpu) for gpu in gpus] == [{1: ("PHB", 18)}, {0: ("PHB", 18)}]
    assert gpus[0]["nvlinks"][17]["remote_type"] == "switch"
    assert gpus[0]["fabric"] == {"state": "completed", "status": "ok", "health": "healthy"}
    assert (gpus[0]["memory"]["used"], gpus[0]["memory"]["reserved"]) == (0, 615 * MIB)


def test_mig_devices_are_told_one_by_one(gpu_machine: t.Any) -> None:
    lines = [
        "gpu 1 mig 1",
        "gpu 1 mig_device 0 1 0 48000 500 MIG-00000000-1111-2222-3333-444444444444 NVIDIA RTX PRO 6000 MIG 2g.48gb",
        "gpu 1 mig_device 2 3 0 24000 0 MIG-55555555-1111-2222-3333-444444444444 NVIDIA RTX PRO 6000 MIG 1g.24gb",
    ]
    gpu_machine.nvml.add_lines(lines, gpu_machine.dir)
    (gpu,) = gpu_machine.module("gpu_info", gpus=["1"])["gpus"]
    assert (gpu["mig"], gpu["mig_pending"], gpu["unusable"]) == (True, True, "it is in MIG mode")
    assert [device["index"] for device in gpu["mig_devices"]] == [0, 2]
    assert gpu["mig_devices"][0] == {
        "index": 0,
        "uuid": "MIG-00000000-1111-2222-3333-444444444444",
        "name": "NVIDIA RTX PRO 6000 MIG 2g.48gb",
        "gpu_instance": 1,
        "compute_instance": 0,
        "memory": {"total": 48000 * MIB, "used": 500 * MIB, "free": 47500 * MIB},
    }


def test_a_parent_in_mig_mode_that_may_not_be_asked_still_tells_its_devices(gpu_machine: t.Any) -> None:
    for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetPowerUsage"):
        gpu_machine.nvml.fail(function, 4, gpu=1, folder=gpu_machine.dir)
    gpu_machine.nvml.add_lines(["gpu 1 mig 1", "gpu 1 mig_device 0 1 0 48000 500 MIG-a NVIDIA MIG"], gpu_machine.dir)
    (gpu,) = gpu_machine.module("gpu_info", gpus=["1"])["gpus"]
    assert [(error["reading"], error["code"]) for error in gpu["errors"]] == [("processes", 4), ("power.usage", 4)]
    assert (gpu["processes"], gpu["power"]["usage"], gpu["power"]["limit"]) == ([], None, 600.0)
    assert gpu["mig_devices"][0]["memory"]["used"] == 500 * MIB
    assert gpu["remapped_rows"]["pending"] is None
    assert "remapped_rows" in gpu["not_supported"]


REFUSED = {
    "nvmlDeviceGetPowerUsage": "power.usage",
    "nvmlDeviceGetTemperature": "temperature.gpu",
    "nvmlDeviceGetClockInfo": "clocks.graphics",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie.generation",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetName": "name",
}


@pytest.mark.parametrize("code", [3, 4, 6, 10, 13, 999])
def test_each_reading_fails_with_an_error_of_its_own(gpu_machine: t.Any, code: int) -> None:
    for function in REFUSED:
        gpu_machine.nvml.fail(function, code, gpu=0, folder=gpu_machine.dir)
    refused, other = gpu_machine.module("gpu_info", gpus=["0", "1"])["gpus"]
    errors = {error["reading"]: error for error in refused["errors"]}
    assert set(REFUSED.values()) <= set(errors)
    assert {error["code"] for error in errors.values()} == {code}
    assert all(error["error"] for error in errors.values())
    assert (refused["power"]["usage"], refused["pcie"]["generation"], refused["name"]) == (None, None, None)
    assert (refused["uuid"], refused["memory"]["used"], refused["power"]["limit"]) == ("GPU-f00d0000-6b1c-4e5d-9a77-0000b1ac0000", 0, 600.0)
    assert (refused["unusable"], other["errors"]) == (None, [])


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_a_feature_that_is_refused_is_an_error_and_one_that_is_not_there_is_none(gpu_machine: t.Any, code: int) -> None:
    features = {"nvmlDeviceGetEccMode": "ecc", "nvmlDeviceGetRemappedRows": "remapped_rows", "nvmlDeviceGetNvLinkState": "nvlinks"}
    for function in [*features, "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetTopologyCommonAncestor"]:
        gpu_machine.nvml.fail(function, code, gpu=0, folder=gpu_machine.dir)
    (gpu,) = gpu_machine.module("gpu_info", gpus=["0"])["gpus"]
    names = {*features.values(), "recovery_action", "fabric", "links[3].path"}
    errors = [error["reading"] for error in gpu["errors"]]
    assert names <= set(gpu["not_supported"] if code == 3 else errors)
    assert len(errors) == len(set(errors))
    assert (gpu["ecc"], gpu["remap_failed"], gpu["reset_required"], gpu["fabric"]["state"]) == (None, None, None, None)
    assert (gpu["links"][2]["path"], gpu["links"][2]["p2p"]["read"]) == (None, "ok")


def test_an_older_driver_tells_its_throttle_reasons_under_the_older_name(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDeviceGetCurrentClocksEventReasons", 13, folder=gpu_machine.dir)
    (gpu,) = gpu_machine.module("gpu_info", gpus=["0"])["gpus"]
    assert (gpu["clocks"]["throttle_reasons"], gpu["errors"]) == (["gpu_idle"], [])


@pytest.mark.parametrize(
    ("lines", "reset", "words"),
    [
        (["gpu 0 recovery 1"], True, "gpu_reset"),
        (["gpu 0 recovery 3"], False, "drain_p2p"),
        (["gpu 0 recovery 4"], True, "drain_and_reset"),
        (["gpu 0 recovery 42"], False, "42"),
        (["gpu 0 remapped 0 9 0 1"], False, "has to be replaced"),
        (["gpu 0 compute_mode 2"], False, "prohibits"),
        (["gpu 0 fabric 2"], False, "nvidia-fabricmanager"),
        (["gpu 0 fabric 3 999"], False, "Unknown Error"),
        (["error nvmlDeviceGetEccMode 0 16"], True, "GPU requires"),
    ],
)
def test_a_gpu_that_no_engine_can_use_says_why(gpu_machine: t.Any, lines: list[str], reset: bool, words: str) -> None:
    gpu_machine.nvml.add_lines(lines, gpu_machine.dir)
    (gpu,) = gpu_machine.module("gpu_info", gpus=["0"])["gpus"]
    assert words in gpu["unusable"]
    assert gpu["reset_required"] is reset


SHARED = (
    "uuid",
    "pci_bus_id",
    "name",
    "memory",
    "numa_node",
    "memory_numa_node",
    "mig",
    "persistence",
    "ecc",
    "remapped_rows",
    "processes",
)


def test_both_bindings_read_the_same_as_far_as_both_can(gpu_machine: t.Any) -> None:
    gpu_machine.holder("--gpu", "1", "--mib", "5000")
    gpu_machine.nvml.add_lines(["process 2 999999 NA C", "gpu 3 recovery 2", "gpu 3 remapped 1 0 1 0"], gpu_machine.dir)
    with_library = gpu_machine.module("gpu_info")
    gpu_machine.without_binding()
    without = gpu_machine.module("gpu_info")
    assert (without["binding"], with_library["binding"].split(" ")[0]) == ("minimal", "nvidia-ml-py")
    for one, other in zip(without["gpus"], with_library["gpus"]):
        assert {name: one[name] for name in (*SHARED, "unusable", "errors")} == {
            name: other[name] for name in (*SHARED, "unusable", "errors")
        }
        assert set(one) == set(other)
    assert without["gpus"][3]["recovery_action"] == "node_reboot"
    assert without["gpus"][3]["remap_pending"] is True


def test_the_minimal_binding_says_what_it_cannot_tell(gpu_machine: t.Any) -> None:
    gpu_machine.without_binding()
    result = gpu_machine.module("gpu_info", gpus=["0"])
    assert {"links.path", "nvlinks", "power.usage", "clocks.sm", "compute_capability", "fabric", "serial"} <= set(result["binding_lacks"])
    assert not {"uuid", "memory", "processes", "mig", "numa_node", "recovery_action"} & set(result["binding_lacks"])
    (gpu,) = result["gpus"]
    assert (gpu["errors"], gpu["power"]["usage"], gpu["nvlinks"]) == ([], None, [])
    assert links(gpu)[1] == (None, 0)


def test_memory_without_a_process_is_no_free_gpu(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.set_used(0, [(0, 7000)], gpu_machine.dir)
    gpu_machine.nvml.add_lines(["process 1 999999 800 C", "process 2 999999 NA C"], gpu_machine.dir)
    leaked, stale, unknown = gpu_machine.module("gpu_info", gpus=["0", "1", "2"])["gpus"]
    assert (leaked["memory"]["used"], leaked["processes"]) == (7000 * MIB, [])
    assert [(one["pid"], one["bytes"], one["name"]) for one in stale["processes"]] == [(999999, 800 * MIB, None)]
    assert [one["bytes"] for one in unknown["processes"]] == [None]


def test_more_gpus_than_were_asked_for_are_counted(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.write_gpus(gpu_machine.dir, gpu_machine.nvml.default_gpus(16))
    result = gpu_machine.module("gpu_info", gpus=["GPU-f00d000f"])
    assert (result["count"], len(result["gpus"]), len(result["gpus"][0]["links"])) == (16, 1, 15)


def test_xids_are_a_list_or_say_why_they_are_not(gpu_machine: t.Any) -> None:
    result = gpu_machine.module("gpu_info")
    assert isinstance(result["xids"], list) != bool(result["xids_error"])


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
    assert gpus[2]["unusable"] == "NVML says 'GPU is lost'"
    assert (set(gpus[2]), gpus[2]["links"], gpus[2]["power"]["usage"]) == (set(gpus[0]), [], None)
    assert all(gpu["uuid"] and not gpu["errors"] and 2 not in links(gpu) for gpu in gpus if gpu["index"] != 2)


def test_a_gpu_lost_while_it_is_read_keeps_what_was_read(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDeviceGetP*", 15, gpu=2, folder=gpu_machine.dir)
    (gpu,) = gpu_machine.module("gpu_info", gpus=["2"])["gpus"]
    assert (gpu["index"], gpu["memory"]["used"], gpu["pci_bus_id"]) == (2, 0, None)
    assert {"pci_bus_id", "power.usage", "pcie.replays", "links[0].p2p.read"} <= {error["reading"] for error in gpu["errors"]}
    assert gpu["unusable"] == "NVML says 'GPU is lost'"


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
        (12, "nvml_library_missing", "Install the NVIDIA driver"),
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
