# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run gpu_memory_wait and show what it waits for."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.vllm.plugins.plugin_utils.waiting import WaitingAction

__all__ = ["ActionModule"]


class ActionModule(WaitingAction):
    """A wait with a deadline."""

    def first_look(self, task_vars: dict[str, t.Any]) -> t.Optional[dict[str, t.Any]]:
        """What ends processes runs once and to its end: a look cut short would forget what it ended."""
        return None if self._task.args.get("reap") == "own" else super().first_look(task_vars)
