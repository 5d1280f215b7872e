# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before a reload of HAProxy: save what was set at run time, so that a server that was taken out stays out.

The saved state also holds each server's port, and HAProxy prefers that to its configuration. So each port is written as the
configuration that is about to be loaded has it. A server that is not in it is left out.
"""

from __future__ import annotations

import socket
import sys
import typing as t
from pathlib import Path

ADMIN = Path("/run/haproxy/admin.sock")
STATE = Path("/run/haproxy/server-state")
PORT = 18


def configured_ports(configuration: str) -> dict[tuple[str, str], str]:
    """The port of each server, by backend and name."""
    ports, section = {}, ""
    for words in filter(None, map(str.split, configuration.splitlines())):
        if words[0] in ("backend", "listen", "frontend", "global", "defaults"):
            section = words[1] if len(words) > 1 else ""
        elif words[0] == "server" and len(words) > 2:
            ports[section, words[1]] = words[2].rpartition(":")[2]
    return ports


def corrected(state: str, configuration: str) -> str:
    """The state with the ports of the configuration."""
    ports = configured_ports(configuration)
    return "".join(f"{line}\n" for line in _corrected_lines(state.splitlines(), ports))


def _corrected_lines(lines: t.Iterable[str], ports: t.Mapping[tuple[str, str], str]) -> t.Iterator[str]:
    for line in lines:
        fields = line.split()
        if len(fields) <= PORT or line.startswith("#"):
            yield line
        elif (fields[1], fields[3]) in ports:
            yield " ".join([*fields[:PORT], ports[fields[1], fields[3]], *fields[PORT + 1 :]])


def ask(path: str, command: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(path)
        connection.sendall(f"{command}\n".encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("r", encoding="utf-8", errors="replace") as answer:
            return answer.read()


def main() -> None:
    """Write the state beside its place and put it there in one step. Without a socket there is none to save."""
    if not ADMIN.exists():
        STATE.unlink(missing_ok=True)
        return
    part = STATE.with_suffix(".part")
    part.write_text(corrected(ask(str(ADMIN), "show servers state"), Path(sys.argv[1]).read_text(encoding="utf-8")), encoding="utf-8")
    part.replace(STATE)


if __name__ == "__main__":
    main()
