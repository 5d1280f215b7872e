# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people with rollouts, and the answer they should have had.

Each test is one situation that was reported in public, reduced to the facts that decide it, and played by the collection's own playbook.
That a host which fails in earnest returns, and that those after it are not touched, is shown by the scenario `fleet_rollout`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.modules.host_helper import application
from support.plays import all_tasks, play, template
from support.rollout import LOGGED, Rollout
from support.running import HOST_PROGRAM, ROOT

HOSTS = ("h1", "h2", "h3", "h4")
SYSTEMCTL = b"#!/bin/sh\necho LoadState=not-found\n"
# An engine that tells what it was started with, and what the options in its file come to.
ENGINE = f"""#!{sys.executable}
import json, sys
sys.path.insert(0, {str(ROOT / "tests" / "bench" / "engine")!r})
from fake_vllm.options import parse
print(json.dumps([sys.argv, parse(sys.argv[2:]).speculative_config]))
"""


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
    assert sorted(done.hosts("server/main")) == ["h2", "h3", "h4"]
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


def test_what_a_host_has_whole_is_not_brought_again(rollout: Rollout) -> None:
    done = rollout.run(unprepared=["h2"], without_weights=["h2", "h3"], vllm_batches=[4], vllm_serving_floor=0)
    assert done.status == 0
    assert done.hosts("host/main") == ["h2"]
    assert sorted(done.hosts("weights/main")) == ["h2", "h3"]
    assert sorted(done.hosts("server/main")) == list(HOSTS)


def hooks(folder: Path, *, broken_in: str = "") -> dict[str, str]:
    """Task files of somebody's own balancer; the second fails for one host."""
    (folder / "out.yml").write_text(LOGGED.replace("WORK", "hook/out"))
    failing = f"- ansible.builtin.fail: {{msg: The balancer is away.}}\n  when: inventory_hostname == '{broken_in}'\n"
    (folder / "in.yml").write_text(LOGGED.replace("WORK", "hook/in") + failing)
    return {"balancer_kind": "external", "balancer_hook_out": str(folder / "out.yml"), "balancer_hook_in": str(folder / "in.yml")}


def test_a_balancer_of_ones_own_takes_each_host_out_and_gets_it_back_by_its_hooks(tmp_path: Path) -> None:
    done = Rollout(tmp_path, HOSTS[:2], real=["balancer"]).run(**hooks(tmp_path), vllm_batches=[1])
    assert done.status == 0, done.output
    told = [line for line in done.log if line.startswith(("hook/", "server/main"))]
    assert told == ["hook/out h1", "server/main h1", "hook/in h1", "hook/out h2", "server/main h2", "hook/in h2"]


def test_a_balancer_of_ones_own_that_does_not_take_a_host_back_ends_the_rollout(tmp_path: Path) -> None:
    done = Rollout(tmp_path, HOSTS[:2], real=["balancer"]).run(**hooks(tmp_path, broken_in="h1"), vllm_batches=[1])
    assert done.status != 0
    assert "The balancer is away." in done.output
    assert (done.hosts("server/main"), done.hosts("server/return"), done.hosts("hook/out")) == (["h1"], ["h1"], ["h1"])


def test_a_balancer_of_ones_own_without_hooks_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    done = Rollout(tmp_path, HOSTS[:2], real=["balancer"]).run(**{**hooks(tmp_path), "balancer_hook_in": ""})
    assert done.status != 0
    assert "balancer_kind is external, and balancer_hook_in names no file." in " ".join(done.output.split())
    assert done.hosts("hook/out") == done.hosts("server/main") == []


def test_each_hosts_own_address_is_used_wherever_the_question_is_asked_from(tmp_path: Path) -> None:
    """In a delegated task ansible_host is the target's only where the inventory sets it."""
    hosts = {"h1": {"ansible_host": "10.20.30.41"}, "h2.example": {}}
    inventory = {"gpu_hosts": {"hosts": hosts}, "balancer_hosts": {"hosts": {"lb": {"ansible_host": "10.9.9.9"}}}}
    (tmp_path / "hosts.yml").write_text(json.dumps(inventory))
    variables = {"ansible.builtin.include_vars": str(ROOT / "playbooks" / "vars" / "balancer.yml")}
    said = template(tmp_path, "{{ balancer_backends }}", variables={"vllm_model": {"served_model_name": "m"}}, tasks_before=[variables])
    for backends in said.values():
        assert {backend["name"]: backend["address"] for backend in backends} == {"h1": "10.20.30.41", "h2.example": "h2.example"}


def test_no_host_is_asked_for_its_health_from_elsewhere() -> None:
    delegated = {place: task for place, task in all_tasks() if "delegate_to" in task or "local_action" in task}
    asking = {word for task in delegated.values() for word in task if "." in word}
    assert asking == {"gpufleet.vllm.haproxy_server", "ansible.builtin.copy", "ansible.builtin.set_fact"}
    assert "ansible_host" not in json.dumps(list(delegated.values()))


def test_an_argument_in_json_reaches_the_engine_through_every_shell_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"method": "mtp", "num_speculative_tokens": 4}
    engine, program, files = tmp_path / "engine" / "bin" / "vllm", tmp_path / "gpufleet-host", tmp_path / "etc" / "gpufleet"
    programs = {engine: ENGINE.encode(), program: application(sys.executable, HOST_PROGRAM.read_text()), tmp_path / "systemctl": SYSTEMCTL}
    for path, content in programs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
    (tmp_path / "run" / "vllm-tiny").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    release = {
        "deployment": "tiny",
        "root": str(files),
        "model_path": "/srv/models/a",
        "engine_path": str(tmp_path / "engine"),
        "arguments": {"speculative-config": wanted},
    }
    status, output = play(tmp_path, [{"gpufleet.vllm.vllm_release": release}])
    assert status == 0, output
    credentials = str(files / "tiny" / "current")
    done = subprocess.run(
        [str(program), "serve", "tiny", "--root", str(tmp_path)],
        env={**os.environ, "CREDENTIALS_DIRECTORY": credentials, "INVOCATION_ID": "5c" * 16},
        capture_output=True,
        text=True,
        check=True,
    )
    argv, speculative = json.loads(done.stdout.splitlines()[-1])
    assert argv == [str(engine), "serve", "/srv/models/a", "--config", f"{credentials}/engine.yaml"]
    assert speculative == wanted
