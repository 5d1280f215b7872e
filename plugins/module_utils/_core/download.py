# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a folder hold exactly a repository's snapshot at one commit, and prove it. PRIVATE to the collection.

Files are fetched into a folder beside the target, proven by their published hash, and only then moved into place: a new snapshot
by one rename, a repair file by file under a receipt that calls itself incomplete. The receipt is written last.
"""

from __future__ import annotations

import shutil
import typing as t
from pathlib import Path

from . import download_verdicts as verdicts
from .download_job import Effects, Request, Source, staging_of
from .download_links import find_loans
from .download_staging import Staging
from .download_survey import Survey, Surveyor
from .durable import make_folders, sync
from .errors import VllmError
from .hub import COMMIT, FileSpec
from .leftovers import leftovers_beside, leftovers_in_store, remove, size_of
from .receipt import RECEIPT_NAME, Receipt, identify, read_receipt, write_receipt
from .snapshot import Index, absent_shards, index_name, read_index, select, unexpected

__all__ = ["download"]

_EXAMPLES = 10


def download(request: Request, effects: Effects) -> dict[str, t.Any]:
    """Converge ``dest``; answers with the module's result, or raises :class:`VllmError`."""
    try:
        commit, repo_id = _resolve(request, effects.source)
        result = _Download(request, effects, commit).run()
    except VllmError as error:
        raise _with_what_lies_here(request, error) from error
    if repo_id != request.repo_id:
        result["renamed_to"] = repo_id
    return {**result, "msg": verdicts.summary(result)}


def _resolve(request: Request, source: Source) -> tuple[str, str]:
    """The commit, and the repository's present name."""
    if COMMIT.fullmatch(request.revision):
        return request.revision, request.repo_id
    if not request.offline:
        return source.resolve(request.revision)
    found = {}
    for folder in request.folders():
        receipt = read_receipt(folder)
        if receipt and (receipt.repo_id, receipt.revision) == (request.repo_id, request.revision):
            found[(folder / RECEIPT_NAME).stat().st_mtime_ns] = receipt.commit
    if not found:
        raise verdicts.no_receipt(request)
    return found[max(found)], request.repo_id


def _with_what_lies_here(request: Request, error: VllmError) -> VllmError:
    """An unreachable hub is a failure whatever lies in the folder; what is missing there can be told all the same."""
    name = index_name(request.load_format)
    places = [place / name for folder in request.folders() for place in (folder, staging_of(folder))]
    places += [staging / name for staging in (leftover.path for leftover in leftovers_beside(request, request.folder("none")))]
    indices = [place for place in places if place.is_file()]
    if error.code != "hub_unreachable" or not indices:
        return error
    newest = max(indices, key=lambda place: place.stat().st_mtime_ns)
    here = {path.relative_to(newest.parent).as_posix() for path in newest.parent.rglob("*")}
    try:
        index = read_index(newest.read_bytes())
    except VllmError:  # what lies here is not even an index
        return error
    return verdicts.unproven(error, newest.parent, absent_shards(here, index))


