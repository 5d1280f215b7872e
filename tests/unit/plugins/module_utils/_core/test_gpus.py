# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs are meant, and what a process is called."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import gpus
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpus import Gpu, ReadError

BUSES = ("01", "21", "41", "61", "81", "a1", "c1", "e1")
CARDS = [Gpu(index, f"GPU-f00d000{index}-aa", f"0000:{bus}:00.0", numa_node=index // 4) for index, bus in enumerate(BUSES)]
FACTS = [gpus.gpu_facts(card) for card in CARDS]


def indices(found: t.Sequence[t.Any]) -> list[int]:
    return [one["index"] if isinstance(one, dict) else one.index for one in found]


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
    assert indices(gpus.select_gpus(CARDS, wanted)) == found


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


@pytest.mark.parametrize(("wanted", "found"), [(1, [0]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4]), (["7", "2"], [7, 2]), ([7, 2], [7, 2])])
def test_a_number_prefers_one_numa_node_and_low_pci_ids(wanted: t.Any, found: list[int]) -> None:
    assert indices(gpus.choose_gpus(list(reversed(FACTS)), wanted)) == found


def test_a_node_with_enough_goes_before_lower_pci_ids() -> None:
    without_two = [fact for fact in FACTS if fact["index"] not in (1, 2)]
    assert indices(gpus.choose_gpus(without_two, 3)) == [4, 5, 6]


def test_unknown_nodes_are_no_node() -> None:
    unknown = [{**fact, "numa_node": None} for fact in FACTS]
    assert indices(gpus.choose_gpus(unknown, 6)) == [0, 1, 2, 3, 4, 5]


def test_more_than_there_are_names_both_numbers_and_the_lost() -> None:
    lost = gpus.gpu_facts(Gpu(8, errors=(ReadError("handle", 15, "GPU is lost"),)))
    with pytest.raises(VllmError, match=r"9 GPUs are wanted and the host has 8 \(1 more cannot be read\)"):
        gpus.choose_gpus([*FACTS, lost], 9)


@pytest.mark.parametrize("wanted", [0, -1, True, "4", None])
def test_what_is_neither_a_number_nor_a_list_is_refused(wanted: t.Any) -> None:
    with pytest.raises(VllmError) as caught:
        gpus.choose_gpus(FACTS, wanted)
    assert caught.value.code == "gpu_choice_invalid"


def test_a_driver_mismatch_names_both_versions() -> None:
    error = gpus.explain_nvml_failure(18, "mismatch", kernel_version="550.90.07", library_version="550.107.02")
    assert error.code == "nvml_driver_mismatch"
    assert all(word in str(error) for word in ("550.90.07", "550.107.02", "reboot"))
