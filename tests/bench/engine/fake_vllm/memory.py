# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of the fake GPUs, taken in the state that the fake NVML library shows."""

from __future__ import annotations

import importlib.util
import os
import sys
import typing as t
from pathlib import Path

__all__ = ["Device", "visible_devices"]


def _fake_nvml() -> t.Any:
    """The one helper of the fake library: in the wheel beside this file, in a checkout in its own folder."""
    here = Path(__file__).resolve().parent
    for path in (here / "_fake_nvml.py", here.parent.parent / "nvml" / "fake_nvml.py"):
        if path.exists():
            spec = importlib.util.spec_from_file_location("fake_vllm._fake_nvml", path)
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
    raise SystemExit("fake_nvml.py is neither in this wheel nor in the checkout")


nvml = _fake_nvml()


class Device:
    """One GPU as a rank sees it. What is taken belongs to the process that called :meth:`become_owner` last."""

    def __init__(self, index: int, local_index: int, total_mib: int, linger: float) -> None:
        self.index, self.local_index, self.total_mib, self.linger = index, local_index, total_mib, linger
        self.taken_mib = 0
        self._owner = os.getpid()

    def become_owner(self) -> None:
        self._owner = os.getpid()

    def free_mib(self) -> int:
        return int(nvml.usage(self.index).free)

    def take(self, mib: int) -> None:
        self.taken_mib += int(mib)
        nvml.hold(None, f"vllm-{self._owner}", {self.index: self.taken_mib}, pid=self._owner, linger=self.linger)


def visible_devices(linger: float) -> list[Device]:
    """The GPUs named by CUDA_VISIBLE_DEVICES (indices, UUIDs or their beginnings); none without fake GPUs: then this is the CPU build."""
    wanted = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    if not wanted or not nvml.state_dir().is_dir():
        return []
    gpus = nvml.gpus()
    chosen = []
    for word in wanted:
        matches = [gpu for gpu in gpus if word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))]
        if len(matches) != 1:
            break  # CUDA stops at the first name it does not know
        chosen.append(matches[0])
    return [Device(gpu.index, number, gpu.total, linger) for number, gpu in enumerate(chosen)]
