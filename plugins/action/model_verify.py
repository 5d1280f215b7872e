# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run model_verify and show how far it is."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.vllm.plugins.plugin_utils.progress import ProgressAction, in_bytes, in_time

__all__ = ["ActionModule"]


class ActionModule(ProgressAction):
    """Only hashing takes long enough to be watched."""

    def first_look(self, task_vars: dict[str, t.Any]) -> t.Optional[dict[str, t.Any]]:
        if self._task.args.get("level", "sha256") == "sha256":
            return None
        return self.plain_run(task_vars)

    def time_limit(self) -> int:
        """A day: the slowest of disks reads a store of models in it."""
        return 24 * 3600

    def summary(self, result: dict[str, t.Any]) -> str:
        if result.get("failed") or "snapshots" not in result:
            return ""
        snapshots = result["snapshots"]
        size = in_bytes(sum(snapshot["bytes"] for snapshot in snapshots))
        proven = sum(snapshot["proven"] for snapshot in snapshots)
        return f"weights: {proven} of {len(snapshots)} snapshots proven ({size} in {in_time(result['seconds'])})"
