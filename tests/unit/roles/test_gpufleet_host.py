# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host helper as units run it: the real program, with a host's files below a folder and stand-ins for what it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_files import HostFiles
from ansible_collections.gpufleet.vllm.plugins.modules.host_helper import application
from support.running import HOST_PROGRAM, ROOT
from support.units import UnitGroup, is_possible

LOGS = ROOT / "tests" / "unit" / "fixtures" / "vllm_logs"
INVOCATION = "5c" * 16
RELEASE = "0123456789ab"
BLOCK = {"blocks": True, "release": RELEASE, "message": "The GPU ran out of memory.", "remedy": "Set max-num-seqs to 256."}
ENGINE = f"""#!{sys.executable}
import json, os, sys
print(json.dumps({{"argv": sys.argv, "path": os.environ["PATH"], "pid": os.getpid()}}))
"""
JOURNALCTL = '#!/bin/sh\n[ "$1" = --sync ] || exec cat "$FAKE_JOURNAL"\n'


class Host:
    """Files of one deployment below a folder, and the helper run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = HostFiles("tiny", folder)
        self.program = folder / "gpufleet-host"
        self.program.write_bytes(application(sys.executable, HOST_PROGRAM.read_text()))
        self.program.chmod(0o755)
        for path in (self.files.current, self.files.running.parent, self.files.last_failure.parent, folder / "engine" / "bin"):
            path.mkdir(parents=True)
        for path, text in {folder / "engine" / "bin" / "vllm": ENGINE, folder / "journalctl": JOURNALCTL}.items():
            path.write_text(text)
            path.chmod(0o755)
        self.release(gpus=[])

    def release(self, gpus: t.Sequence[str], **gpu_wait: t.Any) -> None:
        paths = {"engine_path": str(self.folder / "engine"), "model_path": "/models/tiny"}
        record = {"id": RELEASE, "gpus": list(gpus), "gpu_wait": gpu_wait, **paths}
        (self.files.current / "release.json").write_text(json.dumps(record))

    def block(self, **changes: t.Any) -> None:
        self.files.last_failure.write_text(json.dumps({**BLOCK, **changes}))

    def journal(self, log: str) -> Path:
        path = self.folder / "journal"
        lines = (LOGS / f"{log}.log").read_text(encoding="utf-8").splitlines()
        path.write_text("".join(json.dumps({"MESSAGE": line, "__CURSOR": "c", "__REALTIME_TIMESTAMP": "1"}) + "\n" for line in lines))
        return path

    def run(self, command: str, base: t.Mapping[str, str] = os.environ, /, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.start(self.argv(command), base, **variables)

    def argv(self, command: str) -> list[str]:
        return [str(self.program), command, "tiny", "--root", str(self.folder)]

    def start(self, argv: t.Sequence[str], base: t.Mapping[str, str], /, **variables: str) -> subprocess.CompletedProcess[str]:
        full = {**base, "CREDENTIALS_DIRECTORY": "/credentials", "INVOCATION_ID": INVOCATION, **variables}
        full["PATH"] = f"{self.folder}:{full['PATH']}"
        return subprocess.run(argv, capture_output=True, text=True, env=full, check=False, timeout=60)

    def diagnose(self, log: str, **variables: str) -> subprocess.CompletedProcess[str]:
        ended = {"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "1", **variables}
        return self.run("diagnose", FAKE_JOURNAL=str(self.journal(log)), **ended)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# -- serve ---------------------------------------------------------------------------------------------------------------------


def test_serve_becomes_the_engine_of_the_current_release(host: Host) -> None:
    done = host.run("serve")
    assert done.returncode == 0, done.stderr
    first, engine = done.stdout.splitlines()
    program = str(host.folder / "engine" / "bin" / "vllm")
    seen = json.loads(engine)
    assert first == f"release {RELEASE}: {program} serve /models/tiny"
    assert seen["argv"] == [program, "serve", "/models/tiny", "--config", "/credentials/engine.yaml"]
    assert seen["path"].split(":")[0] == str(host.folder / "engine" / "bin")
    running = json.loads(host.files.running.read_text())
    assert (running["release"], running["pid"], running["invocation"]) == (RELEASE, seen["pid"], INVOCATION)


def test_serve_refuses_a_blocked_release_with_the_status_that_ends_restarts(host: Host) -> None:
    host.block()
    done = host.run("serve")
    assert (done.returncode, host.files.running.exists()) == (78, False)
    assert done.stdout == f"refusing release {RELEASE}: The GPU ran out of memory. Set max-num-seqs to 256.\n"


@pytest.mark.parametrize("changes", [{"release": "another"}, {"blocks": False}])
def test_a_failure_of_another_release_or_one_that_may_pass_stops_nothing(host: Host, changes: dict[str, t.Any]) -> None:
    host.block(**changes)
    assert host.run("serve").returncode == 0


def test_without_a_release_or_an_engine_serve_says_so_with_78(host: Host) -> None:
    (host.folder / "engine" / "bin" / "vllm").unlink()
    missing_engine = host.run("serve")
    (host.files.current / "release.json").unlink()
    missing_release = host.run("serve")
    assert missing_engine.returncode == missing_release.returncode == 78
    assert "No such file" in missing_engine.stderr
    assert "holds no release. Deploy one" in missing_release.stderr


# -- diagnose ------------------------------------------------------------------------------------------------------------------


def test_a_failure_that_repeats_is_recorded_and_blocks_its_release(host: Host) -> None:
    done = host.diagnose("gpu-no-kv-memory")
    assert done.returncode == 0 and "The release is blocked until it changes" in done.stdout
    record = json.loads(host.files.last_failure.read_text())
    assert (record["cause"], record["release"], record["blocks"], record["invocation"]) == ("no_kv_memory", RELEASE, True, INVOCATION)
    assert (record["service_result"], record["exit_code"], record["exit_status"]) == ("exit-code", "exited", "1")
    assert host.run("serve").returncode == 78


def test_a_failure_that_may_pass_is_recorded_and_blocks_nothing(host: Host) -> None:
    host.diagnose("gpu-memory-held-by-another")
    assert json.loads(host.files.last_failure.read_text())["blocks"] is False
    assert host.run("serve").returncode == 0


@pytest.mark.parametrize(
    ("log", "ended"),
    [
        ("gpu-no-kv-memory", {"EXIT_STATUS": "78"}),
        ("gpu-no-kv-memory", {"SERVICE_RESULT": "success", "EXIT_CODE": "killed", "EXIT_STATUS": "TERM"}),
        ("api-key-auth", {"SERVICE_RESULT": "success", "EXIT_STATUS": "0"}),
    ],
    ids=["refused", "stopped while starting", "stopped while serving"],
)
def test_a_stop_that_was_asked_for_is_no_failure(host: Host, log: str, ended: dict[str, str]) -> None:
    assert host.diagnose(log, **ended).returncode == 0
    assert not host.files.last_failure.exists()


# -- gpu-wait ------------------------------------------------------------------------------------------------------------------


def test_gpus_are_waited_for_only_where_the_release_names_some_and_may_start(host: Host) -> None:
    assert host.run("gpu-wait", LD_LIBRARY_PATH="/nonexistent").returncode == 0
    host.release(["0"], max_used=2**30)
    host.block()
    assert host.run("gpu-wait", LD_LIBRARY_PATH="/nonexistent").returncode == 0


def test_each_outcome_of_the_wait_has_its_exit_status(host: Host, gpu_machine: t.Any) -> None:
    def waits(**options: t.Any) -> tuple[int, str]:
        host.release(["0", "2"], **{"max_used": 2**30, "timeout": 0.3, "interval": 0.05, "stable_samples": 2, **options})
        done = host.run("gpu-wait", gpu_machine.environment)
        return done.returncode, done.stdout + done.stderr

    assert waits()[0] == 0
    assert waits(patience=3)[0] == 78
    holder = gpu_machine.holder("--gpu", "2", "--mib", "60000")
    status, said = waits()
    assert status == 75 and f"pid {holder.pid} python" in said
    gpu_machine.nvml.fail("nvmlDeviceGetMemoryInfo*", 15, gpu=2, folder=gpu_machine.dir)
    status, said = waits()
    assert status == 70 and "GPU is lost" in said
    gpu_machine.without_driver()
    assert waits()[0] == 69


def test_a_wait_that_nvml_leaves_hanging_ends_and_leaves_the_reader_alone(host: Host, gpu_machine: t.Any) -> None:
    gpu_machine.nvml.hang("nvmlInit*", 60, folder=gpu_machine.dir)
    host.release(["0"], max_used=2**30, nvml_timeout=0.3)
    began = time.monotonic()
    done = host.run("gpu-wait", gpu_machine.environment)
    assert (done.returncode, time.monotonic() - began < 10) == (69, True)
    assert "NVML gave no answer within 0.3 s" in done.stdout


# -- what an earlier run left behind -------------------------------------------------------------------------------------------

needs_groups = pytest.mark.skipif(not is_possible(), reason="control groups cannot be made here")
HOLD = [sys.executable, str(ROOT / "tests" / "bench" / "nvml" / "fake_nvml.py"), "hold", "--gpu=2", "--mib=60000"]


@pytest.fixture
def unit() -> t.Iterator[UnitGroup]:
    with UnitGroup("vllm-tiny.service") as group:
        yield group


def past_the_tick() -> None:
    """Start times are told in hundredths of a second; a unit's next run begins seconds after the last one."""
    time.sleep(0.03)


