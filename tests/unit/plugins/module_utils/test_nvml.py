# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The child that reads NVML, where it hangs so that not even SIGKILL ends it."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from support.running import wait_for

FREEZER = Path("/sys/fs/cgroup/freezer")
needs_freezer = pytest.mark.skipif(
    not os.access(FREEZER / "cgroup.procs", os.W_OK), reason="needs the older freezer, which holds SIGKILL up"
)

# Reads once, says who the reader is, and asks again when the reader cannot move any more.
ASK_TWICE = """
import sys, time
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._nvml import Sampler
with Sampler(deadline=0.5) as sampler:
    print(len(sampler.memory()), sampler._pid, flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    try:
        sampler.memory()
    except VllmError as exc:
        print(exc.code, exc.details["verdict"], time.monotonic() - began < 5, flush=True)
"""


@pytest.fixture
def frozen(tmp_path: Path) -> t.Iterator[t.Callable[[int], None]]:
    """Puts a process where neither it nor SIGKILL moves on."""
    group = FREEZER / f"gpufleet-nvml-{os.getpid()}"
    group.mkdir()

    def freeze(pid: int) -> None:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        wait_for(lambda: (group / "freezer.state").read_text().strip() == "FROZEN")

    yield freeze
    (group / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@needs_freezer
def test_a_reader_that_cannot_even_die_is_abandoned(gpu_machine: t.Any, frozen: t.Callable[[int], None]) -> None:
    asker = subprocess.Popen(
        [sys.executable, "-c", ASK_TWICE], env=gpu_machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert asker.stdout
    gpus, reader = map(int, asker.stdout.readline().split())
    frozen(reader)
    said, _nothing = asker.communicate("go\n", timeout=20)
    assert (gpus, said, asker.returncode) == (8, "nvml_hung wedged True\n", 0)
    assert Path(f"/proc/{reader}/stat").read_text().rpartition(")")[2].split()[0] == "D", "killed, and still there"


# Asks over and over while the driver is not there, and says how many ended readers are still in the process table.
ASK_OFTEN = """
import os, time
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._nvml import Sampler
with Sampler() as sampler:
    for _attempt in range(20):
        try:
            sampler.memory()
        except VllmError as exc:
            code = exc.code
        time.sleep(0.01)
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(code, len(children))
"""


def test_attempts_without_a_driver_leave_no_row_of_ended_readers(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlInit*", 9, folder=gpu_machine.dir)
    done = subprocess.run([sys.executable, "-c", ASK_OFTEN], env=gpu_machine.environment, capture_output=True, text=True, check=True)
    code, children = done.stdout.split()
    assert (code, int(children) <= 3) == ("nvml_driver_not_loaded", True)
