# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how a wait for GPUs goes and how it ended: who holds what, what that means and what to do. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .errors import VllmError
from .gpu_details import NEEDS_RESET
from .gpu_links import fabric_comes_up, fabric_fault
from .gpu_threshold import MIB, gib

__all__ = [
    "EXIT_BUSY",
    "EXIT_CONFIGURATION",
    "EXIT_FREE",
    "EXIT_GPU_FAULT",
    "EXIT_NVML_UNAVAILABLE",
    "WaitResult",
    "describe",
    "exit_status",
    "unless_free",
    "who_holds",
]

EXIT_FREE, EXIT_BUSY, EXIT_NVML_UNAVAILABLE, EXIT_GPU_FAULT, EXIT_CONFIGURATION = 0, 75, 69, 70, 78

MENTIONED_HOLDERS = 8
NOTABLE_UNATTRIBUTED = 256 * MIB
_PERMISSION, _RESET = 4, 16
_FABRIC_REMEDY = "Look at nvidia-fabricmanager.service: it has to run, and to be of the driver's version."
_BY_VERDICT = {"free": EXIT_FREE, "lost": EXIT_GPU_FAULT, "wedged": EXIT_GPU_FAULT}
_BY_CODE = {
    "gpu_memory_held": EXIT_BUSY,
    "gpu_memory_releasing": EXIT_BUSY,
    "gpu_fabric_not_up": EXIT_BUSY,
    "gpu_wedged": EXIT_GPU_FAULT,
    "gpu_lost": EXIT_GPU_FAULT,
    "gpu_missing": EXIT_GPU_FAULT,
}

Record = t.Mapping[str, t.Any]


class WaitResult(t.NamedTuple):
    """How the wait ended: ``verdict`` is ``free``, ``releasing``, ``held``, ``wedged`` or ``lost``; the rest is plain data."""

    free: bool
    verdict: str
    waited_seconds: float
    samples: int
    gpus: list[dict[str, t.Any]]
    holders: list[dict[str, t.Any]]
    notes: list[str]
    reaped: list[dict[str, t.Any]] = []

    def facts(self) -> dict[str, t.Any]:
        """What a module returns of it; the notes are warnings of their own."""
        return {name: value for name, value in self._asdict().items() if name != "notes"}


def exit_status(outcome: t.Union[WaitResult, VllmError]) -> int:
    """The host helper's exit status for a finished wait, or for the error that ended it."""
    if isinstance(outcome, WaitResult):
        return _BY_VERDICT.get(outcome.verdict, EXIT_BUSY)
    if outcome.code.startswith("nvml_") or outcome.code == "gpu_none":
        return EXIT_NVML_UNAVAILABLE
    return _BY_CODE.get(outcome.code, EXIT_CONFIGURATION)


def describe(result: WaitResult) -> str:
    """The result in a line or two: what is free, or what is wrong and what to do."""
    if not result.free:
        return str(_failure(result))
    return f"memory of {len(result.gpus)} of {len(result.gpus)} GPUs is free (waited {result.waited_seconds:.1f} s)"


def unless_free(result: WaitResult) -> WaitResult:
    """The result itself where all is free; raises what :func:`describe` says where not."""
    if not result.free:
        raise _failure(result)
    return result


def _failure(result: WaitResult) -> VllmError:
    late = [gpu for gpu in result.gpus if fabric_comes_up(gpu["fabric"])]
    if late and result.verdict == "held":
        message, remedy = _without_fabric(result, late)
        return VllmError(message, code="gpu_fabric_not_up", remedy=remedy, details=result.facts())
    explain = {"lost": _lost, "wedged": _wedged}.get(result.verdict, _busy)
    code = {"lost": "gpu_lost", "wedged": "gpu_wedged"}.get(result.verdict, f"gpu_memory_{result.verdict}")
    message, remedy = explain(result)
    return VllmError(message, code=code, remedy=remedy, details=result.facts())