@needs_groups
@pytest.mark.parametrize("shell_stays", [False, True], ids=["started by the manager", "started by a shell"])
def test_a_start_ends_the_engine_that_its_dead_predecessor_left_behind(
    host: Host, gpu_machine: t.Any, unit: UnitGroup, shell_stays: bool
) -> None:
    left = unit.start(HOLD, env=gpu_machine.environment)
    past_the_tick()
    host.release(["0", "2"], max_used=2**30, timeout=20)
    done = host.start(unit.command(host.argv("gpu-wait"), shell_stays=shell_stays), gpu_machine.environment)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        lines[0].startswith(f"pid {left.pid} python") and "is left over from an earlier run of vllm-tiny.service: sent SIGTERM" in lines[0]
    )
    assert any(line.startswith(f"pid {left.pid} python") and " is gone " in line for line in lines)
    assert lines[-1].startswith("memory of 2 of 2 GPUs is free")
    assert left.wait() == -signal.SIGTERM


@needs_groups
def test_a_start_waits_for_a_stranger_and_does_not_touch_it(host: Host, gpu_machine: t.Any, unit: UnitGroup) -> None:
    with UnitGroup("vllm-other.service") as other:
        stranger = other.start(HOLD, env=gpu_machine.environment)
        past_the_tick()
        host.release(["2"], max_used=2**30, timeout=1)
        done = host.start(unit.command(host.argv("gpu-wait")), gpu_machine.environment)
        assert (done.returncode, stranger.poll()) == (75, None)
    assert f"held by pid {stranger.pid} python" in done.stdout and "(vllm-other.service, user" in done.stdout
    assert "SIG" not in done.stdout


@needs_groups
@pytest.mark.parametrize(("reap", "in_the_unit"), [("none", True), ("own", False)], ids=["switched off", "run by hand"])
def test_left_overs_are_left_alone(host: Host, gpu_machine: t.Any, unit: UnitGroup, reap: str, in_the_unit: bool) -> None:
    left = unit.start(HOLD, env=gpu_machine.environment)
    past_the_tick()
    host.release(["2"], max_used=2**30, timeout=0.5, reap=reap)
    argv = host.argv("gpu-wait")
    done = host.start(unit.command(argv) if in_the_unit else argv, gpu_machine.environment)
    assert (done.returncode, left.poll()) == (75, None)


@needs_groups
@pytest.mark.parametrize("blocked", [False, True], ids=["without GPUs", "of a blocked release"])
def test_left_overs_are_ended_where_no_gpu_is_waited_for_too(host: Host, unit: UnitGroup, blocked: bool) -> None:
    left = unit.start([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
    past_the_tick()
    if blocked:
        host.release(["0"], max_used=2**30)
        host.block()
    done = host.start(unit.command(host.argv("gpu-wait")), os.environ)
    assert (done.returncode, left.wait()) == (0, -signal.SIGTERM)
    assert "is gone" in done.stdout
