# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people with roles and units of this kind, and the answer they should have had.

Each test is one situation that was reported in public, reduced to the facts that decide it. What needs systemd is shown by scenarios:
the restart that a killed play left undone and shell-like text that arrives byte by byte in `deploy` and `unit`, check mode on a fresh host
and secrets on hosts in `guards`, a dead engine that exits with 0 in `orphaned_worker`.
"""

from __future__ import annotations

import json
import os
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.diagnose import diagnose, is_deterministic
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.journal import unasked_stop
from support.plays import ROLES, all_tasks, conditions, play, role_yaml, template
from support.role_vars import server_host, template_all
from support.running import ROOT, Answer, environment, run_module

RECIPE = {
    "deployment": "minimax-m25",
    "served_model_name": "MiniMax-M2.5",
    "repo_id": "MiniMaxAI/MiniMax-M2.5",
    "arguments": {"tensor-parallel-size": 4},
}
NOWHERE = "http://127.0.0.1:9"
# What the tasks before have registered, where a role's own expressions need it, and a host like those of the bench.
REGISTERED = {
    **server_host({"minimax-m25": [0, 1, 2, 3], "kimi-k2": [4]}, ["kimi-k2"]),
    "vllm_model": RECIPE,
    "vllm_recipe": "minimax-m2.5",
    "vllm_recipe_file": str(ROOT / "playbooks" / "recipes" / "minimax-m2.5.yml"),
    "ansible_facts": {"service_mgr": "systemd", "systemd": {"version": "252"}, "python_version": "3.11.2", "os_family": "Debian"},
    "host_packages_installed": {"changed": False},
    "server_release": {"unit_loaded": True, "changed": True, "release": "b", "proven": "a"},
    "server_failure": {"return_to": "a"},
    "server_now": {"ready": True},
    "host_helper": {"changed": True, "converged": False},
    "engine_venv": {"changed": True, "dest": "/opt/gpufleet/engines/vllm-0.33.0"},
    "vllm_reason_to_stop": "gpu1 failed",
    "vllm_unreachable": ["gpu1"],
    "vllm_rollout": {"order": ["gpu1"], "needs": {"gpu1": "restart"}, "batches": [1], "made": "now"},
    "vllm_outcome": {"plan": "now", "result": "failed", "failure": {"msg": "it failed"}},
    "vllm_balanced": True,
    "vllm_leaves_service": True,
    "server_returned": True,
    "server_listeners": {"listeners": [{"name": "python3", "unit": None, "pid": 7}]},
    "weights_snapshot": {"changed": True, "converged": False, "path": "/models/m"},
    "weights_verdict": {"failed": True, "proven": False, "code": "path_missing"},
    "item": "kimi-k2",
}


def every_default() -> dict[str, t.Any]:
    return {name: value for role in ROLES for name, value in role_yaml(role, "defaults").items()}


def every_internal() -> dict[str, t.Any]:
    return {name: value for role in ROLES if (ROOT / "roles" / role / "vars").is_dir() for name, value in role_yaml(role, "vars").items()}


# ---- conditions and switches -----------------------------------------------------------------------------------------------


def kinds_of(folder: Path, texts: t.Sequence[str]) -> list[str]:
    """The type that Ansible finds each expression to be, with the roles' defaults and vars and what their tasks register."""
    expression = "{{ [" + ", ".join(f"({text}) | type_debug" for text in texts) + "] }}"
    given = {**every_default(), **every_internal(), **REGISTERED}
    return t.cast("list[str]", template(folder, expression, variables=given)["here"])


def test_every_condition_of_roles_and_playbooks_is_a_truth_value(tmp_path: Path) -> None:
    found = conditions(all_tasks())
    assert len(found) > 25
    kinds = kinds_of(tmp_path, [condition.text for condition in found])
    assert [condition for condition, kind in zip(found, kinds) if kind != "bool"] == []


