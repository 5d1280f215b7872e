# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVML says of the GPUs of a host, and which of them an operator means. PRIVATE to the collection.

``nvml`` is the module :mod:`pynvml` or anything with the same functions (``nvml_minimal``). Every reading can fail for itself:
it is then :data:`None` and its error is kept beside it, so that one lost GPU never hides the others.
"""

from __future__ import annotations

import re
import typing as t

from .effects import ReadText
from .gpu_choice import choose_gpus, why_unusable
from .gpu_details import read_details
from .gpu_links import Card, read_fabric, read_links, read_nvlinks
from .gpu_names import Identity, places
from .nvml_calls import (
    FATAL,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    VERSION_MISMATCH,
    ReadError,
    Readings,
    text_of,
)
from .pci import normal_pci
from .procs import ProcessInfo

__all__ = [
    "Gpu",
    "GpuProcess",
    "Host",
    "ReadError",
    "choose_gpus",
    "fatal_error",
    "gpu_facts",
    "normal_pci",
    "read_gpus",
    "read_host",
    "read_numa_nodes",
    "select_gpus",
    "unread_by_binding",
]

_PROCESS_LISTS = {
    "C": "nvmlDeviceGetComputeRunningProcesses",
    "G": "nvmlDeviceGetGraphicsRunningProcesses",
    "M": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_PROCESS_ATTEMPTS = 3
_NUMA_WORDS = 4


class GpuProcess(t.NamedTuple):
    """A process with memory on a GPU. ``bytes`` is :data:`None` where the driver does not say; ``name`` and what follows are
    :data:`None` where the process is gone or belongs to another PID namespace."""

    pid: int
    type: str
    bytes: t.Optional[int]
    name: t.Optional[str] = None
    user: t.Optional[str] = None
    unit: t.Optional[str] = None
    state: t.Optional[str] = None
    start_time: t.Optional[int] = None
    kill_pending: bool = False


class Gpu(t.NamedTuple):
    """One GPU as read at one moment. Memory is in bytes.

    ``memory_source``: ``nvml_v2``; ``nvml_v1``, whose used figure counts the driver's reserve; ``system`` where GPU and host share
    one memory; ``none``. ``memory_numa_node`` is set where the GPU's memory is itself a NUMA node of the host. ``details`` is what
    :mod:`gpu_details` and :mod:`gpu_links` read; ``not_supported`` names what the part does not have, ``unknown`` what the binding
    cannot ask.
    """

    index: int  # type: ignore[assignment] # hides tuple.index, which nobody needs here
    uuid: t.Optional[str] = None
    pci_bus_id: t.Optional[str] = None
    name: t.Optional[str] = None
    memory_total: t.Optional[int] = None
    memory_used: t.Optional[int] = None
    memory_free: t.Optional[int] = None
    memory_reserved: t.Optional[int] = None
    memory_source: str = "none"
    numa_node: t.Optional[int] = None
    memory_numa_node: t.Optional[int] = None
    mig: t.Optional[bool] = None
    persistence: t.Optional[bool] = None
    ecc: t.Optional[bool] = None
    remap_pending: t.Optional[bool] = None
    remap_failed: t.Optional[bool] = None
    recovery_action: t.Optional[str] = None
    processes: tuple[GpuProcess, ...] = ()
    errors: tuple[ReadError, ...] = ()
    details: t.Optional[t.Mapping[str, t.Any]] = None
    not_supported: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Host(t.NamedTuple):
    """What NVML says of the host as a whole."""

    driver_version: t.Optional[str]
    cuda_version: t.Optional[str]
    nvml_version: t.Optional[str]
    errors: tuple[ReadError, ...] = ()


Identify = t.Callable[[int], t.Optional[ProcessInfo]]


# ---- reading -------------------------------------------------------------------------------------------------------------


def read_host(nvml: t.Any) -> Host:
    """Driver, CUDA and library versions."""
    readings = Readings(nvml)
    cuda = readings.read("cuda_version", "nvmlSystemGetCudaDriverVersion")
    return Host(
        driver_version=text_of(readings.read("driver_version", "nvmlSystemGetDriverVersion")),
        cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        nvml_version=text_of(readings.read("nvml_version", "nvmlSystemGetNVMLVersion")),
        errors=tuple(readings.errors),
    )


def _nobody(_pid: int) -> t.Optional[ProcessInfo]:
    return None


def _no_file(path: str) -> str:
    raise FileNotFoundError(path)


def read_gpus(nvml: t.Any, *, identify: Identify = _nobody, read_text: ReadText = _no_file, health: bool = True) -> list[Gpu]:
    """Every GPU in NVML's order. ``identify`` says who a pid is; without ``health`` only memory and processes are read."""
    opened = [(Readings(nvml), index) for index in range(nvml.nvmlDeviceGetCount())]
    handles = [readings.read("handle", "nvmlDeviceGetHandleByIndex", index) for readings, index in opened]
    gpus = [_read_gpu(readings, index, handle, identify, read_text) for (readings, index), handle in zip(opened, handles)]
    if health:
        gpus = [_with_details(gpu, readings, handle, read_text) for gpu, (readings, _index), handle in zip(gpus, opened, handles)]
        gpus = _with_links(gpus, [readings for readings, _index in opened], handles)
    return [_with_refusals(gpu, readings) for gpu, (readings, _index) in zip(gpus, opened)]


