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
from .errors import VllmError
from .procs import ProcessInfo

__all__ = [
    "Gpu",
    "GpuProcess",
    "Host",
    "ReadError",
    "choose_gpus",
    "explain_nvml_failure",
    "fatal_error",
    "gpu_facts",
    "normal_pci",
    "read_gpus",
    "read_host",
    "select_gpus",
]

NOT_SUPPORTED = 3
NO_PERMISSION = 4
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 25
_BAD_TEXT = -1
_FATAL = (GPU_IS_LOST, RESET_REQUIRED, 8, 11)
_PROCESS_LISTS = {
    "C": "nvmlDeviceGetComputeRunningProcesses",
    "G": "nvmlDeviceGetGraphicsRunningProcesses",
    "M": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_PROCESS_ATTEMPTS = 3
_FIELD_RECOVERY_ACTION = 230
_RECOVERY_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "imex_domain_reset", "bus_reset", "system_reboot")
_NUMA_WORDS = 4
_PCI = re.compile(r"^(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?$")


class ReadError(t.NamedTuple):
    """A reading that NVML refused: which one, NVML's code and NVML's words."""

    reading: str
    code: int
    error: str


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
    one memory; ``none``. ``memory_numa_node`` is set where the GPU's memory is itself a NUMA node of the host.
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


class Host(t.NamedTuple):
    """What NVML says of the host as a whole."""

    driver_version: t.Optional[str]
    cuda_version: t.Optional[str]
    nvml_version: t.Optional[str]
    errors: tuple[ReadError, ...] = ()


Identify = t.Callable[[int], t.Optional[ProcessInfo]]


class _Readings:
    """Makes NVML calls and keeps the error of each that fails."""

    def __init__(self, nvml: t.Any) -> None:
        self._nvml = nvml
        self.errors: list[ReadError] = []

    def read(self, reading: str, function: str, *arguments: t.Any, expected: t.Sequence[int] = (), **options: t.Any) -> t.Any:
        """The call's result, or :data:`None`. Codes in ``expected`` are an ordinary "there is none" and no error."""
        try:
            return getattr(self._nvml, function)(*arguments, **options)
        except self._nvml.NVMLError as exc:
            if exc.value not in expected:
                self.errors.append(ReadError(reading, int(exc.value), str(exc)))
        except AttributeError:
            self.errors.append(ReadError(reading, FUNCTION_NOT_FOUND, f"this binding has no {function}"))
        except UnicodeDecodeError as exc:
            self.errors.append(ReadError(reading, _BAD_TEXT, f"not UTF-8: {exc}"))
        return None

    def failed_with(self, reading: str, codes: t.Sequence[int]) -> bool:
        """Whether that reading was refused with one of the codes."""
        return any(error.reading == reading and error.code in codes for error in self.errors)


# ---- reading -------------------------------------------------------------------------------------------------------------


def read_host(nvml: t.Any) -> Host:
    """Driver, CUDA and library versions."""
    readings = _Readings(nvml)
    cuda = readings.read("cuda_version", "nvmlSystemGetCudaDriverVersion")
    return Host(
        driver_version=_text(readings.read("driver_version", "nvmlSystemGetDriverVersion")),
        cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        nvml_version=_text(readings.read("nvml_version", "nvmlSystemGetNVMLVersion")),
        errors=tuple(readings.errors),
    )


def _nobody(_pid: int) -> t.Optional[ProcessInfo]:
    return None


def _no_file(path: str) -> str:
    raise FileNotFoundError(path)


def read_gpus(nvml: t.Any, *, identify: Identify = _nobody, read_text: ReadText = _no_file, health: bool = True) -> list[Gpu]:
    """Every GPU in NVML's order. ``identify`` says who a pid is; without ``health`` only memory and processes are read."""
    return [_read_gpu(nvml, index, identify, read_text, health) for index in range(nvml.nvmlDeviceGetCount())]