def test_a_condition_that_is_a_list_a_text_or_a_map_would_be_found(tmp_path: Path) -> None:
    tasks = yaml.safe_load("""
        - {name: one, when: host_packages}
        - {name: two, block: [], failed_when: [server_deployment, server_arguments]}
        - {name: three, ansible.builtin.assert: {that: weights_offline and server_deployment}, until: true}
    """)
    found = conditions((task["name"], task) for task in tasks)
    assert [condition.place for condition in found] == ["one", "two", "two", "three", "three"]
    texts = [condition.text for condition in found if condition.text != "True"]
    assert [kind.removeprefix("_AnsibleTagged").lower() for kind in kinds_of(tmp_path, texts)] == ["list", "str", "dict", "bool"]


def test_a_switch_given_on_the_command_line_is_text_and_yet_means_no(tmp_path: Path) -> None:
    tasks = [{"ansible.builtin.import_role": {"name": "gpufleet.vllm.weights", "tasks_from": "preflight"}}]
    variables = {"vllm_model": RECIPE, "weights_endpoint": NOWHERE, "weights_store": str(tmp_path)}
    status, output = play(tmp_path, tasks, "--extra-vars=weights_offline=false", variables=variables)
    assert status != 0
    assert "The hub could not be reached" in output, "it was read as yes, since text that is not empty is true"


# ---- what is written where -------------------------------------------------------------------------------------------------


def test_every_option_of_every_role_can_be_set_by_group_and_by_host(tmp_path: Path) -> None:
    names = list(every_default())
    inventory = {
        "gpu_hosts": {
            "hosts": {"h1": {name: f"{name} of h1" for name in names}, "h2": {}},
            "vars": {name: f"{name} of the group" for name in names},
        }
    }
    (tmp_path / "hosts.yml").write_text(json.dumps(inventory))
    listed = "{{ dict(" + repr(names) + " | zip(query('ansible.builtin.vars', *" + repr(names) + "))) }}"
    # Imported and skipped: what matters is which variables a play has beside its roles' own.
    roles = [{"ansible.builtin.import_role": {"name": f"gpufleet.vllm.{role}"}, "when": False} for role in ROLES]
    found = template(tmp_path, listed, tasks_before=roles)
    assert found["h1"] == {name: f"{name} of h1" for name in names}
    assert found["h2"] == {name: f"{name} of the group" for name in names}


def test_what_roles_keep_to_themselves_says_so_by_its_name() -> None:
    internal = every_internal()
    assert [name for name in internal if not name.startswith("__")] == []
    assert internal.keys() & every_default().keys() == set()


def test_no_restart_hangs_on_a_handler_and_no_task_on_a_job_of_another_user() -> None:
    """A handler is lost with the play; a job that one user started is not found by another. Long modules start and poll their own job."""
    words = {word for _place, task in all_tasks() for word in task}
    assert not words & {"notify", "listen", "handlers", "async", "poll", "become_user"}
    assert not list(ROOT.glob("roles/*/handlers/*"))


def test_long_tasks_run_in_the_background_by_themselves() -> None:
    """A connection that is silent for minutes is cut: the modules that take long have an action plugin that starts a job and polls it."""
    long = {"model_download", "model_verify", "gpu_memory_wait", "vllm_health"}
    used = {word.removeprefix("gpufleet.vllm.") for _place, task in all_tasks() for word in task if word.startswith("gpufleet.vllm.")}
    with_plugin = {
        path.stem
        for path in ROOT.glob("plugins/action/*.py")
        if re.search("class ActionModule\\((?:Progress|Waiting)Action\\)", path.read_text(encoding="utf-8"))
    }
    assert long <= used
    assert long <= with_plugin


# ---- the server ------------------------------------------------------------------------------------------------------------


def preflight(folder: Path, arguments: t.Any) -> tuple[int, str]:
    tasks = [{"ansible.builtin.import_role": {"name": "gpufleet.vllm.server", "tasks_from": "preflight"}}]
    variables = {"vllm_model": {**RECIPE, "arguments": {}}, "server_gpus": 0, "server_port": 9, "server_arguments": arguments}
    status, output = play(folder, tasks, variables=variables)
    return status, re.sub(r"\s+", " ", output)


