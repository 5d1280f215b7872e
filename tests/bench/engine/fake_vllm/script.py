# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The script of a start: what shall go wrong, and when. README.md lists the words."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

__all__ = ["Script", "read_script"]

VARIABLE = "FAKE_VLLM_SCRIPT"


class Script(t.NamedTuple):
    """Every word of the script with its default: nothing goes wrong."""

    load_seconds: float = 1.5
    crash_at_shard: int = 0
    crash_with: str = "RuntimeError: CUDA error: unspecified launch failure"
    crash_times: int = 0
    hang_at_shard: int = 0
    engine_dies_after: float = 0.0
    answer: str = ""
    answer_seconds: float = 0.0
    token_seconds: float = 0.0
    last_words: int = 0
    linger: float = 0.0


def read_script(environ: t.Mapping[str, str] = os.environ, counted_in: str = "") -> Script:
    """The script named by the environment: words separated by commas, or the path of a file that holds one a line.

    A named file that does not exist means that nothing goes wrong, so a test can switch a failure on and off beside a running unit.
    A start says in which folder it is counted, for crashes that happen a number of times.
    """
    words = environ.get(VARIABLE, "")
    entries = _lines(Path(words)) if words.startswith("/") else words.split(",")
    script = Script(**dict(_entries(entries)))
    return _count(script, Path(counted_in) / "fake-vllm-crashes") if counted_in and script.crash_times else script


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _count(script: Script, counter: Path) -> Script:
    crashed = int(counter.read_text()) if counter.exists() else 0
    if crashed >= script.crash_times:
        return script._replace(crash_at_shard=0)
    counter.write_text(str(crashed + 1))
    return script


def _entries(words: t.Iterable[str]) -> t.Iterator[tuple[str, t.Any]]:
    for word in words:
        if not word.strip() or word.strip().startswith("#"):
            continue
        key, _separator, value = word.strip().partition("=")
        name = key.strip().replace("-", "_")
        if name not in Script._fields:
            raise SystemExit(f"{VARIABLE}: unknown word {key!r}; known: {', '.join(Script._fields).replace('_', '-')}")
        yield name, type(Script._field_defaults[name])(value.strip())
