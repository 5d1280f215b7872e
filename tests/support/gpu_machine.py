# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine with fake GPUs: the compiled library, its state, and processes that see both."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from .running import ROOT, Answer, environment, load_file, run_module

FAKE_NVML = ROOT / "tests" / "bench" / "nvml" / "fake_nvml.py"


class GpuMachine:
    """Runs Python and modules where the fake library is the driver's."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.nvml = load_file(FAKE_NVML)
        self.dir = str(folder / "fake-nvml")
        self._folder = folder
        self._children: list[subprocess.Popen[str]] = []
        self.environment = environment(FAKE_NVML_DIR=self.dir, LD_LIBRARY_PATH=str(library.parent), NVML_MPS_DEVICE_ENUMERATION=None)

    def without_driver(self) -> None:
        """From now on no NVML library is found."""
        self.environment["LD_LIBRARY_PATH"] = str(self._folder / "nothing-here")

    def without_binding(self) -> None:
        """From now on ``import pynvml`` fails."""
        blocked = self._folder / "blocked"
        blocked.mkdir()
        (blocked / "pynvml.py").write_text("raise ImportError('not installed')\n")
        self.environment["PYTHONPATH"] = f"{blocked}:{self.environment['PYTHONPATH']}"

    def python(self, code: str) -> t.Any:
        """What the code prints as JSON, run with nvidia-ml-py imported as ``n``."""
        done = subprocess.run(
            [sys.executable, "-c", f"import json, time\nimport pynvml as n\n{code}"],
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def module(self, name: str, *, check_mode: bool = False, **options: t.Any) -> Answer:
        """The result of one of the collection's modules, really run."""
        return run_module(name, self._folder, self.environment, _ansible_check_mode=check_mode, **options)

    def holder(self, *arguments: str) -> subprocess.Popen[str]:
        """A process that holds memory until killed (``--gpu 2 --mib 60000``)."""
        command = [sys.executable, str(FAKE_NVML), "hold", *arguments]
        child = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        self._children.append(child)
        assert child.stdout and "holds" in child.stdout.readline()
        return child

    def close(self) -> None:
        """End every holder."""
        for child in self._children:
            child.kill()
            child.wait()
            if child.stdout:
                child.stdout.close()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake library, compiled once a session."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    return t.cast(Path, load_file(FAKE_NVML).build(tmp_path_factory.mktemp("nvml")))


@pytest.fixture
def gpu_machine(nvml_library: Path, tmp_path: Path) -> t.Iterator[GpuMachine]:
    """Eight idle fake GPUs."""
    machine = GpuMachine(nvml_library, tmp_path)
    machine.nvml.write_gpus(machine.dir)
    yield machine
    machine.close()
