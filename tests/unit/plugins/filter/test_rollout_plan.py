# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters of a rollout, on what the modules of a play return."""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.vllm.plugins.filter.rollout_plan import FilterModule

FILTERS = FilterModule().filters()
RELEASE = {
    "deployment": "m",
    "release": "5d1f8a0b6c3e",
    "proven": "5d1f8a0b6c3e",
    "restart_required": False,
    "reload_required": False,
    "replaced": [],
    "converged": True,
    "differences": [],
    "model_path": "/var/lib/gpufleet/models/acme--tiny/f710177d938eff80b684d42c5aa84b382612f21f",
    "engine_path": "/opt/gpufleet/engines/vllm-0.33.0",
}
DEPLOYMENT = {**{name: RELEASE[name] for name in ("deployment", "release", "model_path", "engine_path")}, "enabled": True}
HEALTH = {
    "ready": True,
    "level": "answering",
    "phases": [{"name": "loading_weights", "seconds": 41.23}, {"name": "profiling", "seconds": 0.01}],
}
CONVERGED: dict[str, t.Any] = {
    "host_helper": {"converged": True},
    "engine_venv": {"converged": True},
    "weights_snapshot": {"converged": True},
    "server_release": RELEASE,
    "server_deployments": {"deployments": [DEPLOYMENT]},
    "server_now": HEALTH,
}


def with_(**changes: t.Any) -> dict[str, t.Any]:
    return {**CONVERGED, **changes}


def released(**changes: t.Any) -> dict[str, t.Any]:
    return with_(server_release={**RELEASE, **changes})


@pytest.mark.parametrize(
    ("need", "facts"),
    [
        ("nothing", CONVERGED),
        ("nothing", with_(balancer_now={"skipped": True})),
        ("nothing", with_(balancer_now={"results": [{"state": "ready"}, {"state": "maint"}]})),
        ("settle", with_(balancer_now={"results": [{"state": "ready"}, {"state": "drain"}]})),
        ("settle", with_(host_helper={"converged": False})),
        ("settle", with_(engine_venv={"converged": False})),
        ("settle", with_(weights_snapshot={"converged": False})),
        ("settle", released(converged=False)),
        ("settle", released(proven=None)),
        ("settle", released(reload_required=True)),
        ("settle", released(replaced=["vllm-other.service"])),
        ("settle", with_(server_deployments={"deployments": [{**DEPLOYMENT, "enabled": False}]})),
        ("restart", released(restart_required=True)),
        ("broken", with_(server_now={"ready": False})),
        ("broken", with_(server_now={"skipped": True})),
        ("first", with_(server_deployments={"deployments": []})),
        ("first", with_(server_deployments={"deployments": [{**DEPLOYMENT, "deployment": "another"}]}, server_now={"skipped": True})),
    ],
)
def test_what_the_modules_found_out_becomes_a_need(need: str, facts: dict[str, t.Any]) -> None:
    assert FILTERS["rollout_plan"]({"h1": facts}, ["h1"])["needs"] == {"h1": need}


def test_a_host_that_was_not_planned_and_a_bad_size_are_errors_that_say_so() -> None:
    with pytest.raises(AnsibleFilterError, match="h1 was not planned"):
        FILTERS["rollout_plan"]({"h1": {}}, ["h1"])
    with pytest.raises(AnsibleFilterError, match="vllm_batches is 'many'"):
        FILTERS["rollout_plan"]({"h1": CONVERGED}, ["h1"], "many")


def test_a_rollout_stops_by_the_facts_of_the_hosts_before() -> None:
    plan = FILTERS["rollout_plan"]({name: released(restart_required=True) for name in ("h1", "h2")}, ["h1", "h2"])
    assert plan["batches"] == [1, 1]
    assert FILTERS["rollout_stop"](plan, {"h1": {}, "h2": {}}, ["h1"]) == ""
    assert FILTERS["rollout_stop"](plan, {"h1": {"vllm_outcome": {"result": "deployed"}}, "h2": {}}, ["h2"]) == ""
    assert "h1 failed" in FILTERS["rollout_stop"](plan, {"h1": {"vllm_outcome": {"result": "returned"}}, "h2": {}}, ["h2"])


