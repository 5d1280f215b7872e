# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the scenarios' tests ask of a deployment on a host, and how they wait."""

from __future__ import annotations

import json
import shlex
import time
import typing as t
from pathlib import Path

__all__ = ["Unit", "wait_for"]

HEALTH = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/health', timeout=5).status)"
SHOW_GPUS = "python3 /srv/bench/nvml/fake_nvml.py show"


def wait_for(condition: t.Callable[[], t.Any], seconds: float = 120.0) -> None:
    """Look again and again until it is so; each look costs a connection."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so after {seconds:g} s"
        time.sleep(0.5)


class Unit:
    """The unit of a deployment on one host."""

    def __init__(self, host: t.Any, deployment: str = "minimax-m25") -> None:
        self.host = host
        self.name = f"vllm-{deployment}.service"
        self.files = f"/etc/gpufleet/{deployment}"
        self.state_files = f"/var/lib/gpufleet/{deployment}"
        self.run_files = f"/run/vllm-{deployment}"

    def shown(self, name: str, unit: str = "") -> str:
        """One property, as systemd shows it; of another unit where one is named."""
        return str(self.host.check_output(f"systemctl show --value --property={name} {unit or self.name}"))

    def journal(self, output: str = "cat") -> str:
        """What the unit's processes, and systemd about them, have written since the host was made."""
        return str(self.host.check_output(f"journalctl --sync; journalctl --no-pager --output={output} --unit={self.name}"))

    @property
    def main_pid(self) -> int:
        return int(self.shown("MainPID"))

    def status(self) -> str:
        """What an administrator sees first."""
        return str(self.host.run(f"systemctl status --no-pager --full {self.name}").stdout)

    def members(self) -> dict[int, str]:
        """Who is in the unit's control group, by the kernel's name of each."""
        found = self.host.run(
            f"for file in $(grep --files-with-matches --no-messages '/{self.name}$' /proc/[0-9]*/cgroup); do"
            ' echo "$(echo $file | cut -d / -f 3) $(cat ${file%cgroup}comm)"; done'
        ).stdout
        return {int(pid): name for pid, name in (line.split(maxsplit=1) for line in found.splitlines() if " " in line.strip())}

    def answers(self) -> bool:
        """Whether its main process lives and the server says that it is well."""
        return self.host.run(f'python3 -c "{HEALTH}"').stdout.strip() == "200" and self.main_pid != 0

    def used_gpus(self) -> list[int]:
        lines = self.host.check_output(SHOW_GPUS).splitlines()
        return [int(line.split()[0]) for line in lines if " 0 MiB used" not in line]

    def release(self) -> dict[str, t.Any]:
        """The current release."""
        return self._json(f"{self.files}/current/release.json")

    def running(self) -> dict[str, t.Any]:
        """What the unit has noted of the release that it runs."""
        return self._json(f"{self.run_files}/running.json")

    def last_failure(self) -> dict[str, t.Any]:
        """Why the last start or run failed; empty where nothing is recorded."""
        path = f"{self.state_files}/last-failure.json"
        return self._json(path) if self.host.run(f"test -e {path}").rc == 0 else {}

    def run_python(self, script: Path, *words: str, python: str = "python3") -> t.Any:
        """The JSON that a script of ours prints on the host."""
        return json.loads(self.host.check_output(f"{python} -c {shlex.quote(script.read_text())} {shlex.join(words)}"))

    def _json(self, path: str) -> dict[str, t.Any]:
        return t.cast("dict[str, t.Any]", json.loads(self.host.check_output(f"cat {path}")))
