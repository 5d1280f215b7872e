# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rollouts of the collection's own playbook with real ansible-playbook, on hosts that are files of a folder.

Playbooks, their tasks and variables, and the filters are the collection's. The roles' work needs GPU hosts, so each of their task files
is replaced by one that writes its name and the host's into a log, and by a few words of what the real one would register. Roles that need
none may be ``real``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

from .running import ROOT, environment

__all__ = ["Rolled", "Rollout"]

OLD, NEW = "0123456789ab", "ba9876543210"
RECIPE = {
    "deployment": "tiny",
    "served_model_name": "tiny",
    "repo_id": "org/tiny",
    "arguments": {},
}
# By the controller itself, since a module for each line would take most of the time.
LOGGED = """
- ansible.builtin.set_fact:
    logged: "{{ lookup('ansible.builtin.pipe', 'echo WORK ' ~ inventory_hostname ~ ' >> ' ~ folder ~ '/log') }}"
"""
# By role and task file: what comes after the line in the log.
REGISTERED: dict[tuple[str, str], str] = {
    ("host", "preflight"): """
- ansible.builtin.set_fact: {host_helper: {converged: "{{ inventory_hostname not in unprepared }}"}}
""",
    ("engine", "preflight"): """
- ansible.builtin.set_fact: {engine_venv: {converged: true}}
""",
    ("weights", "preflight"): """
- ansible.builtin.set_fact: {weights_snapshot: {converged: "{{ inventory_hostname not in without_weights }}", path: /models/tiny}}
""",
    ("server", "preflight"): """
- ansible.builtin.set_fact: {server_deployments: {deployments: [{deployment: tiny, enabled: true, gpus: []}]}}
""",
    ("server", "plan"): """
- ansible.builtin.set_fact:
    server_now: {ready: true, level: answering}
    server_release:
      deployment: tiny
      release: NEW
      proven: "{{ serves }}"
      restart_required: "{{ serves != 'NEW' }}"
      converged: "{{ serves == 'NEW' }}"
      reload_required: false
      replaced: []
  vars:
    serves: "{{ lookup('ansible.builtin.file', folder ~ '/' ~ inventory_hostname) }}"
""",
    ("server", "main"): """
- name: The gate
  ansible.builtin.fail: {msg: The engine died.}
  when: inventory_hostname in gate_fails_on
- ansible.builtin.set_fact:
    served: "{{ lookup('ansible.builtin.pipe', 'printf NEW > ' ~ folder ~ '/' ~ inventory_hostname) }}"
    server_health: {ready: true, level: answering}
""",
    ("server", "return"): """
- ansible.builtin.set_fact:
    server_failure: {msg: The engine died., returned: It returned.}
    server_returned: true
""",
}


class Rolled(t.NamedTuple):
    """What a rollout has come to."""

    status: int
    output: str
    log: list[str]
    serves: dict[str, str]

    def hosts(self, work: str) -> list[str]:
        """The hosts that a task file was run for, in that order, such as server/main."""
        return [host for name, host in map(str.split, self.log) if name == work]


class Rollout:
    """A folder with the playbooks, stand-ins of the roles, and a file for each host that says which release it serves."""

    def __init__(self, folder: Path, hosts: t.Sequence[str], real: t.Sequence[str] = ()) -> None:
        self.folder = folder
        self.hosts = hosts
        self.real = real
        self.tree = folder / "tree"
        self._copy_collection(self.tree / "ansible_collections" / "gpufleet" / "vllm")
        for host in hosts:
            (folder / host).write_text(OLD)
        inventory = {"gpu_hosts": {"hosts": {host: {} for host in hosts}, "vars": {"ansible_connection": "local"}}}
        (folder / "hosts.json").write_text(json.dumps(inventory))
        (folder / "recipe.yml").write_text(json.dumps(RECIPE))

    def _copy_collection(self, place: Path) -> None:
        place.mkdir(parents=True)
        for path in ROOT.iterdir():
            if path.name in ("plugins", "meta", "galaxy.yml"):
                (place / path.name).symlink_to(path)
        shutil.copytree(ROOT / "playbooks", place / "playbooks", ignore=shutil.ignore_patterns("collections"))
        (place / "roles").mkdir()
        for role in (ROOT / "roles").iterdir():
            if role.name in self.real:
                (place / "roles" / role.name).symlink_to(role)
            else:
                self._stand_in(role, place / "roles" / role.name)

    def _stand_in(self, role: Path, place: Path) -> None:
        (place / "tasks").mkdir(parents=True)
        for part in ("defaults", "vars", "meta", "templates"):
            (place / part).symlink_to(role / part)
        for path in (role / "tasks").glob("*.yml"):
            line = LOGGED.replace("WORK", f"{role.name}/{path.stem}")
            (place / "tasks" / path.name).write_text(line + REGISTERED.get((role.name, path.stem), "").replace("NEW", NEW))

    def run(self, gate_fails_on: t.Sequence[str] = (), **variables: t.Any) -> Rolled:
        """Deploy, as an operator does."""
        (self.folder / "log").write_text("")
        given = {
            "folder": str(self.folder),
            "gate_fails_on": list(gate_fails_on),
            "unprepared": [],
            "without_weights": [],
            "vllm_recipe": str(self.folder / "recipe.yml"),
            **variables,
        }
        (self.folder / "variables.json").write_text(json.dumps({**given, "ansible_python_interpreter": sys.executable}))
        playbook = self.tree / "ansible_collections" / "gpufleet" / "vllm" / "playbooks" / "deploy.yml"
        settings = {"ANSIBLE_COLLECTIONS_PATH": str(self.tree), "ANSIBLE_HOME": str(self.folder), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "200"}
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                f"--inventory={self.folder}/hosts.json",
                f"--extra-vars=@{self.folder}/variables.json",
                str(playbook),
            ],
            capture_output=True,
            text=True,
            env=environment(PYTHONPATH=None, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), **settings),
            cwd=self.folder,
            check=False,
            timeout=240,
        )
        serves = {host: {OLD: "old", NEW: "new"}[(self.folder / host).read_text()] for host in self.hosts}
        return Rolled(done.returncode, done.stdout + done.stderr, (self.folder / "log").read_text().splitlines(), serves)
