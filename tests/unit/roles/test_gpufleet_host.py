# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host helper as units run it: the real program, with a host's files below a folder and stand-ins for what it starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.diagnose import diagnose
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_files import HostFiles
from ansible_collections.gpufleet.vllm.plugins.modules.host_helper import application
from support.running import HOST_PROGRAM, ROOT, wait_for
from support.units import UnitGroup, is_possible

LOGS = ROOT / "tests" / "unit" / "fixtures" / "vllm_logs"
INVOCATION = "5c" * 16
RELEASE = "0123456789ab"
BLOCK = {"blocks": True, "release": RELEASE, "message": "The GPU ran out of memory.", "remedy": "Set max-num-seqs to 256."}
ENGINE = f"""#!{sys.executable}
import json, os, sys
print(json.dumps({{"argv": sys.argv, "path": os.environ["PATH"], "pid": os.getpid()}}))
"""
SYSTEMCTL = '#!/bin/sh\n[ "$1" != show ] || exec cat "$FAKE_UNIT"\n'
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
        programs = {"engine/bin/vllm": ENGINE, "journalctl": JOURNALCTL, "systemctl": SYSTEMCTL}
        for path, text in {folder / name: text for name, text in programs.items()}.items():
            path.write_text(text)
            path.chmod(0o755)
        self.release(gpus=[])
        self.unit(n_restarts=0)

    def release(self, gpus: t.Sequence[str], **gpu_wait: t.Any) -> None:
        paths = {"engine_path": str(self.folder / "engine"), "model_path": "/models/tiny"}
        record = {"id": RELEASE, "gpus": list(gpus), "gpu_wait": gpu_wait, **paths}
        (self.files.current / "release.json").write_text(json.dumps(record))

    def unit(self, n_restarts: int, delay: str = "100ms", interval: str = "1h") -> None:
        """What systemd shows of the unit."""
        shown = {"NRestarts": n_restarts, "InvocationID": INVOCATION, "RestartUSec": delay, "StartLimitIntervalUSec": interval}
        (self.folder / "unit").write_text("LoadState=loaded\n" + "".join(f"{name}={value}\n" for name, value in shown.items()))

    def failures(self) -> list[float]:
        return list(json.loads(self.files.last_failure.read_text())["failures"])

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
        full["FAKE_UNIT"] = str(self.folder / "unit")
        return subprocess.run(argv, capture_output=True, text=True, env=full, check=False, timeout=60)

    def popen(self, command: str, base: t.Mapping[str, str]) -> subprocess.Popen[str]:
        """The same, to be watched while it runs."""
        env = {**base, "INVOCATION_ID": INVOCATION, "FAKE_UNIT": str(self.folder / "unit"), "PATH": f"{self.folder}:{base['PATH']}"}
        return subprocess.Popen(self.argv(command), env=env, stdout=subprocess.PIPE, text=True)

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


def test_a_fault_of_the_host_blocks_nothing_so_that_a_restart_helps_once_it_is_healed(host: Host) -> None:
    done = host.diagnose("tls-missing-cert")
    record = json.loads(host.files.last_failure.read_text())
    assert (record["cause"], record["at_fault"], record["blocks"], record["retryable"]) == ("tls_files", "host", False, True)
    assert "blocked" not in done.stdout
    assert host.run("serve").returncode == 0


# -- the growing delay ---------------------------------------------------------------------------------------------------------


def test_failures_within_the_start_limit_are_kept_with_the_last_one(host: Host) -> None:
    began = time.time()
    for _start in range(3):
        host.diagnose("kill9-engine-core")
    assert len(host.failures()) == 3 and all(began <= one <= time.time() for one in host.failures())
    host.diagnose("api-key-auth", SERVICE_RESULT="success", EXIT_STATUS="0")
    assert len(host.failures()) == 3, "a stop that was asked for is none"
    host.unit(n_restarts=3, interval="0.000001s")
    host.diagnose("kill9-engine-core")
    assert len(host.failures()) == 1, "those before the interval are forgotten"


def test_failures_of_another_release_are_forgotten(host: Host) -> None:
    host.block(blocks=False, release="another", failures=[time.time()] * 4)
    host.diagnose("kill9-engine-core")
    assert len(host.failures()) == 1


