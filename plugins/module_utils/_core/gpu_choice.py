# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a deployment gets: the ones it names, or the best joined ones that are fit and free. PRIVATE to the collection.

GPUs are the plain data that ``gpu_info`` returns. What a reading does not say speaks for no GPU and against none, so a shorter
reading gives a plainer choice, never a failure.
"""

from __future__ import annotations

import itertools
import math
import typing as t

from .errors import VllmError
from .gpu_details import NEEDS_RESET
from .gpu_links import fabric_fault
from .gpu_names import Identity, places
from .nvml_calls import FATAL
from .pci import pci_key

__all__ = ["choose_gpus", "why_unusable"]

Facts = t.Mapping[str, t.Any]
_Pairs = t.Mapping[tuple[int, int], tuple[int, int]]

_FARNESS = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
_BY_NVLINK = 0
_UNKNOWN = 6
# Beyond that many sets only neighbours by PCI address are compared: addresses follow the machine's wiring.
_MOST_SETS = 20_000


def choose_gpus(
    gpus: t.Sequence[Facts],
    wanted: t.Union[int, t.Sequence[t.Union[str, int]]],
    *,
    taken: t.Optional[t.Mapping[str, str]] = None,
    current: t.Sequence[str] = (),
) -> list[Facts]:
    """That many of the GPUs, or the ones named.

    ``taken`` says by UUID which deployment pins a GPU: it is then not chosen, and refused where it is named. ``current`` are the
    UUIDs that the deployment has now: it keeps them while they are fit, free and as many as wanted. A GPU that the driver wants
    drained works until it is: who has it keeps it, and it is given to nobody anew.
    """
    if isinstance(wanted, bool) or not isinstance(wanted, (int, t.Sequence)) or isinstance(wanted, str):
        raise VllmError(f"Which GPUs is {wanted!r}?", code="gpu_choice_invalid", remedy="Give a number of GPUs, or a list of names.")
    owners = {uuid.lower(): deployment for uuid, deployment in (taken or {}).items()}
    if isinstance(wanted, int):
        return _that_many(gpus, wanted, owners, current)
    return _named(gpus, [str(word) for word in wanted], owners, current)


# ---- fit and free --------------------------------------------------------------------------------------------------------


def why_unusable(gpu: Facts, *, is_kept: bool = False) -> t.Optional[str]:
    """Why no engine can be started on this GPU as a whole; :data:`None` where one can. ``is_kept``: by the deployment that has it."""
    return next(_faults(gpu, is_kept), None)


def _faults(gpu: Facts, is_kept: bool) -> t.Iterator[str]:
    for error in gpu.get("errors") or ():
        if error["code"] in FATAL or error["reading"] == "handle":
            yield f"NVML says '{error['error']}'"
    if not gpu.get("uuid"):
        yield "its UUID cannot be read"
    action = gpu.get("recovery_action")
    if action in NEEDS_RESET or (action not in (None, "none") and not is_kept):
        yield f"the driver asks for a recovery ({action})"
    if gpu.get("remap_failed"):
        yield "remapping a bad row of its memory failed, so it has to be replaced"
    if gpu.get("mig"):
        yield "it is in MIG mode"
    if gpu.get("compute_mode") == "prohibited":
        yield "its compute mode prohibits every process (nvidia-smi -c DEFAULT allows them)"
    fabric = fabric_fault(gpu.get("fabric"))
    if fabric:
        yield fabric


def _owner(gpu: Facts, owners: t.Mapping[str, str]) -> t.Optional[str]:
    return owners.get(str(gpu.get("uuid")).lower())


def _refusal(gpu: Facts, owners: t.Mapping[str, str], current: t.Sequence[str] = ()) -> t.Optional[str]:
    """Why this GPU cannot be had, or be kept."""
    owner = _owner(gpu, owners)
    return why_unusable(gpu, is_kept=_is_in(gpu, current)) or (f"the deployment {owner} has it" if owner else None)


def _is_in(gpu: Facts, uuids: t.Sequence[str]) -> bool:
    return str(gpu.get("uuid")).lower() in {uuid.lower() for uuid in uuids}


# ---- by name -------------------------------------------------------------------------------------------------------------


def _named(gpus: t.Sequence[Facts], words: t.Sequence[str], owners: t.Mapping[str, str], current: t.Sequence[str]) -> list[Facts]:
    identities = [Identity(int(gpu["index"]), gpu.get("uuid"), gpu.get("pci_bus_id"), why_unusable(gpu)) for gpu in gpus]
    chosen = [gpus[place] for place in places(identities, words)]
    for gpu in chosen:
        reason, owner = why_unusable(gpu, is_kept=_is_in(gpu, current)), _owner(gpu, owners)
        if reason:
            raise VllmError(f"GPU {_label(gpu)} cannot be used: {reason}.", code="gpu_unusable", remedy="Heal it, or name another GPU.")
        if owner:
            raise VllmError(
                f"GPU {_label(gpu)} is taken: the deployment {owner} on this host has it.",
                code="gpu_taken",
                remedy=f"Name another GPU, stop {owner} first, or replace it (server_replaces: [{owner}]).",
            )
    return chosen


def _label(gpu: Facts) -> str:
    known = ", ".join(str(gpu[name]) for name in ("uuid", "pci_bus_id") if gpu.get(name))
    return f"{gpu['index']} ({known})" if known else str(gpu["index"])


# ---- by number -----------------------------------------------------------------------------------------------------------


def _that_many(gpus: t.Sequence[Facts], wanted: int, owners: t.Mapping[str, str], current: t.Sequence[str]) -> list[Facts]:
    if wanted < 1:
        raise VllmError(f"{wanted} is no number of GPUs.", code="gpu_choice_invalid", remedy="Ask for one GPU or more.")
    kept = sorted((gpu for gpu in gpus if _is_in(gpu, current) and not _refusal(gpu, owners, current)), key=_address)
    if len(kept) == wanted == len(set(current)):
        return kept
    free = sorted((gpu for gpu in gpus if not _refusal(gpu, owners)), key=_address)
    if wanted > len(free):
        raise _too_few(gpus, wanted, len(free), owners)
    return _best_joined(free, wanted)


def _too_few(gpus: t.Sequence[Facts], wanted: int, usable: int, owners: t.Mapping[str, str]) -> VllmError:
    others = [f"GPU {gpu['index']}: {reason}" for gpu in gpus for reason in [_refusal(gpu, owners)] if reason]
    short = f"{wanted} GPUs are wanted and the host has {usable}"
    remedy = f"Lower tensor_parallel_size to {usable} or less, or use a host with more GPUs." if usable else "Use a host with GPUs."
    if not others:
        return VllmError(f"{short}.", code="gpu_too_few", remedy=remedy)
    return VllmError(
        f"{short} of its {len(gpus)} to give ({'; '.join(others)}).",
        code="gpu_too_few",
        remedy=remedy if usable else "Heal one, stop what has it or replace it (server_replaces), or use another host.",
    )


def _best_joined(free: t.Sequence[Facts], wanted: int) -> list[Facts]:
    """``free`` is in the order of PCI addresses, so the first of equal sets has the lowest."""
    pairs = {(one, other): _pair(free[one], free[other]) for one, other in itertools.combinations(range(len(free)), 2)}
    nodes = [_node(gpu) for gpu in free]
    nearest = min(_sets(_pools(nodes, wanted), wanted), key=lambda chosen: _distance(chosen, nodes, pairs))
    return [free[place] for place in nearest]


def _node(gpu: Facts) -> t.Union[int, str]:
    """Its NUMA node; one that is not known counts as a node of its own."""
    node = gpu.get("numa_node")
    return str(gpu["uuid"]) if node is None else int(node)


def _pools(nodes: t.Sequence[t.Union[int, str]], wanted: int) -> list[list[int]]:
    """The places of the GPUs of each NUMA node that has enough; of all GPUs where none has."""
    of_node: dict[t.Union[int, str], list[int]] = {}
    for place, node in enumerate(nodes):
        of_node.setdefault(node, []).append(place)
    known = (pool for node, pool in of_node.items() if isinstance(node, int))
    return [pool for pool in known if len(pool) >= wanted] or [list(range(len(nodes)))]


def _sets(pools: t.Iterable[t.Sequence[int]], wanted: int) -> t.Iterator[tuple[int, ...]]:
    for pool in pools:
        if math.comb(len(pool), wanted) <= _MOST_SETS:
            yield from itertools.combinations(pool, wanted)
        else:
            yield from (tuple(pool[first : first + wanted]) for first in range(len(pool) - wanted + 1))


def _distance(chosen: tuple[int, ...], nodes: t.Sequence[t.Union[int, str]], pairs: _Pairs) -> tuple[t.Any, ...]:
    """Fewer nodes first, then the nearer worst pair, then the nearer next worst and so on, then more NVLinks, then PCI addresses."""
    joined = [pairs[pair] for pair in itertools.combinations(chosen, 2)]
    farness = sorted((far for far, _nvlinks in joined), reverse=True)
    return len({nodes[place] for place in chosen}), farness, -sum(nvlinks for _far, nvlinks in joined), chosen


def _pair(one: Facts, other: Facts) -> tuple[int, int]:
    """How far apart two GPUs are, and by how many NVLinks they are joined."""
    for link in one.get("links") or ():
        if link.get("uuid") == other.get("uuid"):
            nvlinks = int(link.get("nvlinks") or 0)
            return (_BY_NVLINK if nvlinks else _FARNESS.get(str(link.get("path")), _UNKNOWN)), nvlinks
    return _UNKNOWN, 0


def _address(gpu: Facts) -> tuple[t.Any, ...]:
    """The place of a GPU in every list: by PCI address, and by UUID where there is none."""
    return pci_key(gpu.get("pci_bus_id")), str(gpu.get("uuid"))
