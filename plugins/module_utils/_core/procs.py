# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who a process is: name, user, systemd unit, state, start time, all from /proc. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from .effects import ReadText

__all__ = ["ProcessInfo", "UserName", "read_process", "unit_of_cgroup"]

UserName = t.Callable[[int], str]
"""The name of a user id; raises :class:`KeyError` where it has none (as :func:`pwd.getpwuid` does)."""

_SIGKILL_BIT = 1 << (9 - 1)
_UNIT = re.compile(r"\.(service|scope)$")


class ProcessInfo(t.NamedTuple):
    """One process at one moment. ``start_time`` (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    name: str
    user: t.Optional[str]
    unit: t.Optional[str]
    state: str
    start_time: int
    kill_pending: bool

    @property
    def is_dead(self) -> bool:
        """Ended, although its parent may not have collected it yet."""
        return self.state in ("Z", "X")


def read_process(pid: int, read_text: ReadText, user_name: UserName) -> t.Optional[ProcessInfo]:
    """The process, or :data:`None` where it is gone or not visible from here (another PID namespace, hidden /proc)."""
    try:
        stat = read_text(f"/proc/{pid}/stat")
        status = read_text(f"/proc/{pid}/status")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    comm = stat.partition("(")[2].rpartition(")")[0]
    return ProcessInfo(
        pid=pid,
        name=_full_name(comm, _read_or_empty(f"/proc/{pid}/cmdline", read_text)),
        user=_user(status, user_name),
        unit=unit_of_cgroup(_read_or_empty(f"/proc/{pid}/cgroup", read_text)),
        state=fields[0],
        start_time=int(fields[19]),
        kill_pending=_kill_pending(status),
    )


def unit_of_cgroup(text: str) -> t.Optional[str]:
    """The innermost service or scope in the text of /proc/PID/cgroup, under the unified and the older hierarchy alike."""
    for line in text.splitlines():
        _number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in ("", "name=systemd"):
            units = [part for part in path.split("/") if _UNIT.search(part)]
            if units:
                return units[-1]
    return None


def _full_name(comm: str, cmdline: str) -> str:
    """The kernel keeps 15 characters; where the command line starts with the same word, it has the rest of it."""
    first = cmdline.split("\0", 1)[0].strip()
    program = first.rsplit("/", 1)[-1]
    return program if comm and len(comm) >= 15 and program.startswith(comm) else comm


def _user(status: str, user_name: UserName) -> t.Optional[str]:
    found = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    if not found:
        return None
    try:
        return user_name(int(found.group(1)))
    except KeyError:
        return found.group(1)


def _kill_pending(status: str) -> bool:
    """SIGKILL was sent and not yet taken: the process sits in a kernel call that it does not leave."""
    masks = re.findall(r"^(?:SigPnd|ShdPnd):\s+([0-9a-fA-F]+)", status, re.MULTILINE)
    return any(int(mask, 16) & _SIGKILL_BIT for mask in masks)


def _read_or_empty(path: str, read_text: ReadText) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""
