# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock among real processes; another host is played by another boot id, a file system without flock by the error it answers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils import _writer_lock
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._writer_lock import try_writer_lock, writer_lock
from support.running import environment

PROGRAM = """
import errno, fcntl, os, socket, sys, time
from pathlib import Path
from ansible_collections.gpufleet.vllm.plugins.module_utils import _writer_lock as lock

host, flock, action, path = sys.argv[1:5]
if host != "here":
    lock._boot = lambda: host
    socket.gethostname = lambda: host
if flock == "unsupported":
    def refuse(*_arguments):
        raise OSError(errno.ENOLCK, "No locks available")
    fcntl.flock = refuse
if flock == "local":
    # Each host has its own.
    own = open(f"{path}-{host}", "a")
    taken = fcntl.flock
    fcntl.flock = lambda _descriptor, how: taken(own.fileno(), how)
lock.BEAT, lock.STALE = float(os.environ.get("BEAT", 5)), float(os.environ.get("STALE", 30))
"""
HOLD = """
with lock.writer_lock(Path(path), timeout=20, report=print):
    print("held", flush=True)
    sys.stdin.read()
"""
WORK = """
lock.PAUSE = 0.02
inside = Path(f"{path}-inside")
for turn in range(int(sys.argv[5])):
    with lock.writer_lock(Path(path), timeout=60, report=lambda record: None):
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        time.sleep(0.002)
        inside.unlink()
    if flock == "local":
        fcntl.flock(0, fcntl.LOCK_UN)
print("done", flush=True)
"""


def start(path: Path, action: str, *more: str, host: str = "here", flock: str = "real", **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + action, host, flock, "", str(path), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )


@contextlib.contextmanager
def held(path: Path, **options: str) -> t.Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    child = start(path, HOLD, **options)
    try:
        assert child.stdout and child.stdout.readline() == "held\n"
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGCONT)
            child.kill()
        child.communicate()


def free(path: Path) -> bool:
    with try_writer_lock(path) as mine:
        return mine


