# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a download is asked for and what it is handed. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from pathlib import Path

from .effects import Clock, Report, Sleep
from .errors import VllmError
from .hub import FileSpec, Resolved

__all__ = ["PLACEHOLDER", "Effects", "Failure", "Fetch", "Order", "Request", "Source", "lock_of", "staging_of"]

PLACEHOLDER = "{commit}"


class Request(t.NamedTuple):
    """What is asked for. ``dest`` may hold the literal ``{commit}``; ``offline`` forbids to ask any source."""

    repo_id: str
    revision: str
    dest: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    load_format: str = "auto"
    verify: str = "receipt"
    offline: bool = False
    retry_timeout: float = 300.0
    remove_unexpected: bool = False
    check: bool = False

    @property
    def commits_apart(self) -> bool:
        """Whether each commit has a folder of its own."""
        return PLACEHOLDER in self.dest

    def folder(self, commit: str) -> Path:
        return Path(self.dest.replace(PLACEHOLDER, commit))

    @property
    def store(self) -> Path:
        """The folder that holds this model and its like."""
        before, placeholder, _after = self.dest.partition(PLACEHOLDER)
        return Path(before).parent if placeholder else Path(before).resolve().parent

    def folders(self) -> list[Path]:
        """The folders of every commit that are there."""
        parent, placeholder, rest = self.dest.partition(PLACEHOLDER)
        found = Path(parent).glob(f"*{rest}") if placeholder else [Path(parent)]
        return sorted(folder for folder in found if folder.is_dir() and not folder.name.startswith("."))


class Failure(t.NamedTuple):
    """Why one file did not arrive.

    ``kind`` is ``transfer`` or ``unreachable`` where another try may help, else what stands in the way: ``gated``,
    ``token_refused``, ``entry`` (no such file), ``disk_full`` or ``client_missing``.
    """

    kind: str
    message: str


class Source(t.Protocol):
    """Where a repository is published: a Hub, a mirror of it, or a folder."""

    repo_id: str

    @property
    def address(self) -> str:
        """The endpoint or the folder, for messages."""

    @property
    def authorised(self) -> bool:
        """Whether a token is sent along."""

    def resolve(self, revision: str) -> Resolved:
        """The commit a revision stands for, and the repository's present name."""

    def files(self, commit: str) -> dict[str, FileSpec]:
        """Every file at that commit, by path."""

    def read(self, commit: str, path: str) -> bytes:
        """The content of one small file."""

    def probe(self, commit: str, path: str) -> None:
        """Raise for whatever forbids to fetch this file."""

    def vanished(self, path: str) -> VllmError:
        """The verdict where a file that was listed is not there when it is fetched."""


class Order(t.NamedTuple):
    """Files to be fetched into ``folder``, which exists, under their paths in the repository.

    ``seen()`` is to be called about twice a second: it reports progress and answers with the bytes that are there. ``landed(path)`` is
    to be called once for every file that is whole there, which is then proven while others are still coming. ``attempt`` counts from 0.
    """

    commit: str
    specs: tuple[FileSpec, ...]
    folder: Path
    attempt: int
    seen: t.Callable[[], int]
    landed: t.Callable[[str], None]


Fetch = t.Callable[[Order], dict[str, Failure]]
"""Carries out an order; answers with the files that did not arrive and why."""


class Effects(t.NamedTuple):
    """The world around a download.

    ``lock(folder)`` keeps a second writer out; ``try_lock(folder)`` does not wait for one and says whether it holds. ``settle(path, ask)``
    gives a file or folder its owner and mode and says whether that changes something; with ``ask`` it only says so.
    """

    source: Source
    fetch: Fetch
    lock: t.Callable[[Path], t.ContextManager[None]]
    try_lock: t.Callable[[Path], t.ContextManager[bool]]
    settle: t.Callable[[Path, bool], bool]
    clock: Clock
    sleep: Sleep
    report: Report


def staging_of(folder: Path) -> Path:
    """Where the files of a folder are fetched to, before they count."""
    return folder.parent / f".{folder.name}.incomplete"


def lock_of(folder: Path) -> Path:
    """The lock file of whoever writes a folder or its staging."""
    return folder.parent / f".{folder.name}.lock"
