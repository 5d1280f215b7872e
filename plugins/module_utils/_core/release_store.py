# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases on disk: written beside, renamed whole, switched by one link. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import re
import shutil
import typing as t
from pathlib import Path

from .durable import sync, write_file
from .engine_config import read_engine_yaml
from .errors import VllmError
from .release import ENGINE_YAML, ENVIRONMENT, RELEASE_JSON, Release, content_id

__all__ = ["Drift", "Links", "ReleaseStore", "read_record"]

_ID = re.compile(r"[0-9a-f]{12}")
# What people call parts of a release, and what release.json does.
_PARTS = {"weights": "model_path", "engine": "engine_path", "gpus": "gpus", "gpu_wait": "gpu_wait", "origin": "origin"}


class Drift(t.NamedTuple):
    """A file of a release that is not what was written: somebody edited or removed it."""

    path: str
    found: t.Optional[str]
    wanted: str


class Links(t.NamedTuple):
    """What the links of a deployment name. ``rolled_back`` is the release that the last roll-back left."""

    current: t.Optional[str]
    previous: t.Optional[str]
    rolled_back: t.Optional[str]

    def after_return(self, release_id: str) -> Links:
        """The links when a roll-back to this release is complete, from before it or from amid one that was killed."""
        if self.current != release_id:
            return Links(release_id, self.current, self.current)
        was_killed = self.previous == release_id and self.rolled_back not in (None, release_id)
        return self._replace(previous=self.rolled_back) if was_killed else self


def read_record(folder: Path) -> t.Optional[dict[str, t.Any]]:
    """release.json in the folder of a release; None where it is not there or is not what this collection writes."""
    try:
        record = json.loads((folder / RELEASE_JSON).read_text(encoding="utf-8"))
        paths = record["model_path"], record["engine_path"]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return t.cast("dict[str, t.Any]", record) if all(isinstance(path, str) for path in paths) else None


class ReleaseStore:
    """The folder of one deployment: ``releases/<id>/`` and the links ``current``, ``previous``, ``rolled-back`` and ``proven``."""

    def __init__(self, root: Path, deployment: str) -> None:
        self.folder = root / deployment
        self.releases = self.folder / "releases"

    def path(self, release_id: str) -> Path:
        """The folder of one release."""
        return self.releases / release_id

    def linked(self, name: str) -> t.Optional[str]:
        """The id of the release that one of the links points at; None without such a link."""
        try:
            return Path(os.readlink(self.folder / name)).name
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise VllmError(
                f"{self.folder / name} is no link ({exc}).", code="bad_layout", remedy="Move it away; this collection keeps a link there."
            ) from exc

    def links(self) -> Links:
        """What each link names."""
        return Links(self.linked("current"), self.linked("previous"), self.linked("rolled-back"))

    def ids(self) -> list[str]:
        """The releases on the disk, the one that was written last first."""
        found = [path for path in self.releases.glob("*") if _ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
        return [path.name for path in sorted(found, key=lambda path: (-path.stat().st_mtime_ns, path.name))]

    def differences(self, release: Release) -> list[str]:
        """What of a release is another than in the current one: names of options and of parts, without values."""
        current = read_record(self.folder / "current")
        if current is None:
            return ["first release"]
        wanted = {name: text for name, (text, _mode) in release.files().items()}
        before, after = read_engine_yaml(self._current_text(ENGINE_YAML)), read_engine_yaml(wanted[ENGINE_YAML])
        options = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        record = json.loads(wanted[RELEASE_JSON])
        parts = [part for part, field in _PARTS.items() if current.get(field) != record[field]]
        environment = ["environment"] if self._current_text(ENVIRONMENT) != wanted[ENVIRONMENT] else []
        return [*("keys" if name == "api-key" else name for name in options), *environment, *parts]

    def _current_text(self, name: str) -> str:
        path = self.folder / "current" / name
        return path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""

    def edited(self, release_id: str) -> list[str]:
        """What of a release is not as it was written, by its name, which is the hash of its content.

        That hash covers three files, so it cannot tell which of them was edited: all three are named.
        """
        folder = self.path(release_id)
        record = read_record(folder)
        try:
            texts = [(folder / name).read_bytes().decode("utf-8") for name in (ENGINE_YAML, ENVIRONMENT)]
            whole = record is not None and record["id"] == content_id(record, *texts) == release_id
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            whole = False
        if record is None or not whole:
            return [str(folder / name) for name in (ENGINE_YAML, ENVIRONMENT, RELEASE_JSON)]
        targets = {folder / "engine": record["engine_path"], folder / "model": record["model_path"]}
        return [str(link) for link, target in targets.items() if not link.is_symlink() or os.readlink(link) != target]

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

    def opened(self, release: Release) -> list[Drift]:
        """Files of the release on disk with other rights than they were written with: the keys in them may be seen."""
        modes = {self.path(release.id) / name: mode for name, (_text, mode) in release.files().items()}
        found = {path: path.stat().st_mode & 0o7777 for path in modes if path.is_file()}
        return [Drift(str(path), f"mode {now:04o}\n", f"mode {modes[path]:04o}\n") for path, now in found.items() if now != modes[path]]

    def close(self, release: Release) -> None:
        """Give the files of the release their rights again, which needs no other writing of it and no restart."""
        for name, (_text, mode) in release.files().items():
            (self.path(release.id) / name).chmod(mode)

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
        """Make ``current`` point at the release and ``previous`` at the one to return to; each link changes in one step.

        That is the one before it, unless that one failed its gate, or was killed before it passed, and an earlier one has passed.
        """
        before, proven = self.linked("current"), self.linked("proven")
        if before != release_id or self.linked("rolled-back") == release_id:
            # Whoever deploys a release that was left wants it, and the story of one that is deployed after it is another.
            (self.folder / "rolled-back").unlink(missing_ok=True)
        earlier = before if proven is None else proven
        if earlier not in (None, release_id, self.linked("previous")):
            self._link("previous", earlier)
        self._link("current", release_id)

    def return_to(self, release_id: str) -> None:
        """Switch back to a release. The one that is left is noted first, so that a roll-back that is killed is completed, and not undone,
        by the next one."""
        now, then = self.links(), self.links().after_return(release_id)
        for name, before, after in (
            ("rolled-back", now.rolled_back, then.rolled_back),
            ("current", now.current, then.current),
            ("previous", now.previous, then.previous),
        ):
            if after is not None and after != before:
                self._link(name, after)

    def prove(self, release_id: str) -> None:
        """Remember that the release passed its gate: it is what to return to when a later one does not."""
        if self.linked("proven") != release_id:
            self._link("proven", release_id)

    def _link(self, name: str, release_id: str) -> None:
        staged = self.folder / f".{name}.partial"
        staged.unlink(missing_ok=True)
        staged.symlink_to(Path("releases") / release_id)
        staged.rename(self.folder / name)
        sync(self.folder)