def test_without_an_answer_of_systemd_the_failure_is_recorded_all_the_same(host: Host) -> None:
    (host.folder / "unit").unlink()
    done = host.diagnose("kill9-engine-core")
    assert done.returncode == 0 and "systemd cannot be asked about vllm-tiny.service" in done.stdout
    assert len(host.failures()) == 1


def waits(host: Host, **variables: str) -> tuple[float, str]:
    """How long gpu-wait takes, and what it says."""
    began = time.monotonic()
    done = host.run("gpu-wait", **variables)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began, done.stdout


def test_an_automatic_restart_pauses_longer_with_each_failure_of_late(host: Host) -> None:
    host.unit(n_restarts=3, delay="200ms")
    for count, paused in ((1, 0.0), (2, 0.2), (4, 1.4)):
        host.block(blocks=False, cause="engine_died", failures=[time.time() - one for one in range(count)])
        took, said = waits(host)
        assert took >= paused
        assert ("pausing" in said) == (paused > 0)
    assert said == (
        "pausing 1.4 s before this automatic restart, 1.6 s with RestartSec: 4 failures within 3600 s, the last one engine_died\n"
    )


@pytest.mark.parametrize("why", ["asked for", "by hand", "blocked", "long ago", "unanswered"])
def test_other_starts_do_not_pause(host: Host, why: str) -> None:
    age = 7200 if why == "long ago" else 0
    host.unit(n_restarts=0 if why == "asked for" else 3, delay="1min")
    host.block(blocks=why == "blocked", cause="engine_died", failures=[time.time() - age] * 4)
    if why == "unanswered":
        (host.folder / "unit").unlink()
    took, said = waits(host, INVOCATION_ID="0f" * 16 if why == "by hand" else INVOCATION)
    assert took < 30 and "pausing" not in said


def test_after_five_failures_the_next_restart_is_refused_without_a_wait_and_says_why(host: Host, gpu_machine: t.Any) -> None:
    gpu_machine.holder("--gpu", "0", "--mib", "60000")
    host.release(["0"], max_used=2**30, timeout=60)
    host.unit(n_restarts=5, delay="1min")
    host.block(blocks=False, cause="engine_died", message="The engine died.", remedy="Look at the log.", failures=[time.time()] * 5)
    took, said = waits(host, INVOCATION_ID=INVOCATION, **gpu_machine.environment)
    assert (took < 20, said) == (True, "")
    refused = host.run("serve", INVOCATION_ID=INVOCATION, CREDENTIALS_DIRECTORY="/c")
    assert refused.returncode == 78
    assert refused.stdout == f"giving up on release {RELEASE} after 5 failures within 3600 s: The engine died. Look at the log.\n"
    assert diagnose([refused.stdout.strip()]).cause == "release_given_up"
    assert host.run("serve", INVOCATION_ID="0f" * 16, CREDENTIALS_DIRECTORY="/c").returncode == 0, "the next start is another one"


def test_a_start_that_is_asked_for_begins_to_count_anew(host: Host) -> None:
    host.unit(n_restarts=0, delay="1min")
    host.block(blocks=False, cause="engine_died", failures=[time.time()] * 5)
    waits(host, INVOCATION_ID=INVOCATION)
    assert host.failures() == []
    assert host.run("serve", INVOCATION_ID=INVOCATION, CREDENTIALS_DIRECTORY="/c").returncode == 0


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


GPU_WAIT = {"max_used": 2**30, "interval": 0.05, "stable_samples": 2}


