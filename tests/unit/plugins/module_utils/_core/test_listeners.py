# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listening sockets and their holders, from a /proc made of text."""

from __future__ import annotations

import os
import socket
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.listeners import Listener, ProcFs, find_listeners

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = f"{HEAD}   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000   0 0 501 1\n"
TCP += "   1: 0100007F:1F40 0100007F:C001 01 00000000:00000000 00:00000000 00000000   0 0 502 1\n"
TCP6 = f"{HEAD}   0: 00000000000000000000000001000000:0016 {'0' * 32}:0000 0A 00000000:00000000 00:00000000 00000000   0 0 503 1\n"
FILES = {
    "/proc/net/tcp": TCP,
    "/proc/net/tcp6": TCP6,
    "/proc/40/comm": "vllm\n",
    "/proc/40/cgroup": "0::/system.slice/vllm-m.service\n",
}
LINKS = {"/proc/40/fd/3": "socket:[501]", "/proc/40/fd/4": "/dev/null", "/proc/41/fd/5": "socket:[999]"}


def read(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(path)
    return FILES[path]


def names(path: str) -> t.Sequence[str]:
    if path == "/proc":
        return ["40", "41", "42", "net"]
    found = [link.rsplit("/", 1)[1] for link in LINKS if link.startswith(f"{path}/")]
    if not found:
        raise PermissionError(path)
    return found


PROC = ProcFs(read, names, lambda path: LINKS[path])


@pytest.mark.skipif(sys.byteorder != "little", reason="the text is from a little-endian machine")
def test_the_holder_is_named_with_its_unit_and_a_hidden_one_is_unknown() -> None:
    assert find_listeners(PROC) == [Listener("::1", 22), Listener("127.0.0.1", 8000, 40, "vllm", "vllm-m.service")]
    assert find_listeners(PROC, 8000)[0].describe() == "127.0.0.1 port 8000: pid 40 (vllm, vllm-m.service)"
    assert find_listeners(PROC, 9) == []


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_this_process_is_found_once_it_listens(family: socket.AddressFamily, address: str) -> None:
    def text(path: str) -> str:
        return Path(path).read_text(encoding="utf-8")

    with socket.socket(family) as bound:
        try:
            bound.bind((address, 0))
        except OSError:
            pytest.skip(f"no {address} here")
        port = bound.getsockname()[1]
        proc = ProcFs(text, os.listdir, os.readlink)
        assert find_listeners(proc, port) == []
        bound.listen()
        assert [(one.address, one.pid) for one in find_listeners(proc, port)] == [(address, os.getpid())]
