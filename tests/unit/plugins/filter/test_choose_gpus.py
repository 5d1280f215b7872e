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


@pytest.mark.parametrize(("cards", "wanted", "words"), [(CARDS, 5, "5 GPUs are wanted and the host has 4"), ("GPU-0", 1, "not str")])
def test_what_cannot_be_chosen_is_a_filter_error(cards: object, wanted: int, words: str) -> None:
    with pytest.raises(AnsibleFilterError, match=words):
        choose(cards, wanted)
