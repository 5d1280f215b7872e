# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show on the controller how far a long module is. PRIVATE to the collection.

Most runs need nothing, so the module is first run plainly and briefly, which costs what any task costs. Only work that turns out
to be long is started as an asynchronous job on the host, which survives a dropped connection, and watched through a small file.
"""

from __future__ import annotations

import json
import shlex
import time
import typing as t
import uuid

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

__all__ = ["Pace", "ProgressAction", "describe", "in_bytes", "in_time"]

Result = dict[str, t.Any]

LINE_EVERY = 5.0
"""Seconds between two lines that differ in their numbers only."""

RECONNECT_WITHIN = 600.0
"""Seconds after which a host that cannot be reached any more counts as unreachable."""

LOOK = """\
end=$(( $(date +%s) + 4 )); job={job}; progress={progress}; seen={seen}
while :; do
  case "$(head -c 10 "$job" 2>/dev/null)" in '{{"started"') ;; *) echo finished; exit 0;; esac
  now=$(cksum < "$progress" 2>/dev/null)
  if [ "$now" != "$seen" ] && [ -n "$now" ] || [ "$(date +%s)" -ge "$end" ]; then break; fi
  sleep 0.3
done
echo "$now"; cat "$progress" 2>/dev/null; exit 0"""
"""Waits on the host until the job is over or has something new to say, at most four seconds: one round trip for each piece of news."""


class Pace:
    """The rate of a counter, from its growth since about the last half minute."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []

    def rate(self, at: float, done: float) -> float:
        """Units a second; 0 while unknown."""
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((at, done))
        while len(self._samples) > 2 and at - self._samples[1][0] > 30:
            self._samples.pop(0)
        first_at, first = self._samples[0]
        return (done - first) / (at - first_at) if at > first_at else 0.0


def describe(record: t.Mapping[str, t.Any], rate: float) -> str:
    """One progress record as a line: what, files, amount, rate, time left, as far as each is known."""
    what, done, total, unit = record["what"], record.get("done"), record.get("total"), record.get("unit", "")
    if done is None:
        return str(what)
    parts = [f"{record['files']}/{record['files_total']} files"] if "files_total" in record else []
    parts.append(_amount(done, total, unit))
    if rate > 0:
        parts.append(f"{in_bytes(rate)}/s" if unit == "B" else f"{rate:.1f} {unit}/s")
    if rate > 0 and total is not None and total > done:
        parts.append(f"{in_time((total - done) / rate)} left")
    return f"{what}: {'  '.join(parts)}"


def _amount(done: float, total: t.Optional[float], unit: str) -> str:
    if unit != "B":
        return f"{done:g}{f'/{total:g}' if total is not None else ''} {unit}".rstrip()
    if total is None:
        return in_bytes(done)
    divisor, name = _scale(total)
    return f"{done / divisor:.1f}/{total / divisor:.1f} {name}"


def in_bytes(count: float) -> str:
    """A number of bytes for people."""
    divisor, name = _scale(count)
    return f"{count / divisor:.{0 if count / divisor >= 100 else 1}f} {name}"


def _scale(count: float) -> tuple[float, str]:
    return next(((divisor, name) for divisor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= divisor), (1.0, "B"))


