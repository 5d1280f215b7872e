# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One writer at a time, on shared disks too. PRIVATE to the collection.

On one host the kernel's flock decides, so a killed writer is gone at once. Between hosts flock may be a matter of each host alone, or
not be there at all. So whoever wants to write also puts a record beside the lock file: an empty file, which a full disk has room for,
with its writer in its name. It holds the lock if it then finds no other live record: of two who do so at the same time, the
later one to look sees the other's. Nobody has to take a record over, so there is nothing to race for: a dead one just no longer counts.
A record of another host lives as long as its heartbeat, judged by the clock of the file system alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import socket
import threading
import time
import typing as t
from pathlib import Path

from ._core.effects import Report
from ._core.errors import VllmError

__all__ = ["try_writer_lock", "writer_lock"]

STALE = 30.0
"""Seconds without a heartbeat after which a record of another host no longer counts."""

BEAT = 5.0
"""Seconds between two heartbeats."""

PAUSE = 0.5
"""Seconds between two tries, or up to twice as many: hosts that begin together must not go on colliding."""

_NO_FLOCK = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextlib.contextmanager
def writer_lock(path: Path, *, timeout: float, report: Report) -> t.Iterator[None]:
    """Hold the lock file, waiting up to ``timeout`` seconds for another writer, who is named."""
    lock = _Lock(path, patient=True)
    deadline = time.monotonic() + timeout
    while True:
        with lock.attempt() as other:
            if other is None:
                yield
                return
        if time.monotonic() >= deadline:
            raise VllmError(
                f"{path}: {other} has been writing the same folder for more than {timeout:.0f} s.",
                code="locked",
                remedy="Wait for it, or raise lock_timeout.",
            )
        report({"what": f"waiting for {other}, which writes the same folder"})
        time.sleep(PAUSE * (1 + secrets.randbelow(1000) / 1000))


@contextlib.contextmanager
def try_writer_lock(path: Path) -> t.Iterator[bool]:
    """Hold the lock file if nobody else does, and say whether that is so. Never waits."""
    with _Lock(path, patient=False).attempt() as other:
        if other is None:
            yield True
            return
    yield False


class _Writer(t.NamedTuple):
    """Who wants to write, as told by the name of a record."""

    host: str = ""
    pid: str = ""
    started: str = ""
    boot: str = ""
    pid_space: str = ""
    flock: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "another process"

    @property
    def runs(self) -> bool:
        """Whether it does, for one whose process ids are ours."""
        started = _started(self.pid)
        if started:
            return started == self.started
        try:
            os.kill(int(self.pid), 0)
        except PermissionError:
            return True
        except ProcessLookupError:
            return False
        return False


class _Lock:
    """The tries of one process for one lock file.

    A ``patient`` one has watched a foreign record for some heartbeats before it counts it as dead: after an outage of the disk
    a live writer takes a moment to be seen again.
    """

    def __init__(self, path: Path, *, patient: bool) -> None:
        self._path = path
        self._patience = 2 * BEAT if patient else 0.0
        self._watched: dict[tuple[str, int], float] = {}

    @contextlib.contextmanager
    def attempt(self) -> t.Iterator[t.Optional[_Writer]]:
        """Hold the lock meanwhile; or answer with who does."""
        # Programs that are started from here do not inherit it.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            flock = _try_flock(descriptor)
            me = _myself("flock" if flock else "")
            other = self._holder(me) if flock is False else self._other(me)
            if other:
                yield other
            else:
                with _record(self._path, me) as mine:
                    other = self._other(me, mine)
                    with contextlib.nullcontext() if other else _heartbeat(mine):
                        yield other
        finally:
            os.close(descriptor)

    def _records(self) -> dict[Path, _Writer]:
        opening = f"{self._path.name}."
        beside = [entry for entry in self._path.parent.iterdir() if entry.name.startswith(opening)]
        writers = {entry: _writer_of(entry.name[len(opening) :]) for entry in beside}
        return {entry: writer for entry, writer in writers.items() if writer}

    def _holder(self, me: _Writer) -> _Writer:
        """Who has the kernel's lock."""
        writers = sorted(self._records().values(), key=lambda writer: writer.boot == me.boot)
        return writers[-1] if writers else _Writer()

    def _other(self, me: _Writer, mine: t.Optional[Path] = None) -> t.Optional[_Writer]:
        """Another writer who counts. What dead ones left is removed: no other will ever have its name."""
        records = self._records()
        if mine and records.pop(mine, None) is None:
            return _Writer()
        for record, writer in records.items():
            if self._lives(record, writer, me):
                return writer
            with contextlib.suppress(OSError):
                record.unlink()
        return None

    def _lives(self, record: Path, writer: _Writer, me: _Writer) -> bool:
        if writer.boot == me.boot and writer.flock and me.flock:
            # It had the kernel's lock, which is mine now.
            return False
        if (writer.boot, writer.pid_space) == (me.boot, me.pid_space):
            return writer.runs
        try:
            beat = record.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        now = time.monotonic()
        first_seen = self._watched.setdefault((record.name, beat), now)
        return _clock_of(record.parent) - beat / 1e9 < STALE or now - first_seen < self._patience


def _try_flock(descriptor: int) -> t.Optional[bool]:
    """Whether the kernel's lock is ours now; None where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        if exc.errno in _NO_FLOCK:
            return None
        raise
    return True


def _clock_of(folder: Path) -> float:
    """The time by the clock that stamps the files there, which need not be this host's."""
    probe = folder / f".clock.{secrets.token_hex(8)}"
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


# -- records -------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _record(path: Path, me: _Writer) -> t.Iterator[Path]:
    """My own record, there as long as this lasts."""
    mine = path.with_name(f"{path.name}.{','.join([*me, secrets.token_hex(4)])}")
    mine.touch(exist_ok=False)
    try:
        yield mine
    finally:
        mine.unlink(missing_ok=True)


def _writer_of(name: str) -> t.Optional[_Writer]:
    """The writer in the name of a record; None where it is the name of something else."""
    parts = name.split(",")[:-1]
    return _Writer(*parts) if len(parts) == len(_Writer._fields) and parts[1].isdigit() else None


@contextlib.contextmanager
def _heartbeat(record: Path) -> t.Iterator[None]:
    """Keep a record fresh from a thread: it beats whatever the process is doing, ends with it, and is in none that is started from it."""
    over = threading.Event()
    threading.Thread(target=_beat, args=(record, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _beat(record: Path, over: threading.Event) -> None:
    while not over.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(record)


# -- this process --------------------------------------------------------------------------------------------------------------


def _myself(flock: str) -> _Writer:
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())[:40]
    return _Writer(host, str(os.getpid()), _started("self"), _boot(), re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")), flock)


def _boot() -> str:
    """Tells running kernels apart; containers of one host share it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:13]


def _started(pid: str) -> str:
    """When a process began, in clock ticks since boot; nothing where it is not to be seen or ended already."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
