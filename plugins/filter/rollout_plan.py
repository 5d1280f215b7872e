# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a rollout, stop it, and show what became of it: the rules of _core for what the roles registered on each host."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import VllmError
from ..module_utils._core.fleet_report import host_record, table
from ..module_utils._core.rollout import Look, Plan, plan_rollout, reason_to_stop

__all__ = ["FilterModule"]

Facts = t.Mapping[str, t.Any]
# What the preflights of the roles register, each with "converged".
_ASKED = ("host_helper", "engine_venv", "weights_snapshot", "server_release")


def _rollout_plan(
    hostvars: t.Mapping[str, Facts], hosts: t.Sequence[str], batches: t.Any = (1, 2, "50%"), floor: t.Union[int, str] = "50%"
) -> dict[str, t.Any]:
    sizes = list(batches) if isinstance(batches, (list, tuple)) else [batches]
    try:
        return plan_rollout({host: _look(host, hostvars[host]) for host in hosts}, sizes, floor)._asdict()
    except VllmError as exc:
        raise AnsibleFilterError(str(exc)) from exc


def _look(host: str, facts: Facts) -> Look:
    release = facts.get("server_release") or {}
    if "restart_required" not in release:
        raise AnsibleFilterError(
            f"{host} was not planned: rollout_plan reads what the entry points preflight and plan of the roles register."
        )
    known = (facts.get("server_deployments") or {}).get("deployments") or []
    mine = [entry for entry in known if entry["deployment"] == release["deployment"]]
    settled = not release["reload_required"] and not release["replaced"] and release["proven"] == release["release"]
    return Look(
        deployed=bool(mine),
        serving=bool((facts.get("server_now") or {}).get("ready")),
        restart=bool(release["restart_required"]),
        converged=settled and all(entry["enabled"] for entry in mine) and all(map(_is_converged, map(facts.get, _ASKED))) and _is_in(facts),
    )


def _is_converged(result: t.Any) -> bool:
    return isinstance(result, t.Mapping) and bool(result.get("converged"))


def _is_in(facts: Facts) -> bool:
    """No balancer holds the host out; without any there is none to ask."""
    answers = (facts.get("balancer_now") or {}).get("results") or []
    return all(answer.get("state") != "drain" for answer in answers)


def _rollout_stop(
    plan: Facts, hostvars: t.Mapping[str, Facts], batch: t.Sequence[str], floor: t.Union[int, str] = "50%", budget: t.Any = 0
) -> str:
    results = {host: (hostvars[host].get("vllm_outcome") or {}).get("result") for host in plan["order"]}
    return reason_to_stop(Plan(**plan), results, list(batch), floor, int(budget)) or ""


def _fleet_report(hostvars: t.Mapping[str, Facts], hosts: t.Sequence[str], plan: Facts) -> list[dict[str, t.Any]]:
    return [host_record(host, plan["needs"].get(host, "nothing"), hostvars[host]) for host in hosts]


def _fleet_table(records: t.Sequence[Facts]) -> list[str]:
    if isinstance(records, (str, t.Mapping)) or not isinstance(records, t.Sequence):
        raise AnsibleFilterError(f"fleet_table takes the list that fleet_report returns, not {type(records).__name__}.")
    return table(records)


class FilterModule:
    """The filters, for Ansible."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {
            "fleet_report": _fleet_report,
            "fleet_table": _fleet_table,
            "rollout_plan": _rollout_plan,
            "rollout_stop": _rollout_stop,
        }
