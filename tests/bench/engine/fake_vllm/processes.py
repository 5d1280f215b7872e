# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Children with vLLM's process names, and the line-by-line JSON between them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import typing as t

__all__ = ["Channel", "Child", "set_title", "start_child"]

_PR_SET_NAME = 15


def set_title(title: str) -> None:
    """The kernel's name of this process, as /proc/PID/comm shows it: cut to 15 characters."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)


class Channel:
    """Messages over a socket pair. :meth:`receive` answers ``None`` when the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._file = end.makefile("rb")

    def send(self, message: t.Mapping[str, t.Any]) -> bool:
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> t.Optional[dict[str, t.Any]]:
        try:
            line = self._file.readline()
        except OSError:
            return None
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def close(self) -> None:
        self._file.close()
        self.socket.close()


class Child(t.NamedTuple):
    """A started child and the way to talk to it."""

    pid: int
    channel: Channel

    def kill(self, number: int = signal.SIGKILL) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def status(self, block: bool = False) -> t.Optional[int]:
        """Its exit status once it is over (negative for a signal), else ``None``."""
        try:
            pid, status = os.waitpid(self.pid, 0 if block else os.WNOHANG)
        except ChildProcessError:
            return 0
        return os.waitstatus_to_exitcode(status) if pid else None


def start_child(title: str, body: t.Callable[[Channel], int], close: t.Sequence[socket.socket] = ()) -> Child:
    """Fork ``body(channel)``; its answer is the exit status. ``close`` names sockets that the child must not keep open."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(pid, Channel(ours))
    status = 1
    try:
        for end in (ours, *close):
            end.close()
        set_title(title)
        status = body(Channel(theirs))
    finally:
        os._exit(status)
