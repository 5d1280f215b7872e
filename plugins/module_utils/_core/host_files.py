# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The small files that the unit's commands and the modules tell each other things with. PRIVATE to the collection.

``/run/vllm-<deployment>/running.json`` exists while the unit runs and says which release it runs;
``/var/lib/gpufleet/<deployment>/last-failure.json`` says why the last start or run failed, and when others did of late
(``failures``); it blocks that release from being started again where the release itself is at fault.
"""

from __future__ import annotations

import hashlib
import json
import re
import typing as t
from pathlib import Path

from .durable import replace_file
from .errors import VllmError

__all__ = ["HostFiles", "read_json", "unit_name", "write_json"]


def unit_name(deployment: str) -> str:
    """The systemd unit of a deployment."""
    return f"vllm-{deployment}.service"


def read_json(path: Path) -> t.Optional[dict[str, t.Any]]:
    """The JSON object in a file, None when there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise VllmError(f"{path} does not hold JSON ({exc}).", code="bad_state_file", remedy="Remove it; it is written again.") from exc
    return t.cast("dict[str, t.Any]", content)


def write_json(path: Path, content: t.Mapping[str, t.Any], mode: int = 0o644) -> None:
    """Replace a file in one step."""
    replace_file(path, json.dumps(content, indent=2, sort_keys=True) + "\n", mode)


class HostFiles(t.NamedTuple):
    """Where things are on a host; ``root`` is / except in tests."""

    deployment: str
    root: Path = Path("/")

    @property
    def current(self) -> Path:
        """The link to the release that a start runs."""
        return self.root / "etc/gpufleet" / self.deployment / "current"

    @property
    def unit_file(self) -> Path:
        """The unit's own file."""
        return self.root / "etc/systemd/system" / unit_name(self.deployment)

    @property
    def running(self) -> Path:
        """Which release the running unit runs."""
        return self.root / "run" / f"vllm-{self.deployment}" / "running.json"

    @property
    def last_failure(self) -> Path:
        """Why the last start or run failed."""
        return self.root / "var/lib/gpufleet" / self.deployment / "last-failure.json"

    def current_release(self) -> dict[str, t.Any]:
        """release.json of the current release."""
        record = read_json(self.current / "release.json")
        if record is None:
            raise VllmError(f"{self.current} holds no release.", code="no_release", remedy="Deploy one with the deploy playbook.")
        return record

    def unit_text(self) -> t.Optional[str]:
        """The text of the unit file, None without one."""
        try:
            return self.unit_file.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None

    def unit_sha256(self, text: t.Optional[str] = None) -> t.Optional[str]:
        """The hash of what the unit file says of the service (or ``text``, in its place), to notice one that changed after its start.

        Dependencies, limits of starts and comments do not count: they hold after a reload, without a restart.
        """
        text = self.unit_text() if text is None else text
        if text is None:
            return None
        service = re.findall(r"^\[Service\]$(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
        lines = [line for line in "".join(service).splitlines() if line.strip() and line[0] not in "#;"]
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    def written(self, release_id: t.Optional[str] = None) -> t.Optional[str]:
        """Which writing of a release this is, by default of the current one: one that was written anew after an edit has the same id and
        another file."""
        folder = self.current.parent / "releases" / release_id if release_id else self.current
        try:
            found = (folder / "release.json").stat()
        except FileNotFoundError:
            return None
        return f"{found.st_ino}-{found.st_mtime_ns}"

    def block(self, release_id: str) -> t.Optional[dict[str, t.Any]]:
        """The recorded failure that keeps this release from being started again, if there is one."""
        failure = read_json(self.last_failure)
        return failure if failure and failure.get("blocks") and failure.get("release") == release_id else None

    def refusal(self, release_id: str, invocation: t.Optional[str]) -> t.Optional[str]:
        """Why this start is not to be, in one line for the journal and ``systemctl status``; None where nothing speaks against it."""
        blocked = self.block(release_id)
        if blocked:
            return f"refusing release {release_id}: {blocked['message']} {blocked['remedy']}".rstrip()
        gave_up = (read_json(self.last_failure) or {}).get("gave_up") or {}
        return str(gave_up["message"]) if invocation and gave_up.get("invocation") == invocation else None