def _read_gpu(readings: Readings, index: int, handle: t.Any, identify: Identify, read_text: ReadText) -> Gpu:
    if handle is None:
        return Gpu(index)
    pci = readings.read("pci_bus_id", "nvmlDeviceGetPciInfo", handle)
    gpu = Gpu(
        index,
        uuid=text_of(readings.read("uuid", "nvmlDeviceGetUUID", handle)),
        pci_bus_id=None if pci is None else normal_pci(text_of(pci.busId) or ""),
        name=text_of(readings.read("name", "nvmlDeviceGetName", handle)),
        processes=tuple(_processes(readings, handle, identify)),
    )
    return gpu._replace(**_memory(readings, handle, read_text))


def _with_details(gpu: Gpu, readings: Readings, handle: t.Any, read_text: ReadText) -> Gpu:
    if handle is None:
        return gpu
    details = {**_placement(readings, handle, gpu.pci_bus_id, read_text), **_details(readings, handle)}
    own = {name: details.pop(name) for name in Gpu._fields if name in details}
    return gpu._replace(**own, details=details)


def _details(readings: Readings, handle: t.Any) -> dict[str, t.Any]:
    return {
        **read_details(readings, handle),
        "nvlinks": read_nvlinks(readings, handle),
        "links": [],
        "fabric": read_fabric(readings, handle),
    }


def _no_details() -> dict[str, t.Any]:
    """The same, with nothing known: asked of no binding."""
    details = _details(Readings(None), None)
    return {name: value for name, value in details.items() if name not in Gpu._fields}


def _with_links(gpus: t.Sequence[Gpu], readings: t.Sequence[Readings], handles: t.Sequence[t.Any]) -> list[Gpu]:
    """Once all are read: how each reaches the others, as far as they can be opened."""
    cards = [
        Card(handle, gpu.index, gpu.uuid, gpu.pci_bus_id, gpu.details["nvlinks"])
        for gpu, handle in zip(gpus, handles)
        if gpu.details is not None
    ]
    links = {card.index: read_links(readings[card.index], card, cards) for card in cards}
    return [gpu._replace(details={**(gpu.details or {}), "links": links[gpu.index]}) if gpu.index in links else gpu for gpu in gpus]


def _with_refusals(gpu: Gpu, readings: Readings) -> Gpu:
    return gpu._replace(
        errors=tuple(readings.errors), not_supported=tuple(dict.fromkeys(readings.absent)), unknown=tuple(dict.fromkeys(readings.unknown))
    )


def _memory(readings: Readings, handle: t.Any, read_text: ReadText) -> dict[str, t.Any]:
    version = getattr(readings.nvml, "nvmlMemory_v2", 0x02000028)
    found, source = readings.read("memory", "nvmlDeviceGetMemoryInfo", handle, version=version), "nvml_v2"
    missing = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH)
    if found is None and readings.failed_with("memory", missing):
        found, source = readings.read("memory_v1", "nvmlDeviceGetMemoryInfo", handle), "nvml_v1"
    if found is None:
        return _system_memory(read_text) if readings.failed_with("memory_v1", (NOT_SUPPORTED,)) else {}
    return {
        "memory_total": int(found.total),
        "memory_used": int(found.used),
        "memory_free": int(found.free),
        "memory_reserved": int(found.reserved) if source == "nvml_v2" else None,
        "memory_source": source,
    }


def _system_memory(read_text: ReadText) -> dict[str, t.Any]:
    """Parts that share the host's memory have no figure of their own: the host's is theirs."""
    try:
        lines = read_text("/proc/meminfo").splitlines()
    except OSError:
        return {}
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    if total is None or free is None:
        return {}
    return {"memory_total": total, "memory_used": total - free, "memory_free": free, "memory_source": "system"}


