# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases on disk: written beside, renamed whole, switched by one link. PRIVATE to the collection."""

from __future__ import annotations

import os
import shutil
import typing as t
from pathlib import Path

from .durable import sync, write_file
from .errors import VllmError
from .release import Release

__all__ = ["Drift", "ReleaseStore"]


class Drift(t.NamedTuple):
    """A file of a release that is not what was written: somebody edited or removed it."""

    path: str
    found: t.Optional[str]
    wanted: str


class ReleaseStore:
    """The folder of one deployment: ``releases/<id>/`` and the links ``current`` and ``previous``."""

    def __init__(self, root: Path, deployment: str) -> None:
        self.folder = root / deployment
        self.releases = self.folder / "releases"

    def path(self, release_id: str) -> Path:
        """The folder of one release."""
        return self.releases / release_id

    def linked(self, name: str) -> t.Optional[str]:
        """The id of the release that ``current`` or ``previous`` points at; None without such a link."""
        try:
            return Path(os.readlink(self.folder / name)).name
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise VllmError(
                f"{self.folder / name} is no link ({exc}).", code="bad_layout", remedy="Move it away; this collection keeps a link there."
            ) from exc

    def drift(self, release: Release) -> list[Drift]:
        """What differs between the release on disk and the release that was asked for; nothing when it was never written."""
        folder = self.path(release.id)
        if not folder.is_dir():
            return []
        found = []
        for name, (text, _mode) in release.files().items():
            path = folder / name
            # As bytes, since reading text would take a carriage return for the end of a line.
            current = path.read_bytes().decode("utf-8", "replace") if path.is_file() else None
            if current != text:
                found.append(Drift(str(path), current, text))
        for name, target in release.links().items():
            path = folder / name
            current = os.readlink(path) if path.is_symlink() else None
            if current != target:
                found.append(Drift(str(path), current, target))
        return found

    def write(self, release: Release, backup_suffix: str) -> t.Optional[str]:
        """Write the release whole; a drifted one is moved aside first. Returns the path of that backup, None without one."""
        final = self.path(release.id)
        staged = self.releases / f".{release.id}.partial"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True, mode=0o755)
        for name, (text, mode) in release.files().items():
            write_file(staged / name, text, mode)
        for name, target in release.links().items():
            (staged / name).symlink_to(target)
        staged.chmod(0o755)
        sync(staged)
        backup = None
        if final.exists():
            backup = f"{final}.drift-{backup_suffix}"
            final.rename(backup)
        staged.rename(final)
        sync(self.releases)
        return backup

    def switch(self, release_id: str) -> None:
        """Make ``current`` point at the release and ``previous`` at the one before it; each link changes in one step."""
        before = self.linked("current")
        if before is not None and before != release_id:
            self._link("previous", before)
        self._link("current", release_id)

    def _link(self, name: str, release_id: str) -> None:
        staged = self.folder / f".{name}.partial"
        staged.unlink(missing_ok=True)
        staged.symlink_to(Path("releases") / release_id)
        staged.rename(self.folder / name)
        sync(self.folder)
