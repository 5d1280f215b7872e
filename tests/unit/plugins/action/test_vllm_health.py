# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_health as Ansible runs it, from the controller."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from support.running import TREE, environment
from support.served_unit import HandMade


def ansible(folder: Path, **options: t.Any) -> t.Any:
    """The result of the task."""
    command = [str(Path(sys.executable).parent / "ansible"), "localhost", "--connection=local", "--one-line"]
    done = subprocess.run(
        [*command, "--module-name=gpufleet.vllm.vllm_health", f"--args={json.dumps(options)}"],
        capture_output=True,
        text=True,
        env=environment(
            ANSIBLE_COLLECTIONS_PATH=str(TREE),
            ANSIBLE_ASYNC_DIR=str(folder / "jobs"),
            ANSIBLE_PYTHON_INTERPRETER=sys.executable,
            ANSIBLE_NOCOLOR="1",
        ),
        check=False,
        cwd=folder,
        timeout=60,
    )
    assert "{" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


def test_a_verdict_that_took_long_is_not_asked_for_again(server: HandMade, tmp_path: Path) -> None:
    """The brief run that a wait begins with had it already: only what ran out of time goes on as a job."""
    server.routes["/v1/chat/completions"] = lambda _handler: time.sleep(20)
    result = ansible(tmp_path, url=server.url, answer_timeout=5, timeout=60)
    assert result["code"] == "generation_timeout"
    assert len([path for path, _headers, _body in server.asked if path == "/v1/chat/completions"]) == 1
