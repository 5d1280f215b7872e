# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who a process is and how it fares: name, user, systemd unit, container, state, start time, all from /proc. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from .effects import ReadText

__all__ = ["ListFolder", "ProcessInfo", "UserName", "container_of_cgroup", "read_process", "systemd_paths", "unit_of_cgroup"]

UserName = t.Callable[[int], str]
"""The name of a user id; raises :class:`KeyError` where it has none (as :func:`pwd.getpwuid` does)."""

ListFolder = t.Callable[[str], t.Sequence[str]]
"""The names in a folder; raises :class:`OSError` as :func:`os.listdir` does."""

_SIGKILL_BIT = 1 << (9 - 1)
_PF_EXITING = 0x4
_UNIT = re.compile(r"\.(service|scope)$")
_ID = r"([0-9a-f]{12})[0-9a-f]{52}"
_CONTAINERS = (
    ("docker", re.compile(rf"/docker-{_ID}\.scope(?:/|$)|/docker/{_ID}(?:/|$)")),
    ("podman", re.compile(rf"/libpod-{_ID}(?:\.scope)?(?:/|$)")),
    ("containerd", re.compile(rf"/cri-containerd-{_ID}\.scope(?:/|$)|/[^/]*:cri-containerd:{_ID}(?:/|$)")),
    ("cri-o", re.compile(rf"/crio-{_ID}\.scope(?:/|$)|/crio-{_ID}(?:/|$)")),
    ("kubernetes", re.compile(rf"/kubepods[^ ]*/{_ID}(?:/|$)")),
    ("lxc", re.compile(r"/lxc(?:\.payload\.|/)([^/]+)(?:/|$)")),
    ("machine", re.compile(r"/machine-([^/]+)\.scope(?:/|$)|/systemd-nspawn@([^/]+)\.service(?:/|$)")),
)


class ProcessInfo(t.NamedTuple):
    """One process at one moment. ``start_time`` (clock ticks since boot) tells it from a later one with the same pid.

    ``kill_pending``: SIGKILL was sent and a thread has not taken it, because it sits in a kernel call that it does not leave.
    ``exiting``: it has taken it, or ends by itself, and the kernel takes it apart, which lasts long where much memory is pinned.
    """

    pid: int
    name: str
    user: t.Optional[str]
    unit: t.Optional[str]
    state: str
    start_time: int
    kill_pending: bool
    exiting: bool = False
    container: t.Optional[str] = None

    @property
    def is_dead(self) -> bool:
        """Ended, although its parent may not have collected it yet."""
        return self.state in ("Z", "X")


class _Thread(t.NamedTuple):
    """What tells a thread that is stuck from one that ends."""

    state: str
    flags: int
    kill_pending: bool

    @property
    def is_exiting(self) -> bool:
        return bool(self.flags & _PF_EXITING) or self.state in ("Z", "X")


def _no_folder(path: str) -> t.Sequence[str]:
    raise FileNotFoundError(path)


def read_process(pid: int, read_text: ReadText, user_name: UserName, list_folder: ListFolder = _no_folder) -> t.Optional[ProcessInfo]:
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
    cgroup = _read_or_empty(f"/proc/{pid}/cgroup", read_text)
    threads = _threads(pid, stat, status, read_text, list_folder)
    alive = [one for one in threads if not one.is_exiting]
    return ProcessInfo(
        pid=pid,
        name=_full_name(comm, _read_or_empty(f"/proc/{pid}/cmdline", read_text)),
        user=_user(status, user_name),
        unit=unit_of_cgroup(cgroup),
        # The state in /proc/PID/stat is the first thread's alone: it can be a zombie while another one still holds everything.
        state=alive[0].state if alive and fields[0] == "Z" else fields[0],
        start_time=int(fields[19]),
        kill_pending=any(one.kill_pending for one in alive),
        exiting=not alive,
        container=container_of_cgroup(cgroup),
    )


def systemd_paths(text: str) -> list[tuple[str, str]]:
    """Of /proc/PID/cgroup the hierarchies that systemd may sort processes into, each with the path in it."""
    lines = ([*line.split(":", 2), "", ""][1:3] for line in text.splitlines())
    return [(controllers, path) for controllers, path in lines if controllers in ("", "name=systemd")]


def unit_of_cgroup(text: str) -> t.Optional[str]:
    """The innermost service or scope in the text of /proc/PID/cgroup, under the unified and the older hierarchy alike."""
    for _controllers, path in systemd_paths(text):
        units = [part for part in path.split("/") if _UNIT.search(part)]
        if units:
            return units[-1]
    return None


def container_of_cgroup(text: str) -> t.Optional[str]:
    """The container in the text of /proc/PID/cgroup, as ``docker://0123456789ab``: the runtime and what it calls the container."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        for runtime, pattern in _CONTAINERS:
            found = pattern.search(path)
            if found:
                return f"{runtime}://{next(filter(None, found.groups()))}"
    return None


def _threads(pid: int, stat: str, status: str, read_text: ReadText, list_folder: ListFolder) -> list[_Thread]:
    """The first thread; where it ends or a SIGKILL is about, all of them, because it is any other one that may be stuck."""
    first = _thread(stat, status)
    if not (first.is_exiting or _pending(status, "SigPnd") or _pending(status, "ShdPnd")):
        return [first]
    found = []
    for name in _names(f"/proc/{pid}/task", list_folder):
        folder = f"/proc/{pid}/task/{name}"
        one = _thread(_read_or_empty(f"{folder}/stat", read_text), _read_or_empty(f"{folder}/status", read_text))
        found += [one] if one.state else []
    return found or [first]


def _thread(stat: str, status: str) -> _Thread:
    fields = stat.rpartition(")")[2].split()
    return _Thread(fields[0], int(fields[6]), _pending(status, "SigPnd")) if len(fields) > 6 else _Thread("", 0, False)


def _names(path: str, list_folder: ListFolder) -> t.Sequence[str]:
    try:
        return sorted(list_folder(path))
    except OSError:
        return ()


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


def _pending(status: str, mask: str) -> bool:
    """Whether a SIGKILL waits in that mask. It stays in the process's own (``ShdPnd``) until the end, and leaves the thread's
    (``SigPnd``) when the thread takes it."""
    found = re.search(rf"^{mask}:\s+([0-9a-fA-F]+)", status, re.MULTILINE)
    return bool(found and int(found.group(1), 16) & _SIGKILL_BIT)


def _read_or_empty(path: str, read_text: ReadText) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""
