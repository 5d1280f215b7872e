# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_memory_wait as Ansible runs it, from the controller."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from support.gpu_machine import FAKE_NVML
from support.running import TREE
from support.units import UnitGroup, is_possible

UNIT = "vllm-tiny.service"
HOLD = [sys.executable, str(FAKE_NVML), "hold", "--gpu=2", "--mib=60000", "--linger=6"]


def ansible(machine: t.Any, folder: Path, **options: t.Any) -> t.Any:
    """The result of the task."""
    command = [str(Path(sys.executable).parent / "ansible"), "localhost", "--connection=local", "--one-line"]
    environment = {
        **machine.environment,
        "ANSIBLE_COLLECTIONS_PATH": str(TREE),
        "ANSIBLE_ASYNC_DIR": str(folder / "jobs"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(
        [*command, "--module-name=gpufleet.vllm.gpu_memory_wait", f"--args={json.dumps(options)}"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        cwd=folder,
        timeout=60,
    )
    assert "{" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


@pytest.mark.skipif(not is_possible(), reason="control groups cannot be made here")
def test_what_was_ended_is_told_however_long_it_took(gpu_machine: t.Any, tmp_path: Path) -> None:
    """Its memory comes back after more than the brief run lasts that other waits begin with, and whose result is dropped."""
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho LoadState=loaded; echo ActiveState=failed; echo SubState=failed\n")
    systemctl.chmod(0o755)
    gpu_machine.environment["PATH"] = f"{systemctl.parent}:{gpu_machine.environment['PATH']}"
    with UnitGroup(UNIT) as group:
        left = group.start(HOLD, env=gpu_machine.environment)
        result = ansible(gpu_machine, tmp_path, gpus=["2"], max_used="1G", timeout=30, reap="own", unit=UNIT)
        assert left.wait() == -signal.SIGTERM
    assert (result["changed"], result["free"]) == (True, True)
    assert [(one["pid"], one["signal"], one["gone"]) for one in result["reaped"]] == [(left.pid, "TERM", True)]