FAILURE = {
    "task": "Gate",
    "msg": "it ran out of memory",
    "unit": "failed (failed), result exit-code, exit status 1",
    "evidence": [f"line {number}" for number in range(9)],
    "holders": [[3, {"pid": 7, "name": "python3", "unit": None, "bytes": 5_000_000_000}]],
    "returned": "It returned to release 0a9b8c7d6e5f, which answers.",
    "differences": ["max-num-seqs"],
}
FLEET = {
    "gpu1": {
        **released(release="0a9b8c7d6e5f", proven="0a9b8c7d6e5f"),
        "server_health": HEALTH,
        "vllm_outcome": {"result": "returned", "failure": FAILURE},
        "server_failure": FAILURE,
    },
    "gpu2": {
        **released(differences=["first release"]),
        "server_health": HEALTH,
        "engine_venv": {"changed": True},
        "vllm_outcome": {"result": "deployed"},
    },
    "gpu3": CONVERGED,
    "gpu4": {**CONVERGED, "server_now": {"ready": False, "level": "healthy"}},
    "gpu5": {"vllm_outcome": {"result": "begun"}, "server_now": {"ready": False, "level": ""}},
}
PLAN = {"needs": {"gpu1": "restart", "gpu2": "first", "gpu3": "nothing", "gpu4": "broken", "gpu5": "restart"}}


def report() -> dict[str, dict[str, t.Any]]:
    return {record["host"]: record for record in FILTERS["fleet_report"](FLEET, list(FLEET), PLAN)}


def test_the_report_says_of_each_host_what_became_of_it() -> None:
    records = report()
    assert {host: record["result"] for host, record in records.items()} == {
        "gpu1": "returned",
        "gpu2": "deployed",
        "gpu3": "unchanged",
        "gpu4": "untouched",
        "gpu5": "begun",
    }
    assert records["gpu1"]["release"] == "0a9b8c7d6e5f" and records["gpu1"]["changed"] == ["max-num-seqs"]
    assert records["gpu2"]["changed"] == ["engine", "first-release"] and records["gpu2"]["phases"][0] == {
        "name": "loading_weights",
        "seconds": 41.2,
    }
    assert (records["gpu3"]["level"], records["gpu3"]["phases"]) == ("answering", [])
    assert records["gpu1"]["failure"]["evidence"] == FAILURE["evidence"], "programs get all of it"


def test_check_mode_deploys_nothing_and_says_so() -> None:
    fleet = {"gpu1": {**FLEET["gpu2"], "vllm_outcome": {"result": "deployed", "foretold": True}}}
    [record] = FILTERS["fleet_report"](fleet, ["gpu1"], {"needs": {"gpu1": "first"}})
    assert record["result"] == "would-change" and "first-release" in record["changed"]


def test_the_table_has_a_line_a_host_and_below_it_why_hosts_failed() -> None:
    head, *lines = FILTERS["fleet_table"](list(report().values()))
    assert head.split() == ["host", "result", "release", "model", "engine", "health", "seconds", "changed", "phases"]
    assert lines[0].split() == [
        *("gpu1", "returned", "0a9b8c7d6e5f", "acme--tiny@f710177d938e", "vllm-0.33.0", "answering", "41.2", "max-num-seqs"),
        "loading_weights:41.2",
    ]
    assert lines[3].split()[5] == "not-ready(healthy)" and lines[4].split()[5] == "not-ready(down)"
    assert lines[5] == "gpu1: Gate failed: it ran out of memory"
    assert "  | line 8" in lines and "  | line 2" not in lines, "the last ones"
    assert "  GPU 3 is held by pid 7 (python3, no unit) with 5.0 GB" in lines
    assert lines[-1] == "  It returned to release 0a9b8c7d6e5f, which answers."


def test_no_line_of_a_host_can_be_broken_by_the_yaml_of_ansible() -> None:
    assert not any(re.search(r"\S \S", line) for line in FILTERS["fleet_table"](list(report().values()))[1:6])


def test_something_else_than_a_report_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="fleet_table takes the list"):
        FILTERS["fleet_table"]("gpu1")