def test_a_driver_that_comes_late_at_boot_is_waited_for(host: Host, gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlInit*", 9, folder=gpu_machine.dir)
    host.release(["0"], timeout=30, **GPU_WAIT)
    with host.popen("gpu-wait", gpu_machine.environment) as waiting:
        assert waiting.stdout
        first = waiting.stdout.readline()
        gpu_machine.nvml.heal(gpu_machine.dir)
        came, last = waiting.communicate(timeout=30)[0].splitlines()
    assert waiting.returncode == 0
    assert "the NVIDIA kernel module is not loaded" in first and "nvidia-persistenced.service" in first
    assert came.startswith("the driver answers and lists 1 of 1 GPUs after")
    assert last.startswith("memory of 1 of 1 GPUs is free")


def test_gpus_that_are_listed_late_are_waited_for(host: Host, gpu_machine: t.Any) -> None:
    late = gpu_machine.nvml.default_gpu(3).uuid
    gpu_machine.nvml.write_gpus(gpu_machine.dir, gpu_machine.nvml.default_gpus(3))
    host.release([gpu_machine.nvml.default_gpu(0).uuid, late], timeout=30, **GPU_WAIT)
    with host.popen("gpu-wait", gpu_machine.environment) as waiting:
        assert waiting.stdout
        first = waiting.stdout.readline()
        gpu_machine.nvml.write_gpus(gpu_machine.dir)
        rest, _nothing = waiting.communicate(timeout=30)
    assert f"1 of 2 GPUs of the release are not listed by NVML: {late} (it lists 3 on this host)" in first
    assert waiting.returncode == 0
    assert "lists 2 of 2 GPUs after" in rest and "memory of 2 of 2 GPUs is free" in rest


@pytest.mark.parametrize(
    ("code", "gpus", "status", "words", "cause"),
    [
        (9, ["0"], 69, "not loaded or its device nodes cannot be opened, 1 s after the start", "nvml_unavailable"),
        (0, ["GPU-feed"], 70, "1 of 1 GPUs of the release are not listed by NVML: GPU-feed", "gpu_lost"),
    ],
    ids=["driver", "GPU"],
)
def test_what_does_not_come_ends_the_wait_with_its_cause(
    host: Host, gpu_machine: t.Any, code: int, gpus: list[str], status: int, words: str, cause: str
) -> None:
    if code:
        gpu_machine.nvml.fail("nvmlInit*", code, folder=gpu_machine.dir)
    host.release(gpus, timeout=0.6, **GPU_WAIT)
    done = host.run("gpu-wait", gpu_machine.environment)
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, words in last) == (status, True), done.stdout
    found = diagnose(done.stdout.splitlines())
    assert (found.cause, found.at_fault, found.phase) == (cause, "host", "waiting_for_gpus")


@pytest.mark.parametrize(("code", "words"), [(4, "refuses this user"), (12, "the loader says"), (18, "reboot"), (999, "container")])
def test_what_does_not_come_right_by_itself_is_not_waited_for(host: Host, gpu_machine: t.Any, code: int, words: str) -> None:
    gpu_machine.nvml.fail("nvmlInit*", code, folder=gpu_machine.dir)
    host.release(["0"], timeout=600, **GPU_WAIT)
    began = time.monotonic()
    done = host.run("gpu-wait", gpu_machine.environment)
    assert (done.returncode, time.monotonic() - began < 20) == (69, True)
    assert words in done.stdout and "waiting for" not in done.stdout


def test_a_fabric_in_progress_is_waited_for_and_one_that_failed_is_not(host: Host, gpu_machine: t.Any) -> None:
    def fabric(*state: int) -> None:
        gpu_machine.nvml.write_gpus(gpu_machine.dir)
        gpu_machine.nvml.add_lines([f"gpu 0 fabric {' '.join(map(str, state))}"], gpu_machine.dir)

    fabric(2)
    host.release(["0"], timeout=30, **GPU_WAIT)
    with host.popen("gpu-wait", gpu_machine.environment) as waiting:
        assert waiting.stdout
        first = waiting.stdout.readline()
        fabric(3)
        rest, _nothing = waiting.communicate(timeout=30)
    assert "GPU 0: its NVLink fabric is not up yet, so CUDA fails with error 802: look at nvidia-fabricmanager.service" in first
    assert (waiting.returncode, "memory of 1 of 1 GPUs is free" in rest) == (0, True)
    fabric(3, 999)
    failed = host.run("gpu-wait", gpu_machine.environment)
    assert (failed.returncode, "fabric of a target GPU failed" in failed.stdout, "fabricmanager" in failed.stdout) == (70, True, True)
    fabric(2)
    host.release(["0"], timeout=0.3, **GPU_WAIT)
    late = host.run("gpu-wait", gpu_machine.environment)
    assert (late.returncode, "error 802 (system not yet initialized)" in late.stdout) == (75, True)
    assert diagnose(late.stdout.splitlines()).cause == diagnose(failed.stdout.splitlines()).cause == "fabric_not_ready"


