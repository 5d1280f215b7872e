# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of text as lines with aligned columns. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

__all__ = ["aligned"]


def aligned(head: t.Sequence[str], rows: t.Iterable[t.Sequence[str]], right: t.Container[str] = ()) -> list[str]:
    """The head and the rows, two blanks between columns; those whose names are in ``right`` end at their right edge."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [_line(line, [str.rjust if name in right else str.ljust for name in head], widths) for line in lines]


def _line(cells: t.Sequence[str], justify: t.Sequence[t.Callable[[str, int], str]], widths: t.Sequence[int]) -> str:
    return "  ".join(put(cell, width) for cell, put, width in zip(cells, justify, widths)).rstrip()
