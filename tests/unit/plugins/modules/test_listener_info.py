# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""listener_info, really run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
MODULE = "ansible_collections.gpufleet.vllm.plugins.modules.listener_info"


def test_the_process_that_listens_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = {"port": server.getsockname()[1], "_ansible_remote_tmp": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", MODULE],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "build" / "tree")},
            check=True,
        )
    (listener,) = json.loads(done.stdout)["listeners"]
    assert (listener["address"], listener["pid"]) == ("127.0.0.1", os.getpid())
