# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a GPU counts as free, by what its driver is able to say of its memory. PRIVATE to the collection."""

from __future__ import annotations

import math
import typing as t

from .errors import VllmError
from .gpu_readings import shares_host_memory
from .gpus import Gpu

__all__ = ["GIB", "Threshold", "check_possible", "gib", "make_threshold", "source_note", "unattributed"]

MIB = 1024**2
GIB = 1024**3
V1_RESERVE = GIB
"""What the older reading may count as used on an idle GPU: the driver's reserve, from 100 MiB up to this on the largest cards."""


class Threshold(t.NamedTuple):
    """When a GPU counts as free: exactly one of the three is set. Bytes, and a share of the total.

    The total is NVML's, with the driver's reserve in it, while the engine's own total is without it. The difference covers the
    half GiB that the engine's CUDA context takes before the engine measures what is free.
    """

    max_used: t.Optional[int] = None
    min_free: t.Optional[int] = None
    utilization: t.Optional[float] = None

    def needs(self, gpu: Gpu) -> t.Optional[int]:
        """The bytes that must be free of this GPU; None where it is judged by its processes alone."""
        total = gpu.memory_total or 0
        if self.utilization is not None:
            return math.ceil(total * self.utilization)
        if self.min_free is not None:
            return self.min_free
        return None if shares_host_memory(gpu) else total - (gpu.memory_reserved or 0) - (self.max_used or 0) - _allowance(gpu)

    def is_met(self, gpu: Gpu) -> bool:
        """Whether the reading is free."""
        if gpu.memory_total is None or gpu.memory_used is None or gpu.memory_free is None:
            return False
        needed = self.needs(gpu)
        if needed is not None and self.max_used is None:
            return gpu.memory_free >= needed
        used = _of_processes(gpu) if shares_host_memory(gpu) else gpu.memory_used - _allowance(gpu)
        return used is not None and used <= (self.max_used or 0)


def make_threshold(
    *, max_used: t.Optional[int] = None, min_free: t.Optional[int] = None, utilization: t.Optional[float] = None
) -> Threshold:
    """Exactly one of the three, and one that makes sense."""
    given = {"max_used": max_used, "min_free": min_free, "utilization": utilization}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise VllmError(
            f"Exactly one of max_used, min_free and utilization says when a GPU is free; given: {', '.join(named) or 'none'}.",
            code="bad_configuration",
            remedy="Set utilization to the engine's gpu-memory-utilization, or one of the others.",
        )
    if utilization is not None and not 0 < utilization <= 1:
        raise VllmError(
            f"utilization is {utilization}: it is a share of the GPU's memory.", code="bad_configuration", remedy="Set 0.01 to 1.0."
        )
    if (max_used or 0) < 0 or (min_free or 0) < 0:
        raise VllmError(f"{named[0]} is {given[named[0]]}: memory cannot be negative.", code="bad_configuration", remedy="Set 0 or more.")
    return Threshold(max_used, min_free, utilization)


def check_possible(gpu: Gpu, threshold: Threshold) -> None:
    """A threshold that even an idle GPU cannot meet would be waited for in vain."""
    needed = threshold.needs(gpu)
    if gpu.memory_total is None or threshold.max_used is not None or needed is None:
        return
    most = gpu.memory_total - (gpu.memory_reserved or 0)
    if needed > most:
        option = "min_free" if threshold.utilization is None else f"utilization {threshold.utilization:g}"
        raise VllmError(
            f"{option} asks for {gib(needed)} free on GPU {gpu.index}, which has {gib(most)} when idle.",
            code="bad_configuration",
            remedy="Lower it.",
        )


def unattributed(gpu: Gpu) -> t.Optional[int]:
    """Bytes in use that no listed process accounts for; None where that cannot be told."""
    listed = _of_processes(gpu)
    if listed is None or gpu.memory_used is None or shares_host_memory(gpu):
        return None
    return max(0, gpu.memory_used - _allowance(gpu) - listed)


def source_note(gpu: Gpu, threshold: Threshold) -> str:
    """What to know about this GPU's figures; an empty text where they are what they seem."""
    if gpu.memory_source == "nvml_v1":
        allowed = f", so {gib(V1_RESERVE)} more than max_used is allowed for it" if threshold.max_used is not None else ""
        return f"the driver knows only the older memory reading, whose used figure counts the driver's reserve{allowed}"
    if not shares_host_memory(gpu):
        return ""
    judged = ", and max_used is held against what its processes are listed with" if threshold.max_used is not None else ""
    if gpu.memory_source == "system":
        return f"GPU and host share one memory, so the host's figures are used{judged}"
    return f"its memory is NUMA node {gpu.memory_numa_node} of the host, which may keep pages of ended processes{judged}"


def gib(size: t.Optional[int]) -> str:
    """A size for people."""
    return "an unknown amount" if size is None else f"{size / GIB:.2f} GiB" if size < 10 * GIB else f"{size / GIB:.1f} GiB"


def _allowance(gpu: Gpu) -> int:
    return V1_RESERVE if gpu.memory_source == "nvml_v1" else 0


def _of_processes(gpu: Gpu) -> t.Optional[int]:
    """What all listed processes hold; None where the driver does not say it of one."""
    sizes = [one.bytes for one in gpu.processes]
    return None if None in sizes else sum(size for size in sizes if size is not None)
