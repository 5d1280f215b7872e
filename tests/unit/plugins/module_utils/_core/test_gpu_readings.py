# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading GPUs and MIG devices through a stand-in for the binding, and choosing among them."""

from __future__ import annotations

import ctypes
import types
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import gpu_readings
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_readings import Reading
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpus import Gpu, ReadError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.procs import ProcessInfo

GIB = 1024**3
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 3, 4, 6
WORKER = ProcessInfo(4711, "python3", "alice", "job.service", "S", 100, False, container="docker://0123456789ab")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Device(t.NamedTuple):
    """A GPU or MIG device of the stand-in. ``used`` below 0 is the code that its memory calls answer, negated."""

    uuid: str
    total: int = 96
    used: int = 0
    pids: tuple[int, ...] = ()
    parts: t.Optional[tuple[t.Any, ...]] = None
    node: int = -1
    recovery: int = 0


class Nvml:
    """What a binding offers, over devices that are told; the functions a driver or binding lacks are not there."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *devices: Device) -> None:
        self.devices = list(devices)
        self.calls: list[str] = []

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self.devices[index]

    def nvmlDeviceGetUUID(self, device: Device) -> str:
        return device.uuid

    def nvmlDeviceGetName(self, device: Device) -> str:
        return "card"

    def nvmlDeviceGetPciInfo(self, device: Device) -> t.Any:
        if device.uuid.startswith("MIG-"):
            raise NVMLError(NOT_SUPPORTED)
        return types.SimpleNamespace(busId="00000000:01:00.0")

    def nvmlDeviceGetMemoryInfo(self, device: Device, version: t.Optional[int] = None) -> t.Any:
        if device.used < 0:
            raise NVMLError(-device.used)
        size = {"total": device.total * GIB, "used": device.used * GIB, "free": (device.total - device.used) * GIB}
        return types.SimpleNamespace(**size, reserved=0)

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> t.Any:
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=GIB) for pid in device.pids]

    def nvmlDeviceGetGraphicsRunningProcesses(self, _device: Device) -> t.Any:
        raise NVMLError(NOT_SUPPORTED)

    nvmlDeviceGetMPSComputeRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:
        if device.parts is None:
            raise NVMLError(NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:
        if device.parts is None or index >= len(device.parts) or device.parts[index] is None:
            raise NVMLError(NOT_FOUND)
        return t.cast(Device, device.parts[index])

    def nvmlDeviceGetNumaNodeId(self, device: Device) -> int:
        self.calls.append("numa")
        if device.node < 0:
            raise NVMLError(NOT_SUPPORTED)
        return device.node

    def nvmlDeviceGetFieldValues(self, device: Device, fields: t.Sequence[int]) -> t.Any:
        value = types.SimpleNamespace(uiVal=device.recovery)
        return [types.SimpleNamespace(nvmlReturn=0, value=value) for _field in fields]


def reader(*devices: Device, meminfo: str = "") -> gpu_readings.TargetReader:
    return gpu_readings.TargetReader(Nvml(*devices), {4711: WORKER}.get, lambda path: meminfo)


DIVIDED = Device(
    "GPU-0", used=20, pids=(4711,), parts=(Device("MIG-a1", 20, 1, (4711,)), None, Device("MIG-a2", 40), Device("MIG-b", 20)), recovery=4
)

# -- reading -------------------------------------------------------------------------------------------------------------------


def test_mig_devices_are_read_where_their_gpu_sits_and_holes_between_them_are_none() -> None:
    whole, *parts = reader(DIVIDED).read()
    assert (whole.gpu.uuid, whole.is_mig_device, whole.key) == ("GPU-0", False, "0")
    assert [(one.key, one.gpu.index, one.gpu.pci_bus_id, one.gpu.recovery_action, one.gpu.errors) for one in parts] == [
        ("MIG-a1", 0, "0000:01:00.0", "drain_and_reset", ()),
        ("MIG-a2", 0, "0000:01:00.0", "drain_and_reset", ()),
        ("MIG-b", 0, "0000:01:00.0", "drain_and_reset", ()),
    ]
    assert (parts[0].gpu.memory_total, parts[0].gpu.memory_used, parts[0].gpu.processes[0].pid) == (20 * GIB, GIB, 4711)


def test_what_proc_says_of_a_process_comes_with_each_device_it_is_on() -> None:
    seen = reader(DIVIDED).read()
    assert [one.known for one in seen] == [{4711: WORKER}, {4711: WORKER}, {}, {}]


def test_what_hardly_changes_is_not_read_each_time() -> None:
    nvml = Nvml(Device("GPU-0", node=2))
    one = gpu_readings.TargetReader(nvml, lambda pid: None, lambda path: "")
    assert {reading.gpu.memory_numa_node for _repetition in range(20) for reading in one.read()} == {2}
    assert nvml.calls == ["numa"]
    one.read()
    assert nvml.calls == ["numa", "numa"]


def test_a_binding_that_lacks_the_calls_reads_the_gpus_all_the_same() -> None:
    class Old(Nvml):
        def __getattribute__(self, name: str) -> t.Any:
            if "Mig" in name or "Numa" in name or "Field" in name:
                raise AttributeError(name)
            return super().__getattribute__(name)

    (found,) = gpu_readings.TargetReader(Old(DIVIDED), lambda pid: None, lambda path: "").read()
    assert (found.gpu.memory_used, found.gpu.memory_numa_node, found.gpu.recovery_action) == (20 * GIB, None, None)


def test_zero_bytes_in_all_is_no_reading() -> None:
    (found,) = reader(Device("GPU-0", total=0)).read()
    assert (found.gpu.memory_total, found.gpu.memory_used, found.gpu.memory_source) == (None, None, "none")
    assert found.gpu.errors[0].error == "NVML says that the GPU has no memory"


def test_a_gpu_without_memory_of_its_own_has_the_hosts() -> None:
    (found,) = reader(Device("GPU-0", used=-NOT_SUPPORTED), meminfo="MemTotal: 4 kB\nMemAvailable: 1 kB\n").read()
    assert (found.gpu.memory_total, found.gpu.memory_used, found.gpu.memory_source) == (4096, 3072, "system")
    assert gpu_readings.shares_host_memory(found.gpu)


# -- choosing ------------------------------------------------------------------------------------------------------------------


def keys(readings: t.Sequence[Reading], *wanted: str) -> list[str]:
    return [one.key for one in gpu_readings.choose_targets(readings, wanted)]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ([], ["0", "1"]),
        (["1", "0"], ["1", "0"]),
        (["MIG-b"], ["MIG-b"]),
        (["mig-A2", "GPU-1", "MIG-a1"], ["MIG-a2", "1", "MIG-a1"]),
        (["MIG-b", "MIG-b"], ["MIG-b"]),
    ],
)
def test_gpus_and_mig_devices_are_chosen_by_name(wanted: list[str], chosen: list[str]) -> None:
    assert keys(reader(DIVIDED, Device("GPU-1")).read(), *wanted) == chosen


@pytest.mark.parametrize("wanted", [[], ["0"], ["GPU-0"]])
def test_a_divided_gpu_that_may_not_be_read_stands_for_its_parts(wanted: list[str]) -> None:
    seen = reader(DIVIDED._replace(used=-NO_PERMISSION)).read()
    assert keys(seen, *wanted) == ["MIG-a1", "MIG-a2", "MIG-b"]


def test_an_undivided_gpu_that_may_not_be_read_stands_for_itself() -> None:
    assert keys(reader(Device("GPU-0", used=-NO_PERMISSION)).read()) == ["0"]


@pytest.mark.parametrize(
    ("devices", "wanted", "words"),
    [
        ([DIVIDED], "MIG-a", "'MIG-a' is the start of several UUIDs: MIG-a1 \\(of GPU 0\\), MIG-a2 \\(of GPU 0\\)"),
        ([DIVIDED], "MIG-c", "no MIG device 'MIG-c'. It has: MIG-a1 \\(of GPU 0\\)"),
        ([Device("GPU-0")], "MIG-c", "None of its GPUs is divided"),
    ],
)
def test_names_of_mig_devices_that_mean_nothing_or_too_much_are_refused(devices: list[Device], wanted: str, words: str) -> None:
    with pytest.raises(VllmError, match=words):
        keys(reader(*devices).read(), wanted)


def test_a_lost_gpu_is_recognised_without_its_uuid() -> None:
    assert Reading(Gpu(3, errors=(ReadError("handle", 15, "GPU is lost"),))).key == "3"


class Fabric(Nvml):
    """A binding that can be asked for the fabric, whose state is told for each reading."""

    class c_nvmlGpuFabricInfoV_t(ctypes.Structure):
        _fields_ = [("state", ctypes.c_ubyte), ("status", ctypes.c_uint)]

    def __init__(self, *states: int) -> None:
        super().__init__(Device("GPU-0"))
        self._states = list(states)

    def nvmlDeviceGetGpuFabricInfoV(self, _device: Device, info: t.Any) -> t.Any:
        self.calls.append("fabric")
        info._obj.state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return info


def test_the_fabric_is_read_each_time_while_it_is_in_progress_and_seldom_then() -> None:
    nvml = Fabric(2, 2, 3)
    one = gpu_readings.TargetReader(nvml, lambda pid: None, lambda path: "")
    seen = [gpu_readings.fabric_of(one.read()[0].gpu)["state"] for _reading in range(20)]
    assert seen == ["in_progress", "in_progress", *["completed"] * 18]
    assert nvml.calls.count("fabric") == 3


def test_mig_devices_have_the_fabric_of_their_gpu_and_a_gpu_that_was_not_asked_has_none() -> None:
    fabrics = [gpu_readings.fabric_of(one.gpu) for one in reader(DIVIDED).read()]
    assert fabrics == [{"state": None, "status": None, "health": None}] * 4
    assert gpu_readings.fabric_of(Gpu(0)) == {}
