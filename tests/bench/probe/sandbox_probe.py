#!/usr/bin/python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tries, as a command of a unit, what the unit's sandbox shall refuse and what it must leave to an engine.

Prints one JSON object: the name of each attempt, and `allowed` or the name of the error it ended with. Each runs in a process of its own.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import mmap
import os
import platform
import resource
import signal
import socket
import sys
import time
import typing as t
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
# Numbers of calls that the C library has no function for: x86-64, arm64.
CALLS = {"add_key": (248, 217), "bpf": (321, 280), "finit_module": (313, 273), "kexec_load": (246, 104), "perf_event_open": (298, 241)}
CALLS |= {"pidfd_getfd": (438, 438), "set_mempolicy": (238, 237)}
NEWNET, NEWUSER, NEWUTS = 0x40000000, 0x10000000, 0x04000000
STATE = os.environ.get("STATE_DIRECTORY", "/var/lib/gpufleet/echo")
CACHE = os.environ.get("CACHE_DIRECTORY", "/var/cache/gpufleet/echo")
OTHER = os.environ.get("OTHER_DEPLOYMENT", "minimax-m25")
Attempt = t.Callable[[], t.Any]


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def call(name: str, *arguments: t.Any) -> int:
    return checked(LIBC.syscall(CALLS[name][ARM], *arguments))


def library(name: str, *arguments: t.Any) -> int:
    return checked(getattr(LIBC, name)(*arguments))


def write_in(folder: str) -> None:
    path = Path(folder) / f".probe-{os.getpid()}"
    try:
        path.write_bytes(b"x")
    finally:
        path.unlink(missing_ok=True)


def append_to(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def own_file() -> Path:
    path = Path(STATE) / f".probe-{os.getpid()}"
    path.touch()
    return path


def with_own_file(change: t.Callable[[Path], t.Any]) -> None:
    path = own_file()
    try:
        change(path)
    finally:
        path.unlink()


def weights(suffix: str) -> str:
    return str(next(Path("/var/lib/gpufleet/models").glob(f"*/*/*{suffix}")))


def loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(b"x")


def local_socket() -> None:
    path = f"/tmp/.probe-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
    Path(path).unlink()


def executable_memory() -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


def new_privileges() -> None:
    if LIBC.prctl(39, 0, 0, 0, 0):  # PR_GET_NO_NEW_PRIVS
        raise PermissionError(errno.EPERM, "")


def capability_in_bounds() -> None:
    if not LIBC.prctl(23, 0, 0, 0, 0):  # PR_CAPBSET_READ, CAP_CHOWN
        raise PermissionError(errno.EPERM, "")


def core_dumps() -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError as exc:  # Python's name for a hard limit that may not be raised
        raise PermissionError(errno.EPERM, "") from exc


def other_namespace() -> None:
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY)
    library("setns", descriptor, NEWNET)


def device(name: str, flags: int = os.O_RDONLY) -> None:
    os.close(os.open(f"/dev/{name}", flags))


