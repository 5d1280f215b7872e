# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpufleet-host: what the unit of a deployment runs beside the engine.

  gpufleet-host gpu-wait DEPLOYMENT   ExecStartPre: until what an earlier run left behind is gone and the release's GPUs are free
  gpufleet-host serve DEPLOYMENT      ExecStart: becomes the engine of the current release
  gpufleet-host diagnose DEPLOYMENT   ExecStopPost: records why a start or run failed
  gpufleet-host verify-unit UNIT PATH before a unit file is put in place: what systemd would not take of it

Before a restart that nobody asked for gpu-wait pauses, longer with every failure within StartLimitIntervalSec=; after five of them
serve refuses the next one.

Exit status: 0 good, 1 a unit file that systemd complains about, 69 NVML unavailable, 70 GPU fault, 75 try again later,
78 bad configuration or a blocked release.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

from gpufleet_host import _nvml, _processes
from gpufleet_host._core import diagnose, gpu_wait, journal, reap, restart_pause, unit, unit_check
from gpufleet_host._core.effects import CommandResult
from gpufleet_host._core.errors import VllmError
from gpufleet_host._core.host_files import HostFiles, read_json, unit_name, write_json

EX_CONFIG = 78
UNIT_FOLDER = "/tmp"
"""Not $TMPDIR: systemd-analyze takes a folder of units from a list that colons divide."""


def say(line: str) -> None:
    """One line for the journal, at once."""
    print(line, flush=True)


