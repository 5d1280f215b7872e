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
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.diagnose import diagnose

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


def test_an_engine_that_reads_numbers_where_a_partition_is_named_says_something_else_last() -> None:
    uuid = "MIG-00000000-1111-2222-3333-444444444444"
    found = diagnose(
        [
            f"ValueError: invalid literal for int() with base 10: '{uuid}'",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            "  Value error, Model architectures ['LlamaForCausalLM'] failed to be inspected. Please check the logs for more details.",
        ]
    )
    said = f"{found.message} {found.remedy}"
    assert (found.cause, found.at_fault) == ("device_name_not_accepted", "release")
    assert "CUDA_VISIBLE_DEVICES" in said and uuid in said
    assert "architecture" not in said


def test_a_whole_card_named_by_its_uuid_meets_the_same_engine() -> None:
    found = diagnose(["(EngineCore pid=7) ERROR 11-29 18:00:09 [core.py:1] ValueError: invalid literal for int() with base 10: 'GPU-feed'"])
    assert (found.cause, "GPU-feed" in found.message) == ("device_name_not_accepted", True)


@pytest.mark.parametrize("wanted", [2, ["0", "1"]], ids=["by number", "by name"])
def test_a_card_to_be_reset_when_it_is_drained_serves_on_where_it_serves(gpu_machine: t.Any, wanted: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 1 recovery 4"], gpu_machine.dir)
    gpus = gpu_machine.module("gpu_info")["gpus"]
    current = [gpu["uuid"] for gpu in gpus[:2]]
    assert [gpu["index"] for gpu in choose(gpus, wanted, current=current)] == [0, 1]
    assert [gpu["index"] for gpu in choose(gpus, 2)] == [0, 2]
    assert "drain_and_reset" in refusal(gpus, ["1"])
    assert gpu_machine.module("gpu_memory_wait", gpus=current, max_used="1G", interval=0.05)["free"] is True


@pytest.mark.parametrize("action", [1, 2, 6, 7])
def test_a_card_that_does_no_work_before_its_reset_serves_nowhere(gpu_machine: t.Any, action: int) -> None:
    gpu_machine.nvml.add_lines([f"gpu 1 recovery {action}"], gpu_machine.dir)
    gpus = gpu_machine.module("gpu_info")["gpus"]
    assert [gpu["index"] for gpu in choose(gpus, 2, current=[gpu["uuid"] for gpu in gpus[:2]])] == [0, 2]


def test_a_fabric_that_failed_is_told_from_one_that_comes(gpu_machine: t.Any) -> None:
    cards, lines = gpu_machine.nvml.h200s(2)
    gpu_machine.nvml.write_gpus(gpu_machine.dir, cards, lines=[*lines, "gpu 0 fabric 3", "gpu 1 fabric 3 999"])
    gpus = gpu_machine.module("gpu_info")["gpus"]
    said = refusal(gpus, 2)
    assert "GPU 1: its NVLink fabric failed (Unknown Error): look at nvidia-fabricmanager.service" in said
    assert [gpu["index"] for gpu in choose(gpus, 1)] == [0]
