# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVML says of a GPU beyond its memory: what a launch plan and a report need. PRIVATE to the collection.

Everything is plain data in the shape that ``gpu_info`` returns. A reading that NVML refuses is :data:`None`, and its error has
the name that the reading has here, such as ``power.limit``.
"""

from __future__ import annotations

import typing as t

from .nvml_calls import FUNCTION_NOT_FOUND, NOT_FOUND, Readings, text_of

__all__ = ["NEEDS_RESET", "Facts", "read_details", "read_recovery"]

Facts = dict[str, t.Any]

_CPU_WORDS = 64
_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_RECOVERY_ACTION = 230
_RECOVERY_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "imex_domain_reset", "bus_reset", "system_reboot")
NEEDS_RESET = ("gpu_reset", "node_reboot", "bus_reset", "system_reboot")
"""The driver's own verdicts under which a GPU does no work before it is reset; under the others it goes on until it is drained."""
_RESETS = ("gpu_reset", "node_reboot", "drain_and_reset", "bus_reset", "system_reboot")
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_CLOCKS = ("graphics", "sm", "memory")
_THRESHOLDS = ("shutdown", "slowdown", "memory_max", "gpu_max")
_THROTTLE_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)
_PCIE = {
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "replays": "nvmlDeviceGetPcieReplayCounter",
}
_POWER = {
    "usage": "nvmlDeviceGetPowerUsage",
    "limit": "nvmlDeviceGetPowerManagementLimit",
    "limit_enforced": "nvmlDeviceGetEnforcedPowerLimit",
    "limit_default": "nvmlDeviceGetPowerManagementDefaultLimit",
}


def read_details(readings: Readings, handle: t.Any) -> Facts:
    """Everything that concerns one GPU alone."""
    return {
        **_kind(readings, handle),
        **_mig(readings, handle),
        **_ecc(readings, handle),
        **_rows(readings, handle),
        **read_recovery(readings, handle),
        "pcie": {name: readings.read(f"pcie.{name}", function, handle) for name, function in _PCIE.items()},
        "power": _power(readings, handle),
        "temperature": _temperature(readings, handle),
        "clocks": _clocks(readings, handle),
    }


def _word(words: t.Sequence[str], number: t.Optional[int]) -> t.Optional[str]:
    """The word for NVML's number, or the number as text where a newer driver has one more."""
    if number is None:
        return None
    return words[number] if 0 <= number < len(words) else str(number)


def _flag(number: t.Optional[int]) -> t.Optional[bool]:
    return None if number is None else bool(number)


def _flags(names: t.Sequence[str], numbers: t.Optional[t.Sequence[int]]) -> Facts:
    return {name: _flag(number) for name, number in zip(names, numbers or (None,) * len(names))}


# ---- kind and mode -------------------------------------------------------------------------------------------------------