def _lost(result: WaitResult) -> tuple[str, str]:
    split = [gpu for gpu in result.gpus if gpu["fabric"]["state"] == "completed" and fabric_fault(gpu["fabric"])]
    if split:
        named = "; ".join(f"{_name(gpu)}: {gpu['fabric']['status']}" for gpu in split)
        return f"The NVLink fabric of a target GPU failed ({named}), so CUDA does not start on it.", _FABRIC_REMEDY
    broken = [gpu for gpu in result.gpus if gpu["errors"] or gpu["recovery_action"] in NEEDS_RESET]
    codes = {error["code"] for gpu in broken for error in gpu["errors"]}
    named = "; ".join(f"{_name(gpu)}: {_fault(gpu)}" for gpu in broken)
    if _PERMISSION in codes:
        return f"A target GPU cannot be opened ({named}).", "Run this as root (become: true); a GPU divided by MIG is read by root alone."
    if _RESET in codes or any(gpu["recovery_action"] in NEEDS_RESET for gpu in broken):
        return f"A target GPU needs a reset ({named}).", "Stop everything that uses it and run nvidia-smi --gpu-reset, or reboot the host."
    return (
        f"A target GPU is lost to the driver ({named}).",
        "Look for Xid lines in the kernel log; reboot the host, and if it comes back, reseat or replace the card.",
    )


def _without_fabric(result: WaitResult, late: t.Sequence[Record]) -> tuple[str, str]:
    """The fabric first: memory that is held besides says nothing of why CUDA does not start."""
    places = ", ".join(_name(gpu) for gpu in late)
    message = (
        f"The NVLink fabric of {places} was not up after {result.waited_seconds:.0f} s, so CUDA fails there with error 802"
        " (system not yet initialized)."
    )
    return message, _FABRIC_REMEDY


def _fault(gpu: Record) -> str:
    if gpu["recovery_action"] in NEEDS_RESET:
        return f"the driver asks for {gpu['recovery_action']}"
    return str(gpu["errors"][0]["error"])


def _wedged(result: WaitResult) -> tuple[str, str]:
    stuck = [pid for gpu in result.gpus for pid in gpu["unkillable_pids"]]
    holders = [_holder_text(one) for one in result.holders if one["pid"] in stuck]
    places = ", ".join(_name(gpu) for gpu in result.gpus if gpu["unkillable_pids"])
    return (
        f"{places} stays taken by a process that was killed and cannot die: {'; '.join(dict.fromkeys(holders))}.",
        "It hangs in the driver and only a reboot of the host frees the memory.",
    )


def _busy(result: WaitResult) -> tuple[str, str]:
    busy = [gpu for gpu in result.gpus if not gpu["free"]]
    total = len(result.gpus)
    if not busy:
        return f"The memory of {total} of {total} GPUs is free but did not stay still in {result.waited_seconds:.0f} s.", "Raise timeout."
    shortages = "; ".join(_shortage(gpu, result.holders) for gpu in busy)
    message = f"{len(busy)} of {total} GPUs did not become free in {result.waited_seconds:.0f} s: {shortages}."
    return message, _releasing(result) if result.verdict == "releasing" else _held(result, busy)


def _shortage(gpu: Record, holders: t.Sequence[Record]) -> str:
    """What one GPU lacks, and because of whom."""
    room = f"{_name(gpu)} has {gib(gpu['free_last'])} of {gib(gpu['memory_total'])} free"
    need = "" if gpu["needed_free"] is None else f" and needs {gib(gpu['needed_free'])}"
    return f"{room}{need}, {_by(gpu, [one for one in holders if _is_on(one, gpu)])}"


def _is_on(holder: Record, gpu: Record) -> bool:
    return bool(holder["gpu"] == gpu["index"] and holder["gpu_uuid"] in (gpu["uuid"], None))


# ---- what to do ----------------------------------------------------------------------------------------------------------


def _releasing(result: WaitResult) -> str:
    if any(one["ending"] for one in result.holders):
        return (
            "The memory was still being released: raise timeout. Pinned host memory (CPU offload, swap space) makes the end of a process"
            " last for minutes; one that ends for longer hangs in the driver until the host is rebooted."
        )
    return "The memory was still being released: raise timeout."


