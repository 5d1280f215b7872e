# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run on a host: send SIGKILL to a process of a unit while requests are open, and measure what follows, in seconds from the kill.

Arguments: the unit, the kernel's name of the process ("main" for the unit's main process), and the file with the fake engine's script.
The memory is read through NVML, as by anybody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

import pynvml

REQUESTS = 6
URL = "http://127.0.0.1:8000"
QUESTION = {"prompt": "What is 17 + 25? Answer with the number only.", "max_tokens": 8}
DEADLINE = 90.0


def shown(unit: str, name: str) -> str:
    return subprocess.check_output(["systemctl", "show", "--value", f"--property={name}", unit], text=True).strip()


def members(unit: str) -> dict[int, str]:
    pids = Path(f"/sys/fs/cgroup{shown(unit, 'ControlGroup')}/cgroup.procs").read_text().split()
    return {int(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ask(**more: t.Any) -> str:
    """How a request ended: its status, and whether the answer came whole."""
    body = json.dumps({**QUESTION, **more}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{URL}/v1/completions", body), timeout=DEADLINE) as answer:
            return f"{answer.status} {'whole' if '42' in answer.read().decode() else 'cut off'}"
    except urllib.error.HTTPError as exc:
        return str(exc.code)
    except OSError as exc:
        return type(getattr(exc, "reason", exc)).__name__


class Load:
    """Open requests, streamed and plain."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, float]] = []
        for number in range(REQUESTS):
            threading.Thread(target=self._request, args=(number % 2 == 0,), daemon=True).start()

    def _request(self, stream: bool) -> None:
        how = ask(stream=stream)
        self.ends.append((how, time.monotonic()))

    def is_running(self) -> bool:
        metrics = urllib.request.urlopen(f"{URL}/metrics", timeout=5).read().decode()
        return any(line.startswith("vllm:num_requests_running{") and line.endswith(f" {REQUESTS}.0") for line in metrics.splitlines())


def is_free(gpus: t.Sequence[t.Any]) -> bool:
    return not any(pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2).used for gpu in gpus)


def used_gpus() -> list[t.Any]:
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [gpu for gpu in handles if not is_free([gpu])]


def wait_for(condition: t.Callable[[], t.Any]) -> float:
    """The moment at which it is so."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if condition():
                return time.monotonic()
        time.sleep(0.02)
    raise SystemExit(f"not so after {DEADLINE:g} s: {condition.__name__}")


def main() -> None:
    unit, victim, script = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    usual = script.read_text()
    script.write_text(f"{usual}answer-seconds=600\n")
    pynvml.nvmlInit()
    load, before, gpus = Load(), members(unit), used_gpus()
    main_pid = int(shown(unit, "MainPID"))
    wait_for(load.is_running)
    script.write_text(usual)
    pid = main_pid if victim == "main" else next(pid for pid, name in before.items() if name == victim)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    moments: dict[str, float] = {}

    def watch() -> bool:
        now = time.monotonic()
        if not any(map(is_there, before)):
            moments.setdefault("gone", now)
        if is_free(gpus):
            moments.setdefault("memory", now)
        return {"gone", "memory"} <= moments.keys()

    wait_for(watch)
    moments["answering"] = wait_for(lambda: ask() == "200 whole")
    wait_for(lambda: len(load.ends) == REQUESTS)
    moments["requests"] = max(moment for _how, moment in load.ends)
    seconds = {name: round(moment - killed_at, 2) for name, moment in moments.items()}
    print(json.dumps({"seconds": seconds, "ends": sorted(how for how, _moment in load.ends), "gpus": len(gpus), "killed": before[pid]}))


main()
