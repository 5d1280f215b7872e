# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few NVML calls the collection makes, for hosts without nvidia-ml-py. PRIVATE to the collection.

Names, arguments and results are those of nvidia-ml-py, so that either can be used; only what is here exists here. The layouts
are NVML's own: memory information version 2, process records version 3, PCI information version 3.
"""

from __future__ import annotations

import ctypes
import typing as t

__all__ = [
    "NVMLError",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetUUID",
    "nvmlInit",
    "nvmlMemory_v2",
    "nvmlShutdown",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
]

nvmlMemory_v2 = 0x02000028
_INSUFFICIENT_SIZE = 7
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_NOT_AVAILABLE = 2**64 - 1
_TEXT_SIZE = 96
_TEXTS = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    7: "Insufficient Size",
    8: "Insufficient External Power",
    9: "Driver Not Loaded",
    10: "Timeout",
    11: "Interrupt Request Issue",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires restart",
    18: "RM has detected an NVML/RM version mismatch.",
    999: "Unknown Error",
}
_library: t.Optional[ctypes.CDLL] = None


class NVMLError(Exception):
    """A call that NVML refused; ``value`` is its code."""

    def __init__(self, value: int) -> None:
        super().__init__(_TEXTS.get(value, f"NVML error {value}"))
        self.value = value


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    ]


class _PciInfo(ctypes.Structure):
    _fields_ = [
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    ]


class _Value(ctypes.Union):
    _fields_ = [("uiVal", ctypes.c_uint), ("ullVal", ctypes.c_ulonglong), ("dVal", ctypes.c_double)]


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("fieldId", ctypes.c_uint32),
        ("scopeId", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latencyUsec", ctypes.c_int64),
        ("valueType", ctypes.c_uint),
        ("nvmlReturn", ctypes.c_int),
        ("value", _Value),
    ]


class ProcessRecord(t.NamedTuple):
    """A process with memory on a GPU; ``usedGpuMemory`` is :data:`None` where the driver does not say."""

    pid: int
    usedGpuMemory: t.Optional[int]


def nvmlInit() -> None:
    """Load the library and open the driver; the loader's reason is the error's ``__context__``."""
    global _library  # noqa: PLW0603 - one library a process, as NVML itself has it
    if _library is None:
        try:
            _library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            raise NVMLError(_LIBRARY_NOT_FOUND)  # noqa: B904 - the context is the message, as in nvidia-ml-py
    _call("nvmlInitWithFlags", ctypes.c_uint(0))


def nvmlShutdown() -> None:
    _call("nvmlShutdown")


def nvmlSystemGetNVMLVersion() -> str:
    return _text("nvmlSystemGetNVMLVersion")


def nvmlSystemGetDriverVersion() -> str:
    return _text("nvmlSystemGetDriverVersion")


def nvmlSystemGetCudaDriverVersion() -> int:
    return _numbers("nvmlSystemGetCudaDriverVersion", 1)[0]


def nvmlDeviceGetCount() -> int:
    return _numbers("nvmlDeviceGetCount_v2", 1)[0]


def nvmlDeviceGetHandleByIndex(index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    return handle


def nvmlDeviceGetUUID(handle: ctypes.c_void_p) -> str:
    return _text("nvmlDeviceGetUUID", handle)


def nvmlDeviceGetName(handle: ctypes.c_void_p) -> str:
    return _text("nvmlDeviceGetName", handle)


def nvmlDeviceGetPciInfo(handle: ctypes.c_void_p) -> _PciInfo:
    info = _PciInfo()
    _call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
    return info


def nvmlDeviceGetMemoryInfo(handle: ctypes.c_void_p, version: t.Optional[int] = None) -> t.Union[_Memory, _MemoryV2]:
    if version is None:
        memory = _Memory()
        _call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return memory
    memory_v2 = _MemoryV2(version=version)
    _call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory_v2))
    return memory_v2


def nvmlDeviceGetComputeRunningProcesses(handle: ctypes.c_void_p) -> list[ProcessRecord]:
    return _processes("nvmlDeviceGetComputeRunningProcesses_v3", handle)


def nvmlDeviceGetGraphicsRunningProcesses(handle: ctypes.c_void_p) -> list[ProcessRecord]:
    return _processes("nvmlDeviceGetGraphicsRunningProcesses_v3", handle)


def nvmlDeviceGetMPSComputeRunningProcesses(handle: ctypes.c_void_p) -> list[ProcessRecord]:
    return _processes("nvmlDeviceGetMPSComputeRunningProcesses_v3", handle)


def nvmlDeviceGetMemoryAffinity(handle: ctypes.c_void_p, nodeSetSize: int, scope: int) -> ctypes.Array[ctypes.c_ulonglong]:
    nodes = (ctypes.c_ulonglong * nodeSetSize)()
    _call("nvmlDeviceGetMemoryAffinity", handle, ctypes.c_uint(nodeSetSize), ctypes.byref(nodes), ctypes.c_uint(scope))
    return nodes


def nvmlDeviceGetNumaNodeId(handle: ctypes.c_void_p) -> int:
    return _numbers("nvmlDeviceGetNumaNodeId", 1, handle)[0]


def nvmlDeviceGetMigMode(handle: ctypes.c_void_p) -> list[int]:
    return _numbers("nvmlDeviceGetMigMode", 2, handle)


def nvmlDeviceGetMaxMigDeviceCount(handle: ctypes.c_void_p) -> int:
    return _numbers("nvmlDeviceGetMaxMigDeviceCount", 1, handle)[0]


def nvmlDeviceGetMigDeviceHandleByIndex(device: ctypes.c_void_p, index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call("nvmlDeviceGetMigDeviceHandleByIndex", device, ctypes.c_uint(index), ctypes.byref(handle))
    return handle


def nvmlDeviceGetEccMode(handle: ctypes.c_void_p) -> list[int]:
    return _numbers("nvmlDeviceGetEccMode", 2, handle)


def nvmlDeviceGetPersistenceMode(handle: ctypes.c_void_p) -> int:
    return _numbers("nvmlDeviceGetPersistenceMode", 1, handle)[0]


def nvmlDeviceGetRemappedRows(handle: ctypes.c_void_p) -> list[int]:
    return _numbers("nvmlDeviceGetRemappedRows", 4, handle)


def nvmlDeviceGetFieldValues(handle: ctypes.c_void_p, fieldIds: t.Sequence[int]) -> ctypes.Array[_FieldValue]:
    values = (_FieldValue * len(fieldIds))()
    for value, field in zip(values, fieldIds):
        value.fieldId = field
    _call("nvmlDeviceGetFieldValues", handle, ctypes.c_int(len(fieldIds)), ctypes.byref(values))
    return values


def _call(symbol: str, *arguments: t.Any) -> None:
    try:
        function = getattr(_library, symbol)
    except AttributeError:
        raise NVMLError(_FUNCTION_NOT_FOUND) from None
    code = function(*arguments)
    if code:
        raise NVMLError(code)


def _numbers(symbol: str, count: int, *arguments: t.Any) -> list[int]:
    """What a call leaves in that many unsigned results."""
    results = [ctypes.c_uint() for _unused in range(count)]
    _call(symbol, *arguments, *(ctypes.byref(result) for result in results))
    return [result.value for result in results]


def _text(symbol: str, *arguments: t.Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT_SIZE)
    _call(symbol, *arguments, buffer, ctypes.c_uint(_TEXT_SIZE))
    return buffer.value.decode("utf-8", "replace")


def _processes(symbol: str, handle: ctypes.c_void_p) -> list[ProcessRecord]:
    """Ask how many there are, then for them; room to spare, because more may appear between the two calls."""
    count = ctypes.c_uint(0)
    try:
        _call(symbol, handle, ctypes.byref(count), None)
        return []
    except NVMLError as exc:
        if exc.value != _INSUFFICIENT_SIZE:
            raise
    count.value = count.value * 2 + 5
    records = (_Process * count.value)()
    _call(symbol, handle, ctypes.byref(count), records)
    return [ProcessRecord(one.pid, None if one.usedGpuMemory == _NOT_AVAILABLE else one.usedGpuMemory) for one in records[: count.value]]
