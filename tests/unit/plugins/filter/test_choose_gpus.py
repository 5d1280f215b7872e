# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter choose_gpus, as Ansible calls it."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.vllm.plugins.filter.choose_gpus import FilterModule

CARDS = [{"index": index, "uuid": f"GPU-{index}", "pci_bus_id": f"0000:0{index}:00.0", "numa_node": 0} for index in range(4)]
choose = FilterModule().filters()["choose_gpus"]


def test_it_returns_the_members_it_was_given() -> None:
    assert choose(CARDS, 2) == CARDS[:2]


def test_it_skips_what_others_have_and_keeps_what_it_has() -> None:
    assert choose(CARDS, 2, taken={"GPU-0": "kimi-k2"}) == CARDS[1:3]
    assert choose(CARDS, 2, taken={}, current=["GPU-3", "GPU-2"]) == CARDS[2:]


@pytest.mark.parametrize(
    ("cards", "wanted", "options", "words"),
    [
        (CARDS, 5, {}, "5 GPUs are wanted and the host has 4"),
        (CARDS, ["7"], {}, r"this host has no GPU '7'. It has: 0 \(GPU-0, 0000:00:00.0\)"),
        (CARDS, ["GPU-9", "0"], {}, "this host has no GPU 'GPU-9'"),
        (CARDS, ["1"], {"taken": {"GPU-1": "kimi-k2"}}, "the deployment kimi-k2 on this host has it"),
        (CARDS, "all", {}, "Which GPUs is 'all'"),
        (CARDS, 1, {"taken": ["GPU-1"]}, "taken of choose_gpus maps"),
        (CARDS, 1, {"current": "GPU-1"}, "current of choose_gpus is a list"),
        ("GPU-0", 1, {}, "not str"),
        ({"gpus": CARDS}, 1, {}, "not dict"),
        (["GPU-0"], 1, {}, "'GPU-0' is no member of one"),
    ],
)
def test_what_cannot_be_chosen_is_a_filter_error(cards: object, wanted: object, options: dict[str, object], words: str) -> None:
    with pytest.raises(AnsibleFilterError, match=words):
        choose(cards, wanted, **options)
