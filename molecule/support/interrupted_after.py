# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A callback that counts the tasks of a rollout as they end on the hosts, and lets something happen after the one whose turn it is.

Either the controller loses its power: every process of the play is killed with no chance to tidy up. Or the host loses it: a command
reboots it, and the play goes on as it can. A task that is skipped, or only includes others, has done nothing, so it is not counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import typing as t
from pathlib import Path

from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: interrupted_after
type: notification
short_description: Kill ansible-playbook, or reboot a host, after the n-th task of a rollout
description:
  - Writes each task that ended on a host as a line of JSON to the file E(INTERRUPTED_LOG), and kills ansible-playbook after the
    task with the number E(INTERRUPTED_AFTER); none of that number, no kill.
  - With E(INTERRUPTED_BY), a command line as a list of JSON, that runs instead; C({host}) in it is the host that the task ended on.
  - What the command ended with is written there too.
  - Counts from the first play that goes through its hosts in batches, or with E(INTERRUPTED_FROM=playbook) from the first play.
  - Counts what ends on the hosts that E(INTERRUPTED_HOSTS) names, separated by commas.
  - With E(INTERRUPTED_ONLY=changed) counts only what has changed something.
"""


def descendants(pid: int) -> t.Iterator[int]:
    """The processes that a process has started: each worker is in a session of its own, so there is no group of them all."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from descendants(int(child))
        yield int(child)


def kill_play() -> None:
    me = os.getpid()
    for pid in [*descendants(me), me]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "interrupted_after"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.after = int(os.environ.get("INTERRUPTED_AFTER", "0"))
        self.command = json.loads(os.environ.get("INTERRUPTED_BY", "[]"))
        self.hosts = os.environ["INTERRUPTED_HOSTS"].split(",")
        self.log = Path(os.environ["INTERRUPTED_LOG"])
        self.begun = os.environ.get("INTERRUPTED_FROM") == "playbook"
        self.changes_only = os.environ.get("INTERRUPTED_ONLY") == "changed"
        self.count = 0

    def v2_playbook_on_play_start(self, play: t.Any) -> None:
        self.begun = self.begun or bool(play.serial)

    def v2_runner_on_ok(self, result: t.Any) -> None:
        self.end(result, "ok")

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        self.end(result, "failed")

    def end(self, result: t.Any, how: str) -> None:
        """A task has ended on a host: one point at which a power cut may come."""
        host = result.host.get_name()
        if not self.begun or host not in self.hosts or isinstance(result.task, TaskInclude):
            return
        if self.changes_only and not result.is_changed():
            return
        self.count += 1
        self.note(host=host, task=result.task.get_name().strip(), how=how)
        if self.count == self.after:
            self.interrupt(host)

    def interrupt(self, host: str) -> None:
        if not self.command:
            kill_play()
        done = subprocess.run([word.replace("{host}", host) for word in self.command], check=False, stdout=subprocess.DEVNULL)
        self.note(command=self.command, status=done.returncode)

    def note(self, **words: t.Any) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(words) + "\n")
