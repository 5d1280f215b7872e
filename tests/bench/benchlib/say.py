# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the bench tells a person: one line a step, with its time."""

from __future__ import annotations

import contextlib
import time
import typing as t

__all__ = ["BenchError", "NotOffered", "say", "step", "wait_until"]


class BenchError(Exception):
    """Something a person has to put right; the message says what and how."""

    status = 1


class NotOffered(BenchError):
    """This machine cannot have what was asked for, which is no fault of anybody."""

    status = 3


def say(text: str) -> None:
    print(f"[bench] {text}", flush=True)


@contextlib.contextmanager
def step(what: str) -> t.Iterator[None]:
    """Say what is being done, and how long it took."""
    say(f"{what} ...")
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.1f} s")


def wait_until(is_true: t.Callable[[], bool], what: str, timeout: float, poll: float = 0.1) -> None:
    """Wait for a condition; give up with what was waited for."""
    deadline = time.monotonic() + timeout
    while not is_true():
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not so after {timeout:.0f} s.")
        time.sleep(poll)