def test_a_wait_that_systemd_ends_first_leaves_no_reader_behind(host: Host, gpu_machine: t.Any) -> None:
    gpu_machine.holder("--gpu", "0", "--mib", "60000")
    host.release(["0"], timeout=600, **GPU_WAIT)
    with host.popen("gpu-wait", gpu_machine.environment) as waiting:
        assert waiting.stdout and "held by pid" in waiting.stdout.readline()
        readers = [int(pid) for pid in Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children").read_text().split()]
        waiting.terminate()
        assert waiting.wait(20) == -signal.SIGTERM
    assert readers
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in readers))


# -- verify-unit ---------------------------------------------------------------------------------------------------------------

needs_analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
UNIT_TEXT = """[Unit]
Description=vLLM
After=network-online.target nvidia-fabricmanager.service
Wants=not-there.service

[Service]
Type=exec
User=a-user-that-is-not-there-yet
EnvironmentFile=/nonexistent
LoadCredential=engine.yaml:/nonexistent
ExecStart=/bin/true
Restart=always

[Install]
WantedBy=multi-user.target
"""


def verify(host: Host, text: str, name: str = "vllm-tiny.service", **variables: str) -> subprocess.CompletedProcess[str]:
    path = host.folder / "source"
    path.write_text(text)
    argv = [str(host.program), "verify-unit", name, str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **variables}, timeout=60)


def staged(name: str) -> list[Path]:
    """Where the unit of that name lies to be looked at."""
    return list(Path("/tmp").glob(f"gpufleet-unit-*/{name}"))


@needs_analyze
@pytest.mark.parametrize("name", ["vllm-tiny.service", "tiny"], ids=["by its unit", "by its deployment"])
def test_a_unit_that_systemd_takes_whole_is_let_through(host: Host, name: str) -> None:
    done = verify(host, UNIT_TEXT, name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Restart=always", "Restart=allways", "vllm-tiny.service:12: Failed to parse"),
        ("Restart=always", "RestartMoods=5", "vllm-tiny.service:12: Unknown key"),
        ("Restart=always", "LimitNOFILE=many", "vllm-tiny.service:12: Failed to parse resource value"),
        ("Restart=always", "Environment=A=1 'B", "vllm-tiny.service:12: "),
        ("/bin/true", "/opt/not/there", "vllm-tiny.service: Command /opt/not/there is not executable"),
        ("ExecStart=", "#", "vllm-tiny.service"),
        ("[Service]", "[Servcie]", "vllm-tiny.service:6: Unknown section"),
    ],
)
def test_a_line_that_systemd_would_drop_fails_the_unit(host: Host, old: str, new: str, words: str) -> None:
    done = verify(host, UNIT_TEXT.replace(old, new), SYSTEMD_LOG_LEVEL="emerg", SYSTEMD_UNIT_PATH="/nonexistent", TMPDIR=str(host.folder))
    assert (done.returncode, words in done.stdout) == (1, True), done.stdout + done.stderr


@needs_analyze
def test_what_is_no_service_or_no_file_is_refused(host: Host) -> None:
    assert verify(host, UNIT_TEXT, "a b").returncode == 78
    assert verify(host, UNIT_TEXT, "../../etc/x").returncode == 78
    missing = subprocess.run([str(host.program), "verify-unit", "tiny", "/nonexistent"], capture_output=True, text=True, check=False)
    assert missing.returncode == 78 and "/nonexistent" in missing.stderr


def test_a_check_that_is_ended_takes_its_folder_with_it(host: Host) -> None:
    up = host.folder / "up"
    analyze = host.folder / "systemd-analyze"
    analyze.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo systemd 252 && exit\ntouch {up}\nexec sleep 60\n')
    analyze.chmod(0o755)
    (host.folder / "source").write_text(UNIT_TEXT)
    name = f"vllm-ended-{os.getpid()}.service"
    argv = [str(host.program), "verify-unit", name, str(host.folder / "source")]
    with subprocess.Popen(argv, env={**os.environ, "PATH": f"{host.folder}:{os.environ['PATH']}"}) as checking:
        wait_for(up.exists, 30)
        (path,) = staged(name)
        checking.terminate()
        assert checking.wait(20) == 128 + signal.SIGTERM
    assert not path.parent.exists()


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
