# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules in processes of their own, forked off one that has imported Ansible: importing takes longer than most modules do.

As a program it is that process: it takes orders on its input and answers each when the module has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import typing as t

__all__ = ["run_forked"]

MODULES = "ansible_collections.gpufleet.vllm.plugins.modules"
# What a process takes from its environment once and for all, when it begins.
_AT_THE_BEGINNING = ("LD_", "PYTHON", "LC_", "LANG")
_Key = tuple[tuple[str, str], ...]
_idle: dict[_Key, list[subprocess.Popen[str]]] = {}


def run_forked(name: str, env: t.Mapping[str, str], cwd: str, text: str, timeout: float) -> tuple[str, str]:
    """What a module prints to its output and to its errors, given its options as text."""
    key = tuple(sorted((word, value) for word, value in env.items() if word.startswith(_AT_THE_BEGINNING)))
    idle = _idle.setdefault(key, [])
    parent = idle.pop() if idle else _start(env)
    assert parent.stdin and parent.stdout
    parent.stdin.write(json.dumps({"module": name, "env": dict(env), "cwd": cwd, "input": text}) + "\n")
    parent.stdin.flush()
    if not select.select([parent.stdout], [], [], timeout)[0]:
        os.killpg(parent.pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(name, timeout)
    out, err = json.loads(parent.stdout.readline())
    idle.append(parent)
    return out, err


def _start(env: t.Mapping[str, str]) -> subprocess.Popen[str]:
    """Ends with this process, when its input is closed."""
    return subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, start_new_session=True
    )


def _serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        module = f"{MODULES}.{order['module']}"
        importlib.import_module(module)  # with all that it imports, which stays
        del sys.modules[module]
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(order["input"].encode())
            given.seek(0)
            pid = os.fork()
            if pid == 0:
                _become(module, order, (given.fileno(), out.fileno(), err.fileno()))
            os.waitpid(pid, 0)
            answer = []
            for file in (out, err):
                file.seek(0)
                answer.append(file.read().decode())
        print(json.dumps(answer), flush=True)


def _become(module: str, order: t.Mapping[str, t.Any], files: t.Sequence[int]) -> t.NoReturn:
    status = 0
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        sys.stdin = os.fdopen(0, closefd=False)
        sys.argv = [module]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else 1
    finally:
        kind, value, trace = sys.exc_info()
        if kind and value:
            sys.excepthook(kind, value, trace)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(1 if kind else status)


if __name__ == "__main__":
    for already in ("ansible.module_utils.basic", "ansible.module_utils.urls"):
        importlib.import_module(already)
    _serve()
