# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shape of vLLM's log lines. PRIVATE to the collection."""

from __future__ import annotations

import ast
import json
import re
import typing as t

__all__ = ["LogLine", "engine_arguments", "parse_line"]

_PREFIX = re.compile(r"^\((?P<process>[A-Za-z_0-9-]+) pid=(?P<pid>\d+)\) (?P<rest>.*)$")
_RECORD = re.compile(r"^(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?(?P<message>.*)$")
_DEPTHS = (("Worker", 3), ("VllmWorker", 3), ("EngineCore", 2), ("APIServer", 1))


class LogLine(t.NamedTuple):
    """One line without its prefix. ``level`` is empty for what Python or uvicorn printed; ``depth`` grows towards the worker."""

    process: str
    level: str
    message: str

    @property
    def depth(self) -> int:
        return next((depth for name, depth in _DEPTHS if self.process.startswith(name)), 0)

    @property
    def may_tell_a_failure(self) -> bool:
        """Healthy starts quote many errors in INFO and WARNING records (limits, options, hints)."""
        return self.level in ("", "ERROR", "CRITICAL") and not self.message.startswith(("INFO:", "WARNING:"))


def parse_line(line: str) -> LogLine:
    """Take a line apart, text or JSON records alike."""
    if line.startswith("{") and '"levelname"' in line:
        return _parse_json(line)
    found = _PREFIX.match(line)
    if not found:
        return LogLine("", "", line)
    record = _RECORD.match(found.group("rest"))
    if not record:
        return LogLine(found.group("process"), "", found.group("rest"))
    return LogLine(found.group("process"), record.group("level"), record.group("message"))


def _parse_json(line: str) -> LogLine:
    try:
        record = json.loads(line)
    except ValueError:
        return LogLine("", "", line)
    process = record.get("vllm_process_name") or record.get("processName") or ""
    return LogLine(str(process), str(record.get("levelname", "")), str(record.get("message", "")))


def engine_arguments(lines: t.Iterable[str]) -> dict[str, t.Any]:
    """The arguments that the start logged (``non-default args: {...}``)."""
    for line in lines:
        _before, found, text = line.partition("non-default args: ")
        if found:
            try:
                return dict(ast.literal_eval(text.strip()))
            except (ValueError, SyntaxError):
                return {}
    return {}