def _held(result: WaitResult, busy: t.Sequence[Record]) -> str:
    visible = [one for one in result.holders if one["name"]]
    asked = sorted({gpu["recovery_action"] for gpu in busy} - {None, "none"})
    advice = f" The driver itself asks for {', '.join(asked)}." if asked else ""
    if not visible:
        return (
            "Look for the holder in other containers (PID namespaces); if there is none, the driver leaks the memory and the GPU"
            f" needs a reset.{advice}"
        )
    return f"Stop what holds it ({'; '.join(_ways_to_stop(visible))}) or choose other GPUs.{_about_left_overs(visible)}{advice}"


def _ways_to_stop(holders: t.Sequence[Record]) -> list[str]:
    """From the widest to the narrowest: by container, by service, by MPS, by pid."""
    contained = [one for one in holders if one["container"]]
    served = [one for one in holders if one not in contained and _is_served(one)]
    loose = [one for one in holders if one not in contained and one not in served]
    ways = [f"container {name}" for name in dict.fromkeys(one["container"] for one in contained)]
    if served:
        ways.append(f"systemctl stop {' '.join(dict.fromkeys(one['unit'] for one in served))}")
    if any(one["type"] == "M" for one in loose):
        ways.append("MPS: echo quit | nvidia-cuda-mps-control")
    pids = dict.fromkeys(str(one["pid"]) for one in loose if one["type"] != "M")
    return [*ways, f"pid {', '.join(pids)}"] if pids else ways


def _is_served(holder: Record) -> bool:
    return str(holder["unit"] or "").endswith(".service")


def _about_left_overs(holders: t.Sequence[Record]) -> str:
    """Stopping a unit that no longer runs ends nothing, and an engine outlives its API server."""
    units = dict.fromkeys(one["unit"] for one in holders if _is_served(one) and str(one["name"]).startswith("VLLM::"))
    if not units:
        return ""
    return f" If {' or '.join(units)} does not run, these are left over from it: gpu_memory_wait with reap=own and that unit ends them."


# ---- who ----------------------------------------------------------------------------------------------------------------


def who_holds(gpu: Record, holders: t.Sequence[Record]) -> str:
    """One GPU that is waited for, in a line for the journal."""
    label = f"GPU {gpu['index']}" + (f" ({gpu['uuid']})" if gpu["mig_device"] else "")
    fabric = fabric_fault(gpu["fabric"])
    if fabric:
        return f"{label}: {fabric}"
    if gpu["errors"] and gpu["used_last"] is None:
        return f"{label} cannot be read ({gpu['errors'][0]['error']})"
    return f"{label} {_by(gpu, holders)}"


def _by(gpu: Record, holders: t.Sequence[Record]) -> str:
    """Who holds the memory: ``held by pid 812 python3 (holder.service, user root) 58.6 GiB``."""
    if not holders:
        amount = gib(gpu["used_last"] if gpu["unattributed"] is None else gpu["unattributed"])
        return f"{amount} held by no process that NVML lists" + (" and being released" if gpu["releasing"] else "")
    named = [_holder_text(one) for one in holders[:MENTIONED_HOLDERS]]
    if len(holders) > MENTIONED_HOLDERS:
        named.append(f"{len(holders) - MENTIONED_HOLDERS} more")
    if (gpu["unattributed"] or 0) >= NOTABLE_UNATTRIBUTED:
        named.append(f"{gib(gpu['unattributed'])} of no listed process")
    return "held by " + ", ".join(named)


def _holder_text(holder: Record) -> str:
    size = gib(holder["bytes"])
    if holder["name"] is None:
        return f"pid {holder['pid']} (not visible here: ended, or of another PID namespace) {size}"
    place = holder["container"] or holder["unit"] or "no unit"
    fate = " that is ending" if holder["ending"] else ""
    return f"pid {holder['pid']} {holder['name']} ({place}, user {holder['user'] or 'unknown'}){fate} {size}"


def _name(gpu: Record) -> str:
    place = gpu["uuid"] if gpu["mig_device"] else gpu["pci_bus_id"]
    return f"GPU {gpu['index']}" + (f" ({place})" if place else "")
