# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups as the system manager gives them to units, for machines that let them be made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
import typing as t
from pathlib import Path

__all__ = ["UnitGroup", "is_possible"]

# Where the hierarchy is mounted that systemd sorts processes into: the older layout, the mixed one, the unified one.
_MOUNTS = {"name=systemd": ("/sys/fs/cgroup/systemd",), "": ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")}


def _mounts() -> t.Iterator[Path]:
    """Of this process's hierarchies those that can be written to and whose root is the manager's too."""
    for line in Path("/proc/1/cgroup").read_text().splitlines():
        controllers, path = line.split(":", 2)[1:]
        for mount in map(Path, _MOUNTS.get(controllers, ()) if path in ("/", "/init.scope") else ()):
            if os.access(mount / "cgroup.procs", os.W_OK):
                yield mount


def is_possible() -> bool:
    """Whether control groups can be made here."""
    return any(True for _mount in _mounts())


class UnitGroup:
    """The control group of a unit. A context manager that ends what is left in it.

    One at a time on a machine has a unit's name, as with the real manager: whoever ends a unit's left-overs looks at all of them.
    """

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._children: list[subprocess.Popen[str]] = []
        self._slice = next(_mounts()) / "gpufleettest.slice"
        self.folder = self._slice / unit

    def __enter__(self) -> UnitGroup:
        self._lock = (Path(tempfile.gettempdir()) / f"gpufleettest-{self.unit}.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_exception: object) -> None:
        end = time.monotonic() + 10
        while self.pids() and time.monotonic() < end:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            time.sleep(0.005)
        for child in self._children:
            child.communicate()
        self.folder.rmdir()
        with contextlib.suppress(OSError):
            self._slice.rmdir()
        self._lock.close()

    def pids(self) -> list[int]:
        """Who is in it and no zombie."""
        listed = map(int, (self.folder / "cgroup.procs").read_text().split())
        return [pid for pid in listed if _state(pid) not in ("Z", "X", "")]

    def command(self, argv: t.Sequence[str], *, shell_stays: bool = False) -> list[str]:
        """The command line that joins the group first; the shell that does so stays around it where wanted."""
        run = '"$@"; exit $?' if shell_stays else 'exec "$@"'
        return ["/bin/sh", "-c", f"echo $$ > {self.folder}/cgroup.procs; {run}", "sh", *argv]

    def start(self, argv: t.Sequence[str], **options: t.Any) -> subprocess.Popen[str]:
        """A process in the group, once it has printed a line."""
        child = subprocess.Popen(self.command(argv), stdout=subprocess.PIPE, text=True, **options)
        self._children.append(child)
        assert child.stdout and child.stdout.readline()
        return child


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""