def _processes(readings: Readings, handle: t.Any, identify: Identify) -> t.Iterator[GpuProcess]:
    """A process may be in several lists; it is told once, with the largest figure."""
    seen: dict[int, GpuProcess] = {}
    for kind, function in _PROCESS_LISTS.items():
        for record in _process_list(readings, function, handle):
            known = seen.get(record.pid)
            if known is None or (known.bytes or 0) < (record.usedGpuMemory or 0):
                seen[record.pid] = GpuProcess(int(record.pid), known.type if known else kind, record.usedGpuMemory)
    for process in seen.values():
        found = identify(process.pid)
        if found is None:
            yield process
        else:
            yield process._replace(
                **{name: getattr(found, name) for name in ("name", "user", "unit", "state", "start_time", "kill_pending")}
            )


def _process_list(readings: Readings, function: str, handle: t.Any) -> t.Sequence[t.Any]:
    """Processes that appear between NVML's two calls make it answer "insufficient size": ask again."""
    for attempt in range(_PROCESS_ATTEMPTS):
        last = attempt == _PROCESS_ATTEMPTS - 1
        before = len(readings.errors)
        expected = (NOT_SUPPORTED,) if last else (NOT_SUPPORTED, INSUFFICIENT_SIZE)
        found = readings.read("processes", function, handle, expected=expected)
        if found is not None:
            return t.cast("t.Sequence[t.Any]", found)
        if len(readings.errors) > before:
            break
    return ()


def _placement(readings: Readings, handle: t.Any, pci_bus_id: t.Optional[str], read_text: ReadText) -> dict[str, t.Any]:
    nodes = readings.read_feature("numa_node", "nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, 0)
    near = [64 * word + bit for word, mask in enumerate(nodes or ()) for bit in range(64) if mask >> bit & 1]
    return {
        "numa_node": near[0] if len(near) == 1 else _sysfs_numa_node(pci_bus_id, read_text),
        "memory_numa_node": readings.read_feature("memory_numa_node", "nvmlDeviceGetNumaNodeId", handle),
    }


def _sysfs_numa_node(pci_bus_id: t.Optional[str], read_text: ReadText) -> t.Optional[int]:
    try:
        node = int(read_text(f"/sys/bus/pci/devices/{pci_bus_id}/numa_node"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def read_numa_nodes(read_text: ReadText) -> list[int]:
    """The host's NUMA nodes that have CPUs; none where the kernel does not say."""
    try:
        spans = read_text("/sys/devices/system/node/has_cpu").strip().split(",")
        ends = [[int(end) for end in span.split("-")] for span in spans if span]
    except (OSError, ValueError):
        return []
    return [node for span in ends for node in range(span[0], span[-1] + 1)]


# ---- telling -------------------------------------------------------------------------------------------------------------


def gpu_facts(gpu: Gpu) -> dict[str, t.Any]:
    """One GPU as plain data, the way ``gpu_info`` returns it."""
    whole = gpu._asdict()
    del whole["details"], whole["unknown"]
    memory = {name: whole.pop(f"memory_{name}") for name in ("total", "used", "free", "reserved", "source")}
    memory["unified"] = gpu.memory_source == "system"
    hidden = ("start_time", "kill_pending")
    processes = [{key: value for key, value in one._asdict().items() if key not in hidden} for one in gpu.processes]
    errors = [error._asdict() for error in gpu.errors]
    facts = {**whole, **(gpu.details or _no_details()), "memory": memory, "processes": processes, "errors": errors}
    if any(error.code == RESET_REQUIRED for error in gpu.errors):
        facts["reset_required"] = True
    return {**facts, "not_supported": list(gpu.not_supported), "unusable": why_unusable(facts)}


def unread_by_binding(gpus: t.Iterable[Gpu]) -> list[str]:
    """What the binding has no call for, of whichever GPU: a name with a number in it stands for all numbers."""
    return sorted({re.sub(r"\[\d+\]", "", name) for gpu in gpus for name in gpu.unknown})


def fatal_error(gpu: Gpu) -> t.Optional[ReadError]:
    """What makes waiting for this GPU pointless: it is lost, needs a reset or cannot be opened."""
    for error in gpu.errors:
        if error.code in FATAL or error.reading == "handle":
            return error
    return None


# ---- choosing ------------------------------------------------------------------------------------------------------------


def select_gpus(gpus: t.Sequence[Gpu], wanted: t.Sequence[str]) -> list[Gpu]:
    """The GPUs meant by ``wanted`` (index, UUID, start of a UUID, or PCI id each), in that order; all where it is empty."""
    return [gpus[place] for place in places([_identity(gpu) for gpu in gpus], wanted)]


def _identity(gpu: Gpu) -> Identity:
    error = fatal_error(gpu)
    return Identity(gpu.index, gpu.uuid, gpu.pci_bus_id, error.error if error else None)
