# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readings of everything whose memory can be waited for: GPUs, and the MIG devices they are divided into. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .effects import ReadText
from .errors import VllmError
from .gpu_details import read_recovery
from .gpu_links import fabric_comes_up, read_fabric
from .gpus import Gpu, Identify, ReadError, read_gpus, select_gpus
from .nvml_calls import Readings
from .procs import ProcessInfo

__all__ = ["Fabric", "Reading", "TargetReader", "choose_targets", "fabric_of", "shares_host_memory"]

Fabric = t.Mapping[str, t.Any]

MIG = "MIG-"
NO_PERMISSION = 4
_SLOW_EVERY = 20
"""What hardly changes is read again with every so many readings."""
_NO_MEMORY: dict[str, t.Any] = {
    "memory_total": None,
    "memory_used": None,
    "memory_free": None,
    "memory_reserved": None,
    "memory_source": "none",
}


class Reading(t.NamedTuple):
    """One GPU or MIG device at one moment, and what /proc says of the processes on it.

    A MIG device has the index and PCI address of the GPU it is a part of; its own UUID tells it from others.
    """

    gpu: Gpu
    known: t.Mapping[int, ProcessInfo] = {}

    @property
    def is_mig_device(self) -> bool:
        return (self.gpu.uuid or "").startswith(MIG)

    @property
    def key(self) -> str:
        """What it is recognised by from one reading to the next; a GPU that is lost no longer tells its UUID."""
        return str(self.gpu.uuid) if self.is_mig_device else str(self.gpu.index)


def shares_host_memory(gpu: Gpu) -> bool:
    """Whether GPU and host use one memory, so that a used figure counts what the host does with it, and pages outlive their process."""
    return gpu.memory_source == "system" or gpu.memory_numa_node is not None


def fabric_of(gpu: Gpu) -> Fabric:
    """The NVLink fabric of an NVSwitch machine, as :func:`read_fabric` tells it; nothing where it was not read."""
    return (gpu.details or {}).get("fabric") or {}


