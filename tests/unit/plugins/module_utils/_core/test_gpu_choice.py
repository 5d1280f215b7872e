# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a deployment gets."""

from __future__ import annotations

import itertools
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_choice import choose_gpus, why_unusable
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_details import NEEDS_RESET
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpus import Gpu, ReadError, gpu_facts
from hypothesis import example, given
from hypothesis import strategies as st

BUSES = ("01", "21", "41", "61", "81", "a1", "c1", "e1")
CARDS = [Gpu(index, f"GPU-f00d000{index}-aa", f"0000:{bus}:00.0", numa_node=index // 4) for index, bus in enumerate(BUSES)]
FACTS = [gpu_facts(card) for card in CARDS]
LOST = gpu_facts(Gpu(8, errors=(ReadError("handle", 15, "GPU is lost"),)))
Facts = dict[str, t.Any]


def chosen(gpus: t.Sequence[Facts], wanted: t.Any, **options: t.Any) -> list[int]:
    return [gpu["index"] for gpu in choose_gpus(gpus, wanted, **options)]


def refusal(gpus: t.Sequence[Facts], wanted: t.Any, **options: t.Any) -> VllmError:
    with pytest.raises(VllmError) as caught:
        choose_gpus(gpus, wanted, **options)
    return caught.value


def changed(index: int, **changes: t.Any) -> list[Facts]:
    """The eight cards, one of them different."""
    return [{**gpu, **changes} if gpu["index"] == index else gpu for gpu in FACTS]


def joined(gpus: t.Sequence[Facts], *groups: t.Sequence[int], path: str = "PIX", nvlinks: int = 0) -> list[Facts]:
    """The cards with links: within a group as given, elsewhere over the host bridge or, between nodes, over the system."""

    def link(one: Facts, other: Facts) -> Facts:
        near = any({one["index"], other["index"]} <= set(group) for group in groups)
        far = "PHB" if one["numa_node"] == other["numa_node"] else "SYS"
        return {"index": other["index"], "uuid": other["uuid"], "path": path if near else far, "nvlinks": nvlinks if near else 0}

    return [{**one, "links": [link(one, other) for other in gpus if other is not one]} for one in gpus]


# ---- by number -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "found"), [(1, [0]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4]), (8, list(range(8)))])
def test_a_number_prefers_one_numa_node_and_low_pci_ids(wanted: int, found: list[int]) -> None:
    assert chosen(list(reversed(FACTS)), wanted) == found


def test_a_node_with_enough_goes_before_lower_pci_ids() -> None:
    assert chosen([gpu for gpu in FACTS if gpu["index"] not in (1, 2)], 3) == [4, 5, 6]


def test_a_node_with_enough_goes_before_closer_links_across_nodes() -> None:
    assert chosen(joined(FACTS, (3, 4), nvlinks=4), 2) == [0, 1]


def test_unknown_nodes_are_no_node() -> None:
    assert chosen([{**gpu, "numa_node": None} for gpu in FACTS], 6) == [0, 1, 2, 3, 4, 5]


def test_a_new_numbering_after_a_reboot_changes_nothing() -> None:
    renumbered = [{**gpu, "index": 7 - gpu["index"]} for gpu in FACTS]
    assert [gpu["uuid"] for gpu in choose_gpus(renumbered, 4)] == [gpu["uuid"] for gpu in choose_gpus(FACTS, 4)]


@pytest.mark.parametrize("nearer", ["PIX", "PXB"])
def test_gpus_behind_one_switch_go_before_lower_pci_ids(nearer: str) -> None:
    assert chosen(joined(FACTS, (0, 3), (1, 2), path=nearer), 2) == [0, 3]
    assert chosen(joined(FACTS, (1, 2), (5, 6), path=nearer), 2) == [1, 2]
    assert chosen(joined(FACTS, (5, 6), path=nearer), 2) == [5, 6]


def test_nvlink_goes_before_a_pcie_switch() -> None:
    switched = joined(FACTS, (0, 1), (2, 3), path="PIX")
    bridged = [
        {
            **gpu,
            "links": [{**link, "nvlinks": 4, "path": "PHB"} if {gpu["index"], link["index"]} == {6, 7} else link for link in gpu["links"]],
        }
        for gpu in switched
    ]
    assert chosen(bridged, 2) == [6, 7]


def test_the_worst_pair_decides_then_the_next_worst() -> None:
    # 1, 2 and 3 are close to each other, 0 is near nobody; of four, two pairs of bridged cards beat one.
    assert chosen(joined(FACTS, (1, 2, 3)), 3) == [1, 2, 3]
    assert chosen(joined(FACTS, (0, 1), (4, 5), (6, 7), nvlinks=4, path="PHB"), 4) == [4, 5, 6, 7]


def test_more_nvlinks_go_before_fewer() -> None:
    two = joined(FACTS, (0, 1), (2, 3), nvlinks=1)
    four = [
        {**gpu, "links": [{**link, "nvlinks": 2 * link["nvlinks"]} for link in gpu["links"]]} if gpu["index"] > 1 else gpu for gpu in two
    ]
    assert chosen(four, 2) == [2, 3]


def test_as_few_nodes_as_can_be_where_none_has_enough() -> None:
    nodes = [0, 0, 1, 2, 2, 2, 3, 3]
    assert chosen([{**gpu, "numa_node": node} for gpu, node in zip(FACTS, nodes)], 5) == [0, 1, 3, 4, 5]


def test_many_gpus_are_chosen_from_as_quickly() -> None:
    many = [gpu_facts(Gpu(number, f"GPU-{number}", f"0000:{number + 1:02x}:00.0", numa_node=0)) for number in range(32)]
    assert chosen(many, 16) == list(range(16))


def test_more_than_there_are_names_both_numbers() -> None:
    error = refusal(FACTS, 9)
    assert (error.code, str(error).split(".")[0]) == ("gpu_too_few", "9 GPUs are wanted and the host has 8")
    assert "Lower tensor_parallel_size to 8 or less" in str(error)


def test_more_than_can_be_had_says_why_the_others_cannot() -> None:
    taken = {"GPU-F00D0007-AA": "kimi-k2"}
    error = refusal([*changed(1, mig=True), LOST], 7, taken=taken)
    assert "7 GPUs are wanted and the host has 6 of its 9 to give" in str(error)
    assert "GPU 1: it is in MIG mode; GPU 7: the deployment kimi-k2 has it; GPU 8: NVML says 'GPU is lost'" in str(error)


def test_a_host_without_gpus_says_so() -> None:
    assert "1 GPUs are wanted and the host has 0. Use a host with GPUs." in str(refusal([], 1))
    assert "Heal one" in str(refusal([LOST], 1))


@pytest.mark.parametrize("wanted", [0, -1, True, "4", None, 2.0, {"0": 1}])
def test_what_is_neither_a_number_nor_a_list_is_refused(wanted: t.Any) -> None:
    assert refusal(FACTS, wanted).code == "gpu_choice_invalid"


# ---- fit -----------------------------------------------------------------------------------------------------------------

UNFIT = [
    pytest.param({"errors": [{"reading": "memory", "code": 15, "error": "GPU is lost"}]}, "GPU is lost", id="lost"),
    pytest.param(
        {"errors": [{"reading": "power.usage", "code": 16, "error": "GPU requires restart"}]}, "requires restart", id="reset required"
    ),
    pytest.param({"errors": [{"reading": "handle", "code": 4, "error": "Insufficient Permissions"}]}, "Permissions", id="not permitted"),
    pytest.param({"uuid": None}, "UUID cannot be read", id="without a UUID"),
    pytest.param({"recovery_action": "drain_and_reset"}, "drain_and_reset", id="to be reset"),
    pytest.param({"remap_failed": True}, "has to be replaced", id="a row that could not be remapped"),
    pytest.param({"mig": True}, "MIG mode", id="MIG mode"),
    pytest.param({"compute_mode": "prohibited"}, "nvidia-smi -c DEFAULT", id="compute mode prohibited"),
    pytest.param({"fabric": {"state": "in_progress"}}, "nvidia-fabricmanager", id="fabric not up"),
    pytest.param({"fabric": {"state": "completed", "status": "Unknown Error"}}, "Unknown Error", id="fabric failed"),
]


@pytest.mark.parametrize(("changes", "words"), UNFIT)
def test_an_unfit_gpu_is_not_chosen_by_number_and_refused_by_name(changes: Facts, words: str) -> None:
    cards = changed(1, **changes)
    assert chosen(cards, 4) == [4, 5, 6, 7]
    error = refusal(cards, ["0", "1"])
    assert error.code == "gpu_unusable"
    assert str(error).startswith("GPU 1 (")
    assert words in str(error)
    assert chosen(cards, ["0", "2"]) == [0, 2]


@pytest.mark.parametrize("action", ["drain_and_reset", "drain_p2p", "imex_domain_reset", "42"])
@pytest.mark.parametrize("wanted", [2, ["1", "0"]], ids=["by number", "by name"])
def test_a_gpu_that_works_until_it_is_drained_stays_with_who_has_it_and_goes_to_nobody_else(action: str, wanted: t.Any) -> None:
    cards = changed(1, recovery_action=action)
    uuids = [str(cards[0]["uuid"]), str(cards[1]["uuid"]).upper()]
    assert sorted(chosen(cards, wanted, current=uuids)) == [0, 1]
    assert chosen(cards, 2) == chosen(cards, 2, current=uuids[:1]) == [0, 2]
    assert refusal(cards, ["1"], current=uuids[:1]).code == "gpu_unusable"
    assert action in str(why_unusable(cards[1]))


@pytest.mark.parametrize("action", NEEDS_RESET)
def test_a_gpu_that_does_no_work_before_it_is_reset_is_kept_by_nobody(action: str) -> None:
    cards = changed(1, recovery_action=action)
    uuids = [str(card["uuid"]) for card in cards[:2]]
    assert chosen(cards, 2, current=uuids) == [0, 2]
    assert refusal(cards, ["0", "1"], current=uuids).code == "gpu_unusable"


def test_a_drained_gpu_is_given_up_where_the_number_of_gpus_changes() -> None:
    cards = changed(1, recovery_action="drain_and_reset")
    assert chosen(cards, 4, current=[str(card["uuid"]) for card in cards[:2]]) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "changes",
    [
        {"errors": [{"reading": "power.limit", "code": 4, "error": "Insufficient Permissions"}]},
        {"errors": [{"reading": "memory", "code": 3, "error": "Not Supported"}]},
        {"remap_pending": True},
        {"recovery_action": "none"},
        {"fabric": {"state": "not_supported"}},
        {"fabric": {"state": "completed", "status": "ok"}},
        {"compute_mode": "exclusive_process"},
        {"mig": False, "mig_pending": True},
    ],
)
def test_what_an_engine_can_live_with_is_no_fault(changes: Facts) -> None:
    assert why_unusable({**FACTS[0], **changes}) is None


def test_a_shorter_reading_is_enough_to_choose() -> None:
    short = [{name: gpu[name] for name in ("index", "uuid", "pci_bus_id")} for gpu in FACTS]
    assert chosen(short, 2) == [0, 1]
    assert chosen(short, ["e1:00.0"]) == [7]


# ---- by name -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(["7", "2"], [7, 2]), ([7, 2], [7, 2]), (["GPU-f00d0003-aa", "f00d0001"], [3, 1]), (["00000000:C1:00.0"], [6]), (("5",), [5])],
)
def test_names_are_taken_in_their_order(wanted: t.Any, found: list[int]) -> None:
    assert chosen(FACTS, wanted) == found


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        (["9"], "gpu_unknown", "this host has no GPU '9'. It has: 0 (GPU-f00d0000-aa, 0000:01:00.0)"),
        (["GPU-f00d"], "gpu_ambiguous", "is the start of several UUIDs"),
        (["3", "61:00.0"], "gpu_duplicate", "names GPU 3 twice"),
    ],
)
def test_names_that_mean_nothing_or_too_much_are_refused(wanted: list[str], code: str, words: str) -> None:
    error = refusal(FACTS, wanted)
    assert error.code == code
    assert words in str(error)


