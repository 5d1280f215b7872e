# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one error family of the core. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

__all__ = ["VllmError"]


class VllmError(Exception):
    """Something an operator can act on: what is wrong and where, a stable code, and what to do about it.

    ``code`` is a stable word for programs (``disk_full``, ``access_denied`` ...); ``remedy`` is one sentence for people;
    ``details`` are facts worth returning from a module (plain JSON types, never a secret).
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "error",
        remedy: str = "",
        details: t.Optional[t.Mapping[str, t.Any]] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.remedy = remedy
        self.details: dict[str, t.Any] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()
