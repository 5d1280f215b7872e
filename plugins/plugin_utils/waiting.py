# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for something on a host and show what it waits for. PRIVATE to the collection."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpufleet.vllm.plugins.plugin_utils.progress import ProgressAction

__all__ = ["WaitingAction"]

BRIEF = 5
"""Seconds a first look may take: what is ready at once, or has failed for good, costs one plain run."""

GRACE = 120
"""Seconds a job may outlast its own time limit before it is killed."""


class WaitingAction(ProgressAction):
    """For modules with a ``timeout``: a brief run first, and where that ran out of time, the rest as a watched job."""

    def first_look(self, task_vars: dict[str, t.Any]) -> t.Optional[dict[str, t.Any]]:
        began = time.monotonic()
        found = self.plain_run(task_vars, timeout=min(BRIEF, self._timeout()))
        ran_out = bool(found.get("failed")) and self._timeout() > BRIEF and time.monotonic() - began >= BRIEF
        return None if ran_out and self.may_change(found) else found

    def may_change(self, failure: t.Mapping[str, t.Any]) -> bool:
        """Whether more time may turn this failure into something else."""
        return True

    def time_limit(self) -> int:
        return self._timeout() + GRACE

    def _timeout(self) -> int:
        """The task's own limit; a day where it leaves that to the module, which then ends sooner by itself."""
        return int(float(self._task.args.get("timeout", 24 * 3600)))
