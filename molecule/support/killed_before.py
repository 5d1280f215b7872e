# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A callback that stands for a power cut of the controller: it kills ansible-playbook before the task that KILLED_BEFORE names."""

from __future__ import annotations

import os
import signal
import typing as t

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: killed_before
type: notification
short_description: Kill ansible-playbook before a task
description: Kills it without a chance to tidy up, before the first task whose title begins like E(KILLED_BEFORE).
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "killed_before"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_task_start(self, task: t.Any, is_conditional: bool) -> None:
        if task.get_name().rpartition(" : ")[2].startswith(os.environ["KILLED_BEFORE"]):
            os.kill(os.getpid(), signal.SIGKILL)