def _read_gpu(nvml: t.Any, index: int, identify: Identify, read_text: ReadText, health: bool) -> Gpu:
    readings = _Readings(nvml)
    handle = readings.read("handle", "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Gpu(index, errors=tuple(readings.errors))
    pci = readings.read("pci_bus_id", "nvmlDeviceGetPciInfo", handle)
    gpu = Gpu(
        index,
        uuid=_text(readings.read("uuid", "nvmlDeviceGetUUID", handle)),
        pci_bus_id=None if pci is None else normal_pci(_text(pci.busId) or ""),
        name=_text(readings.read("name", "nvmlDeviceGetName", handle)),
        processes=tuple(_processes(readings, handle, identify)),
    )
    gpu = gpu._replace(**_memory(readings, handle, read_text))
    if health:
        gpu = gpu._replace(**_placement(readings, handle, gpu.pci_bus_id, read_text), **_health(readings, handle))
    return gpu._replace(errors=tuple(readings.errors))


def _memory(readings: _Readings, handle: t.Any, read_text: ReadText) -> dict[str, t.Any]:
    version = getattr(readings._nvml, "nvmlMemory_v2", 0x02000028)
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


def _processes(readings: _Readings, handle: t.Any, identify: Identify) -> t.Iterator[GpuProcess]:
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


def _process_list(readings: _Readings, function: str, handle: t.Any) -> t.Sequence[t.Any]:
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


def _placement(readings: _Readings, handle: t.Any, pci_bus_id: t.Optional[str], read_text: ReadText) -> dict[str, t.Any]:
    nodes = readings.read("numa_node", "nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, 0, expected=(NOT_SUPPORTED,))
    near = [64 * word + bit for word, mask in enumerate(nodes or ()) for bit in range(64) if mask >> bit & 1]
    return {
        "numa_node": near[0] if len(near) == 1 else _sysfs_numa_node(pci_bus_id, read_text),
        "memory_numa_node": readings.read("memory_numa_node", "nvmlDeviceGetNumaNodeId", handle, expected=(NOT_SUPPORTED,)),
    }


def _sysfs_numa_node(pci_bus_id: t.Optional[str], read_text: ReadText) -> t.Optional[int]:
    try:
        node = int(read_text(f"/sys/bus/pci/devices/{pci_bus_id}/numa_node"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _health(readings: _Readings, handle: t.Any) -> dict[str, t.Any]:
    mig = readings.read("mig", "nvmlDeviceGetMigMode", handle, expected=(NOT_SUPPORTED,))
    ecc = readings.read("ecc", "nvmlDeviceGetEccMode", handle, expected=(NOT_SUPPORTED,))
    persistence = readings.read("persistence", "nvmlDeviceGetPersistenceMode", handle)
    remapped = readings.read("remapped_rows", "nvmlDeviceGetRemappedRows", handle, expected=(NOT_SUPPORTED,))
    return {
        "mig": None if mig is None else bool(mig[0]),
        "ecc": None if ecc is None else bool(ecc[0]),
        "persistence": None if persistence is None else bool(persistence),
        "remap_pending": None if remapped is None else bool(remapped[2]),
        "remap_failed": None if remapped is None else bool(remapped[3]),
        "recovery_action": _recovery_action(readings, handle),
    }


def _recovery_action(readings: _Readings, handle: t.Any) -> t.Optional[str]:
    """The driver's own verdict on what would heal the GPU."""
    values = readings.read("recovery_action", "nvmlDeviceGetFieldValues", handle, [_FIELD_RECOVERY_ACTION], expected=(NOT_SUPPORTED,))
    if values is None or values[0].nvmlReturn != 0:
        return None
    number = int(values[0].value.uiVal)
    return _RECOVERY_ACTIONS[number] if number < len(_RECOVERY_ACTIONS) else str(number)


def _text(value: t.Any) -> t.Optional[str]:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


# ---- telling -------------------------------------------------------------------------------------------------------------


def gpu_facts(gpu: Gpu) -> dict[str, t.Any]:
    """One GPU as plain data, the way ``gpu_info`` returns it."""
    whole = gpu._asdict()
    memory = {name: whole.pop(f"memory_{name}") for name in ("total", "used", "free", "reserved", "source")}
    memory["unified"] = gpu.memory_source == "system"
    hidden = ("start_time", "kill_pending")
    processes = [{key: value for key, value in one._asdict().items() if key not in hidden} for one in gpu.processes]
    return {**whole, "memory": memory, "processes": processes, "errors": [error._asdict() for error in gpu.errors]}


def fatal_error(gpu: Gpu) -> t.Optional[ReadError]:
    """What makes waiting for this GPU pointless: it is lost, needs a reset or cannot be opened."""
    for error in gpu.errors:
        if error.code in _FATAL or error.reading == "handle":
            return error
    return None


def explain_nvml_failure(
    code: int, words: str, *, reason: str = "", kernel_version: t.Optional[str] = None, library_version: t.Optional[str] = None
) -> VllmError:
    """Why NVML could not be opened, and what to do. ``reason`` is the dynamic loader's."""
    details = {"nvml_code": code, "nvml_error": words}
    if code == 18:
        versions = f" (kernel module {kernel_version or 'unknown'}, library {library_version or 'unknown'})"
        return VllmError(
            f"NVML cannot be used: the NVIDIA library and the loaded kernel module are of different versions{versions}.",
            code="nvml_driver_mismatch",
            remedy="Reload the NVIDIA modules or reboot the host, and hold the driver packages against unattended upgrades.",
            details=details,
        )
    name, message, remedy = _INIT_FAILURES.get(
        code, ("nvml_error", "NVML cannot be opened: {words}.", "Look for NVRM and Xid lines in the kernel log.")
    )
    text = message.format(words=words, reason=reason or words)
    return VllmError(text, code=name, remedy=remedy, details=details)


_INIT_FAILURES = {
    12: (
        "nvml_library_missing",
        "NVML cannot be used: the loader says '{reason}'.",
        "Install the NVIDIA driver's libraries on this host, or give this container its GPUs.",
    ),
    9: (
        "nvml_driver_not_loaded",
        "NVML cannot be used: the NVIDIA kernel module is not loaded or its device nodes cannot be opened.",
        "Load it (modprobe nvidia) and look at /dev/nvidia* and, in a unit, at DeviceAllow=.",
    ),
    NO_PERMISSION: (
        "nvml_no_permission",
        "NVML cannot be used: the driver refuses this user ({words}).",
        "Run this as root (become: true) or allow the user to open /dev/nvidiactl.",
    ),
    999: (
        "nvml_unknown_error",
        "NVML cannot be opened: the driver answers only '{words}'.",
        "In a container restart the container (it loses its GPUs after a daemon-reload); elsewhere look for Xid in the kernel log.",
    ),
}


# ---- choosing ------------------------------------------------------------------------------------------------------------


class _Identity(t.NamedTuple):
    index: int  # type: ignore[assignment] # hides tuple.index, which nobody needs here
    uuid: t.Optional[str]
    pci_bus_id: t.Optional[str]
    error: t.Optional[str] = None


def _identity(gpu: Gpu) -> _Identity:
    error = fatal_error(gpu)
    return _Identity(gpu.index, gpu.uuid, gpu.pci_bus_id, error.error if error else None)


def normal_pci(text: str) -> str:
    """The form sysfs uses: ``0000:c1:00.0`` for ``00000000:C1:00.0``, ``c1:00.0`` or ``0:c1:0``; other text unchanged."""
    found = _PCI.match(text)
    if not found:
        return text
    domain, bus, slot, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{function or 0}"


def select_gpus(gpus: t.Sequence[Gpu], wanted: t.Sequence[str]) -> list[Gpu]:
    """The GPUs meant by ``wanted`` (index, UUID, start of a UUID, or PCI id each), in that order; all where it is empty."""
    places = _places([_identity(gpu) for gpu in gpus], wanted)
    return [gpus[place] for place in places]


def choose_gpus(
    gpus: t.Sequence[t.Mapping[str, t.Any]], wanted: t.Union[int, t.Sequence[t.Union[str, int]]]
) -> list[t.Mapping[str, t.Any]]:
    """From GPUs as ``gpu_info`` returns them: that many of them, or the ones named.

    A number prefers GPUs of one NUMA node, then the lowest PCI ids, so that the same host always gives the same answer.
    """
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return _that_many(gpus, wanted)
    if isinstance(wanted, (str, bool)) or not isinstance(wanted, t.Sequence):
        raise VllmError(f"Which GPUs is {wanted!r}?", code="gpu_choice_invalid", remedy="Give a number of GPUs, or a list of names.")
    identities = [_Identity(int(gpu["index"]), gpu.get("uuid"), gpu.get("pci_bus_id")) for gpu in gpus]
    return [gpus[place] for place in _places(identities, [str(word) for word in wanted])]


def _that_many(gpus: t.Sequence[t.Mapping[str, t.Any]], wanted: int) -> list[t.Mapping[str, t.Any]]:
    usable = sorted((gpu for gpu in gpus if gpu.get("uuid")), key=lambda gpu: _pci_key(gpu.get("pci_bus_id")))
    if wanted < 1:
        raise VllmError(f"{wanted} is no number of GPUs.", code="gpu_choice_invalid", remedy="Ask for one GPU or more.")
    if wanted > len(usable):
        lost = f" ({len(gpus) - len(usable)} more cannot be read)" if len(usable) < len(gpus) else ""
        raise VllmError(
            f"{wanted} GPUs are wanted and the host has {len(usable)}{lost}.",
            code="gpu_too_few",
            remedy=f"Lower tensor_parallel_size to {len(usable)} or less, or use a host with more GPUs."
            if usable
            else "Use a host with GPUs.",
        )
    nodes: dict[int, list[t.Mapping[str, t.Any]]] = {}
    for gpu in usable:
        if gpu.get("numa_node") is not None:
            nodes.setdefault(int(gpu["numa_node"]), []).append(gpu)
    large_enough = [members for members in nodes.values() if len(members) >= wanted]
    return (large_enough[0] if large_enough else usable)[:wanted]


def _pci_key(text: t.Optional[str]) -> tuple[int, ...]:
    found = _PCI.match(text or "")
    return tuple(int(part or "0", 16) for part in found.groups()) if found else (2**32,)


def _places(identities: t.Sequence[_Identity], wanted: t.Sequence[str]) -> list[int]:
    if not wanted:
        return list(range(len(identities)))
    places = [_place(identities, word.strip()) for word in wanted]
    for position, place in enumerate(places):
        if place in places[:position]:
            first = wanted[places.index(place)]
            raise VllmError(
                f"gpus names GPU {identities[place].index} twice: as {first!r} and as {wanted[position]!r}.",
                code="gpu_duplicate",
                remedy="Name each GPU once.",
            )
    return places


def _place(identities: t.Sequence[_Identity], word: str) -> int:
    found = [place for place, identity in enumerate(identities) if _means(word, identity)]
    if len(found) == 1:
        return found[0]
    if found:
        candidates = ", ".join(str(identities[place].uuid) for place in found)
        raise VllmError(
            f"gpus: {word!r} is the start of several UUIDs: {candidates}.", code="gpu_ambiguous", remedy="Give more of the UUID."
        )
    unread = [f"GPU {one.index} cannot be used ({one.error})" for one in identities if one.error and not one.uuid]
    if unread:
        raise VllmError(
            f"gpus: {word!r} is none of the GPUs that can be read, and {', '.join(unread)}.",
            code="gpu_lost",
            remedy="Look for Xid lines in the kernel log; a GPU that is lost comes back only with a reboot, if at all.",
            details={"verdict": "lost"},
        )
    known = ", ".join(f"{one.index} ({one.uuid}, {one.pci_bus_id})" for one in identities)
    raise VllmError(f"gpus: this host has no GPU {word!r}.", code="gpu_unknown", remedy=f"It has: {known or 'none'}.")


def _means(word: str, identity: _Identity) -> bool:
    if word.isdigit():
        return int(word) == identity.index
    if _PCI.match(word):
        return normal_pci(word) == identity.pci_bus_id
    start = word.lower() if word.lower().startswith("gpu-") else f"gpu-{word.lower()}"
    return len(start) > len("gpu-") and (identity.uuid or "").lower().startswith(start)
