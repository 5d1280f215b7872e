# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal of one start of a unit, read whole or followed by cursor. PRIVATE to the collection."""

from __future__ import annotations

import json
import re
import typing as t

from .effects import Runner
from .errors import VllmError

__all__ = ["JournalEntry", "flush_journal", "read_entries", "read_invocation", "unasked_stop"]

_BREAK = re.compile(r"[\r\n]+")


class JournalEntry(t.NamedTuple):
    """One record: seconds since 1970, its lines, and the cursor to go on after it."""

    time: float
    lines: list[str]
    cursor: str


def read_entries(runner: Runner, invocation_id: str, after: t.Optional[str] = None) -> list[JournalEntry]:
    """What the processes of that start, and systemd about them, wrote since the record with cursor ``after``."""
    if not re.fullmatch("[0-9a-fA-F]{32}", invocation_id):
        return []
    # --all: bars hold carriage returns, and without it such a record is a number of bytes instead of its text
    options = ["--quiet", "--no-pager", "--all", "--output=json", "--output-fields=MESSAGE"]
    position = [f"--after-cursor={after}"] if after else []
    matches = [f"_SYSTEMD_INVOCATION_ID={invocation_id}", "+", f"INVOCATION_ID={invocation_id}"]
    result = runner(["journalctl", *options, *position, *matches])
    if result.rc != 0:
        raise VllmError(
            f"journalctl failed with status {result.rc}: {result.err.strip()}.",
            code="journal_unreadable",
            remedy="Run this as root or as a member of the group systemd-journal.",
        )
    return [entry for entry in map(_entry, result.out.splitlines()) if entry]


def read_invocation(runner: Runner, unit: str, invocation_id: str) -> list[str]:
    """All lines of one start of ``unit``, oldest first; none for a start that never was."""
    if not invocation_id:
        return []
    flush_journal(runner)
    try:
        entries = read_entries(runner, invocation_id)
    except VllmError as exc:
        raise VllmError(f"{unit}: {exc.message}", code=exc.code, remedy=exc.remedy) from exc
    return [line for entry in entries for line in entry.lines]


def flush_journal(runner: Runner) -> None:
    """Let the journal take in what the processes wrote last, for a start that failed a moment ago. Needs root; else in vain."""
    runner(["journalctl", "--sync"])


def unasked_stop(environ: t.Mapping[str, str]) -> bool:
    """Whether a unit's stop may be a failure, from what systemd hands to ExecStopPost.

    An engine that dies leaves exit status 0, like one that was stopped: only the log tells these apart
    (:func:`diagnose` answers with the cause ``stopped`` then). An end by SIGTERM or an unmet condition was asked for.
    """
    if environ.get("SERVICE_RESULT") == "exec-condition":
        return False
    return not (environ.get("SERVICE_RESULT") == "success" and environ.get("EXIT_STATUS") in ("TERM", "15", "INT", "2"))


def _entry(line: str) -> t.Optional[JournalEntry]:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    text = _text(record.get("MESSAGE"))
    lines = [part for part in _BREAK.split(text) if part.strip()]
    return JournalEntry(int(record.get("__REALTIME_TIMESTAMP") or 0) / 1e6, lines, str(record.get("__CURSOR") or ""))


def _text(message: t.Any) -> str:
    """The journal gives text that is not plain UTF-8 as a list of bytes, and repeated fields as a list of those."""
    if isinstance(message, list) and message and all(isinstance(byte, int) for byte in message):
        return bytes(message).decode("utf-8", "replace")
    if isinstance(message, list):
        return "\n".join(_text(part) for part in message)
    return str(message or "")