def _kind(readings: Readings, handle: t.Any) -> Facts:
    capability = readings.read("compute_capability", "nvmlDeviceGetCudaComputeCapability", handle)
    return {
        "serial": text_of(readings.read_feature("serial", "nvmlDeviceGetSerial", handle)),
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "compute_mode": _word(_COMPUTE_MODES, readings.read_feature("compute_mode", "nvmlDeviceGetComputeMode", handle)),
        "persistence": _flag(readings.read("persistence", "nvmlDeviceGetPersistenceMode", handle)),
        "cpu_affinity": _cpus(readings.read_feature("cpu_affinity", "nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS)),
    }


def _cpus(masks: t.Optional[t.Iterable[int]]) -> t.Optional[str]:
    """``0-3,8`` for 0, 1, 2, 3 and 8, as systemd and the kernel write a set of CPUs."""
    if masks is None:
        return None
    spans: list[list[int]] = []
    for number in (64 * word + bit for word, mask in enumerate(masks) for bit in _bits(mask)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _mig(readings: Readings, handle: t.Any) -> Facts:
    modes = readings.read_feature("mig", "nvmlDeviceGetMigMode", handle)
    return {**_flags(("mig", "mig_pending"), modes), "mig_devices": _mig_devices(readings, handle) if modes and modes[0] else []}


def _mig_devices(readings: Readings, handle: t.Any) -> list[Facts]:
    """The numbers have holes where a device was deleted."""
    found = []
    for index in range(readings.read("mig_devices", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        name = f"mig_devices[{index}]"
        device = readings.read(name, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index, expected=(NOT_FOUND,))
        if device is not None:
            found.append({"index": index, **_mig_device(readings, name, device)})
    return found


def _mig_device(readings: Readings, name: str, device: t.Any) -> Facts:
    memory = readings.read(f"{name}.memory", "nvmlDeviceGetMemoryInfo", device, version=readings.nvml.nvmlMemory_v2)
    return {
        "uuid": text_of(readings.read(f"{name}.uuid", "nvmlDeviceGetUUID", device)),
        "name": text_of(readings.read(f"{name}.name", "nvmlDeviceGetName", device)),
        "gpu_instance": readings.read(f"{name}.gpu_instance", "nvmlDeviceGetGpuInstanceId", device),
        "compute_instance": readings.read(f"{name}.compute_instance", "nvmlDeviceGetComputeInstanceId", device),
        "memory": {part: None if memory is None else int(getattr(memory, part)) for part in ("total", "used", "free")},
    }


# ---- health --------------------------------------------------------------------------------------------------------------


def _ecc(readings: Readings, handle: t.Any) -> Facts:
    modes = readings.read_feature("ecc", "nvmlDeviceGetEccMode", handle)
    counters = {
        period: {
            error: readings.read_feature(f"ecc_errors.{period}.{error}", "nvmlDeviceGetTotalEccErrors", handle, kind, counter)
            for kind, error in enumerate(("corrected", "uncorrected"))
        }
        for counter, period in enumerate(("volatile", "aggregate"))
    }
    return {**_flags(("ecc", "ecc_pending"), modes), "ecc_errors": counters}


def _rows(readings: Readings, handle: t.Any) -> Facts:
    """Since Ampere bad rows of memory are remapped; older parts retire pages."""
    rows = readings.read_feature("remapped_rows", "nvmlDeviceGetRemappedRows", handle)
    counts = dict(zip(("correctable", "uncorrectable"), rows or (None, None)))
    flags = _flags(("pending", "failed"), rows[2:] if rows else None)
    pages = {
        name: readings.read_feature(f"retired_pages.{name}", "nvmlDeviceGetRetiredPages", handle, cause)
        for cause, name in enumerate(("single_bit", "double_bit"))
    }
    pending = readings.read_feature("retired_pages.pending", "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    return {
        "remap_pending": flags["pending"],
        "remap_failed": flags["failed"],
        "remapped_rows": {**counts, **flags},
        "retired_pages": {**{name: None if one is None else len(one) for name, one in pages.items()}, "pending": _flag(pending)},
    }


def read_recovery(readings: Readings, handle: t.Any) -> Facts:
    """The driver's own verdict on what would heal the GPU."""
    action = _word(_RECOVERY_ACTIONS, readings.read_field("recovery_action", handle, _FIELD_RECOVERY_ACTION))
    return {"recovery_action": action, "reset_required": None if action is None else action in _RESETS}


# ---- power, heat, clocks -------------------------------------------------------------------------------------------------


def _power(readings: Readings, handle: t.Any) -> Facts:
    milliwatts = {name: readings.read(f"power.{name}", function, handle) for name, function in _POWER.items()}
    bounds = readings.read("power.limit_max", "nvmlDeviceGetPowerManagementLimitConstraints", handle)
    milliwatts["limit_min"], milliwatts["limit_max"] = bounds or (None, None)
    return {name: None if value is None else value / 1000 for name, value in milliwatts.items()}


def _temperature(readings: Readings, handle: t.Any) -> Facts:
    limits = {
        name: readings.read_feature(f"temperature.{name}", "nvmlDeviceGetTemperatureThreshold", handle, number)
        for number, name in enumerate(_THRESHOLDS)
    }
    return {
        "gpu": readings.read("temperature.gpu", "nvmlDeviceGetTemperature", handle, 0),
        "memory": readings.read_field("temperature.memory", handle, _FIELD_MEMORY_TEMPERATURE),
        **limits,
    }


def _clocks(readings: Readings, handle: t.Any) -> Facts:
    now = {name: readings.read(f"clocks.{name}", "nvmlDeviceGetClockInfo", handle, number) for number, name in enumerate(_CLOCKS)}
    most = {
        f"{name}_max": readings.read(f"clocks.{name}_max", "nvmlDeviceGetMaxClockInfo", handle, number)
        for number, name in enumerate(_CLOCKS)
    }
    return {**now, **most, "throttle_reasons": _throttle_reasons(readings, handle)}


def _throttle_reasons(readings: Readings, handle: t.Any) -> t.Optional[list[str]]:
    """The call has a new name since driver R535; an older driver, or an older binding, has only the old one."""
    name = "clocks.throttle_reasons"
    mask = readings.read(name, "nvmlDeviceGetCurrentClocksEventReasons", handle, expected=(FUNCTION_NOT_FOUND,))
    if mask is None and not readings.failed(name):
        mask = readings.read(name, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if mask is None else [str(_word(_THROTTLE_REASONS, bit)) for bit in _bits(mask)]
