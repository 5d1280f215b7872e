# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a module writes how far it is, for the action plugin that shows it. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import time
import typing as t

from ._core.effects import Report

__all__ = ["progress_writer"]


def progress_writer(path: t.Optional[str], *, interval: float = 0.5) -> Report:
    """A :class:`Report` that keeps the newest record in ``path`` as one JSON object, replaced in one step.

    A record that only moves its numbers is written at most every ``interval`` seconds; one that says something else is written
    at once. Without a path nothing is written. A full disk must not end the work whose progress it is, so errors are ignored.
    """
    last: dict[str, t.Any] = {"what": None, "at": 0.0}

    def report(record: t.Mapping[str, t.Any]) -> None:
        now = time.monotonic()
        if path is None or (
            record.get("what") == last["what"] and now - last["at"] < interval and record.get("done") != record.get("total")
        ):
            return
        last.update(what=record.get("what"), at=now)
        draft = f"{path}.new"
        try:
            with open(draft, "w", encoding="utf-8") as file:
                json.dump({**record, "time": time.time()}, file)
            os.replace(draft, path)
        except OSError:
            return

    return report
