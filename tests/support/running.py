# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules of the collection as Ansible does, and load the bench's programs, which are files of their own and in no package."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from .forked import run_forked

__all__ = ["HOST_PROGRAM", "ROOT", "TREE", "Answer", "environment", "load_file", "module_command", "read_answer", "run_module", "wait_for"]

ROOT = Path(__file__).resolve().parents[2]
# A folder of collections whose gpufleet.vllm is a link back to the checkout.
TREE = ROOT / "playbooks" / "collections"
HOST_PROGRAM = ROOT / "roles" / "host" / "files" / "gpufleet_host.py"
Answer = dict[str, t.Any]


def load_file(path: Path, name: str = "") -> t.Any:
    """A Python file as a module, loaded once under its name."""
    name = name or path.stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def module_command(name: str, python: str = sys.executable) -> list[str]:
    """The command line of one module, for an environment with PYTHONPATH; the options are expected on its input."""
    return [python, "-m", f"ansible_collections.gpufleet.vllm.plugins.modules.{name}"]


def environment(**changes: t.Optional[str]) -> dict[str, str]:
    """This process's variables and the collection on Python's path, with changes; None takes a variable away."""
    merged = {**os.environ, "PYTHONPATH": str(TREE), **changes}
    return {name: value for name, value in merged.items() if value is not None}


def read_answer(output: str) -> Answer:
    """A module's printed result as the controller shows it: newer Ansible hands it the secrets to mask in a field of their own."""
    answer: Answer = json.loads(output)
    answer.pop("_ansible_new_secrets", None)
    return answer


def run_module(
    name: str, folder: Path, env: t.Optional[t.Mapping[str, str]] = None, interpreter: str = sys.executable, **options: t.Any
) -> Answer:
    """The result of one module in a process of its own."""
    text = json.dumps({"ANSIBLE_MODULE_ARGS": {"_ansible_remote_tmp": str(folder), **options}})
    environ = env or environment()
    if interpreter == sys.executable:
        out, err = run_forked(name, environ, str(folder), text, timeout=120)
    else:
        command = module_command(name, interpreter)
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environ, check=False, cwd=folder, timeout=120)
        out, err = done.stdout, done.stderr
    assert out and not err, err
    return read_answer(out)


def wait_for(condition: t.Callable[[], t.Any], seconds: float = 30.0) -> None:
    """Look every few milliseconds until it is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so after {seconds:g} s"
        time.sleep(0.005)