def run_command(argv: t.Sequence[str]) -> CommandResult:
    """The core's runner."""
    done = subprocess.run(list(argv), capture_output=True, text=True, errors="replace", check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def wait_for_gpus(files: HostFiles) -> int:
    """ExecStartPre. What serve is going to refuse does not wait: it is serve's refusal that ends the restarts."""
    release = files.current_release()
    is_refused = bool(files.block(release["id"])) or not may_start(files, release["id"])
    reaper = left_over_reaper(files) if gpu_wait.wants_reaping(release["gpu_wait"], "own") else None
    if release["gpus"] and not is_refused:
        return gpu_wait.run(release, _nvml.Sampler, clock=time.monotonic, sleep=time.sleep, say=say, reaper=reaper)
    if reaper:
        reap.settle(reaper, gpu_wait.DEFAULTS["interval"], time.monotonic, time.sleep)
    return 0


def may_start(files: HostFiles, release_id: str) -> bool:
    """Before a restart that nobody asked for, rest longer after each failure of late, and give up after too many; one that somebody
    asked for begins to count anew."""
    record, now, invocation = read_json(files.last_failure) or {}, time.time(), os.environ.get("INVOCATION_ID")
    failures = restart_pause.failures_of(record, release_id)
    state = state_of_unit(files) if failures else None
    if not state:
        return True
    if restart_pause.is_asked(state, invocation, record.get("n_restarts")):
        write_json(files.last_failure, {**record, "failures": []})
        return True
    enough = restart_pause.is_enough(failures, now, state, invocation)
    if enough:
        last_words = f"giving up on release {release_id} after {enough}: {record['message'].rstrip('.')}. {record['remedy']}".rstrip()
        write_json(files.last_failure, {**record, "gave_up": {"invocation": invocation, "message": last_words}})
        return False
    pause = restart_pause.pause_before(failures, now, state, invocation)
    if pause:
        say(pause.describe(str(record.get("cause"))))
        time.sleep(pause.seconds)
    return True


def state_of_unit(files: HostFiles) -> t.Optional[unit.UnitState]:
    """What systemd says of the unit; None where it cannot be asked, which is no reason to fail a start or to lose a diagnosis."""
    try:
        return unit.show_unit(run_command, unit_name(files.deployment))
    except (VllmError, OSError) as exc:
        say(f"systemd cannot be asked about {unit_name(files.deployment)}: {' '.join(str(exc).split())}")
        return None


def left_over_reaper(files: HostFiles) -> reap.Reaper:
    """Ends what an earlier run of the unit left behind. It finds nothing where this program is not a command of the unit itself."""
    name, invocation = unit_name(files.deployment), os.environ.get("INVOCATION_ID")
    return reap.Reaper(name, _processes.UnitProcesses(name, lambda: _processes.own_run(name, invocation)), say)


def serve(files: HostFiles) -> int:
    """ExecStart: record which release runs, then become the engine."""
    release = files.current_release()
    refusal = files.refusal(release["id"], os.environ.get("INVOCATION_ID"))
    if refusal:
        say(refusal)
        return EX_CONFIG
    running = {"release": release["id"], "written": files.written(), "unit_sha256": files.unit_sha256()}
    write_json(files.running, {**running, "pid": os.getpid(), "invocation": os.environ.get("INVOCATION_ID")})
    engine = Path(release["engine_path"]) / "bin"
    environment = {**os.environ, "PATH": f"{engine}:{os.environ.get('PATH', '/usr/bin:/bin')}"}
    config = Path(os.environ["CREDENTIALS_DIRECTORY"]) / "engine.yaml"
    program = str(engine / "vllm")
    say(f"release {release['id']}: {program} serve {release['model_path']}")
    os.execve(program, [program, "serve", release["model_path"], "--config", str(config)], environment)


def record_failure(files: HostFiles) -> int:
    """ExecStopPost: nothing for a stop that was asked for; else the cause, which blocks the release where trying again cannot help."""
    unit_of_it = unit_name(files.deployment)
    refused = os.environ.get("EXIT_STATUS") == str(EX_CONFIG)
    if refused or not journal.unasked_stop(os.environ) or unit.is_asked_to_stop(run_command, unit_of_it):
        return 0
    release = files.current_release()
    invocation = os.environ["INVOCATION_ID"]
    lines = journal.read_invocation(run_command, unit_of_it, invocation)
    finding = diagnose.diagnose(lines)
    if finding.cause == "stopped":
        return 0
    blocks, now = diagnose.is_deterministic(finding), time.time()
    before = restart_pause.failures_of(read_json(files.last_failure), release["id"])
    state = state_of_unit(files)
    failures = restart_pause.recent([*before, now], now, state)
    record = {**finding.as_dict(), "release": release["id"], "invocation": invocation, "blocks": blocks, "time": now, "failures": failures}
    record["n_restarts"] = state.n_restarts if state else None
    record.update({name.lower(): os.environ.get(name) for name in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS")})
    write_json(files.last_failure, record)
    say(f"{finding.cause}: {finding.message}" + (" The release is blocked until it changes or is deployed again." if blocks else ""))
    return 0


def verify_unit(name: str, path: Path) -> int:
    """For template's validate: 1 where systemd says anything about the unit whose file is going to be ``path``."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    with tempfile.TemporaryDirectory(prefix="gpufleet-unit-", dir=UNIT_FOLDER) as folder:
        staged = Path(folder) / (name if name.endswith(".service") else unit_name(name))
        shutil.copyfile(path, staged)
        complaints = unit_check.verify_unit(run_command, str(staged))
    for line in complaints:
        say(line)
    return 1 if complaints else 0


COMMANDS: dict[str, t.Callable[[HostFiles], int]] = {"gpu-wait": wait_for_gpus, "serve": serve, "diagnose": record_failure}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="gpufleet-host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = commands.add_parser(name)
        command.add_argument("deployment")
        command.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    verify = commands.add_parser("verify-unit")
    verify.add_argument("unit", help="the unit, or its deployment")
    verify.add_argument("path", type=Path, help="the file that is going to be its unit file")
    return parser.parse_args()


def main() -> int:
    """Run one command, for one deployment or one unit file."""
    options = parse()
    try:
        if options.command == "verify-unit":
            return verify_unit(options.unit, options.path)
        return COMMANDS[options.command](HostFiles(options.deployment, options.root))
    except (VllmError, OSError) as exc:
        print(str(exc) if isinstance(exc, VllmError) else f"{options.command}: {exc}", file=sys.stderr, flush=True)
        return EX_CONFIG


if __name__ == "__main__":
    sys.exit(main())