def in_time(seconds: float) -> str:
    """A number of seconds for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class ProgressAction(ActionBase):  # type: ignore[misc]  # ansible-core has no types
    """Runs the module of its own name. A subclass says how a first, brief look is taken and how long the whole may last."""

    _requires_connection = True
    _supports_async = True
    _supports_check_mode = True

    def first_look(self, task_vars: Result) -> t.Optional[Result]:
        """The result of a brief plain run if that settles the matter, else None."""
        raise NotImplementedError

    def time_limit(self) -> int:
        """After how many seconds a job that never ends is killed."""
        raise NotImplementedError

    def summary(self, result: Result) -> str:
        """What a watched job came to, as the last line; empty where the result speaks for itself."""
        return ""

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[Result] = None) -> Result:
        result: Result = super().run(tmp, task_vars)
        variables = task_vars or {}
        if self._task.check_mode or self._task.async_val:
            result.update(self._execute_module(task_vars=variables, wrap_async=bool(self._task.async_val)))
            return result
        settled = self.first_look(variables)
        result.update(settled if settled is not None else self._watched(variables))
        return result

    def plain_run(self, task_vars: Result, **changes: t.Any) -> Result:
        """The module, run as any other, with some of its arguments changed."""
        return dict(self._execute_module(module_args={**self._task.args, **changes}, task_vars=task_vars))

    def plain_preview(self, task_vars: Result) -> Result:
        """The module in check mode."""
        self._task.check_mode = True
        try:
            return self.plain_run(task_vars)
        finally:
            self._task.check_mode = False

    # -- the asynchronous job --------------------------------------------------------------------------------------------------

    def _watched(self, task_vars: Result) -> Result:
        folder = self._async_folder()
        progress = f"{folder}/gpufleet-{uuid.uuid4().hex}.progress"
        started = self._start(task_vars, progress)
        job = started.get("ansible_job_id")
        if job is None or started.get("failed"):
            return started
        lines = _Lines(str(task_vars.get("inventory_hostname", "")))
        self._watch(lines, f"{folder}/{job}", progress)
        try:
            result = self._collect(str(job), folder, task_vars)
            lines.say(self.summary(result))
            return result
        finally:
            self._low_level_execute_command(f"rm -f {_quoted(progress)} {_quoted(f'{folder}/{job}')}")

    def _async_folder(self) -> str:
        return str(self.get_shell_option("async_dir", default="~/.ansible_async")).rstrip("/")

    def _start(self, task_vars: Result, progress: str) -> Result:
        arguments = {**self._task.args, "progress_path": progress}
        self._task.async_val = self.time_limit()
        try:
            return dict(self._execute_module(module_args=arguments, task_vars=task_vars, wrap_async=True))
        finally:
            self._task.async_val = 0

    def _watch(self, lines: _Lines, job: str, progress: str) -> None:
        """Print news until the job is over. A lost connection is news too, and is made again for as long as the job may last."""
        seen, deadline = "", time.monotonic() + self.time_limit()
        heard = time.monotonic()
        while time.monotonic() < deadline:
            answer = self._look(LOOK.format(job=_quoted(job), progress=_quoted(progress), seen=shlex.quote(seen)))
            if answer is None and time.monotonic() - heard > RECONNECT_WITHIN:
                raise AnsibleConnectionFailure(f"no connection for {RECONNECT_WITHIN:.0f} s; the work may still go on there")
            if answer is None:
                lines.say("the connection is lost; the work goes on there, trying to reach it again")
                time.sleep(2)
                continue
            heard = time.monotonic()
            seen, _newline, record = answer.partition("\n")
            if seen.strip() == "finished":
                return
            lines.show(record)

    def _look(self, command: str) -> t.Optional[str]:
        """The command's output; None where the connection failed."""
        try:
            answer = self._low_level_execute_command(f"/bin/sh -c {shlex.quote(command)}")
        except AnsibleConnectionFailure:
            answer = {"rc": 255, "stdout": ""}
        if answer["rc"] == 0:
            return str(answer["stdout"])
        self._connection.reset()
        return None

    def _collect(self, job: str, folder: str, task_vars: Result) -> Result:
        """The job's own result, read by Ansible's module for it."""
        status = self._execute_module(
            "ansible.legacy.async_status", {"jid": job, "mode": "status", "_async_dir": folder}, task_vars=task_vars
        )
        ours = {"ansible_job_id", "started", "finished", "results_file"}
        return {name: value for name, value in status.items() if name not in ours}


class _Lines:
    """Prints progress lines of one host: news at once, moving numbers every few seconds, the same line never twice."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._pace = Pace()
        self._what = ""
        self._line = ""
        self._at = 0.0

    def show(self, text: str) -> None:
        try:
            record = json.loads(text)
            at, what = float(record.get("time", 0)), str(record["what"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        if what != self._what:
            self._pace = Pace()
        rate = self._pace.rate(at, record["done"]) if record.get("done") is not None else 0.0
        if what != self._what or time.monotonic() - self._at >= LINE_EVERY:
            self._what, self._at = what, time.monotonic()
            self.say(describe(record, rate))

    def say(self, line: str) -> None:
        if line and line != self._line:
            self._line = line
            Display().display(f"[{self._host}] {line}")


def _quoted(path: str) -> str:
    """A path for the remote shell that still expands a leading ``~``."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
