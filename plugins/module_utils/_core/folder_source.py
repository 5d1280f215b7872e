# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plain folder as the place where a repository is published, for sites without a Hub. PRIVATE to the collection.

Which commit and which hashes count is said by a receipt, by what the Hub client left, or by SHA256SUMS, see ``folder_layouts``.
"""

from __future__ import annotations

import errno
import io
import os
import threading
import typing as t
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from .download_job import Failure, Order
from .errors import VllmError
from .folder_layouts import Listing, Snapshot, find_snapshots, list_files, unreadable
from .hub import FileSpec, Resolved
from .snapshot import some
from .throttle import Throttle

__all__ = ["FolderCopier", "FolderSource"]

_BLOCK = 1024 * 1024
_TICK = 0.5
_FULL = {errno.ENOSPC, errno.EDQUOT}


class FolderSource:
    """One repository, read from a folder."""

    authorised = False

    def __init__(self, folder: Path, repo_id: str) -> None:
        self.repo_id = repo_id
        self.folder = folder
        self._snapshots: t.Optional[list[Snapshot]] = None

    @property
    def address(self) -> str:
        return str(self.folder)

    def resolve(self, revision: str) -> Resolved:
        """The commit that a revision stands for in this folder; a full commit where the folder itself cannot tell."""
        return Resolved(self._snapshot(revision).commit or revision, self.repo_id)

    def files(self, commit: str) -> dict[str, FileSpec]:
        """Every file of the commit. Refuses a folder that does not hold all of them, so that nothing is begun in vain."""
        snapshot = self._snapshot(commit)
        listing = list_files(snapshot.folder)
        if listing.dangling:
            raise _dangling(snapshot.folder, listing)
        specs = snapshot.specs(listing)
        absent = sorted(set(specs) - set(listing.sizes))
        if absent:
            raise _incomplete(snapshot.folder, absent)
        closed = [snapshot.folder / path for path in specs if not os.access(snapshot.folder / path, os.R_OK)]
        if closed:
            raise unreadable(closed)
        if not specs:
            raise _missing(snapshot.folder, "holds no file")
        return specs

    def read(self, commit: str, path: str) -> bytes:
        """The content of one small file."""
        file = self.path(commit, path)
        try:
            return file.read_bytes()
        except FileNotFoundError as exc:
            raise _incomplete(self._snapshot(commit).folder, [path]) from exc
        except OSError as exc:
            raise unreadable([file], str(exc.strerror)) from exc

    def probe(self, commit: str, path: str) -> None:
        """Raise where this file is not there or may not be read."""
        file = self.path(commit, path)
        if not file.exists():
            raise _incomplete(self._snapshot(commit).folder, [path])
        if not os.access(file, os.R_OK):
            raise unreadable([file])

    def vanished(self, path: str) -> VllmError:
        """The verdict where a file that was listed is not there when it is copied."""
        return _incomplete(self.folder, [path])

    def path(self, commit: str, path: str) -> Path:
        """Where a file lies."""
        return self._snapshot(commit).folder / path

    def _snapshot(self, revision: str) -> Snapshot:
        if self._snapshots is None:
            self._snapshots = self._look()
        found = next((snapshot for snapshot in self._snapshots if snapshot.stands_for(revision)), None)
        if found is None:
            raise _no_revision(self.folder, self.repo_id, revision, self._snapshots)
        return found

    def _look(self) -> list[Snapshot]:
        if not self.folder.is_dir():
            raise _missing(self.folder, "is not a folder on this host" if self.folder.exists() else "does not exist on this host")
        return find_snapshots(self.folder, self.repo_id) or [self._plain()]

    def _plain(self) -> Snapshot:
        """A folder that tells nothing. What is wrong with it is said before anybody is asked for its commit."""
        listing = list_files(self.folder)
        if listing.dangling:
            raise _dangling(self.folder, listing)
        if not listing.sizes:
            raise _missing(self.folder, "holds no file")
        return Snapshot(self.folder)


class FolderCopier:
    """Copies files out of a folder, several at once. What it makes are files of their own, whatever the source is made of."""

    def __init__(self, source: FolderSource, *, throttle: Throttle, max_workers: int = 8) -> None:
        self._source = source
        self._throttle = throttle
        self._max_workers = max_workers

    def fetch(self, order: Order) -> dict[str, Failure]:
        """Carry out an order. A disk that is full ends it at once: the other copies would only meet the same."""
        failures: dict[str, Failure] = {}
        stop = threading.Event()
        with ThreadPoolExecutor(max_workers=self._max_workers) as pool:
            try:
                pending = {pool.submit(self._copy, spec.path, order, stop): spec.path for spec in order.specs}
                while pending:
                    done, _rest = wait(pending, timeout=_TICK)
                    failures.update(_told(done, pending, order))
                    order.seen()
            finally:
                stop.set()
        return failures

    def _copy(self, path: str, order: Order, stop: threading.Event) -> t.Optional[Failure]:
        """Copy one file beside its place and rename it, so that a file under its own name is whole."""
        source, target = self._source.path(order.commit, path), order.folder / path
        draft = target.with_name(f"{target.name}.incomplete")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb", buffering=0) as original, draft.open("wb", buffering=0) as copy:
                if not self._pour(original, copy, stop):
                    return Failure("transfer", "was not copied, since the copying of another file failed")
            draft.replace(target)
        except OSError as exc:
            if exc.errno in _FULL:
                stop.set()
                return Failure("disk_full", str(exc.strerror))
            gone = isinstance(exc, FileNotFoundError) and not source.exists()
            return (
                Failure("entry", f"{source} is no longer there")
                if gone
                else Failure("transfer", f"{exc.filename or target}: {exc.strerror}")
            )
        return None

    def _pour(self, original: io.FileIO, copy: io.FileIO, stop: threading.Event) -> bool:
        """Copy in blocks until the end; False where it was stopped."""
        buffer = memoryview(bytearray(_BLOCK))
        while not stop.is_set():
            count = _read(original, buffer)
            if not count:
                return True
            written = 0
            while written < count:
                written += copy.write(buffer[written:count])
            self._throttle.spent(count)
        return False


def _read(file: io.FileIO, buffer: memoryview) -> int:
    """The bytes that were read; an error names the file, so that source and target can be told apart."""
    try:
        return file.readinto(buffer) or 0
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(file.name)) from exc


def _told(
    done: t.Iterable[Future[t.Optional[Failure]]], pending: dict[Future[t.Optional[Failure]], str], order: Order
) -> dict[str, Failure]:
    """Take finished copies out of the pending ones; answers with those that failed."""
    failures = {}
    for job in done:
        path, failure = pending.pop(job), job.result()
        if failure:
            failures[path] = failure
        else:
            order.landed(path)
    return failures


# -- verdicts ------------------------------------------------------------------------------------------------------------------


def _missing(folder: Path, why: str) -> VllmError:
    return VllmError(
        f"The source {folder} {why}.",
        code="source_missing",
        remedy="Set source to the folder with the model as this host sees it; a share has to be mounted first.",
    )


def _dangling(folder: Path, listing: Listing) -> VllmError:
    names = sorted(listing.dangling)
    return VllmError(
        f"{folder} holds {len(names)} links to files that are not here: {some(names)}; {names[0]} points to {listing.dangling[names[0]]}.",
        code="source_dangling",
        remedy="The folder was copied with its links: copy it again with links followed (cp -L, rsync -L).",
        details={"dangling": names},
    )


def _incomplete(folder: Path, absent: t.Sequence[str]) -> VllmError:
    return VllmError(
        f"{folder} lacks {len(absent)} of the files that belong to the model: {some(absent)}.",
        code="source_incomplete",
        remedy="Bring these files there, then run again.",
        details={"missing": list(absent)},
    )


def _no_revision(folder: Path, repo_id: str, revision: str, snapshots: t.Sequence[Snapshot]) -> VllmError:
    commits = [f"{snapshot.commit}{_names(snapshot)}" for snapshot in snapshots if snapshot.commit]
    if commits:
        what, remedy = f"{folder} holds {repo_id} at {some(commits)}, not at {revision}.", f"Set revision to {snapshots[0].commit}"
    else:
        what = f"{folder} holds {snapshots[0].says}, so it cannot tell which commit {revision} is."
        remedy = "Set revision to the full 40-digit commit the files were taken from"
    return VllmError(
        what,
        code="revision_not_found",
        remedy=f"{remedy}, or set source to the folder of another one.",
        details={"commits": [snapshot.commit for snapshot in snapshots if snapshot.commit]},
    )


def _names(snapshot: Snapshot) -> str:
    names = [name for name in snapshot.names if name != snapshot.commit]
    return f" ({', '.join(names)})" if names else ""
