# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpufleet-host: what the unit of a deployment runs beside the engine.

  gpufleet-host gpu-wait DEPLOYMENT   ExecStartPre: until what an earlier run left behind is gone and the release's GPUs are free
  gpufleet-host serve DEPLOYMENT      ExecStart: becomes the engine of the current release
  gpufleet-host diagnose DEPLOYMENT   ExecStopPost: records why a start or run failed

Exit status: 0 good, 69 NVML unavailable, 70 GPU fault, 75 try again later, 78 bad configuration or a blocked release.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from gpufleet_host import _nvml, _processes
from gpufleet_host._core import diagnose, gpu_wait, journal, reap, unit
from gpufleet_host._core.effects import CommandResult
from gpufleet_host._core.errors import VllmError
from gpufleet_host._core.host_files import HostFiles, unit_name, write_json

EX_CONFIG = 78


def say(line: str) -> None:
    """One line for the journal, at once."""
    print(line, flush=True)


def run_command(argv: t.Sequence[str]) -> CommandResult:
    """The core's runner."""
    done = subprocess.run(list(argv), capture_output=True, text=True, errors="replace", check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def wait_for_gpus(files: HostFiles) -> int:
    """ExecStartPre. A blocked release does not wait: serve is going to refuse it, and it is serve's refusal that ends the restarts."""
    release = files.current_release()
    reaper = left_over_reaper(files) if gpu_wait.wants_reaping(release["gpu_wait"], "own") else None
    if release["gpus"] and not files.block(release["id"]):
        return gpu_wait.run(release, _nvml.Sampler, clock=time.monotonic, sleep=time.sleep, say=say, reaper=reaper)
    if reaper:
        reap.settle(reaper, gpu_wait.DEFAULTS["interval"], time.monotonic, time.sleep)
    return 0


def left_over_reaper(files: HostFiles) -> reap.Reaper:
    """Ends what an earlier run of the unit left behind. It finds nothing where this program is not a command of the unit itself."""
    name, invocation = unit_name(files.deployment), os.environ.get("INVOCATION_ID")
    return reap.Reaper(name, _processes.UnitProcesses(name, lambda: _processes.own_run(name, invocation)), say)


def serve(files: HostFiles) -> int:
    """ExecStart: record which release runs, then become the engine."""
    release = files.current_release()
    blocked = files.block(release["id"])
    if blocked:
        say(f"refusing release {release['id']}: {blocked['message']} {blocked['remedy']}".rstrip())
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
    blocks = diagnose.is_deterministic(finding)
    record = {**finding.as_dict(), "release": release["id"], "invocation": invocation, "blocks": blocks, "time": time.time()}
    record.update({name.lower(): os.environ.get(name) for name in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS")})
    write_json(files.last_failure, record)
    say(f"{finding.cause}: {finding.message}" + (" The release is blocked until it changes or is deployed again." if blocks else ""))
    return 0


COMMANDS: dict[str, t.Callable[[HostFiles], int]] = {"gpu-wait": wait_for_gpus, "serve": serve, "diagnose": record_failure}


def main() -> int:
    """Run one command for one deployment."""
    parser = argparse.ArgumentParser(prog="gpufleet-host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.add_argument("deployment")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        return COMMANDS[options.command](HostFiles(options.deployment, options.root))
    except VllmError as exc:
        print(str(exc), file=sys.stderr, flush=True)
        return EX_CONFIG
    except OSError as exc:
        print(f"{options.command}: {exc}", file=sys.stderr, flush=True)
        return EX_CONFIG


if __name__ == "__main__":
    sys.exit(main())
