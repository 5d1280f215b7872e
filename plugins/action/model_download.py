# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run model_download and show how far it is."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.vllm.plugins.plugin_utils.progress import ProgressAction, in_bytes, in_time

__all__ = ["ActionModule"]


class ActionModule(ProgressAction):
    """Check mode tells in one cheap run whether anything has to be done, and fails for every reason a run could not begin."""

    def first_look(self, task_vars: dict[str, t.Any]) -> t.Optional[dict[str, t.Any]]:
        if self._task.args.get("verify") == "sha256":
            return None
        found = self.plain_preview(task_vars)
        return found if found.get("failed") or not found.get("changed") else None

    def time_limit(self) -> int:
        """Days: the module itself gives up when nothing moves any more."""
        return 7 * 24 * 3600

    def summary(self, result: dict[str, t.Any]) -> str:
        if result.get("failed") or "bytes_total" not in result:
            return ""
        return f"weights: {result['msg'].rstrip('.')} ({in_bytes(result['bytes_downloaded'])} fetched in {in_time(result['seconds'])})"
