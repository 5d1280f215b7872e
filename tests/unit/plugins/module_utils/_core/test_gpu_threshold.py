# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a GPU is free, by each way its memory can be read."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_threshold import (
    GIB,
    Threshold,
    make_threshold,
    source_note,
    unattributed,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpus import Gpu, GpuProcess
from hypothesis import given
from hypothesis import strategies as st

MIB = 1024**2
V2 = Gpu(0, memory_total=96 * GIB, memory_used=0, memory_free=95 * GIB, memory_reserved=GIB, memory_source="nvml_v2")
# What an idle H200 reads by the older call under driver 580: its reserve of 615 MiB is used.
V1 = Gpu(0, memory_total=143771 * MIB, memory_used=615 * MIB, memory_free=143156 * MIB, memory_source="nvml_v1")
UNIFIED = Gpu(0, memory_total=120 * GIB, memory_used=30 * GIB, memory_free=90 * GIB, memory_source="system")
NODE = V2._replace(memory_used=40 * GIB, memory_free=55 * GIB, memory_numa_node=2)


def process(size: t.Optional[int]) -> GpuProcess:
    return GpuProcess(1, "C", size)


@pytest.mark.parametrize(
    ("gpu", "threshold", "met"),
    [
        (V2, Threshold(max_used=0), True),
        (V2._replace(memory_used=1), Threshold(max_used=0), False),
        (V1, Threshold(max_used=0), True),
        (V1._replace(memory_used=1025 * MIB), Threshold(max_used=0), False),
        (V1, Threshold(min_free=143156 * MIB), True),
        (UNIFIED, Threshold(max_used=GIB), True),
        (UNIFIED._replace(processes=(process(2 * GIB),)), Threshold(max_used=GIB), False),
        (UNIFIED._replace(processes=(process(None),)), Threshold(max_used=GIB), False),
        (UNIFIED, Threshold(utilization=0.75), True),
        (UNIFIED, Threshold(utilization=0.76), False),
        (NODE, Threshold(max_used=0), True),
        (NODE._replace(processes=(process(1),)), Threshold(max_used=0), False),
        (NODE, Threshold(min_free=55 * GIB), True),
        (NODE, Threshold(min_free=56 * GIB), False),
        (Gpu(0), Threshold(max_used=10**12), False),
    ],
)
def test_what_counts_as_used_depends_on_what_the_driver_can_tell(gpu: Gpu, threshold: Threshold, met: bool) -> None:
    assert threshold.is_met(gpu) is met


@given(st.integers(1, 2**38), st.floats(0.01, 1.0), st.integers(0, 2**38))
def test_a_share_is_met_by_exactly_the_engines_own_rule(total: int, share: float, free: int) -> None:
    free = min(free, total)
    gpu = Gpu(0, memory_total=total, memory_used=total - free, memory_free=free, memory_reserved=0, memory_source="nvml_v2")
    # The engine refuses to start where free < ceil(total x share).
    needed = -int(-(total * share) // 1)
    assert make_threshold(utilization=share).is_met(gpu) is (free >= needed)


@pytest.mark.parametrize(
    ("gpu", "size"),
    [
        (V2._replace(memory_used=10 * GIB, processes=(process(4 * GIB), process(GIB))), 5 * GIB),
        (V2._replace(memory_used=GIB, processes=(process(4 * GIB),)), 0),
        (V2._replace(memory_used=10 * GIB, processes=(process(4 * GIB), process(None))), None),
        (V1, 0),
        (V1._replace(memory_used=5 * GIB), 4 * GIB),
        (UNIFIED, None),
        (NODE, None),
        (Gpu(0), None),
    ],
)
def test_what_no_process_accounts_for_is_told_only_where_it_can_be(gpu: Gpu, size: t.Optional[int]) -> None:
    assert unattributed(gpu) == size


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (V2, ""),
        (V1, "counts the driver's reserve, so 1.00 GiB more than max_used is allowed"),
        (UNIFIED, "share one memory, so the host's figures are used, and max_used is held against what its processes"),
        (NODE, "its memory is NUMA node 2 of the host, which may keep pages of ended processes, and max_used"),
    ],
)
def test_figures_that_are_not_what_they_seem_are_said_to_be_so(gpu: Gpu, words: str) -> None:
    assert words in source_note(gpu, Threshold(max_used=0))
    assert "max_used" not in source_note(gpu, Threshold(min_free=0))
    assert bool(source_note(gpu, Threshold(min_free=0))) == bool(words)
