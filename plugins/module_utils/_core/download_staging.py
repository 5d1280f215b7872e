# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder beside the target where files arrive and are proven. PRIVATE to the collection."""

from __future__ import annotations

import shutil
import typing as t

from . import download_verdicts as verdicts
from .download_job import Failure, Order
from .download_links import borrow, find_loans
from .download_survey import Survey, Surveyor
from .durable import make_folders
from .errors import VllmError
from .hub import FileSpec
from .leftovers import size_of
from .proof import Damage, Proof, Prover, prove_all

__all__ = ["Staging"]

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_CLIENT_FOLDERS = (".cache", ".hf")


class Staging:
    """Fetches files into ``folder`` and lets only proven ones stay."""

    def __init__(self, surveyor: Surveyor) -> None:
        self.surveyor = surveyor
        self.effects = surveyor.effects
        self.folder = surveyor.staging

    def borrowed(self, wanted: t.Sequence[FileSpec]) -> Proof:
        """What other commits hold already, linked; their headers are read for the tensors, since the index may be another one."""
        make_folders(self.folder)
        entries = borrow(find_loans(self.surveyor.request, self.surveyor.folder, wanted), self.folder, self.effects)
        proof = prove_all(self.folder, [spec for spec in wanted if spec.path in entries], content=False)
        return proof._replace(good={name: entries[name] for name in proof.good})

    def kept(self, wanted: t.Sequence[FileSpec], spared: t.Container[str]) -> Proof:
        """The whole files that a killed run left behind; everything else in the folder is removed, but what is ``spared``."""
        names = {spec.path for spec in wanted}
        self._forget_client()
        for path in list(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if not path.is_dir() and name not in names and name not in spared:
                path.unlink()
        specs = [spec for spec in wanted if (self.folder / spec.path).exists()]
        self.surveyor.settle(self.folder, [spec.path for spec in specs])
        return self._weeded(self.surveyor.prove(self.folder, specs, content=True, keep_cache=True))

    def fetch(self, survey: Survey, specs: t.Sequence[FileSpec]) -> None:
        """Fetch until the survey has every file proven, with growing pauses, for as long as tries keep bringing files in."""
        patience = self.surveyor.request.retry_timeout
        pending, refused = {spec.path: spec for spec in specs}, set[str]()
        pause, deadline, attempt = _FIRST_PAUSE, self.effects.clock() + patience, 0
        while pending:
            failures, proof = self._attempt(survey, pending, attempt)
            verdict = verdicts.final(self.effects.source, self.folder.parent, shutil.disk_usage(self.folder).free, failures)
            verdict = verdict or self._repeated(proof.bad, refused)
            if verdict:
                raise verdict
            survey.take(proof)
            refused.update(proof.bad)
            pending = {name: spec for name, spec in pending.items() if name not in proof.good}
            if proof.good:
                pause, deadline = _FIRST_PAUSE, self.effects.clock() + patience
            if pending and self.effects.clock() + pause > deadline:
                raise verdicts.gave_up(self.effects.source.address, sorted(pending), failures, proof.bad)
            if pending:
                why = verdicts.reason(failures, proof.bad)
                self.effects.report({"what": f"trying {len(pending)} files again in {pause:.0f} s: {why}"})
                self.effects.sleep(pause)
                pause, attempt = min(2 * pause, _LONGEST_PAUSE), attempt + 1

    def _attempt(self, survey: Survey, pending: t.Mapping[str, FileSpec], attempt: int) -> tuple[dict[str, Failure], Proof]:
        """Carry out one order; each file is hashed as soon as it is whole, out of the page cache and while others are still coming."""
        specs, proving = tuple(pending[name] for name in sorted(pending)), set[str]()
        with Prover(self.folder, content=True, keep_cache=True) as prover:

            def landed(name: str) -> None:
                self.surveyor.settle(self.folder, [name])
                prover.add(pending[name])
                proving.add(name)

            order = Order(self.surveyor.commit, specs, self.folder, attempt, lambda: self._seen(survey), landed)
            failures = self.effects.fetch(order)
            self._forget_client()  # its partial files would keep a full disk full
            for spec in specs:
                if spec.path not in proving and (self.folder / spec.path).exists():
                    landed(spec.path)
            return failures, self._weeded(prover.result())

    def _forget_client(self) -> None:
        """Remove what the Hub client keeps for itself: its records prove nothing, and it never resumes its partial files."""
        for name in _CLIENT_FOLDERS:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _weeded(self, proof: Proof) -> Proof:
        """Remove the files that fail."""
        for name in proof.bad:
            (self.folder / name).unlink(missing_ok=True)
        return proof

    def _repeated(self, bad: t.Mapping[str, Damage], refused: t.Container[str]) -> t.Optional[VllmError]:
        """The verdict where fetching once more would bring the same."""
        again = {name: damage for name, damage in bad.items() if name in refused}
        broken = verdicts.broken_as_published(self.surveyor.request.repo_id, bad)
        return broken or (verdicts.corrupt_source(self.effects.source.address, again) if again else None)

    def _seen(self, survey: Survey) -> int:
        """Report how far the fetch is; answers with the bytes that are there."""
        here, wanted = size_of(self.folder), survey.selection
        before = [spec for name, spec in wanted.files.items() if name not in survey.bad]
        done = min(sum(spec.size or 0 for spec in before) + here, wanted.total)
        files = len(before) + sum((self.folder / name).exists() for name in survey.bad)
        record = {"what": "weights", "done": done, "total": wanted.total, "unit": "B", "files": files, "files_total": len(wanted.files)}
        self.effects.report(record)
        return here
