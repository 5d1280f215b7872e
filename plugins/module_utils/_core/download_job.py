# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a download is asked for and what it is handed. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from pathlib import Path

from .effects import Clock, Report, Sleep
from .hub import Hub

__all__ = ["Effects", "Failure", "Request"]


class Request(t.NamedTuple):
    """What is asked for. ``dest`` may hold the literal ``{commit}``."""

    repo_id: str
    revision: str
    dest: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    verify: str = "receipt"
    offline: bool = False
    retry_timeout: float = 300.0
    check: bool = False


class Failure(t.NamedTuple):
    """Why one file did not arrive.

    ``kind`` is ``transfer`` or ``unreachable`` where another try may help, else what stands in the way: ``gated``,
    ``token_refused``, ``entry`` (no such file), ``disk_full`` or ``client_missing``.
    """

    kind: str
    message: str


class Effects(t.NamedTuple):
    """The world around a download.

    ``fetch(commit, paths, folder, seen)`` fetches files into a folder and answers with those that did not arrive; it calls ``seen``
    now and then, which reports progress and answers with the bytes that are there. ``lock(path)`` keeps a second writer out.
    ``settle(path)`` gives a file or folder its owner and mode and says whether that changed something.
    """

    hub: Hub
    fetch: t.Callable[[str, t.Sequence[str], Path, t.Callable[[], int]], dict[str, Failure]]
    lock: t.Callable[[Path], t.ContextManager[None]]
    settle: t.Callable[[Path], bool]
    clock: Clock
    sleep: Sleep
    report: Report
