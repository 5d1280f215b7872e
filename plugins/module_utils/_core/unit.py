# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd says about a unit. PRIVATE to the collection."""

from __future__ import annotations

import math
import re
import typing as t

from .effects import Runner
from .errors import VllmError

__all__ = ["UnitState", "is_asked_to_stop", "seconds", "show_unit"]

_PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,MainPID,ControlPID,ExecMainCode,ExecMainStatus,NRestarts,InvocationID,Job,NeedDaemonReload,"
    "StatusText,FragmentPath,UnitFileState,ControlGroup,RestartUSec,StartLimitIntervalUSec,ConditionResult,ConditionTimestamp"
)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z\u00b5\u03bc]*)\s*")
_UNITS: dict[str, float] = {
    **dict.fromkeys(("usec", "us", "\u00b5s", "\u03bcs"), 1e-6),
    **dict.fromkeys(("msec", "ms"), 1e-3),
    **dict.fromkeys(("seconds", "second", "sec", "s", ""), 1),
    **dict.fromkeys(("minutes", "minute", "min", "m"), 60),
    **dict.fromkeys(("hours", "hour", "hr", "h"), 3600),
    **dict.fromkeys(("days", "day", "d"), 86400),
    **dict.fromkeys(("weeks", "week", "w"), 7 * 86400),
    **dict.fromkeys(("months", "month", "M"), 2629800),
    **dict.fromkeys(("years", "year", "y"), 31557600),
}


class UnitState(t.NamedTuple):
    """One look at a unit, in systemd's own words. ``job`` is the number of a queued or running job, 0 for none.

    ``restart_delay`` is RestartSec=, ``start_limit_interval`` StartLimitIntervalSec=, in seconds; the latter is 0 where starts are not
    limited.
    """

    name: str
    load_state: str = ""
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    main_pid: int = 0
    control_pid: int = 0
    exec_main_code: int = 0
    exec_main_status: int = 0
    n_restarts: int = 0
    invocation_id: str = ""
    job: int = 0
    need_daemon_reload: bool = False
    status_text: str = ""
    fragment_path: str = ""
    unit_file_state: str = ""
    control_group: str = ""
    was_skipped: bool = False
    restart_delay: float = 0.0
    start_limit_interval: float = 0.0

    @property
    def exists(self) -> bool:
        return self.load_state not in ("", "not-found", "bad-setting", "error")

    @property
    def is_alive(self) -> bool:
        """It runs, or is on its way up or down."""
        return self.active_state in ("active", "activating", "reloading", "deactivating")

    @property
    def is_enabled(self) -> bool:
        """It is started at boot."""
        return self.unit_file_state.startswith("enabled")

    @property
    def is_settling(self) -> bool:
        """Something is under way that decides what comes next: a queued job, or a stop.

        The job of a start lasts as long as its ExecStartPre commands, so it says no more than that they run.
        """
        return (self.job != 0 and not self.is_preparing) or self.active_state == "deactivating"

    @property
    def waits_for_restart(self) -> bool:
        """The last start is over and systemd waits before it tries again."""
        return self.sub_state.startswith("auto-restart")

    @property
    def is_preparing(self) -> bool:
        """An ExecStartPre command runs; the main process is not there yet."""
        return self.sub_state in ("start-pre", "condition")

    @property
    def is_running(self) -> bool:
        return self.active_state in ("active", "reloading") or (self.active_state == "activating" and self.main_pid > 0)

    def describe(self) -> str:
        """Its state, and once its main process ended, the result and how, in one line."""
        ended = f", result {self.result or 'unknown'}, {self.describe_end()}" if self.exec_main_code else ""
        return f"{self.active_state} ({self.sub_state}){ended}"

    def describe_end(self) -> str:
        """How the main process ended, as ``systemctl status`` would say it."""
        if self.exec_main_code == 1:
            return f"exit status {self.exec_main_status}"
        if self.exec_main_code in (2, 3):
            return f"signal {self.exec_main_status}"
        return f"result {self.result or 'unknown'}"


def show_unit(runner: Runner, unit: str) -> UnitState:
    """Ask systemd about ``unit``; a unit that does not exist is an answer too (``exists`` is false)."""
    result = runner(["systemctl", "show", "--no-pager", f"--property={_PROPERTIES}", "--", unit])
    if result.rc != 0:
        raise VllmError(
            f"systemctl show {unit} failed with status {result.rc}: {(result.err or result.out).strip()}.",
            code="systemd_unavailable",
            remedy="Run this on the host of the unit, as root.",
        )
    shown = dict(line.split("=", 1) for line in result.out.splitlines() if "=" in line)
    return UnitState(
        name=unit,
        load_state=shown.get("LoadState", ""),
        active_state=shown.get("ActiveState", ""),
        sub_state=shown.get("SubState", ""),
        result=shown.get("Result", ""),
        main_pid=_number(shown, "MainPID"),
        control_pid=_number(shown, "ControlPID"),
        exec_main_code=_number(shown, "ExecMainCode"),
        exec_main_status=_number(shown, "ExecMainStatus"),
        n_restarts=_number(shown, "NRestarts"),
        invocation_id=shown.get("InvocationID", ""),
        job=_number(shown, "Job"),
        need_daemon_reload=shown.get("NeedDaemonReload") == "yes",
        status_text=shown.get("StatusText", ""),
        fragment_path=shown.get("FragmentPath", ""),
        unit_file_state=shown.get("UnitFileState", ""),
        control_group=shown.get("ControlGroup", ""),
        # Of a unit that was never started the result is "no" too.
        was_skipped=shown.get("ConditionResult") == "no" and shown.get("ConditionTimestamp", "") != "",
        restart_delay=seconds(shown.get("RestartUSec", "")) or 0.0,
        start_limit_interval=seconds(shown.get("StartLimitIntervalUSec", "")) or 0.0,
    )


def is_asked_to_stop(runner: Runner, unit: str) -> bool:
    """Whether somebody wants the unit stopped or restarted right now, as seen from its own ExecStopPost."""
    jobs = runner(["systemctl", "list-jobs", "--no-legend", "--plain", "--no-pager", "--", unit]).out.splitlines()
    return any(job.split()[2:3] in (["stop"], ["restart"]) for job in jobs)


def seconds(span: str) -> t.Optional[float]:
    """A time span as ``systemctl show`` prints it and unit files have it (``5h 55min``, ``1.500000s``, ``infinity``); None for no span."""
    text = span.strip()
    if text == "infinity":
        return math.inf
    parts = _SPAN.findall(text)
    if not parts or _SPAN.sub("", text) or any(unit not in _UNITS for _amount, unit in parts):
        return None
    return sum(float(amount) * _UNITS[unit] for amount, unit in parts)


def _number(shown: t.Mapping[str, str], name: str) -> int:
    text = shown.get(name, "")
    return int(text) if text.isdigit() else 0
