# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End what an earlier run of a unit left behind, and nothing else. PRIVATE to the collection.

An engine whose API server was killed goes on alone and keeps its GPU memory for ever. Such a process is known by two things: it is
in the control group that the system manager gave the unit, and it began before anything of the unit's present run did. Names,
users and command lines say nothing: a stranger can have the same.
"""

from __future__ import annotations

import re
import typing as t

from .effects import Clock, ReadText, Sleep
from .errors import VllmError
from .procs import systemd_paths
from .unit import UnitState

__all__ = [
    "GIVE_UP",
    "GRACE",
    "Member",
    "Processes",
    "Reaped",
    "Reaper",
    "UnitRun",
    "ancestors",
    "check_unit",
    "invocation_of",
    "is_left_behind",
    "manager_roots",
    "run_of_unit",
    "settle",
    "system_unit",
]

GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL: an engine that still listens ends its workers in half of that."""
GIVE_UP = 10.0
"""Seconds from SIGKILL to the finding that the process cannot die."""
LOOK_EVERY = 0.5
"""Seconds from one look for processes left behind to the next."""

_SUFFIXES = ("/init.scope", "/system.slice", "/system")
_SLICE = re.compile(r"^[^/]+\.slice$")
_UNIT = re.compile(r"^[^/]+\.(service|scope)$")
_SERVICE = re.compile(r"^[A-Za-z0-9:_.@\\-]+\.service$")


class Member(t.NamedTuple):
    """A process of some system unit. ``invocation`` is the run it began in, where its environment still says so."""

    pid: int
    start_time: int
    name: str
    user: t.Optional[str]
    unit: t.Optional[str]
    invocation: t.Optional[str] = None
    is_dead: bool = False

    def describe(self) -> str:
        return f"pid {self.pid} {self.name} ({self.unit}, user {self.user or 'unknown'})"


class UnitRun(t.NamedTuple):
    """What of a unit is meant to be alive. ``began``: the start time of the oldest process of the present run, None where none runs.

    ``is_certain`` is false while that cannot be told, as during a stop: nothing may be ended then.
    """

    unit: str
    began: t.Optional[int] = None
    invocation: t.Optional[str] = None
    is_certain: bool = True


class Reaped(t.NamedTuple):
    """What became of a process left behind; ``signal`` is the last one sent."""

    pid: int
    name: str
    user: t.Optional[str]
    unit: t.Optional[str]
    start_time: int
    signal: t.Optional[str] = None
    gone: bool = False


# ---- whose a process is --------------------------------------------------------------------------------------------------


def manager_roots(cgroup_of_pid_1: str) -> dict[str, str]:
    """For each hierarchy the group below which the system manager keeps its units: / on a host, deeper in some containers."""
    return {controllers: _manager_root(path) for controllers, path in systemd_paths(cgroup_of_pid_1)}


def _manager_root(path: str) -> str:
    for suffix in _SUFFIXES:
        if path.endswith(suffix):
            return path[: -len(suffix)]
    return path.rstrip("/")


def system_unit(cgroup: str, roots: t.Mapping[str, str]) -> t.Optional[str]:
    """The unit of this machine's system manager that /proc/PID/cgroup names; None for a user's, a container's, or one below another.

    Above such a unit there are slices only, so ``user@1000.service/app.slice/vllm-a.service`` and the ``vllm-a.service`` of another
    systemd in a container are not the system's ``vllm-a.service``. The hierarchies must not contradict each other.
    """
    named = {
        _unit_below(path, roots[controllers]) for controllers, path in systemd_paths(cgroup) if controllers in roots and path.strip("/")
    }
    named.discard("")
    return named.pop() if len(named) == 1 else None


def _unit_below(path: str, root: str) -> t.Optional[str]:
    """The unit; an empty word where the path names none, None where it is not one of this manager's own."""
    if path == root:
        return ""
    if not path.startswith(f"{root}/"):
        return None
    parts = path[len(root) + 1 :].split("/")
    while parts and _SLICE.match(parts[0]):
        parts.pop(0)
    if not parts:
        return ""
    inner = [part for part in parts[1:] if _UNIT.match(part)]
    return parts[0] if _UNIT.match(parts[0]) and not inner and ".." not in parts else None


def check_unit(unit: t.Optional[str]) -> str:
    """The unit whose processes may be ended: a service by its full name, never a session or the like."""
    if unit and _SERVICE.match(unit):
        return unit
    raise VllmError(
        f"reap is own and unit is {unit!r}: whose processes are left over cannot be told.",
        code="bad_configuration",
        remedy="Name the deployment's own service, such as vllm-minimax-m25.service.",
    )


def is_left_behind(member: Member, run: UnitRun) -> bool:
    """Whether an earlier run of the unit began this process and is over. In doubt it is not."""
    if not run.is_certain or member.is_dead or member.unit != run.unit:
        return False
    if run.began is None:
        return True
    of_this_run = run.invocation and member.invocation == run.invocation
    return member.start_time < run.began and not of_this_run


StartTime = t.Callable[[int], t.Optional[int]]


