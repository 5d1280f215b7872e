# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print everything that a deployment has come to on this host, without what differs from start to start: it runs on the hosts.

Two hosts on which this is equal are in the same state. Every name below the folders of the collection is in it, so whatever a play that
was interrupted left there is seen without a list of what that might be.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import typing as t
import urllib.request
from pathlib import Path

DEPLOYMENT = sys.argv[1]
UNIT = f"vllm-{DEPLOYMENT}.service"
FILES = Path("/etc/gpufleet") / DEPLOYMENT
UNIT_FILE = Path("/etc/systemd/system") / UNIT
# How deep to look: folders of weights and engines are one name each.
FOLDERS = {
    "/etc/gpufleet": 9,
    "/etc/systemd/system": 1,
    "/var/lib/gpufleet": 3,
    f"/run/vllm-{DEPLOYMENT}": 9,
    "/run/gpufleet": 9,
    "/opt/gpufleet": 2,
}
SHOWN = ("ActiveState", "SubState", "Result", "UnitFileState", "NeedDaemonReload", "Job", "MainPID", "InvocationID")
SHOW_GPUS = "/srv/bench/nvml/fake_nvml.py"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "absent"


def names(folder: Path, depth: int) -> t.Iterator[str]:
    """Everything in a folder, in the order of names; a backup of an edited file is nobody's leftover."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.endswith("~"):
            continue
        yield str(path)
        if depth > 1 and path.is_dir() and not path.is_symlink():
            yield from names(path, depth - 1)


def shown() -> dict[str, str]:
    command = ["systemctl", "show", f"--property={','.join(SHOWN)}", UNIT]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def used_gpus() -> list[int]:
    lines = subprocess.run([sys.executable, SHOW_GPUS, "show"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if " 0 MiB used" not in line]


def answer() -> t.Union[int, str]:
    """What the server says of itself, at the address and port of the release."""
    lines = (FILES / "current" / "engine.yaml").read_text().splitlines()
    options = {name: json.loads(value) for name, _colon, value in (line.partition(": ") for line in lines) if name in ("host", "port")}
    try:
        with urllib.request.urlopen(f"http://{options['host']}:{options['port']}/health", timeout=10) as response:
            return int(response.status)
    except OSError as exc:
        return str(exc)


def links() -> dict[str, str]:
    return {path.name: str(path.readlink()) for path in sorted(FILES.iterdir()) if path.is_symlink()}


def contents() -> dict[str, str]:
    """Every file of every release, and the unit's, by the hash of what is in it; links by where they lead."""
    paths = [path for release in sorted((FILES / "releases").iterdir()) for path in sorted(release.iterdir())]
    return {str(path): str(path.readlink()) if path.is_symlink() else digest(path) for path in [*paths, UNIT_FILE]}


def running(unit: t.Mapping[str, str]) -> dict[str, t.Any]:
    """What the process was started with: the release that it noted, and the arguments and variables that it really got."""
    noted = json.loads(Path(f"/run/vllm-{DEPLOYMENT}/running.json").read_text())
    handed = Path(f"/run/credentials/{UNIT}/engine.yaml")
    given = Path(f"/proc/{unit['MainPID']}/environ").read_bytes().split(b"\0")
    wanted = [line for line in (FILES / "current" / "environment").read_text().splitlines() if line.strip()]
    return {
        "release": noted["release"],
        "is the process of this start": [str(noted["pid"]), noted["invocation"]] == [unit["MainPID"], unit["InvocationID"]],
        "unit text": noted["unit_sha256"],
        "arguments": digest(handed),
        "variables missing": [line for line in wanted if line.replace('"', "").encode() not in given],
    }


def last_failure() -> dict[str, t.Any]:
    path = Path(f"/var/lib/gpufleet/{DEPLOYMENT}/last-failure.json")
    record = json.loads(path.read_text()) if path.exists() else {}
    return {name: record.get(name) for name in ("release", "cause", "blocks")}


def state() -> dict[str, t.Any]:
    unit = shown()
    return {
        "links": links(),
        "contents": contents(),
        "names": [name for folder, depth in FOLDERS.items() for name in names(Path(folder), depth)],
        "unit": {name: value for name, value in unit.items() if name not in ("MainPID", "InvocationID")},
        "running": running(unit) if unit["MainPID"] != "0" else "nothing",
        "answer": answer(),
        "used gpus": used_gpus(),
        "last failure": last_failure(),
    }


if __name__ == "__main__":
    print(json.dumps(state()))
