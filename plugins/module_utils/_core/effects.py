# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The effects the core is handed: commands, time, files. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

__all__ = ["Clock", "CommandResult", "ReadText", "Report", "Runner", "Sleep"]


class CommandResult(t.NamedTuple):
    """What a finished command left: exit status and its decoded output."""

    rc: int
    out: str
    err: str


Runner = t.Callable[[t.Sequence[str]], CommandResult]
"""Runs one command given as a list (never through a shell) and answers with its result, whatever the exit status."""

Clock = t.Callable[[], float]
"""Seconds on a monotonic clock."""

Sleep = t.Callable[[float], None]
"""Waits that many seconds between two looks at the thing that is waited for."""

ReadText = t.Callable[[str], str]
"""The text of a file; raises :class:`OSError` (``FileNotFoundError`` ...) as :func:`open` does."""

Report = t.Callable[[t.Mapping[str, t.Any]], None]
"""Takes one progress record: ``what`` (a short sentence), and where known ``done``, ``total`` (same unit), ``unit``."""
