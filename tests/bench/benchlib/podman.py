# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one door to podman.

Where the machine needs it, every podman command runs in one private mount namespace. A holder process (``sleep infinity``) keeps
that namespace; its pid and start time are in ``.cache/bench/namespace.json``. There must be only one, because podman keeps network
namespaces as bind mounts, which a second mount namespace would not see. What podman calls its run time state lives on a tmpfs of the
namespace, so a new holder looks to podman like a reboot, and containers of the old one are started anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import typing as t
from pathlib import Path

from benchlib.machine import Machine, read_machine
from benchlib.paths import CACHE, locked
from benchlib.say import BenchError, say

__all__ = ["Podman", "exists"]

HOLDER = CACHE / "namespace.json"
CONFIG = CACHE / "podman"
STORAGE = CONFIG / "storage"
RUN = ("/run/containers", "/run/libpod", "/run/netns", "/run/runc")
SETUP = f"""
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for folder in {" ".join(RUN)}; do mkdir -p $folder; mount -t tmpfs -o mode=0755 tmpfs $folder; done
echo ready
exec sleep infinity </dev/null >/dev/null 2>&1
"""


def start_time(pid: int) -> t.Optional[str]:
    """When a process started, in clock ticks: with the pid it names one process for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def mount_namespace(pid: int) -> t.Optional[str]:
    """Which mount namespace a live process is in; a zombie is in none."""
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return None


def argument_zero(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def end_leftovers(namespace: str) -> None:
    """Kill what podman left running in a namespace whose holder is gone: containers, their monitors, the name server."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    for pid in [pid for pid in pids if mount_namespace(pid) == namespace]:
        if Path(argument_zero(pid)).name in ("conmon", "aardvark-dns"):
            for victim in (*children(pid), pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)


def containers_conf(machine: Machine) -> str:
    network = ['network_backend = "netavark"']
    engine = ['runtime = "runc"', 'events_logger = "file"']
    if machine.needs_namespace:
        engine.append('cgroup_manager = "cgroupfs"')
        network.append(f'network_config_dir = "{CONFIG / "networks"}"')
    limits = ['default_ulimits = ["nofile=8192:8192", "nproc=32768:32768"]', "pids_limit = 0"]
    return "\n".join(["[containers]", *limits, "[engine]", *engine, "[network]", *network, ""])


def storage_conf() -> str:
    return f'[storage]\ndriver = "overlay"\ngraphroot = "{STORAGE}"\nrunroot = "/run/containers/storage"\n'


class Podman:
    """Runs podman the way this machine wants it."""

    def __init__(self) -> None:
        self.machine = read_machine()
        self._prefix: t.Optional[list[str]] = None

    def enter(self, *argv: str) -> list[str]:
        """The command line that runs ``argv`` where podman lives."""
        if self._prefix is None:
            self._prefix = self._make_prefix()
        return [*self._prefix, *argv]

    def run(self, *args: str, check: bool = True, timeout: t.Optional[float] = None) -> subprocess.CompletedProcess[str]:
        """Run ``podman args`` and return what it said."""
        done = subprocess.run(
            self.enter("podman", *args), check=False, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
        if check and done.returncode:
            raise BenchError(f"podman {' '.join(args)} failed ({done.returncode}): {done.stderr.strip()[-1500:]}")
        return done

    def replace_process(self, *argv: str) -> t.NoReturn:
        """Become ``argv`` where podman lives: terminal, signals and exit status are its own."""
        command = self.enter(*argv)
        os.execvp(command[0], command)

    def stop_holder(self) -> None:
        """Let the namespace go. Nothing happens where there is none."""
        record = self._record()
        if self._is_alive(record):
            os.kill(record["pid"], signal.SIGTERM)
        if record:
            end_leftovers(record["namespace"])
        HOLDER.unlink(missing_ok=True)
        self._prefix = None

    def remove_storage(self) -> None:
        shutil.rmtree(STORAGE, ignore_errors=True)

    def _make_prefix(self) -> list[str]:
        environment = self._write_config()
        if not self.machine.needs_namespace:
            return ["env", *environment]
        with locked("namespace"):
            pid = self._holder_pid()
        return ["nsenter", "--mount", f"--target={pid}", "--", "env", f"--chdir={Path.cwd()}", *environment]

    def _write_config(self) -> list[str]:
        settings = []
        if self.machine.needs_limits or self.machine.needs_namespace:
            settings.append(("CONTAINERS_CONF", "containers.conf", containers_conf(self.machine)))
        if self.machine.needs_namespace:
            settings.append(("CONTAINERS_STORAGE_CONF", "storage.conf", storage_conf()))
        CONFIG.mkdir(parents=True, exist_ok=True)
        for _variable, name, text in settings:
            if not (CONFIG / name).is_file() or (CONFIG / name).read_text() != text:
                (CONFIG / name).write_text(text)
        return [f"{variable}={CONFIG / name}" for variable, name, _text in settings]

    @staticmethod
    def _record() -> dict[str, t.Any]:
        try:
            return dict(json.loads(HOLDER.read_text()))
        except (OSError, ValueError):
            return {}

    @staticmethod
    def _is_alive(record: dict[str, t.Any]) -> bool:
        """Whether the recorded holder still is that process, in that namespace."""
        pid = record.get("pid", 0)
        return bool(pid) and start_time(pid) == record["started"] and mount_namespace(pid) == record["namespace"]

    def _holder_pid(self) -> int:
        """The holder's pid, started anew where there is none or only the record of one that is gone."""
        record = self._record()
        if self._is_alive(record):
            return int(record["pid"])
        if record:
            end_leftovers(record["namespace"])
        return self._start_holder()

    def _start_holder(self) -> int:
        say("starting the private mount namespace in which podman works here")
        holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", SETUP],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert holder.stdout and holder.stderr
        if holder.stdout.readline().strip() != "ready":
            raise BenchError(f"the private mount namespace could not be set up: {holder.stderr.read().strip()}")
        record = {"pid": holder.pid, "started": start_time(holder.pid), "namespace": mount_namespace(holder.pid)}
        HOLDER.write_text(json.dumps(record))
        return holder.pid


def exists(podman: Podman, kind: str, name: str) -> bool:
    """Whether podman has the image, network or container of that name."""
    done = podman.run(kind, "exists", name, check=False)
    if done.returncode > 1:
        raise BenchError(f"podman {kind} exists {name} failed ({done.returncode}): {done.stderr.strip()}")
    return done.returncode == 0