REFUSED: dict[str, Attempt] = {
    "write /usr": lambda: write_in("/usr"),
    "write /etc": lambda: write_in("/etc"),
    "write /opt/gpufleet": lambda: write_in("/opt/gpufleet"),
    "write /var/lib": lambda: write_in("/var/lib"),
    "write /run": lambda: write_in("/run"),
    "write weights": lambda: append_to(weights(".json")),
    "write own release": lambda: append_to(f"/etc/gpufleet/{Path(STATE).name}/current/release.json"),
    "write own credential": lambda: append_to(f"{os.environ['CREDENTIALS_DIRECTORY']}/engine.yaml"),
    "list /home": lambda: list(Path("/home").iterdir()),
    "list /root": lambda: list(Path("/root").iterdir()),
    "read /etc/shadow": lambda: Path("/etc/shadow").read_bytes(),
    "read engine.yaml of the release": lambda: Path(f"/etc/gpufleet/{Path(STATE).name}/current/engine.yaml").read_bytes(),
    "list state of another deployment": lambda: list(Path(f"/var/lib/gpufleet/{OTHER}").iterdir()),
    "list cache of another deployment": lambda: list(Path(f"/var/cache/gpufleet/{OTHER}").iterdir()),
    "read credential of another deployment": lambda: Path(f"/run/credentials/vllm-{OTHER}.service/engine.yaml").read_bytes(),
    "see processes of others": lambda: Path("/proc/1/cmdline").read_bytes(),
    "signal processes of others": lambda: os.kill(1, 0),
    "read kernel log": lambda: device("kmsg"),
    "read kernel log by call": lambda: library("klogctl", 3, ctypes.create_string_buffer(64), 64),
    "write /proc/sys": lambda: append_to("/proc/sys/kernel/hostname"),
    "write /sys": lambda: append_to("/sys/kernel/mm/transparent_hugepage/enabled"),
    "make a control group": lambda: Path(f"/sys/fs/cgroup/probe-{os.getpid()}").mkdir(),
    "mount": lambda: library("mount", b"tmpfs", b"/mnt", b"tmpfs", 0, None),
    "unmount": lambda: library("umount2", b"/tmp", 0),
    "change root": lambda: os.chroot("/"),
    "make a device": lambda: os.mknod(f"{STATE}/.probe-device", 0o600 | 0o020000, os.makedev(1, 3)),
    "new user namespace": lambda: library("unshare", NEWUSER),
    "new network namespace": lambda: library("unshare", NEWNET),
    "new host name namespace": lambda: library("unshare", NEWUTS),
    "enter a namespace": other_namespace,
    "set host name": lambda: library("sethostname", b"probe", 5),
    "set clock": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
    "load module": lambda: call("finit_module", -1, b"", 0),
    "load kernel": lambda: call("kexec_load", 0, 0, None, 0),
    "trace": lambda: library("ptrace", 0, 0, None, None),
    "take a descriptor of a process": lambda: call("pidfd_getfd", os.pidfd_open(os.getpid()), 0, 0),
    "load a program into the kernel": lambda: call("bpf", 0, None, 0),
    "read performance counters": lambda: call("perf_event_open", None, 0, -1, -1, 0),
    "personality": lambda: library("personality", 0x0040000),
    "become root": lambda: os.setuid(0),
    "join root's group": lambda: os.setgid(0),
    "drop groups": lambda: os.setgroups([]),
    "gain privileges by a program": new_privileges,
    "have a capability": capability_in_bounds,
    "give a file away": lambda: with_own_file(lambda path: os.chown(path, 0, 0)),
    "set the SUID bit": lambda: with_own_file(lambda path: path.chmod(0o4755)),
    "set the SGID bit": lambda: with_own_file(lambda path: path.chmod(0o2755)),
    "raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "virtual machine socket": lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM),
    "kernel crypto socket": lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET),
    "realtime scheduling": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "higher priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
    "core dumps": core_dumps,
}
ALLOWED: dict[str, Attempt] = {
    "read /proc/meminfo": lambda: Path("/proc/meminfo").read_bytes(),
    "read /proc/cpuinfo": lambda: Path("/proc/cpuinfo").read_bytes(),
    "read weights": lambda: Path(weights(".safetensors")).read_bytes(),
    "read own credential": lambda: Path(f"{os.environ['CREDENTIALS_DIRECTORY']}/engine.yaml").read_bytes(),
    "write state": lambda: write_in(STATE),
    "write cache": lambda: write_in(CACHE),
    "write /tmp": lambda: write_in("/tmp"),
    "write /dev/shm": lambda: write_in("/dev/shm"),
    "executable memory": executable_memory,
    "memory file": lambda: os.close(os.memfd_create("probe")),
    "memory policy": lambda: call("set_mempolicy", 0, None, 0),
    "processor affinity": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "batch scheduling": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    "own keyring": lambda: call("add_key", b"user", b"probe", b"x", 1, -3),
    "loopback": loopback,
    "local socket": local_socket,
    "netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "run a program": lambda: os.waitstatus_to_exitcode(os.system("true")),
}


def outcome(attempt: Attempt) -> str:
    """The end of an attempt, made in a process of its own since some change what they run in."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
            word = "allowed"
        except OSError as exc:
            word = errno.errorcode.get(exc.errno or 0, str(exc))
        os.write(writing, word.encode())
        os.kill(os.getpid(), signal.SIGKILL)  # a traced process would wait for its tracer with any other end
    os.close(writing)
    with os.fdopen(reading) as pipe:
        word = pipe.read()
    _pid, status = os.waitpid(child, 0)
    return word or f"ended with {os.waitstatus_to_exitcode(status)}"


def main() -> None:
    attempts: dict[str, Attempt] = {**REFUSED, **ALLOWED, **{f"open /dev/{name}": functools.partial(device, name) for name in sys.argv[2:]}}
    found = {name: outcome(attempt) for name, attempt in attempts.items()}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
