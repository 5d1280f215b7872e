# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the GPUs of a host are joined: NVLink, PCIe, the fabric of NVSwitch machines. PRIVATE to the collection."""

from __future__ import annotations

import ctypes
import typing as t

from .gpu_details import Facts
from .nvml_calls import INVALID_ARGUMENT, NOT_SUPPORTED, VERSION_MISMATCH, Readings, text_of
from .pci import normal_pci

__all__ = ["Card", "fabric_comes_up", "fabric_fault", "read_fabric", "read_links", "read_nvlinks"]

_MAX_NVLINKS = 36
_NVLINK_ENDS = {0: "gpu", 1: "npu", 2: "switch", 255: "unknown"}
# The words of nvidia-smi's topology matrix.
_PATHS = {0: "X", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# Asked by number: the binding's constant for "read" is a tuple in every release so far.
_P2P = ("read", "write", "nvlink", "atomics", "pci")
_P2P_STATUS = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "ioh_topology_not_supported",
    4: "disabled_by_regkey",
    5: "not_supported",
    6: "unknown",
}
_FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
_FABRIC_COMPLETED = 3
_FABRIC_HEALTH = {0: "not_supported", 1: "healthy", 2: "unhealthy", 3: "limited_capacity"}
_FABRIC_LAYOUTS = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfoV_t")


class Card(t.NamedTuple):
    """A GPU that can be asked about others."""

    handle: t.Any
    index: int  # type: ignore[assignment] # hides tuple.index, which nobody needs here
    uuid: t.Optional[str]
    pci_bus_id: t.Optional[str]
    nvlinks: t.Sequence[Facts]


def _word(words: t.Mapping[int, str], number: t.Optional[int]) -> t.Optional[str]:
    return None if number is None else words.get(number, str(number))


# ---- one GPU's own links -------------------------------------------------------------------------------------------------


def read_nvlinks(readings: Readings, handle: t.Any) -> list[Facts]:
    """NVML does not say how many there are: a number past the last is an invalid argument, one left out is not supported."""
    found = []
    for link in range(_MAX_NVLINKS):
        active = readings.read("nvlinks", "nvmlDeviceGetNvLinkState", handle, link, expected=(INVALID_ARGUMENT, NOT_SUPPORTED))
        if active is not None:
            found.append({"link": link, "active": bool(active), **_far_end(readings, handle, link, bool(active))})
        elif readings.failed("nvlinks") or "nvlinks" in readings.unknown:
            return found
    if not found:
        readings.absent.append("nvlinks")
    return found


def _far_end(readings: Readings, handle: t.Any, link: int, active: bool) -> Facts:
    if not active:
        return {"version": None, "remote_type": None, "remote_pci_bus_id": None}
    name = f"nvlinks[{link}]"
    pci = readings.read_feature(f"{name}.remote_pci_bus_id", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    kind = readings.read_feature(f"{name}.remote_type", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    return {
        "version": readings.read_feature(f"{name}.version", "nvmlDeviceGetNvLinkVersion", handle, link),
        "remote_type": _word(_NVLINK_ENDS, kind),
        "remote_pci_bus_id": None if pci is None else normal_pci(text_of(pci.busId) or ""),
    }


def read_fabric(readings: Readings, handle: t.Any) -> Facts:
    """On NVSwitch machines CUDA works only once the fabric manager has completed the fabric. ``status`` counts only then."""
    info = _fabric_info(readings, handle)
    if info is None:
        return {"state": None, "status": None, "health": None}
    completed = info.state == _FABRIC_COMPLETED
    failed = completed and info.status != 0
    return {
        "state": _word(_FABRIC_STATES, int(info.state)),
        "status": str(readings.nvml.NVMLError(int(info.status))) if failed else "ok" if completed else None,
        "health": _word(_FABRIC_HEALTH, int(info.healthSummary)) if completed and hasattr(info, "healthSummary") else None,
    }


def fabric_comes_up(fabric: t.Optional[t.Mapping[str, t.Any]]) -> bool:
    """Whether the fabric manager is still at it, or is not there to do it."""
    return (fabric or {}).get("state") == "in_progress"


def fabric_fault(fabric: t.Optional[t.Mapping[str, t.Any]]) -> t.Optional[str]:
    """Why CUDA does not start although memory is free and the GPU is listed: it answers "system not yet initialized"."""
    if fabric_comes_up(fabric):
        return "its NVLink fabric is not up yet, so CUDA fails with error 802: look at nvidia-fabricmanager.service"
    status = (fabric or {}).get("status")
    if (fabric or {}).get("state") == "completed" and status not in (None, "ok"):
        return f"its NVLink fabric failed ({status}): look at nvidia-fabricmanager.service"
    return None


def _fabric_info(readings: Readings, handle: t.Any) -> t.Any:
    """In the newest layout that binding and driver share."""
    layouts = [getattr(readings.nvml, name) for name in _FABRIC_LAYOUTS if hasattr(readings.nvml, name)]
    if not layouts:
        readings.unknown.append("fabric")
    for layout in layouts:
        info = layout()
        expected = () if layout is layouts[-1] else (VERSION_MISMATCH,)
        if readings.read_feature("fabric", "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info), expected=expected) is not None:
            return info
        if readings.failed("fabric") or "fabric" in readings.absent:
            break
    return None


# ---- between GPUs --------------------------------------------------------------------------------------------------------


def read_links(readings: Readings, card: Card, others: t.Iterable[Card]) -> list[Facts]:
    """The way from one GPU to each of the others."""
    return [_link(readings, card, other) for other in others if other.index != card.index]


def _link(readings: Readings, card: Card, other: Card) -> Facts:
    name = f"links[{other.index}]"
    level = readings.read_feature(f"{name}.path", "nvmlDeviceGetTopologyCommonAncestor", card.handle, other.handle)
    p2p = {
        word: _word(_P2P_STATUS, readings.read_feature(f"{name}.p2p.{word}", "nvmlDeviceGetP2PStatus", card.handle, other.handle, number))
        for number, word in enumerate(_P2P)
    }
    return {
        "index": other.index,
        "uuid": other.uuid,
        "pci_bus_id": other.pci_bus_id,
        "path": _word(_PATHS, level),
        "nvlinks": _nvlinks_between(card, other, p2p["nvlink"] == "ok"),
        "p2p": p2p,
    }


def _nvlinks_between(card: Card, other: Card, by_nvlink: bool) -> int:
    """How many join the two: those that end at the other, or, where the driver says that they reach it, those into the switches."""
    direct = sum(1 for link in card.nvlinks if link["active"] and link["remote_pci_bus_id"] == other.pci_bus_id)
    if direct or not by_nvlink:
        return direct
    return min(_into_switches(card), _into_switches(other))


def _into_switches(card: Card) -> int:
    return sum(1 for link in card.nvlinks if link["active"] and link["remote_type"] == "switch")