@pytest.mark.parametrize(
    "arguments",
    ["--port 8000 >> /var/log/vllm.log 2>&1", ["--port", "8000", ">>", "/var/log/vllm.log"], {"seed": "7 >> /var/log/vllm.log"}],
)
def test_shell_syntax_in_arguments_is_refused(tmp_path: Path, arguments: t.Any) -> None:
    status, said = preflight(tmp_path, arguments)
    assert status != 0
    assert "server_arguments" in said and ">>" in said
    assert "No shell runs this line; the output is in the journal" in said


def test_a_mapping_with_shell_syntax_in_its_names_is_refused(tmp_path: Path) -> None:
    status, said = preflight(tmp_path, {"port 8000 >> /var/log/vllm.log 2>&1": None, "seed": 7})
    assert status != 0
    assert "server_arguments holds port 8000 >> /var/log/vllm.log 2>&1, which is no name of an option" in said


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The directives of a unit for a model with long answers, and with keys."""
    options = {"server_gpus": 4, "server_shutdown_timeout": 300, "server_api_keys": ["sk-EXAMPLE"], "weights_token": "hf_EXAMPLE"}
    source = ROOT / "roles" / "server" / "templates" / "vllm.service.j2"
    said = template_all(
        tmp_path_factory.mktemp("unit"),
        "server",
        {"here": {**server_host({}), **options}},
        "{{ lookup('ansible.builtin.template', '" + str(source) + "') }}",
    )
    lines = json.loads(said["here"])["msg"].splitlines()
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines if "=" in line and not line.startswith("#")}


def test_a_long_answer_is_waited_for_on_a_stop_and_a_kill_takes_every_process(unit: dict[str, str]) -> None:
    assert int(unit["TimeoutStopSec"]) >= 300
    assert unit["KillMode"] in ("control-group", "mixed")
    assert "gpu-wait" in unit["ExecStartPre"], "memory is waited for after a stop and before the next start"


def test_no_key_is_in_the_unit(unit: dict[str, str]) -> None:
    assert unit["LoadCredential"].startswith("engine.yaml:/etc/gpufleet/")
    assert "EXAMPLE" not in json.dumps(unit)


def test_a_crash_report_from_the_journal_carries_no_key() -> None:
    said = diagnose(
        [
            "INFO non-default args: {'model_tag': '/srv/models/a', 'api_key': ['sk-EXAMPLE'], 'hf_token': 'hf_EXAMPLE'}",
            "ValueError: No available memory for the cache blocks.",
        ]
    )
    assert said.cause == "no_kv_memory"
    assert "EXAMPLE" not in json.dumps(said.as_dict())


def test_an_engine_that_dies_leaves_status_0_and_is_neither_asked_for_nor_the_end(unit: dict[str, str]) -> None:
    said = diagnose(
        [
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "vllm-a.service: Deactivated successfully.",
        ]
    )
    assert unit["Restart"] == "always"
    assert unasked_stop({"SERVICE_RESULT": "success", "EXIT_CODE": "exited", "EXIT_STATUS": "0"})
    assert (said.cause, is_deterministic(said)) == ("engine_died", False)
    assert "EngineDeadError" in " ".join(said.evidence)
    assert "stopped" not in said.message


def health_of_a_skipped_start(folder: Path) -> Answer:
    """The gate after a start that systemd reported as done, although a condition of the unit kept it from running."""
    state = {"LoadState": "loaded", "ActiveState": "inactive", "SubState": "dead", "Result": "success", "NRestarts": 0, "Job": ""}
    state.update({"ConditionResult": "no", "ConditionTimestamp": "Mon 2026-11-30 01:00:00 UTC"})
    (folder / "unit").write_text("".join(f"{key}={value}\n" for key, value in state.items()))
    for name, text in {"systemctl": f"exec cat {folder}/unit", "journalctl": "exit 0"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    env = environment(PATH=f"{folder}:{os.environ['PATH']}")
    return run_module("vllm_health", folder, env, url=NOWHERE, unit="vllm-a.service", timeout=2700)


def test_a_start_that_a_condition_skipped_is_a_failure_at_once(tmp_path: Path) -> None:
    health = health_of_a_skipped_start(tmp_path)
    assert (health["failed"], health["code"]) == (True, "unit_not_running")
    assert "was not started, because a condition of its unit is not met" in health["msg"]
    assert "load" not in health["msg"]