def records(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{path.name}.*"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".model.lock"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less patience, for tests that wait for its end."""
    monkeypatch.setattr(_writer_lock, "BEAT", 0.1)
    monkeypatch.setattr(_writer_lock, "STALE", 0.5)
    monkeypatch.setattr(_writer_lock, "PAUSE", 0.05)


def without_flock(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOLCK) -> None:
    def refuse(*_arguments: t.Any) -> t.NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_the_second_waits_names_the_first_and_goes_on_when_it_ends(path: Path) -> None:
    said: list[t.Mapping[str, t.Any]] = []

    with held(path) as other:
        assert not free(path)

        def report(record: t.Mapping[str, t.Any]) -> None:
            said.append(record)
            assert other.stdin
            other.stdin.close()

        with writer_lock(path, timeout=20, report=report):
            assert other.wait(20) == 0
        other.stdin = None
    assert f"waiting for process {other.pid} on " in said[0]["what"]
    assert records(path) == []


@pytest.mark.parametrize("flock", ["real", "unsupported"])
def test_a_killed_writer_is_gone_at_once(path: Path, flock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if flock == "unsupported":
        without_flock(monkeypatch)
    with held(path, flock=flock) as other:
        assert not free(path)
        other.kill()
        other.wait()
        assert len(records(path)) == 1
        assert free(path)
    assert records(path) == []


def test_it_is_locked_after_the_timeout_and_says_by_whom(path: Path) -> None:
    with held(path) as other, pytest.raises(VllmError) as failure, writer_lock(path, timeout=0, report=lambda _record: None):
        pass
    assert failure.value.code == "locked"
    assert f"process {other.pid} on " in str(failure.value)


@pytest.mark.parametrize("flock", ["local", "unsupported"])
def test_a_writer_on_another_host_blocks_and_is_named(path: Path, flock: str) -> None:
    with held(path, host="gpu-far", flock=flock) as other:
        assert not free(path)
        with pytest.raises(VllmError, match=f"process {other.pid} on gpu-far"), writer_lock(path, timeout=0, report=lambda _record: None):
            pass
        assert len(records(path)) == 1


@pytest.mark.usefixtures("quick")
def test_a_writer_on_another_host_that_stopped_beating_is_passed_over(path: Path) -> None:
    with held(path, host="gpu-far", flock="local", BEAT="0.1") as other:
        other.kill()
        other.wait()
        assert not free(path)
        with writer_lock(path, timeout=20, report=lambda _record: None):
            assert len(records(path)) == 1
    assert records(path) == []


def test_who_never_waits_passes_over_it_by_its_age_alone(path: Path) -> None:
    with held(path, host="gpu-far", flock="local") as other:
        other.send_signal(signal.SIGSTOP)
        record = records(path)[0]
        os.utime(record, (time.time() - 29, time.time() - 29))
        assert not free(path)
        os.utime(record, (time.time() - 31, time.time() - 31))
        assert free(path)


def test_a_killed_writer_in_another_container_of_this_host_is_gone_at_once(path: Path) -> None:
    """Its process id says nothing here, but the kernel's lock is the same."""
    with writer_lock(path, timeout=0, report=lambda _record: None):
        name = records(path)[0].name
    me = _writer_lock._myself("flock")
    record = path.with_name(name.replace(f",{me.pid_space},", ",1,"))
    record.touch()
    assert free(path)
    assert not record.exists()


@pytest.mark.usefixtures("quick")
def test_a_heartbeat_keeps_the_lock_while_the_main_thread_works(path: Path) -> None:
    """Busy in Python and not sleeping: other threads get their turn all the same."""
    busy = HOLD.replace("sys.stdin.read()", "[sum(range(1000)) for _turn in iter(int, 1)]")
    child = start(path, busy, host="gpu-far", flock="local", BEAT="0.1")
    try:
        assert child.stdout and child.stdout.readline() == "held\n"
        first = records(path)[0].stat().st_mtime_ns
        deadline = time.monotonic() + 20
        while records(path)[0].stat().st_mtime_ns - first < 1e9 and time.monotonic() < deadline:
            assert not free(path)
            time.sleep(0.05)
        assert records(path)[0].stat().st_mtime_ns - first >= 1e9
    finally:
        child.kill()
        child.communicate()


@pytest.mark.usefixtures("quick")
def test_the_clock_of_this_host_does_not_matter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(path, host="gpu-far", flock="local", BEAT="0.1"):
        monkeypatch.setattr(time, "time", lambda: 4e9)
        assert not free(path)


@pytest.mark.usefixtures("quick")
def test_after_an_outage_of_the_disk_a_live_writer_is_given_time_to_beat_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer_lock, "BEAT", 1.0)
    with held(path, host="gpu-far", flock="local", BEAT="1.2") as other:
        other.send_signal(signal.SIGSTOP)
        record = records(path)[0]
        os.utime(record, (0, 0))
        beaten = threading.Event()

        def report(_record: t.Mapping[str, t.Any]) -> None:
            other.send_signal(signal.SIGCONT)
            if record.stat().st_mtime > 1:
                beaten.set()

        with pytest.raises(VllmError), writer_lock(path, timeout=3, report=report):
            pass
        assert beaten.is_set()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_flock_the_record_decides(path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_flock(monkeypatch, code)
    with writer_lock(path, timeout=0, report=lambda _record: None):
        assert not free(path)
    assert free(path)
    assert records(path) == []


def test_another_error_of_the_lock_is_not_taken_for_one_without_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_flock(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        free(path)


def test_the_record_of_an_earlier_process_with_the_same_id_does_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_flock(monkeypatch)
    with writer_lock(path, timeout=0, report=lambda _record: None):
        name = records(path)[0].name
    me = _writer_lock._myself("")
    path.with_name(name.replace(f",{me.started},", ",1,")).touch()
    assert free(path)


def test_files_that_only_look_like_records_are_let_be(path: Path) -> None:
    other = path.with_name(f"{path.name}.bak")
    other.touch()
    os.utime(other, (0, 0))
    assert free(path)
    assert other.exists()


def test_a_program_started_meanwhile_does_not_hold_it(path: Path) -> None:
    with writer_lock(path, timeout=0, report=lambda _record: None):
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
    try:
        # The kernel closes the program's copy an instant after its start.
        deadline = time.monotonic() + 20
        while not free(path):
            assert time.monotonic() < deadline
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("flock", ["real", "unsupported", "local"])
def test_there_are_never_two(path: Path, flock: str) -> None:
    """Each creates a file that must not be there and removes it again; one that finds it there ends with an error."""
    hosts = ["here"] * 4 if flock == "real" else ["here", "here", "gpu-a", "gpu-b"]
    children = [start(path, WORK, "15", host=host, flock=flock) for host in hosts]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert outputs == ["done\n"] * 4
    assert records(path) == []
