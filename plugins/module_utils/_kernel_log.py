# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the kernel's log. PRIVATE to the collection."""

from __future__ import annotations

import os
import typing as t

__all__ = ["kernel_log"]

_RECORD = 8192


def kernel_log(path: str = "/dev/kmsg") -> t.Iterator[str]:
    """The records that the kernel still has, oldest first; :class:`OSError` where it shows them to root alone, or not at all."""
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield from _records(log)
    finally:
        os.close(log)


def _records(log: int) -> t.Iterator[str]:
    """One read is one record. A record that was overwritten meanwhile is a broken pipe, and the next read goes on after it."""
    while True:
        try:
            record = os.read(log, _RECORD)
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue
        if not record:
            return
        yield record.decode("utf-8", "replace").split("\n", 1)[0]
