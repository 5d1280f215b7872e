# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people with rollouts, and the answer they should have had.

Each test is one situation that was reported in public, reduced to the facts that decide it, and played by the collection's own playbook.
That a host which fails in earnest returns, and that those after it are not touched, is shown by the scenario `fleet_rollout`.
"""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from support.rollout import Rollout

pytestmark = pytest.mark.long

HOSTS = ("h1", "h2", "h3", "h4")


@pytest.fixture
def rollout(tmp_path: Path) -> Rollout:
    return Rollout(tmp_path, HOSTS)


def test_a_rescue_does_not_hide_the_failure_of_the_first_host(rollout: Rollout) -> None:
    done = rollout.run(gate_fails_on=["h1"], vllm_batches=[1, 3])
    assert done.status != 0
    assert done.hosts("server/main") == ["h1"]
    assert done.hosts("server/return") == ["h1"]
    assert done.serves == dict.fromkeys(HOSTS, "old")


def test_half_of_a_batch_that_fails_stops_it_and_the_same_command_again_does_what_is_left(rollout: Rollout) -> None:
    """Ansible's own limit has to be exceeded: one of two would not exceed 50."""
    done = rollout.run(gate_fails_on=["h2"], vllm_batches=[2], vllm_serving_floor=1)
    assert done.status != 0
    assert sorted(done.hosts("server/main")) == ["h1", "h2"]
    assert done.serves == {"h1": "new", "h2": "old", "h3": "old", "h4": "old"}

    done = rollout.run(vllm_batches=[2], vllm_serving_floor=1)
    assert done.status == 0
    assert done.hosts("server/main") == ["h2", "h3", "h4"]
    assert done.serves == dict.fromkeys(HOSTS, "new")


def test_failures_within_the_budget_let_it_go_on_and_what_is_for_once_is_done_once(rollout: Rollout) -> None:
    """Ansible does what is for once again in each batch."""
    report = rollout.folder / "report.json"
    done = rollout.run(gate_fails_on=["h2"], vllm_batches=[2], vllm_serving_floor=1, vllm_failure_budget=1, vllm_report=str(report))
    assert done.status != 0
    assert done.serves == {"h1": "new", "h2": "old", "h3": "new", "h4": "new"}
    assert done.output.count("TASK [Put the hosts that need something in order]") == 1
    assert done.output.count("TASK [Fleet | Write it for programs]") == 1
    records: list[dict[str, t.Any]] = json.loads(report.read_text())["hosts"]
    assert [(record["host"], record["result"]) for record in records] == [
        ("h1", "deployed"),
        ("h2", "returned"),
        ("h3", "deployed"),
        ("h4", "deployed"),
    ]
