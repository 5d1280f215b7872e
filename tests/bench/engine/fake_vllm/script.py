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
    hang_at_shard: int = 0
    engine_dies_after: float = 0.0
    answer: str = ""
    answer_seconds: float = 0.0
    token_seconds: float = 0.0
    last_words: int = 0
    linger: float = 0.0


def read_script(environ: t.Mapping[str, str] = os.environ) -> Script:
    """The script named by the environment: words separated by commas or lines, or the path of a file that holds them.

    A named file that does not exist means that nothing goes wrong, so a test can switch a failure on and off beside a running unit.
    """
    words = environ.get(VARIABLE, "")
    if words.startswith("/"):
        path = Path(words)
        words = path.read_text(encoding="utf-8") if path.exists() else ""
    return Script(**dict(_entries(words)))


def _entries(words: str) -> t.Iterator[tuple[str, t.Any]]:
    for word in words.replace("\n", ",").split(","):
        if not word.strip() or word.strip().startswith("#"):
            continue
        key, _separator, value = word.strip().partition("=")
        name = key.strip().replace("-", "_")
        if name not in Script._fields:
            raise SystemExit(f"{VARIABLE}: unknown word {key!r}; known: {', '.join(Script._fields).replace('_', '-')}")
        yield name, type(Script._field_defaults[name])(value.strip())
