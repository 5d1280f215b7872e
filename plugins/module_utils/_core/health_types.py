# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a look at a server is about: what is wanted, what stands before it, and what was found. PRIVATE to the collection."""

from __future__ import annotations

import os.path
import typing as t

from .effects import Clock, Report, Runner, Sleep
from .http import Transport
from .listeners import ProcFs

__all__ = ["DRAINED", "LEVELS", "Effects", "Facts", "Health", "Obstacle", "Want"]

LEVELS = ("alive", "listening", "healthy", "serving", "answering")
DRAINED = "drained"


class Want(t.NamedTuple):
    """What is waited for, and how long. ``url`` is the server's root, without a trailing slash."""

    url: str
    unit: str = ""
    api_key: str = ""
    served_model_name: str = ""
    model_path: str = ""
    level: str = "answering"
    timeout: float = 1800.0
    stall_timeout: float = 300.0
    answer_timeout: float = 120.0
    answer_check: str = "judged"
    logprobs: bool = False
    expected_listeners: t.Sequence[str] = ()

    @property
    def who(self) -> str:
        return self.unit or self.url


class Effects(t.NamedTuple):
    """Everything that is done to the outside."""

    transport: Transport
    runner: Runner
    clock: Clock
    sleep: Sleep
    report: Report
    proc: ProcFs
    real_path: t.Callable[[str], str] = os.path.normpath


class Obstacle(t.NamedTuple):
    """Why the next rung is not reached. With a ``code`` it will not be reached by waiting."""

    reason: str
    code: str = ""
    remedy: str = ""
    cause: str = ""
    evidence: t.Sequence[str] = ()
    remedies: t.Sequence[t.Mapping[str, t.Any]] = ()


class Health(t.NamedTuple):
    """The end of a wait, or one look. ``code`` is empty unless waiting on is pointless or the time is over."""

    level: str
    ready: bool
    reason: str
    code: str
    remedy: str
    facts: dict[str, t.Any]


class Facts(dict[str, t.Any]):
    """What is returned about the server, filled in on the way up."""

    def note(self, text: str) -> None:
        """Something that could not be checked, said once."""
        if text not in self["notes"]:
            self["notes"].append(text)
