#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Seconds from the death of a process that holds GPU memory to the end of the wait, beside what operators use instead.

With a real GPU (``--real GIB``, needs PyTorch) the process holds that much of GPU 0; else it holds memory of four fake GPUs, which
are free in the instant of the death. The polling once a second stands for a loop around nvidia-smi, less the time of that program.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAKE_NVML = ROOT / "tests" / "bench" / "nvml" / "fake_nvml.py"
SLEEP = 35.0
HOLD = "import torch, time; x = torch.empty({gib} << 30, dtype=torch.uint8, device='cuda'); print('holds', flush=True); time.sleep(600)"


def load_collection() -> tuple[t.Any, t.Any]:
    """The collection's own reader and wait, imported as the host helper does it: without Ansible."""
    package = types.ModuleType("gpufleet_host")
    package.__path__ = [str(ROOT / "plugins" / "module_utils")]
    sys.modules.setdefault("gpufleet_host", package)
    return importlib.import_module("gpufleet_host._nvml"), importlib.import_module("gpufleet_host._core.gpu_wait")


def start_holder(real: int) -> subprocess.Popen[str]:
    """A process that holds the memory, once it says so."""
    fake = [str(FAKE_NVML), "hold", "--mib=60000", *(f"--gpu={index}" for index in range(4))]
    command = ["-c", HOLD.format(gib=real)] if real else fake
    holder = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert holder.stdout and "holds" in holder.stdout.readline()
    return holder


def one_wait(targets: t.Sequence[str], real: int, **pace: t.Any) -> float:
    """Seconds from the kill to the return of the wait, at the module's own pace unless another one is given."""
    nvml, gpu_wait = load_collection()
    holder = start_holder(real)
    killed: list[float] = []

    def report(record: t.Mapping[str, t.Any]) -> None:
        if not killed and "waiting for" in record["what"]:
            killed.append(time.monotonic())
            holder.kill()

    with nvml.Sampler() as sampler:
        threshold = gpu_wait.make_threshold(utilization=0.92)
        pace = {"timeout": 120, **{name: gpu_wait.DEFAULTS[name] for name in ("interval", "stable_samples")}, **pace}
        result = gpu_wait.wait_until_free(sampler.memory, targets, threshold, clock=time.monotonic, sleep=time.sleep, report=report, **pace)
    holder.wait()
    assert result.free, result.verdict
    return time.monotonic() - killed[0]


def measure(options: argparse.Namespace) -> None:
    """Interleaved repetitions, so that a busy machine is the same for both."""
    targets = ["0"] if options.real else ["0", "1", "2", "3"]
    ours, polled = [], []
    for _repetition in range(options.repetitions):
        ours.append(one_wait(targets, options.real))
        polled.append(one_wait(targets, options.real, interval=1.0, stable_samples=1))
    what = f"GPU 0 of this machine, {options.real} GiB" if options.real else "four fake GPUs"
    print(f"gpu_memory_wait on {what}, {options.repetitions} repetitions, seconds from the holder's death to the return, median (max):")
    for name, values in (("gpu_memory_wait as it comes", ours), ("one look a second, no stability", polled)):
        median = statistics.median(values)
        print(f"  {name:34} {median:6.2f} ({max(values):.2f})   a sleep of {SLEEP:.0f} s takes {SLEEP / median:.0f} times as long")


def main() -> None:
    """Compile the fake library where there is no real GPU to measure, and measure with it in the loader's path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=int, default=0, metavar="GIB", help="measure on GPU 0 of this machine")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    if options.real or "FAKE_NVML_DIR" in os.environ:
        measure(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(FAKE_NVML), "build", folder], check=True, stdout=subprocess.DEVNULL)
        environment = {**os.environ, "LD_LIBRARY_PATH": folder, "FAKE_NVML_DIR": f"{folder}/state"}
        subprocess.run([sys.executable, str(FAKE_NVML), "reset"], check=True, env=environment)
        subprocess.run([sys.executable, *sys.argv], check=True, env=environment)


if __name__ == "__main__":
    main()
