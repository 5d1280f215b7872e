# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people who chose GPUs, and the answer they should have had.

Each test is one situation that was reported in public, reduced to the facts that decide it: the real module reads a machine whose driver's
library is a fake, and the real filter chooses.
"""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.vllm.plugins.filter.choose_gpus import FilterModule

choose = FilterModule().filters()["choose_gpus"]


def refusal(gpus: t.Any, wanted: t.Any) -> str:
    with pytest.raises(AnsibleFilterError) as caught:
        choose(gpus, wanted)
    return str(caught.value)


def test_a_partition_named_for_an_engine_that_reads_numbers(gpu_machine: t.Any) -> None:
    uuid = "MIG-00000000-1111-2222-3333-444444444444"
    gpu_machine.nvml.add_lines(["gpu 0 mig 1", f"gpu 0 mig_device 0 1 0 48000 0 {uuid} NVIDIA MIG 2g.48gb"], gpu_machine.dir)
    said = refusal(gpu_machine.module("gpu_info")["gpus"], [uuid])
    assert "CUDA_VISIBLE_DEVICES" in said
    assert uuid in said
    assert "architecture" not in said


def test_the_second_card_by_the_bus_is_the_one_that_is_measured_and_pinned(gpu_machine: t.Any) -> None:
    fake = gpu_machine.nvml
    cards = [fake.default_gpu(0)._replace(name="card A 32 GiB", total=32607), fake.default_gpu(1)._replace(name="card B 96 GiB")]
    fake.write_gpus(gpu_machine.dir, cards)
    (measured,) = choose(gpu_machine.module("gpu_info")["gpus"], [1])
    assert (measured["name"], measured["uuid"]) == ("card B 96 GiB", cards[1].uuid)


def test_numbers_that_changed_over_a_reboot_move_nothing(gpu_machine: t.Any) -> None:
    cards = gpu_machine.nvml.default_gpus()
    before = choose(gpu_machine.module("gpu_info")["gpus"], 4)
    swapped = [card._replace(index=7 - card.index) for card in cards]
    gpu_machine.nvml.write_gpus(gpu_machine.dir, sorted(swapped, key=lambda card: card.index))
    after = choose(gpu_machine.module("gpu_info")["gpus"], 4)
    assert [gpu["uuid"] for gpu in after] == [gpu["uuid"] for gpu in before] == [card.uuid for card in cards[:4]]


def test_one_card_has_fallen_off_the_bus(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDevice*", 15, gpu=2, folder=gpu_machine.dir)
    gpus = gpu_machine.module("gpu_info")["gpus"]
    assert [gpu["index"] for gpu in choose(gpus, ["0", "1"])] == [0, 1]
    assert [gpu["unusable"] for gpu in gpus if gpu["index"] == 2] == ["NVML says 'GPU is lost'"]
    said = refusal(gpus, ["1", "2"])
    assert "GPU 2 cannot be used" in said
    assert "GPU is lost" in said
    assert "Traceback" not in said
    assert [gpu["index"] for gpu in choose(gpus, 4)] == [4, 5, 6, 7]


def test_all_memory_is_free_and_the_fabric_is_not_up(gpu_machine: t.Any) -> None:
    cards, lines = gpu_machine.nvml.h200s(2)
    gpu_machine.nvml.write_gpus(gpu_machine.dir, cards, lines=[*lines, "gpu 0 fabric 2", "gpu 1 fabric 2"])
    gpus = gpu_machine.module("gpu_info")["gpus"]
    assert {gpu["memory"]["used"] for gpu in gpus} == {0}
    for said in (refusal(gpus, 2), refusal(gpus, ["0"])):
        assert "802" in said
        assert "nvidia-fabricmanager" in said
        assert "out of memory" not in said
        assert "not installed" not in said
