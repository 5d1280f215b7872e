# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The edge of engine venvs: the folder, its lock, and uv. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ._core.durable import replace_file
from ._core.effects import CommandResult
from ._core.errors import VllmError
from ._core.venv import (
    BUILDING,
    MARKER,
    Marker,
    Source,
    Spec,
    check_interpreter,
    explain,
    freeze_command,
    install_command,
    interpreter_home,
    marker_of,
    parse_freeze,
    parse_marker,
    secrets_of,
    uv_environment,
    venv_command,
    wait_for_lock,
)

__all__ = ["Venv"]


class Venv:
    """One engine venv on this host."""

    def __init__(self, module: AnsibleModule, spec: Spec, source: Source) -> None:
        self.module = module
        self.spec = spec
        self.source = source
        self.dest = Path(module.params["dest"])
        self.command = self.dest / "bin" / spec.command
        self.marker_path = self.dest / MARKER
        self._lock: t.Optional[int] = None

    def marker(self) -> t.Optional[Marker]:
        """The marker, if the venv is complete: its interpreter and its command must still be there."""
        try:
            marker = parse_marker(self.marker_path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        usable = all(os.access(path, os.X_OK) for path in (self.dest / "bin" / "python", self.command))
        return marker if usable else None

    def has_leftover(self) -> bool:
        """Whether an incomplete venv is in the way; anything else that is in the way is not ours to remove."""
        if not self.dest.exists() or (self.dest.is_dir() and not any(self.dest.iterdir())):
            return False
        if any((self.dest / name).exists() for name in (BUILDING, MARKER, "pyvenv.cfg")):
            return True
        raise VllmError(
            f"{self.dest} exists and is not an engine venv.",
            code="dest_in_use",
            remedy="Choose another dest, or move away what is there.",
        )

    @contextlib.contextmanager
    def locked(self, timeout: float) -> t.Iterator[None]:
        """Keep other runs away. uv inherits the lock, so it lasts as long as a uv that outlives a killed run."""
        self._check_tools()
        self.dest.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = self.dest.parent / f".{self.dest.name}.lock"
        with path.open("w", encoding="utf-8") as file:
            self._lock = file.fileno()
            wait_for_lock(lambda: _try_lock(file), str(self.dest), timeout, time.monotonic, time.sleep)
            yield

    def build(self) -> Marker:
        """Install from nothing; the marker comes last, when everything before it has reached the disk."""
        self._clear()
        self._uv(venv_command(self.module.params["uv"], str(self.dest), self.spec))
        home, python_version = interpreter_home((self.dest / "pyvenv.cfg").read_text(encoding="utf-8"))
        check_interpreter(os.path.realpath(home))
        self._install()
        if not os.access(self.command, os.X_OK):
            raise VllmError(
                f"{self.spec.requirement} brought no command {self.spec.command} into {self.command.parent}.",
                code="command_missing",
                remedy="Correct the options package and command.",
            )
        packages = parse_freeze(self._uv(freeze_command(self.module.params["uv"], str(self.dest))).out)
        marker = marker_of(self.spec, python_version, packages)
        (self.dest / BUILDING).unlink()
        os.sync()
        self._write_marker(marker)
        return marker

    def _check_tools(self) -> None:
        """Refuse before anything is touched."""
        uv, python = self.module.params["uv"], self.spec.python
        if not os.access(uv, os.X_OK):
            raise VllmError(f"There is no program {uv}.", code="uv_missing", remedy="Run the role host first, or name uv by the option uv.")
        if "/" in python:
            check_interpreter(python)
            check_interpreter(os.path.realpath(python))
            if not os.access(python, os.X_OK):
                raise VllmError(
                    f"There is no interpreter {python}.",
                    code="python_missing",
                    remedy="Install it, or name another one by the option python.",
                )

    def _clear(self) -> None:
        """Empty the folder. The mark goes first in and last out, so that a leftover of this very step is known as one."""
        self.dest.mkdir(mode=0o755, exist_ok=True)
        (self.dest / BUILDING).touch()
        self.marker_path.unlink(missing_ok=True)
        for entry in self.dest.iterdir():
            if entry.name == BUILDING:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _install(self) -> None:
        overrides = Path(self.module.tmpdir) / "overrides.txt"
        overrides.write_text("".join(f"{line}\n" for line in self.spec.overrides), encoding="utf-8")
        self._uv(install_command(self.module.params["uv"], str(self.dest), self.spec, self.source, str(overrides)))

    def _uv(self, command: t.Sequence[str]) -> CommandResult:
        """Run uv, from the root folder, where no project's settings lie; its files are readable for the units' users."""
        result = CommandResult(
            *self.module.run_command(
                list(command),
                environ_update=uv_environment(self.source, self.module.params["python_dir"], self._cache_dir()),
                cwd="/",
                umask=0o022,
                pass_fds=(self._lock,),
                expand_user_and_vars=False,
            )
        )
        if result.rc:
            indexes = (self.source.index_url or "", *self.source.extra_index_urls)
            raise explain(result, self.spec, self.source, secrets_of(indexes))
        return result

    def _cache_dir(self) -> str:
        """Beside the venvs, unless the task's environment names another place."""
        return os.environ.get("UV_CACHE_DIR") or str(self.dest.parent / ".uv-cache")

    def _write_marker(self, marker: Marker) -> None:
        """Beside, to the disk, then into its place in one step."""
        replace_file(self.marker_path, marker.to_json())


def _try_lock(file: t.IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
