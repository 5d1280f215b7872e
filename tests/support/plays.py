# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plays on this very machine: real ansible-playbook runs of the collection's roles, and what is written in roles and playbooks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import yaml

from .running import ROOT, TREE, environment

__all__ = ["ROLES", "Condition", "all_tasks", "conditions", "play", "role_yaml", "template"]

Vars = t.Mapping[str, t.Any]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
_TASK_FILES = ("roles/*/tasks/*.yml", "roles/*/handlers/*.yml", "playbooks/*.yml", "playbooks/tasks/*.yml")
_CONDITIONAL = ("when", "failed_when", "changed_when", "until", "that")


class Condition(t.NamedTuple):
    """One expression that decides something, and where it is written."""

    place: str
    text: str


def role_yaml(role: str, part: str) -> dict[str, t.Any]:
    """defaults or vars of a role, from one file or from the files of a folder."""
    folder = ROOT / "roles" / role / part
    texts = [path.read_text(encoding="utf-8") for path in sorted([*folder.glob("main.yml"), *folder.glob("main/*.yml")])]
    return {name: value for text in texts for name, value in yaml.safe_load(text).items()}


def _task_files() -> list[Path]:
    return sorted(path for pattern in _TASK_FILES for path in ROOT.glob(pattern))


def _tasks_of(entries: t.Iterable[t.Mapping[str, t.Any]]) -> t.Iterator[t.Mapping[str, t.Any]]:
    """Every task, play and block of a file, those inside others too."""
    for entry in entries:
        yield entry
        for name in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
            yield from _tasks_of(entry.get(name) or [])


def all_tasks() -> t.Iterator[tuple[str, t.Mapping[str, t.Any]]]:
    """Every task of the roles and playbooks, with the place it is written at."""
    for path in _task_files():
        for task in _tasks_of(yaml.safe_load(path.read_text(encoding="utf-8"))):
            yield f"{path.relative_to(ROOT)}: {task.get('name')}", task


def conditions(places: t.Iterable[tuple[str, t.Mapping[str, t.Any]]]) -> list[Condition]:
    """What decides whether tasks run, how they end, and what is asserted."""
    found = []
    for place, task in places:
        asserted = task.get("ansible.builtin.assert") or {}
        for words in (task, asserted):
            for name in _CONDITIONAL:
                texts = words.get(name, []) if isinstance(words, dict) else []
                found += [Condition(place, str(text)) for text in (texts if isinstance(texts, list) else [texts])]
    return found


def play(folder: Path, tasks: t.Sequence[Vars], *options: str, variables: t.Optional[Vars] = None) -> tuple[int, str]:
    """A play on this machine, on the hosts that the folder's ``hosts.yml`` names or else on one: its exit status and its output."""
    (folder / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": list(tasks)}]))
    if not (folder / "hosts.yml").exists():
        (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"here": {}}}}))
    (folder / "variables.json").write_text(json.dumps(dict(variables or {})))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), f"--inventory={folder}/hosts.yml", "--connection=local"]
    given = [f"--extra-vars=@{folder}/variables.json", f"--extra-vars=ansible_python_interpreter={sys.executable}", *options]
    settings = {"ANSIBLE_COLLECTIONS_PATH": str(TREE), "ANSIBLE_HOME": str(folder), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [*command, *given, str(folder / "play.yml")],
        capture_output=True,
        text=True,
        env=environment(ANSIBLE_CALLBACK_RESULT_FORMAT="json", **settings),
        cwd=folder,
        check=False,
        timeout=90,
    )
    return done.returncode, done.stdout + done.stderr


def template(folder: Path, expression: str, *, variables: t.Optional[Vars] = None, tasks_before: t.Sequence[Vars] = ()) -> dict[str, t.Any]:
    """What an expression comes to on each host of the play, after other tasks."""
    status, output = play(folder, [*tasks_before, {"name": "Show", "ansible.builtin.debug": {"msg": expression}}], variables=variables)
    assert status == 0, output
    blocks = re.findall(r"^ok: \[(\S+)\] => (\{.*?^\})", output, re.MULTILINE | re.DOTALL)
    return {host: json.loads(block)["msg"] for host, block in blocks}
