# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures out of a Prometheus text. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

__all__ = ["sum_of"]

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)(?: -?\d+)?$")


def sum_of(text: str, names: t.Sequence[str]) -> t.Optional[float]:
    """The sum of every sample of these names, whatever its labels: each engine of a server has its own. None where there is none."""
    values = [_value(found[2]) for found in map(_SAMPLE.match, text.splitlines()) if found and found[1] in names]
    return sum(values) if values else None


def _value(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
