# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run gpu_memory_wait and show what it waits for."""

from __future__ import annotations

from ansible_collections.gpufleet.vllm.plugins.plugin_utils.waiting import WaitingAction

__all__ = ["ActionModule"]


class ActionModule(WaitingAction):
    """A wait with a deadline, and nothing else."""
