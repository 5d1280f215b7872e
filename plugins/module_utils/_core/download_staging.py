# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder beside the target where files arrive and are proven. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import os
import shutil
import typing as t
from pathlib import Path

from . import download_verdicts as verdicts
from .download_survey import Survey, Surveyor
from .errors import VllmError
from .hub import FileSpec
from .receipt import Entry
from .snapshot import Damage

__all__ = ["Staging", "make_folders", "size_of"]

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_CLIENT_FOLDERS = (".cache", ".hf")


class Staging:
    """Fetches files into ``folder`` and lets only proven ones stay."""

    def __init__(self, surveyor: Surveyor) -> None:
        self.surveyor = surveyor
        self.effects = surveyor.effects
        self.folder = surveyor.staging

    def kept(self, wanted: t.Sequence[FileSpec]) -> dict[str, Entry]:
        """The whole files that a killed run left behind; everything else in the folder is removed."""
        names = {spec.path for spec in wanted}
        self.forget_client()
        make_folders(self.folder)
        for path in list(self.folder.rglob("*")):
            if not path.is_dir() and path.relative_to(self.folder).as_posix() not in names:
                path.unlink()
        return self._accept([spec for spec in wanted if (self.folder / spec.path).exists()])[0]

    def fetch(self, survey: Survey, specs: t.Sequence[FileSpec]) -> dict[str, Entry]:
        """Fetch until every file is proven, with growing pauses, for as long as tries keep bringing files in."""
        patience = self.surveyor.request.retry_timeout
        pending, proven, refused = {spec.path: spec for spec in specs}, dict[str, Entry](), set[str]()
        pause, deadline = _FIRST_PAUSE, self.effects.clock() + patience
        while pending:
            self.forget_client()
            failures = self.effects.fetch(self.surveyor.commit, sorted(pending), self.folder, lambda: self._seen(survey))
            good, bad = self._accept([spec for spec in pending.values() if (self.folder / spec.path).exists()])
            verdict = verdicts.final(self.effects.hub, self.folder.parent, shutil.disk_usage(self.folder).free, failures)
            verdict = verdict or self._repeated(bad, refused)
            if verdict:
                raise verdict
            proven.update(good)
            refused.update(bad)
            pending = {name: spec for name, spec in pending.items() if name not in good}
            if good:
                pause, deadline = _FIRST_PAUSE, self.effects.clock() + patience
            if pending and self.effects.clock() + pause > deadline:
                raise verdicts.gave_up(self.effects.hub.endpoint, sorted(pending), failures)
            if pending:
                self.effects.report({"what": f"trying {len(pending)} files again in {pause:.0f} s: {verdicts.reason(failures, bad)}"})
                self.effects.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        return proven

    def forget_client(self) -> None:
        """Remove what the Hub client keeps for itself: its records prove nothing, and it never resumes its partial files."""
        for name in _CLIENT_FOLDERS:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _accept(self, specs: t.Sequence[FileSpec]) -> tuple[dict[str, Entry], dict[str, Damage]]:
        """Prove files by their hash and remove those that fail."""
        self.surveyor.settle(self.folder, [spec.path for spec in specs])
        good, bad = self.surveyor.prove(self.folder, specs, content=True)
        for name in bad:
            (self.folder / name).unlink()
        return good, bad

    def _repeated(self, bad: t.Mapping[str, Damage], refused: t.Container[str]) -> t.Optional[VllmError]:
        """The verdict where fetching once more would bring the same."""
        again = {name: damage for name, damage in bad.items() if name in refused}
        broken = verdicts.broken_as_published(self.surveyor.request.repo_id, bad)
        return broken or (verdicts.corrupt_source(self.effects.hub.endpoint, again) if again else None)

    def _seen(self, survey: Survey) -> int:
        """Report how far the fetch is; answers with the bytes that are there."""
        here, wanted = size_of(self.folder), survey.selection
        before = [spec for name, spec in wanted.files.items() if name not in survey.bad]
        done = min(sum(spec.size or 0 for spec in before) + here, wanted.total)
        files = len(before) + sum((self.folder / name).exists() for name in survey.bad)
        record = {"what": "weights", "done": done, "total": wanted.total, "unit": "B", "files": files, "files_total": len(wanted.files)}
        self.effects.report(record)
        return here


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder that may be changing."""
    total = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(root) / name).lstat().st_size
    return total


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, open to every reader whatever the umask."""
    if not folder.is_dir():
        make_folders(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o755)
