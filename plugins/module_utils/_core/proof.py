# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the files on disk are the published ones. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import os
import threading
import typing as t
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .effects import Report
from .hashing import Digests, Read, digest_bytes, digest_file
from .hub import FileSpec
from .receipt import Entry, identify
from .safetensors import Malformed, announce_headers, read_header, stranger

__all__ = ["Damage", "Meter", "Proof", "Prover", "is_published", "prove_all"]

_THREADS_A_CORE = 2
"""While one waits for the disk, the other hashes."""

_MOST_THREADS = 64
"""More outrun every disk, and each costs a buffer."""


class Damage(ValueError):
    """Why a file is not what it has to be, as a clause that follows the file's name.

    ``kind`` is ``missing``, ``damaged``, or ``published`` where the file is exactly as published and unsound all the same.
    """

    def __init__(self, why: str, kind: str = "damaged") -> None:
        super().__init__(why)
        self.kind = kind


class Proof(t.NamedTuple):
    """The verdicts on some files, and the names of the tensors in each safetensors file among the good ones."""

    good: dict[str, Entry]
    bad: dict[str, Damage]
    tensors: dict[str, frozenset[str]]


class Meter:
    """Reports how much of some files has been read; safe to be told by several threads."""

    def __init__(self, report: Report, what: str, specs: t.Sequence[FileSpec]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._record = {
            "what": what,
            "done": 0,
            "total": sum(spec.size or 0 for spec in specs),
            "unit": "B",
            "files": 0,
            "files_total": len(specs),
        }

    def read(self, count: int) -> None:
        self._add("done", count)

    def finished(self) -> None:
        self._add("files", 1)

    def _add(self, key: str, count: int) -> None:
        with self._lock:
            self._record[key] = t.cast(int, self._record[key]) + count
            self._report(self._record)


class Prover:
    """Proves files below ``folder`` on every core, while more of them may still be added.

    With ``content`` by their published hash, else by size and structure. With ``keep_cache`` what was read stays in the page cache.
    """

    def __init__(self, folder: Path, *, content: bool, keep_cache: bool = False, meter: t.Optional[Meter] = None) -> None:
        self._folder = folder
        self._content = content
        self._keep_cache = keep_cache
        self._meter = meter
        self._pool = ThreadPoolExecutor(max_workers=min(_MOST_THREADS, _THREADS_A_CORE * len(os.sched_getaffinity(0))))
        self._jobs: dict[str, Future[tuple[Entry, t.Optional[frozenset[str]]]]] = {}

    def add(self, spec: FileSpec) -> None:
        self._jobs[spec.path] = self._pool.submit(self._prove, spec)

    def result(self) -> Proof:
        """Wait for the verdicts on all files that were added."""
        proof = Proof({}, {}, {})
        for name, job in self._jobs.items():
            try:
                proof.good[name], tensors = job.result()
            except Damage as damage:
                proof.bad[name] = damage
            except OSError as exc:
                proof.bad[name] = Damage(f"cannot be read ({exc.strerror})")
            else:
                if tensors is not None:
                    proof.tensors[name] = tensors
        return proof

    def __enter__(self) -> Prover:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _prove(self, spec: FileSpec) -> tuple[Entry, t.Optional[frozenset[str]]]:
        read = self._meter.read if self._meter else lambda count: None
        try:
            return _prove(self._folder / spec.path, spec, self._content, self._keep_cache, read)
        finally:
            if self._meter:
                self._meter.finished()


def prove_all(
    folder: Path, specs: t.Sequence[FileSpec], *, content: bool, keep_cache: bool = False, meter: t.Optional[Meter] = None
) -> Proof:
    """The verdicts on files that are all there already; the largest are begun first, so that no core is left with one at the end."""
    if not content:
        announce_headers([folder / spec.path for spec in specs])
    with Prover(folder, content=content, keep_cache=keep_cache, meter=meter) as prover:
        for spec in sorted(specs, key=lambda spec: -(spec.size or 0)):
            prover.add(spec)
        return prover.result()


def is_published(raw: bytes, spec: FileSpec) -> bool:
    """Whether these bytes are the content published for a file, as far as that is known."""
    with contextlib.suppress(Damage):
        _compare(digest_bytes(raw, git=spec.sha256 is None), spec)
        return spec.size in {None, len(raw)}
    return False


def _prove(path: Path, spec: FileSpec, content: bool, keep_cache: bool, read: Read) -> tuple[Entry, t.Optional[frozenset[str]]]:
    if path.is_symlink() and not path.exists():
        raise Damage(
            f"is a link to {os.readlink(path)}, which does not exist here (the folder was copied with its links: copy what they point to)"
        )
    if not path.exists():
        raise Damage("is missing", "missing")
    before = identify(path)
    if spec.size is not None and before.size != spec.size:
        raise Damage(_wrong_size(path, before.size, spec.size))
    hashed = content and bool(spec.sha256 or spec.git_sha1)
    digest = _content(path, spec, keep_cache, read) if hashed else None
    tensors = _structure(path, published=hashed) if spec.path.endswith(".safetensors") else None
    if identify(path) != before:
        raise Damage("was changed while it was being read")
    return before._replace(sha256=digest), tensors


def _structure(path: Path, *, published: bool) -> frozenset[str]:
    try:
        return frozenset(read_header(path))
    except Malformed as exc:
        raise Damage(str(exc), "published" if published else "damaged") from exc


def _wrong_size(path: Path, size: int, expected: int) -> str:
    with path.open("rb") as file:
        what = stranger(file.read(64), size)
    return what or f"has {size} bytes instead of {expected}"


def _content(path: Path, spec: FileSpec, keep_cache: bool, read: Read) -> str:
    """The sha256 of the content, once it is what is published."""
    digests = digest_file(path, git=spec.sha256 is None, keep_cache=keep_cache, read=read)
    _compare(digests, spec)
    return digests.sha256


def _compare(digests: Digests, spec: FileSpec) -> None:
    kind, found, expected = ("sha256", digests.sha256, spec.sha256) if spec.sha256 else ("git sha1", digests.git_sha1, spec.git_sha1)
    if expected not in {None, found}:
        raise Damage(f"has other content than published ({kind} {found} instead of {expected})")