# ---- free ----------------------------------------------------------------------------------------------------------------


def test_gpus_of_other_deployments_are_passed_over() -> None:
    taken = {gpu["uuid"]: "kimi-k2" for gpu in FACTS[:4]}
    assert chosen(FACTS, 4, taken=taken) == [4, 5, 6, 7]


def test_a_named_gpu_of_another_deployment_is_refused_with_its_name() -> None:
    error = refusal(FACTS, ["1", "2"], taken={FACTS[2]["uuid"]: "kimi-k2"})
    assert error.code == "gpu_taken"
    assert "GPU 2 (GPU-f00d0002-aa, 0000:41:00.0) is taken: the deployment kimi-k2 on this host has it" in str(error)
    assert "stop kimi-k2 first" in str(error)


def test_a_deployment_keeps_the_gpus_it_has() -> None:
    current = [FACTS[6]["uuid"], FACTS[5]["uuid"]]
    assert chosen(FACTS, 2, current=current) == [5, 6]


@pytest.mark.parametrize(
    ("gpus", "wanted", "taken"),
    [(FACTS, 3, {}), (FACTS, 1, {}), (changed(6, mig=True), 2, {}), (FACTS, 2, {FACTS[5]["uuid"]: "kimi-k2"}), (FACTS[:6], 2, {})],
    ids=["more wanted", "fewer wanted", "one unfit", "one taken", "one gone"],
)
def test_it_chooses_anew_where_those_will_not_do(gpus: list[Facts], wanted: int, taken: dict[str, str]) -> None:
    current = [FACTS[5]["uuid"], FACTS[6]["uuid"]]
    assert chosen(gpus, wanted, taken=taken, current=current) == chosen(gpus, wanted, taken=taken)


