# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each host of a fleet needs, in which order and how many at a time. PRIVATE to the collection.

``nothing``: it serves what it is to serve. ``settle``: it does, but something beside it is to be put right, without a restart.
``restart``: it serves something else, and leaves service for what it is to serve. ``first``: it has no release yet. ``broken``: it has
one and does not serve. The last two cost the fleet nothing while they are worked on, so they come first.
"""

from __future__ import annotations

import re
import typing as t

from .errors import VllmError
from .snapshot import some

__all__ = ["SERVES_AGAIN", "Look", "Plan", "need_of", "plan_rollout", "reason_to_stop", "share"]

Size = t.Union[int, str]
_ORDER = ("broken", "first", "settle", "restart")
_SERVING = ("nothing", "settle", "restart")
# Results of a host after which it serves.
SERVES_AGAIN = ("deployed", "returned")


class Look(t.NamedTuple):
    """What a plan found out about a host. ``restart``: what its unit runs is not what it is to run."""

    deployed: bool
    serving: bool
    restart: bool
    converged: bool


class Plan(t.NamedTuple):
    """Hosts that need something, in the order of the rollout, and how many of them each batch takes."""

    needs: dict[str, str]
    order: list[str]
    batches: list[int]


def need_of(look: Look) -> str:
    """One word for what a host needs."""
    if not look.deployed:
        return "first"
    if not look.serving:
        return "broken"
    if look.restart:
        return "restart"
    return "nothing" if look.converged else "settle"


def share(size: Size, whole: int, option: str) -> int:
    """A number of hosts, given as one or as a percentage of the whole, which is rounded down."""
    found = re.fullmatch(r"(\d+)(%?)", str(size).strip())
    if not found or isinstance(size, bool):
        raise VllmError(
            f"{option} is {size!r}.", code="bad_option", remedy="Give a number of hosts, such as 2, or a share of them, such as 25%."
        )
    number = int(found[1])
    return whole * number // 100 if found[2] else number


def plan_rollout(looks: t.Mapping[str, Look], sizes: t.Sequence[Size], floor: Size) -> Plan:
    """Order the hosts that need something and cut them into batches, none of which leaves fewer than ``floor`` hosts serving."""
    needs = {host: need_of(look) for host, look in looks.items()}
    order = [host for need in _ORDER for host in needs if needs[host] == need]
    least = share(floor, len(needs), "vllm_serving_floor")
    wanted = [max(1, share(size, len(order), "vllm_batches")) for size in sizes]
    if not wanted:
        raise VllmError("vllm_batches is empty.", code="bad_option", remedy="Give at least one size, such as [1].")
    return Plan(needs, order, _batches(needs, order, wanted, least))


def _batches(needs: t.Mapping[str, str], order: t.Sequence[str], wanted: t.Sequence[int], least: int) -> list[int]:
    serving = sum(need in _SERVING for need in needs.values())
    batches: list[int] = []
    begun = 0
    while begun < len(order):
        batch = _batch(needs, order[begun:], wanted[min(len(batches), len(wanted) - 1)], serving - least)
        if not batch:
            raise VllmError(
                f"{some(order[begun:])} would have to leave service for the new release, and vllm_serving_floor asks that {least} of "
                f"{len(needs)} hosts go on serving; then {serving} do.",
                code="floor",
                remedy="Lower vllm_serving_floor, or bring more hosts into service first.",
            )
        serving += sum(needs[host] not in _SERVING for host in batch)
        batches.append(len(batch))
        begun += len(batch)
    return batches


def _batch(needs: t.Mapping[str, str], hosts: t.Sequence[str], size: int, may_leave: int) -> list[str]:
    """The next hosts, up to the size and to the first one more than may leave service."""
    batch: list[str] = []
    for host in hosts[:size]:
        may_leave -= needs[host] == "restart"
        if needs[host] == "restart" and may_leave < 0:
            break
        batch.append(host)
    return batch


def reason_to_stop(
    plan: Plan, results: t.Mapping[str, t.Optional[str]], batch: t.Sequence[str], floor: Size, budget: int
) -> t.Optional[str]:
    """Why the next batch is not to begin, by what became of the hosts before it; None where nothing speaks against it."""
    before = plan.order[: min(plan.order.index(host) for host in batch)]
    failed = [host for host in before if results.get(host) != "deployed"]
    if len(failed) > budget:
        return f"{some(failed)} failed, and vllm_failure_budget allows {budget}."
    lost = [host for host in before if results.get(host) not in SERVES_AGAIN]
    healed = [host for host in before if plan.needs[host] not in _SERVING and host not in lost]
    serving = {host for host, need in plan.needs.items() if need in _SERVING} - set(lost) | set(healed)
    leaving = [host for host in batch if plan.needs[host] == "restart"]
    least = share(floor, len(plan.needs), "vllm_serving_floor")
    if leaving and len(serving) - len(leaving) < least:
        return f"{some(leaving)} would leave service, {len(serving)} hosts serve, and vllm_serving_floor asks for {least}."
    return None
