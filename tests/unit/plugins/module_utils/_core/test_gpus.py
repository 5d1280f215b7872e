# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs are meant."""

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import gpus
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpus import Gpu

BUSES = ("01", "21", "41", "61", "81", "a1", "c1", "e1")
CARDS = [Gpu(index, f"GPU-f00d000{index}-aa", f"0000:{bus}:00.0", numa_node=index // 4) for index, bus in enumerate(BUSES)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], list(range(8))),
        (["3", "1"], [3, 1]),
        (["GPU-f00d0002-aa", "gpu-F00D0006", "f00d0007"], [2, 6, 7]),
        (["00000000:C1:00.0", "e1:00.0", "0000:01:00"], [6, 7, 0]),
    ],
)
def test_gpus_are_found_by_every_name(wanted: list[str], found: list[int]) -> None:
    assert [card.index for card in gpus.select_gpus(CARDS, wanted)] == found


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        (["8"], "gpu_unknown", "no GPU '8'"),
        (["GPU-f00d"], "gpu_ambiguous", "GPU-f00d0000-aa, GPU-f00d0001-aa"),
        (["0", "01:00.0"], "gpu_duplicate", "GPU 0 twice: as '0' and as '01:00.0'"),
        (["GPU-"], "gpu_unknown", "no GPU 'GPU-'"),
    ],
)
def test_names_that_mean_nothing_or_too_much_are_refused(wanted: list[str], code: str, words: str) -> None:
    with pytest.raises(VllmError, match=words) as caught:
        gpus.select_gpus(CARDS, wanted)
    assert caught.value.code == code