# ---- any host ------------------------------------------------------------------------------------------------------------

FAULTS: list[Facts] = [{"mig": True}, {"remap_failed": True}, {"recovery_action": "gpu_reset"}, {"uuid": None}]


class HostWithGpus(t.NamedTuple):
    gpus: list[Facts]
    taken: dict[str, str]
    wanted: int


@st.composite
def hosts(draw: st.DrawFn) -> HostWithGpus:
    count = draw(st.integers(1, 8))
    nodes = draw(st.lists(st.sampled_from([0, 1, None]), min_size=count, max_size=count))
    cards = [
        gpu_facts(Gpu(index, f"GPU-{index:02d}", f"0000:{bus}:00.0", numa_node=node))
        for index, bus, node in zip(range(count), BUSES, nodes)
    ]
    pairs = {
        frozenset(pair): draw(st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS", None]))
        for pair in itertools.combinations(range(count), 2)
    }
    bridged = {pair: draw(st.sampled_from([0, 0, 4, 18])) for pair in pairs}
    for card in cards:
        card["links"] = [
            {
                "uuid": other["uuid"],
                "path": pairs[frozenset((card["index"], other["index"]))],
                "nvlinks": bridged[frozenset((card["index"], other["index"]))],
            }
            for other in cards
            if other is not card
        ]
        card.update(draw(st.sampled_from([{}, {}, {}, *FAULTS])))
    taken = {card["uuid"]: "other" for card in cards if card["uuid"] and draw(st.integers(0, 3)) == 0}
    return HostWithGpus(cards, taken, draw(st.integers(1, count)))


def to_give(host: HostWithGpus) -> list[Facts]:
    return [gpu for gpu in host.gpus if not why_unusable(gpu) and gpu["uuid"] not in host.taken]


@given(hosts(), st.randoms(use_true_random=False))
@example(HostWithGpus(FACTS, {}, 4), None)
def test_any_choice_is_fit_free_complete_and_the_same_in_any_order(host: HostWithGpus, order: t.Any) -> None:
    free = to_give(host)
    if len(free) < host.wanted:
        assert refusal(host.gpus, host.wanted, taken=host.taken).code == "gpu_too_few"
        return
    found = choose_gpus(host.gpus, host.wanted, taken=host.taken)
    uuids = [gpu["uuid"] for gpu in found]
    assert len(set(uuids)) == host.wanted
    assert all(gpu in free for gpu in found)
    shuffled = list(host.gpus)
    (order.shuffle if order else list.reverse)(shuffled)
    assert [gpu["uuid"] for gpu in choose_gpus(shuffled, host.wanted, taken=host.taken)] == uuids
    assert [gpu["uuid"] for gpu in choose_gpus(shuffled, host.wanted, taken=host.taken, current=uuids)] == uuids


@given(hosts())
def test_any_choice_is_of_one_node_where_a_node_has_enough(host: HostWithGpus) -> None:
    free = to_give(host)
    nodes = [gpu["numa_node"] for gpu in free if gpu["numa_node"] is not None]
    if len(free) >= host.wanted and any(nodes.count(node) >= host.wanted for node in nodes):
        assert len({gpu["numa_node"] for gpu in choose_gpus(host.gpus, host.wanted, taken=host.taken)}) == 1


@given(hosts())
def test_no_pair_of_any_choice_of_two_is_farther_than_another_of_its_node(host: HostWithGpus) -> None:
    free = to_give(host)
    if len(free) < 2 or len({gpu["numa_node"] for gpu in free}) != 1 or free[0]["numa_node"] is None:
        return
    one, other = choose_gpus(host.gpus, 2, taken=host.taken)
    assert distance(one, other) == min(distance(a, b) for a, b in itertools.combinations(free, 2))


def distance(one: t.Mapping[str, t.Any], other: t.Mapping[str, t.Any]) -> int:
    (link,) = (link for link in one["links"] if link["uuid"] == other["uuid"])
    return -1 if link["nvlinks"] else ["PIX", "PXB", "PHB", "NODE", "SYS", None].index(link["path"])