class TargetReader:
    """Reads over and over through one open NVML."""

    def __init__(self, nvml: t.Any, identify: Identify, read_text: ReadText) -> None:
        self._nvml = nvml
        self._identify = identify
        self._read_text = read_text
        self._readings = 0
        self._slow: dict[int, dict[str, t.Any]] = {}

    def read(self) -> list[Reading]:
        """Every GPU in NVML's order, then the MIG devices of those that are divided."""
        known: dict[int, ProcessInfo] = {}
        gpus = [_honest(gpu) for gpu in self._read_gpus(self._nvml, known)]
        if self._readings % _SLOW_EVERY == 0 or self._is_coming_up:
            self._slow = {gpu.index: self._read_slow(gpu.index) for gpu in gpus}
        self._readings += 1
        gpus = [gpu._replace(**self._slow.get(gpu.index, {})) for gpu in gpus]
        devices = [device for gpu in gpus if gpu.mig for device in self._read_mig_devices(gpu, known)]
        return [Reading(gpu, {one.pid: known[one.pid] for one in gpu.processes if one.pid in known}) for gpu in [*gpus, *devices]]

    @property
    def _is_coming_up(self) -> bool:
        return any(fabric_comes_up(slow["details"]["fabric"]) for slow in self._slow.values() if slow)

    def _read_gpus(self, nvml: t.Any, known: dict[int, ProcessInfo]) -> list[Gpu]:
        """Each process is looked up once a reading, on however many GPUs it is."""

        def identify(pid: int) -> t.Optional[ProcessInfo]:
            if pid not in known:
                found = self._identify(pid)
                if found is None:
                    return None
                known[pid] = found
            return known[pid]

        return read_gpus(nvml, identify=identify, read_text=self._read_text, health=False)

    def _read_slow(self, index: int) -> dict[str, t.Any]:
        handle = self._try("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return {}
        mig = self._try("nvmlDeviceGetMigMode", handle)
        return {
            "memory_numa_node": self._try("nvmlDeviceGetNumaNodeId", handle),
            "mig": None if mig is None else bool(mig[0]),
            "recovery_action": read_recovery(Readings(self._nvml), handle)["recovery_action"],
            "details": {"fabric": read_fabric(Readings(self._nvml), handle)},
        }

    def _read_mig_devices(self, parent: Gpu, known: dict[int, ProcessInfo]) -> list[Gpu]:
        """Their handles go stale when a GPU is divided anew, so they are asked for each time."""
        handle = self._try("nvmlDeviceGetHandleByIndex", parent.index)
        count = 0 if handle is None else self._try("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        found = (self._try("nvmlDeviceGetMigDeviceHandleByIndex", handle, place) for place in range(count))
        devices = self._read_gpus(_Division(self._nvml, [one for one in found if one is not None]), known)
        return [_part_of(parent, _honest(device)) for device in devices if device.uuid]

    def _try(self, function: str, *arguments: t.Any) -> t.Any:
        """The result of a call that not every GPU, driver or binding has."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


class _Division:
    """An NVML whose devices are the MIG devices of one GPU: they answer the same calls."""

    def __init__(self, nvml: t.Any, handles: t.Sequence[t.Any]) -> None:
        self._nvml = nvml
        self._handles = handles

    def nvmlDeviceGetCount(self) -> int:
        return len(self._handles)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> t.Any:
        return self._handles[index]

    def __getattr__(self, name: str) -> t.Any:
        return getattr(self._nvml, name)


def _part_of(parent: Gpu, device: Gpu) -> Gpu:
    """A MIG device sits where its GPU sits and is healed with it; calls that it lacks for that are no faults."""
    errors = tuple(error for error in device.errors if error.reading != "pci_bus_id")
    shared = {name: getattr(parent, name) for name in ("index", "pci_bus_id", "recovery_action", "details")}
    return device._replace(errors=errors, **shared)


def _honest(gpu: Gpu) -> Gpu:
    """Some drivers answer for a GPU without memory of its own that it has 0 bytes: that is no reading."""
    if gpu.memory_total != 0:
        return gpu
    error = ReadError("memory", 0, "NVML says that the GPU has no memory")
    return gpu._replace(errors=(*gpu.errors, error), **_NO_MEMORY)


# ---- choosing ------------------------------------------------------------------------------------------------------------


def choose_targets(readings: t.Sequence[Reading], wanted: t.Sequence[str]) -> list[Reading]:
    """What is meant by ``wanted`` (GPUs as ever, MIG devices by the start of their UUID), in that order; all GPUs where it is empty."""
    gpus = [one for one in readings if not one.is_mig_device]
    devices = [one for one in readings if one.is_mig_device]
    names = [word for word in wanted if not _names_mig(word)]
    selected = select_gpus([one.gpu for one in gpus], names) if names or not wanted else []
    by_index = {one.gpu.index: one for one in gpus}
    whole = iter([by_index[gpu.index] for gpu in selected])
    if not wanted:
        return [target for one in whole for target in _readable(one, devices)]
    chosen = [target for word in wanted for target in ([_device(word, devices)] if _names_mig(word) else _readable(next(whole), devices))]
    return list({one.key: one for one in chosen}.values())


def _names_mig(word: str) -> bool:
    return word.strip().upper().startswith(MIG)


def _readable(whole: Reading, devices: t.Sequence[Reading]) -> list[Reading]:
    """A divided GPU whose own figures need a privilege that is not there stands for its MIG devices."""
    parts = [one for one in devices if one.gpu.index == whole.gpu.index]
    denied = whole.gpu.memory_used is None and any(error.code == NO_PERMISSION for error in whole.gpu.errors)
    return parts if parts and denied else [whole]


def _device(word: str, devices: t.Sequence[Reading]) -> Reading:
    found = [one for one in devices if (one.gpu.uuid or "").lower().startswith(word.strip().lower())]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{one.gpu.uuid} (of GPU {one.gpu.index})" for one in found or devices)
    if found:
        raise VllmError(f"gpus: {word!r} is the start of several UUIDs: {known}.", code="gpu_ambiguous", remedy="Give more of the UUID.")
    remedy = f"It has: {known}." if known else "None of its GPUs is divided (nvidia-smi -L shows MIG devices)."
    raise VllmError(f"gpus: this host has no MIG device {word!r}.", code="gpu_unknown", remedy=remedy)