class _Download:
    def __init__(self, request: Request, effects: Effects, commit: str) -> None:
        self.request = request
        self.effects = effects
        self.commit = commit
        self.folder = request.folder(commit)
        self.surveyor = Surveyor(request, effects, commit, self.folder, staging_of(self.folder))
        self.staging = Staging(self.surveyor)

    def run(self) -> dict[str, t.Any]:
        receipt = self._receipt()
        if receipt and self._speaks_for_all(receipt):
            return self._confirmed(receipt)
        if self.request.check:
            return self._preview(receipt)
        make_folders(self.folder.parent)
        with self.effects.lock(self.folder):
            return self._converge(self._receipt())

    def _receipt(self) -> t.Optional[Receipt]:
        receipt = read_receipt(self.folder)
        if receipt and receipt.repo_id != self.request.repo_id:
            raise verdicts.other_repository(self.folder, receipt.repo_id, self.request.repo_id)
        if receipt and receipt.commit != self.commit:
            raise verdicts.other_commit(self.folder, receipt.commit, self.commit)
        return receipt

    def _speaks_for_all(self, receipt: Receipt) -> bool:
        """Whether the receipt alone answers the request."""
        request = self.request
        asked = (self.commit, request.include, request.exclude, request.load_format)
        same = (receipt.commit, receipt.include, receipt.exclude, receipt.load_format) == asked
        proven = receipt.complete and all(entry.sha256 for entry in receipt.files.values())
        return request.verify == "receipt" and same and proven and receipt.holding(self.folder) == receipt.files.keys()

    def _confirmed(self, receipt: Receipt) -> dict[str, t.Any]:
        """Nothing to prove; owner and mode may still have to change, which moves each file's ctime and nothing else."""
        shards: Index = {shard: set() for shard in receipt.shards}
        selection = select(receipt.manifest, shards, receipt.include, receipt.exclude, receipt.load_format)
        self.surveyor.settle(self.folder, receipt.files)
        if self.surveyor.attributes_changed and not self.request.check:
            files = {name: identify(self.folder / name, entry.sha256) for name, entry in receipt.files.items()}
            self._write_receipt(receipt._replace(files=files))
        survey = Survey(receipt.manifest, None, selection, receipt.files, {}, {})
        return self._result(survey, verified="receipt", changed=self.surveyor.attributes_changed)

    def _preview(self, receipt: t.Optional[Receipt]) -> dict[str, t.Any]:
        """What a run would do, found out with metadata requests alone."""
        survey = self.surveyor.survey(receipt)
        loans = {loan.spec.path for loan in find_loans(self.request, self.folder, survey.wanting())}
        fetching = [spec for spec in survey.wanting() if spec.path not in loans]
        if survey.bad:
            self._preflight(survey, fetching, reclaimable=size_of(self.surveyor.staging))
        else:
            survey.check_tensors()
        changed = bool(survey.bad) or self._receipt_of(survey, receipt) != receipt
        return self._result(survey, verified=self._level(survey), changed=changed, fetched=fetching, linked=sorted(loans))

    def _converge(self, receipt: t.Optional[Receipt]) -> dict[str, t.Any]:
        survey = self.surveyor.survey(receipt)
        repairing = _holds_something(self.folder)
        fetched: list[FileSpec] = []
        linked: list[str] = []
        if survey.bad:
            fetched, linked = self._fetch(survey, receipt)
            receipt = read_receipt(self.folder)
        else:
            survey.check_tensors()
        final = self._receipt_of(survey, receipt)
        if final != receipt:
            self._write_receipt(final)
        changed = bool(survey.bad) or final != receipt or self.surveyor.attributes_changed
        repaired = sorted(survey.bad) if repairing else []
        whole = survey._replace(bad={})
        return self._result(whole, verified=self._level(whole), changed=changed, fetched=fetched, linked=linked, repaired=repaired)

    def _preflight(self, survey: Survey, wanted: t.Sequence[FileSpec], reclaimable: int) -> None:
        """Refuse before the first byte: no network allowed, no access, no space."""
        if self.request.offline:
            raise verdicts.unrepaired(self.folder, survey.bad)
        if not wanted:
            return
        self.effects.source.probe(self.commit, wanted[-1].path)
        needed = sum(spec.size or 0 for spec in wanted)
        place = next(parent for parent in (self.folder, *self.folder.parents) if parent.exists())
        free = shutil.disk_usage(place).free
        if needed > free + reclaimable:
            others = [found for found in leftovers_in_store(self.request.store) if found.path != self.surveyor.staging]
            raise verdicts.too_small(place, needed, free, others)

    def _fetch(self, survey: Survey, receipt: t.Optional[Receipt]) -> tuple[list[FileSpec], list[str]]:
        """Fetch what is bad or missing, prove it, and move it into place. Answers with what really came, and what was linked."""
        if self.request.offline:
            raise verdicts.unrepaired(self.folder, survey.bad)
        linked = self.staging.borrowed(survey.wanting())
        survey.take(linked)
        survey.take(self.staging.kept([spec for spec in survey.wanting() if spec.path not in linked.good], linked.good))
        fetching = [spec for spec in survey.wanting() if spec.path not in survey.good]
        if fetching:
            self._preflight(survey, fetching, reclaimable=0)
            self.staging.fetch(survey, fetching)
        survey.check_tensors()
        self._deliver(survey, receipt)
        return fetching, sorted(linked.good)

    def _deliver(self, survey: Survey, receipt: t.Optional[Receipt]) -> None:
        """Move proven files into place; the receipt that makes them count follows, or travels along with a new folder."""
        for spec in survey.wanting():
            sync(self.staging.folder / spec.path)
        if _holds_something(self.folder):
            self._swap_in(survey, receipt)
        else:
            write_receipt(self.staging.folder, self._receipt_of(survey, None))
            self.surveyor.settle(self.staging.folder, ())
            self.staging.folder.rename(self.folder)
        sync(self.folder.parent)

    def _swap_in(self, survey: Survey, receipt: t.Optional[Receipt]) -> None:
        """Replace files one by one; until the last, the receipt calls the folder incomplete."""
        kept = {name: entry for name, entry in survey.good.items() if name not in survey.bad}
        self._write_receipt(self._receipt_of(survey._replace(good=kept), receipt)._replace(complete=False))
        for spec in survey.wanting():
            target = self.folder / spec.path
            make_folders(target.parent)
            (self.staging.folder / spec.path).replace(target)
            survey.good[spec.path] = identify(target, survey.good[spec.path].sha256)
        shutil.rmtree(self.staging.folder)
        self.surveyor.settle(self.folder, ())

    def _write_receipt(self, receipt: Receipt) -> None:
        self.effects.settle(write_receipt(self.folder, receipt), False)

    def _receipt_of(self, survey: Survey, before: t.Optional[Receipt]) -> Receipt:
        """The receipt for what is proven; equal to ``before`` where nothing new is."""
        named_before = before is not None and COMMIT.fullmatch(self.request.revision)
        return Receipt(
            repo_id=self.request.repo_id,
            commit=self.commit,
            revision=before.revision if before and named_before else self.request.revision,
            level="sha256" if all(entry.sha256 for entry in survey.good.values()) else "structure",
            include=self.request.include,
            exclude=self.request.exclude,
            manifest=survey.manifest,
            shards=survey.selection.shards,
            files=dict(sorted(survey.good.items())),
            load_format=self.request.load_format,
        )

    def _level(self, survey: Survey) -> str:
        """What this run proved: headers only where that was asked for, or where nothing better is known."""
        hashed = not survey.bad and all(entry.sha256 for entry in survey.good.values())
        return "sha256" if hashed and self.request.verify != "structure" else "structure"

    def _tidied(self, survey: Survey) -> tuple[list[str], list[str], list[str]]:
        """What is in the folder or beside it and belongs to nobody: in the folder, beside it, and what of both was removed."""
        strange = [self.folder / name for name in unexpected(self.folder, survey.selection.files)]
        beside = [leftover.path for leftover in leftovers_beside(self.request, self.folder)]
        removed: list[Path] = []
        if self.request.remove_unexpected:
            removed = remove([*strange, *beside], self.effects.try_lock, check=self.request.check)
        left = [path.relative_to(self.folder).as_posix() for path in strange if path not in removed]
        return left, [str(path) for path in beside if path not in removed], [str(path) for path in removed]

    def _result(
        self,
        survey: Survey,
        *,
        verified: str,
        changed: bool,
        fetched: t.Sequence[FileSpec] = (),
        linked: t.Sequence[str] = (),
        repaired: t.Sequence[str] = (),
    ) -> dict[str, t.Any]:
        files, shards = survey.selection.files, survey.selection.shards
        here = {name: entry.size for name, entry in survey.good.items()}
        strange, leftovers, removed = self._tidied(survey)
        unindexed = survey.unindexed()
        return {
            "changed": changed or bool(removed),
            "converged": not (changed or removed),
            "commit": self.commit,
            "path": str(self.folder),
            "files": len(files),
            "bytes_total": sum(here.get(name, spec.size or 0) for name, spec in files.items()),
            "bytes_downloaded": sum(spec.size or 0 for spec in fetched),
            "fetched": [spec.path for spec in fetched],
            "linked": list(linked),
            "unproven": [name for name, entry in survey.good.items() if entry.sha256 is None and self.request.verify == "receipt"],
            "left_out": list(survey.selection.left_out),
            "repaired": list(repaired),
            "shards": {
                "expected": list(shards),
                "present": [name for name in shards if name not in survey.bad],
                "missing": survey.shards(missing=True),
                "damaged": survey.shards(missing=False),
                "unexpected": strange,
            },
            "tensors_unindexed": len(unindexed),
            "tensors_unindexed_names": unindexed[:_EXAMPLES],
            "leftovers": leftovers,
            "removed": removed,
            "verified": verified,
            "receipt": str(self.folder / RECEIPT_NAME),
        }


def _holds_something(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
