# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a TCP port or a socket file of this host, from /proc. PRIVATE to the collection."""

from __future__ import annotations

import ipaddress
import re
import sys
import typing as t

from .effects import ReadText
from .procs import unit_of_cgroup

__all__ = ["Listener", "ProcFs", "find_listeners", "find_socket_file"]

_LISTEN = "0A"
_ACCEPTS = 0x10000
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")


class ProcFs(t.NamedTuple):
    """How /proc is read: each raises :class:`OSError` for what is gone or hidden."""

    read_text: ReadText
    list_dir: t.Callable[[str], t.Sequence[str]]
    read_link: t.Callable[[str], str]


class Listener(t.NamedTuple):
    """One listening socket. Who holds it is unknown where /proc hides that process."""

    address: str
    port: int
    pid: t.Optional[int] = None
    name: t.Optional[str] = None
    unit: t.Optional[str] = None

    def describe(self) -> str:
        owner = f"pid {self.pid} ({', '.join(filter(None, [self.name, self.unit]))})" if self.pid else "a process that is not visible"
        return f"{self.address} port {self.port}: {owner}" if self.port else f"{self.address}: {owner}"


def find_listeners(proc: ProcFs, port: t.Optional[int] = None) -> list[Listener]:
    """Every listening TCP socket, or those on ``port``; one entry for each process that holds it, the oldest pid first."""
    sockets = [entry for table in ("tcp", "tcp6") for entry in _listening(proc, table) if port in (None, entry[1])]
    owners = _owners(proc, {inode for _address, _port, inode in sockets}) if sockets else {}
    found = [_listener(proc, address, number, pid) for address, number, inode in sockets for pid in owners.get(inode) or [None]]
    return sorted(found, key=lambda entry: (entry.port, entry.address, entry.pid or 0))


def find_socket_file(proc: ProcFs, path: str, real_path: t.Callable[[str], str]) -> list[Listener]:
    """Who listens on a socket file; its path is the address, and there is no port. A file that an ended process left has nobody."""
    inodes = {inode for bound, inode in _listening_files(proc) if real_path(bound) == real_path(path)}
    owners = _owners(proc, inodes) if inodes else {}
    return [_listener(proc, path, 0, pid) for inode in sorted(inodes) for pid in owners.get(inode) or [None]]


def _listening(proc: ProcFs, table: str) -> t.Iterator[tuple[str, int, str]]:
    try:
        lines = proc.read_text(f"/proc/net/{table}").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            address, _colon, port = fields[1].partition(":")
            yield _address(address), int(port, 16), fields[9]


def _listening_files(proc: ProcFs) -> t.Iterator[tuple[str, str]]:
    try:
        lines = proc.read_text("/proc/net/unix").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=7)
        if len(fields) > 7 and int(fields[3], 16) & _ACCEPTS and fields[7].startswith("/"):
            yield fields[7], fields[6]


def _address(text: str) -> str:
    """The kernel prints each 32-bit word of the address in this machine's byte order."""
    words = [bytes.fromhex(text[start : start + 8]) for start in range(0, len(text), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return str(ipaddress.ip_address(packed))


def _owners(proc: ProcFs, inodes: t.AbstractSet[str]) -> dict[str, list[t.Optional[int]]]:
    owners: dict[str, list[t.Optional[int]]] = {}
    for pid in sorted(int(name) for name in proc.list_dir("/proc") if name.isdigit()):
        for inode in inodes & _sockets_of(proc, pid):
            owners.setdefault(inode, []).append(pid)
    return owners


def _sockets_of(proc: ProcFs, pid: int) -> set[str]:
    try:
        descriptors = proc.list_dir(f"/proc/{pid}/fd")
    except OSError:
        return set()
    inodes = set()
    for descriptor in descriptors:
        try:
            found = _SOCKET.match(proc.read_link(f"/proc/{pid}/fd/{descriptor}"))
        except OSError:
            continue
        if found:
            inodes.add(found.group(1))
    return inodes


def _listener(proc: ProcFs, address: str, port: int, pid: t.Optional[int]) -> Listener:
    if pid is None:
        return Listener(address, port)
    return Listener(
        address, port, pid, _read(proc, f"/proc/{pid}/comm").strip() or None, unit_of_cgroup(_read(proc, f"/proc/{pid}/cgroup"))
    )


def _read(proc: ProcFs, path: str) -> str:
    try:
        return proc.read_text(path)
    except OSError:
        return ""
