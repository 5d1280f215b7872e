# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's log lines: records on stdout with a process prefix, bars and bare tracebacks on stderr without one."""

from __future__ import annotations

import os
import sys
import time
import typing as t

__all__ = ["Frame", "Log", "bare_traceback", "progress_bar", "stderr_line", "traceback_lines"]

SITE = "/site-packages/vllm"


class Frame(t.NamedTuple):
    """One level of a traceback."""

    file: str
    line: int
    function: str
    code: str


class Log:
    """Writes the records of one process, named as vLLM names it."""

    def __init__(self, process: str) -> None:
        self.process = process

    def _write(self, level: str, origin: str, message: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        prefix = f"({self.process} pid={os.getpid()}) {level} {stamp} [{origin}] "
        text = "".join(f"{prefix}{line}\n" for line in message.split("\n"))
        os.write(1, text.encode())

    def note(self, origin: str, message: str) -> None:
        self._write("INFO", origin, message)

    def caution(self, origin: str, message: str) -> None:
        self._write("WARNING", origin, message)

    def complain(self, origin: str, message: str) -> None:
        self._write("ERROR", origin, message)

    def failure(self, origin: str, headline: str, frames: t.Sequence[Frame], final: str) -> None:
        """A headline and a traceback as one ERROR record, the prefix on every line."""
        self.complain(origin, "\n".join([headline, *traceback_lines(frames, final)]))


def traceback_lines(frames: t.Sequence[Frame], final: str) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        path = frame.file if frame.file.startswith(("/", "<")) else f"{SITE}/{frame.file}"
        lines.append(f'  File "{path}", line {frame.line}, in {frame.function}')
        lines.append(f"    {frame.code}")
    return [*lines, final]


def bare_traceback(frames: t.Sequence[Frame], final: str, headline: str = "") -> None:
    """A traceback as Python itself prints it on the way out."""
    lines = ([headline] if headline else []) + traceback_lines(frames, final)
    stderr_line("\n".join(lines))


def stderr_line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def progress_bar(label: str, done: int, total: int, started: float) -> None:
    """One refresh of vLLM's shard bar: a carriage return first and a line end after, as tqdm writes it."""
    elapsed = max(time.monotonic() - started, 1e-6)
    rate = done / elapsed
    left = f"{_clock((total - done) / rate)}, {rate:.2f}it/s" if done else "?, ?it/s"
    stderr_line(f"\r{label}: {done * 100 // max(total, 1):3d}% Completed | {done}/{total} [{_clock(elapsed)}<{left}]")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
