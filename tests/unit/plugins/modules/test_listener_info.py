# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""listener_info, really run."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from support.running import run_module


def test_the_process_that_listens_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (listener,) = run_module("listener_info", tmp_path, port=server.getsockname()[1])["listeners"]
    assert (listener["address"], listener["pid"]) == ("127.0.0.1", os.getpid())
