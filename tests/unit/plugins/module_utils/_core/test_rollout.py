# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a rollout takes, in which order, how many at a time, and when it stops."""

from __future__ import annotations

import random
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.rollout import Look, Plan, need_of, plan_rollout, reason_to_stop, share

SERVES_IT = Look(deployed=True, serving=True, restart=False, converged=True)
LOOKS = {
    "nothing": SERVES_IT,
    "settle": SERVES_IT._replace(converged=False),
    "restart": SERVES_IT._replace(restart=True, converged=False),
    "broken": SERVES_IT._replace(serving=False),
    "first": Look(deployed=False, serving=False, restart=False, converged=False),
}


def plan(needs: str, sizes: t.Sequence[t.Union[int, str]] = (1, 2, "50%"), floor: t.Union[int, str] = "50%") -> Plan:
    """A plan for hosts h1, h2, ... that need what the words say."""
    return plan_rollout({f"h{number}": LOOKS[need] for number, need in enumerate(needs.split(), 1)}, sizes, floor)


@pytest.mark.parametrize("need", LOOKS)
def test_each_host_has_one_need(need: str) -> None:
    assert need_of(LOOKS[need]) == need


def test_a_host_that_does_not_serve_is_broken_even_if_all_its_files_are_right() -> None:
    assert need_of(SERVES_IT._replace(serving=False, restart=True)) == "broken"


def test_hosts_that_do_not_serve_come_first_and_those_that_leave_service_last() -> None:
    made = plan("restart settle nothing first broken restart")
    assert made.order == ["h5", "h4", "h2", "h1", "h6"]
    assert made.needs["h3"] == "nothing"


def test_a_converged_fleet_needs_no_batch() -> None:
    assert plan("nothing nothing")[1:] == ([], [])


def test_batches_grow_and_the_last_size_is_used_again() -> None:
    assert plan("restart " * 6).batches == [1, 2, 3]
    assert plan("first " * 9, sizes=[1, 3]).batches == [1, 3, 3, 2]
    assert plan("restart " * 8, sizes=["25%"], floor=0).batches == [2, 2, 2, 2]
    assert plan("restart restart", sizes=["10%"]).batches == [1, 1], "a share of less than one host is one"


def test_no_batch_takes_more_hosts_out_of_service_than_the_floor_allows() -> None:
    assert plan("restart " * 6, sizes=["100%"], floor=4).batches == [2, 2, 2]
    assert plan("restart " * 6, sizes=["100%"], floor=5).batches == [1] * 6
    assert plan("restart restart first first", sizes=["100%"], floor=1).batches == [3, 1], "what does not serve leaves nothing"


def test_hosts_that_come_into_service_count_from_the_next_batch_on() -> None:
    assert plan("broken broken restart restart", sizes=["100%"], floor=2).batches == [2, 2]


def test_one_host_alone_is_restarted_by_default() -> None:
    assert plan("restart").batches == [1]


def test_a_floor_that_cannot_be_kept_is_refused_before_anything_is_touched() -> None:
    with pytest.raises(VllmError, match=r"h1, h2 would have to leave service.*asks that 2 of 2 hosts go on serving; then 2 do") as refused:
        plan("restart restart", floor=2)
    assert refused.value.code == "floor" and "Lower vllm_serving_floor" in str(refused.value)


@pytest.mark.parametrize("size", ["", "half", "1.5", "-1", "50 %%", None, True])
def test_a_size_that_is_none_is_refused_with_what_to_write(size: t.Any) -> None:
    with pytest.raises(VllmError, match=r"vllm_batches is .*such as 25%"):
        share(size, 6, "vllm_batches")


def test_no_sizes_at_all_are_refused() -> None:
    with pytest.raises(VllmError, match="vllm_batches is empty"):
        plan("restart", sizes=[])


def test_whatever_fleet_all_hosts_are_planned_once_and_the_floor_holds() -> None:
    for seed in range(500):
        chance = random.Random(seed)
        needs = chance.choices([*LOOKS], k=chance.randint(1, 12))
        floor = chance.randint(0, 6)
        try:
            made = plan(" ".join(needs), sizes=chance.choices([1, 2, 3, "30%", "100%"], k=3), floor=floor)
        except VllmError as refused:
            assert refused.code == "floor"
            continue
        assert sum(made.batches) == len(made.order) == len(needs) - needs.count("nothing")
        serving, begun = sum(need in ("nothing", "settle", "restart") for need in needs), 0
        for size in made.batches:
            batch = [made.needs[host] for host in made.order[begun : begun + size]]
            assert batch.count("restart") == 0 or serving - batch.count("restart") >= floor
            serving, begun = serving + batch.count("first") + batch.count("broken"), begun + size


# ---- before each batch ------------------------------------------------------------------------------------------------------

SIX = plan("restart " * 6)


def test_the_first_batch_begins_and_a_batch_after_good_ones_does() -> None:
    assert reason_to_stop(SIX, {}, ["h1"], 3, 0) is None
    assert reason_to_stop(SIX, {"h1": "deployed"}, ["h2", "h3"], 3, 0) is None


@pytest.mark.parametrize("result", ["returned", "failed", "begun", None])
def test_a_host_that_failed_or_was_lost_stops_the_rollout(result: t.Optional[str]) -> None:
    reason = reason_to_stop(SIX, {"h1": "deployed", "h2": result, "h3": "deployed"}, ["h4", "h5", "h6"], 3, 0)
    assert reason == "h2 failed, and vllm_failure_budget allows 0."


def test_a_budget_lets_so_many_fail() -> None:
    results = {"h1": "returned"}
    assert reason_to_stop(SIX, results, ["h2", "h3"], 3, 1) is None
    assert reason_to_stop(SIX, {**results, "h2": "returned", "h3": "deployed"}, ["h4"], 3, 1) == (
        "h1, h2 failed, and vllm_failure_budget allows 1."
    )


def test_the_floor_holds_for_what_really_serves() -> None:
    """Within the budget, and yet too few serve for the next batch: a host that failed and did not return is not counted."""
    assert reason_to_stop(SIX, {"h1": "failed"}, ["h2", "h3"], 3, 9) is None
    lost = {"h1": "failed", "h2": "failed", "h3": "returned"}
    assert reason_to_stop(SIX, lost, ["h4", "h5"], 3, 9) == (
        "h4, h5 would leave service, 4 hosts serve, and vllm_serving_floor asks for 3."
    )
    healed = plan("broken broken restart restart", sizes=["100%"], floor=2)
    assert reason_to_stop(healed, {"h1": "deployed", "h2": "deployed"}, ["h3", "h4"], 2, 0) is None
    assert reason_to_stop(healed, {"h1": "deployed", "h2": "failed"}, ["h3", "h4"], 2, 1) is not None


def test_what_does_not_serve_may_be_worked_on_whatever_the_floor() -> None:
    assert reason_to_stop(plan("first first", sizes=[1]), {"h1": "deployed"}, ["h2"], 2, 0) is None
