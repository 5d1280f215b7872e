# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run vllm_health and show what it waits for."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.vllm.plugins.plugin_utils.waiting import WaitingAction

__all__ = ["ActionModule"]


class ActionModule(WaitingAction):
    """A wait with a deadline, and nothing else."""

    def may_change(self, failure: t.Mapping[str, t.Any]) -> bool:
        """A verdict stands, also one that took long: asked again, a unit that died meanwhile would be taken for one that starts."""
        return failure.get("code") == "timeout"