def run_of_unit(state: UnitState, start_time: StartTime) -> UnitRun:
    """What of a unit runs, by the manager's word. To be asked after the processes were listed: what it does not run then is left over."""
    if state.active_state in ("inactive", "failed") or state.waits_for_restart:
        return UnitRun(state.name)
    pids = [pid for pid in (state.main_pid, state.control_pid) if pid]
    began = [start_time(pid) for pid in pids]
    if state.active_state == "deactivating" or not pids or None in began:
        return UnitRun(state.name, is_certain=False)
    return UnitRun(state.name, min(one for one in began if one is not None), state.invocation_id or None)


# ---- ending it -----------------------------------------------------------------------------------------------------------


class Processes(t.Protocol):
    """The edge: the real processes of a host."""

    def left_behind(self) -> t.Sequence[Member]:
        """Those of the unit that :func:`is_left_behind` says so of."""

    def lives(self, member: Member) -> bool:
        """Whether that very process is still there and no zombie."""

    def signal(self, member: Member, name: str) -> bool:
        """Send ``TERM`` or ``KILL`` to that very process; false where it is gone, or no longer in its unit."""


class _Pursuit:
    """One process left behind, from the first signal to its end."""

    def __init__(self, member: Member, now: float) -> None:
        self.member = member
        self.began = self.signalled = now
        self.signal = ""
        self.gone = self.gave_up = False

    @property
    def is_over(self) -> bool:
        return self.gone or self.gave_up


class Reaper:
    """Ends what a unit left behind, a step with each look: SIGTERM, SIGKILL after ``grace`` seconds, and says each step."""

    def __init__(self, unit: str, processes: Processes, say: t.Callable[[str], None], grace: float = GRACE) -> None:
        self._unit = unit
        self._processes = processes
        self._say = say
        self._grace = grace
        self._pursuits: dict[tuple[int, int], _Pursuit] = {}
        self._next_look: t.Optional[float] = None

    def look(self, now: float) -> None:
        """Find, signal, follow up. Cheap enough for every reading of a wait."""
        if self._next_look is None or now >= self._next_look:
            self._next_look = now + LOOK_EVERY
            for member in self._processes.left_behind():
                self._begin(member, now)
        for pursuit in self._pursuits.values():
            if not pursuit.is_over:
                self._follow(pursuit, now)

    def preview(self) -> list[dict[str, t.Any]]:
        """What :meth:`look` would end."""
        return [_record(member) for member in self._processes.left_behind()]

    @property
    def is_settled(self) -> bool:
        """Nothing is left that could still go."""
        return self._next_look is not None and all(pursuit.is_over for pursuit in self._pursuits.values())

    def records(self) -> list[dict[str, t.Any]]:
        """What was ended so far, or could not be."""
        return [_record(one.member, one.signal or None, one.gone) for one in self._pursuits.values() if one.signal]

    def _begin(self, member: Member, now: float) -> None:
        key = (member.pid, member.start_time)
        if key not in self._pursuits:
            self._pursuits[key] = _Pursuit(member, now)
            self._send(self._pursuits[key], "TERM", now)

    def _send(self, pursuit: _Pursuit, name: str, now: float) -> None:
        if not self._processes.signal(pursuit.member, name):
            pursuit.gone = True
            return
        age = "" if name == "TERM" else f" is still there {now - pursuit.began:.0f} s after SIGTERM"
        origin = f" is left over from an earlier run of {self._unit}" if name == "TERM" else ""
        pursuit.signal, pursuit.signalled = name, now
        self._say(f"{pursuit.member.describe()}{origin}{age}: sent SIG{name}")

    def _follow(self, pursuit: _Pursuit, now: float) -> None:
        waited = now - pursuit.signalled
        if not self._processes.lives(pursuit.member):
            pursuit.gone = True
            self._say(f"pid {pursuit.member.pid} {pursuit.member.name} is gone {now - pursuit.began:.1f} s after SIGTERM")
        elif pursuit.signal == "TERM" and waited >= self._grace:
            self._send(pursuit, "KILL", now)
        elif pursuit.signal == "KILL" and waited >= GIVE_UP:
            pursuit.gave_up = True
            self._say(f"{pursuit.member.describe()} does not die {waited:.0f} s after SIGKILL")


def _record(member: Member, signal: t.Optional[str] = None, gone: bool = False) -> dict[str, t.Any]:
    return Reaped(member.pid, member.name, member.user, member.unit, member.start_time, signal, gone)._asdict()


def settle(reaper: Reaper, interval: float, clock: Clock, sleep: Sleep) -> None:
    """End what is left behind where there is nothing else to wait for. It takes :data:`GRACE` and :data:`GIVE_UP` at most."""
    reaper.look(clock())
    while not reaper.is_settled:
        sleep(interval)
        reaper.look(clock())


# ---- reading members -----------------------------------------------------------------------------------------------------


def invocation_of(environ: str) -> t.Optional[str]:
    """The run of a unit in the text of /proc/PID/environ. A program that writes a title over it takes it away."""
    found = [line.partition("=")[2] for line in environ.split("\0") if line.startswith("INVOCATION_ID=")]
    return found[0] if found and re.fullmatch(r"[0-9a-f]{32}", found[0]) else None


def ancestors(pid: int, read_text: ReadText) -> list[int]:
    """A process and those it descends from, as far as /proc shows them."""
    line = [pid]
    while True:
        try:
            parent = int(read_text(f"/proc/{line[-1]}/stat").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return line
        if parent <= 0 or parent in line:
            return line
        line.append(parent)
