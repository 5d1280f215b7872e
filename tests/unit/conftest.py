# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine with fake GPUs: the compiled library, its state, and processes that see both."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE_NVML = ROOT / "tests" / "bench" / "nvml" / "fake_nvml.py"
MODULES = "ansible_collections.gpufleet.vllm.plugins.modules"


def load_fake_nvml() -> t.Any:
    """The helper of the fake library, which is a file of its own and in no package."""
    if "fake_nvml" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fake_nvml", FAKE_NVML)
        assert spec and spec.loader
        sys.modules["fake_nvml"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fake_nvml"])
    return sys.modules["fake_nvml"]


class GpuMachine:
    """Runs Python and modules where the fake library is the driver's."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.nvml = load_fake_nvml()
        self.dir = str(folder / "fake-nvml")
        self._folder = folder
        self._children: list[subprocess.Popen[str]] = []
        python_path = f"{ROOT / 'build' / 'tree'}"
        self.environment = {**os.environ, "FAKE_NVML_DIR": self.dir, "LD_LIBRARY_PATH": str(library.parent), "PYTHONPATH": python_path}
        self.environment.pop("NVML_MPS_DEVICE_ENUMERATION", None)

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

    def module(self, name: str, *, check_mode: bool = False, **options: t.Any) -> dict[str, t.Any]:
        """The result of one of the collection's modules, really run."""
        arguments = {**options, "_ansible_check_mode": check_mode, "_ansible_remote_tmp": str(self._folder)}
        done = subprocess.run(
            [sys.executable, "-m", f"{MODULES}.{name}"],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
            cwd=self._folder,
            timeout=60,
        )
        assert done.stdout, done.stderr
        return t.cast("dict[str, t.Any]", json.loads(done.stdout))

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
    return t.cast(Path, load_fake_nvml().build(tmp_path_factory.mktemp("nvml")))


@pytest.fixture
def gpu_machine(nvml_library: Path, tmp_path: Path) -> t.Iterator[GpuMachine]:
    """Eight idle fake GPUs."""
    machine = GpuMachine(nvml_library, tmp_path)
    machine.nvml.write_gpus(machine.dir)
    yield machine
    machine.close()
