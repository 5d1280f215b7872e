# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A callback that counts what each host's share of a run is."""

from __future__ import annotations

import json
import os
import typing as t
from collections import Counter
from pathlib import Path

from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: counted_tasks
type: notification
short_description: Count the tasks of each host
description:
  - Writes to the file E(COUNTED_TASKS) for each host how many tasks have ended, and how many of those asked the host.
  - The gathering of facts, a task that was skipped and one that only includes others are none.
"""

FACTS = ("gather_facts", "ansible.builtin.gather_facts", "setup", "ansible.builtin.setup")
# They answer from what the controller knows.
ON_CONTROLLER = {
    "add_host",
    "assert",
    "debug",
    "fail",
    "group_by",
    "include_vars",
    "meta",
    "set_fact",
    "set_stats",
    "validate_argument_spec",
}


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "counted_tasks"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.tasks: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    def v2_runner_on_ok(self, result: t.Any) -> None:
        self.count(result)

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        self.count(result)

    def count(self, result: t.Any) -> None:
        if isinstance(result.task, TaskInclude) or result.task.action in FACTS:
            return
        host = result.host.get_name()
        self.tasks[host] += 1
        if result.task.action.rpartition(".")[2] not in ON_CONTROLLER and not result.task.delegate_to:
            self.asked[host] += 1

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        counts = {host: {"tasks": self.tasks[host], "asked": self.asked[host]} for host in self.tasks}
        Path(os.environ["COUNTED_TASKS"]).write_text(json.dumps(counts), encoding="utf-8")
