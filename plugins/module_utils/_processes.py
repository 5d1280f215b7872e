# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real processes of the host: who they are, and signals to exactly those that are meant. PRIVATE to the collection.

No ansible import here: the host helper uses this file as well.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import typing as t

from ._core.effects import ReadText
from ._core.errors import VllmError
from ._core.procs import ProcessInfo, read_process
from ._core.reap import Member, UnitRun, ancestors, invocation_of, is_left_behind, manager_roots, system_unit

__all__ = ["UnitProcesses", "identify", "own_run", "read_text", "start_time"]

_SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


def read_text(path: str) -> str:
    """The core's reader of files."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def identify(pid: int) -> t.Optional[ProcessInfo]:
    """Who a process is; None where it is gone or not visible."""
    return read_process(pid, read_text, lambda uid: pwd.getpwuid(uid).pw_name, os.listdir)


def start_time(pid: int) -> t.Optional[int]:
    """When a process began, in clock ticks since boot."""
    found = identify(pid)
    return None if found is None else found.start_time


class UnitProcesses:
    """The processes of one system unit; ``find_run`` says what of it is meant to be alive, ``read`` reads control groups."""

    def __init__(self, unit: str, find_run: t.Callable[[], UnitRun], read: ReadText = read_text) -> None:
        self._unit = unit
        self._find_run = find_run
        self._read = read

    def left_behind(self) -> list[Member]:
        """Listed first and judged then: a process that begins in between is not among them."""
        roots = _roots(self._read)
        spared = ancestors(os.getpid(), read_text)
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in spared)
        members = list(filter(None, (self._member(pid, roots) for pid in pids)))
        if not members:
            return []
        run = self._find_run()
        return [member for member in members if is_left_behind(member, run)]

    def lives(self, member: Member) -> bool:
        """Whether that very process is still there and no zombie."""
        found = identify(member.pid)
        return found is not None and found.start_time == member.start_time and not found.is_dead

    def signal(self, member: Member, name: str) -> bool:
        """Where the kernel has handles of processes, the one opened here is of the process that is looked at then, or of none."""
        handle = _open_handle(member.pid)
        try:
            now = self._member(member.pid, _roots(self._read))
            if now is None or now.is_dead or now.start_time != member.start_time:
                return False
            _send(member.pid, handle, _SIGNALS[name])
        except ProcessLookupError:
            return False
        except PermissionError as exc:
            raise VllmError(
                f"SIG{name} to {member.describe()} is not permitted.", code="reap_denied", remedy="Run this as root (become: true)."
            ) from exc
        finally:
            if handle is not None:
                os.close(handle)
        return True

    def _member(self, pid: int, roots: t.Mapping[str, str]) -> t.Optional[Member]:
        """The process, if it is of this unit."""
        if _unit_of(pid, roots, self._read) != self._unit:
            return None
        found = identify(pid)
        if found is None:
            return None
        invocation = invocation_of(_read_or_empty(f"/proc/{pid}/environ", read_text))
        return Member(pid, found.start_time, found.name, found.user, self._unit, invocation, found.is_dead)


def own_run(unit: str, invocation: t.Optional[str]) -> UnitRun:
    """The run that this process is a command of, as ExecStartPre= is: it began with this process, or with the shell around it.

    Nothing is certain, so nothing is left over, where this process is not in the unit: somebody runs it by hand.
    """
    roots = _roots(read_text)
    ours = [pid for pid in ancestors(os.getpid(), read_text) if _unit_of(pid, roots, read_text) == unit]
    began = [start_time(pid) for pid in ours]
    if os.getpid() not in ours or None in began:
        return UnitRun(unit, is_certain=False)
    return UnitRun(unit, min(one for one in began if one is not None), invocation)


def _roots(read: ReadText) -> dict[str, str]:
    return manager_roots(_read_or_empty("/proc/1/cgroup", read))


def _unit_of(pid: int, roots: t.Mapping[str, str], read: ReadText) -> t.Optional[str]:
    return system_unit(_read_or_empty(f"/proc/{pid}/cgroup", read), roots)


def _open_handle(pid: int) -> t.Optional[int]:
    """Older kernels and Pythons, and some sandboxes, have none."""
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None


def _send(pid: int, handle: t.Optional[int], number: signal.Signals) -> None:
    if handle is None:
        os.kill(pid, number)
    else:
        signal.pidfd_send_signal(handle, number)


def _read_or_empty(path: str, read: ReadText) -> str:
    try:
        return read(path)
    except OSError:
        return ""
