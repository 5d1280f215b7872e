# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemctl and journalctl print, read."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.effects import CommandResult
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.journal import read_entries, read_invocation, unasked_stop
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unit import is_asked_to_stop, seconds, show_unit

INVOCATION = "0f" * 16
RECORDED = f"""LoadState=loaded
ActiveState=activating
SubState=auto-restart
Result=exit-code
MainPID=0
ControlPID=0
ExecMainCode=1
ExecMainStatus=1
NRestarts=2
InvocationID={INVOCATION}
NeedDaemonReload=no
StatusText=
FragmentPath=/etc/systemd/system/vllm-m.service
UnitFileState=enabled
ControlGroup=/system.slice/vllm-m.service
"""


class Recorded:
    """A runner that plays one answer and remembers what was asked."""

    def __init__(self, out: str, rc: int = 0, err: str = "") -> None:
        self.asked: list[list[str]] = []
        self._result = CommandResult(rc, out, err)

    def __call__(self, argv: t.Sequence[str]) -> CommandResult:
        self.asked.append(list(argv))
        return self._result


def record(message: t.Any, number: int = 1) -> str:
    return json.dumps({"MESSAGE": message, "__CURSOR": f"s=1;i={number}", "__REALTIME_TIMESTAMP": "1795977419000000"})


def test_a_unit_between_two_starts() -> None:
    state = show_unit(Recorded(RECORDED), "vllm-m.service")
    assert (state.n_restarts, state.invocation_id, state.job, state.exists) == (2, INVOCATION, 0, True)
    assert state.waits_for_restart and not state.is_running and not state.is_settling
    assert state.describe_end() == "exit status 1"


SPANS = [
    ("0", 0),
    ("10s", 10),
    ("100ms", 0.1),
    ("1.500000s", 1.5),
    ("1min 30s", 90),
    ("29min 35s", 1775),
    ("5h 55min", 21300),
    ("2d 3h", 183600),
    ("1month 1w 2d 13h 30min", 2629800 + 9 * 86400 + 48600),
    ("1y", 31557600),
    ("infinity", math.inf),
]


@pytest.mark.parametrize(("span", "length"), SPANS)
def test_delays_are_read_as_systemd_shows_them(span: str, length: float) -> None:
    state = show_unit(Recorded(f"{RECORDED}RestartUSec={span}\nStartLimitIntervalUSec={span}\n"), "vllm-m.service")
    assert state.restart_delay == state.start_limit_interval == pytest.approx(length)


@pytest.mark.parametrize(
    ("span", "length"),
    [
        ("5h55min", 21300),
        ("2 hours 3 m", 7380),
        ("1 M", 2629800),
        ("300", 300),
        ("3\u00b5s", 3e-6),
        ("", None),
        ("soon", None),
        ("5x", None),
    ],
)
def test_spans_as_people_write_them_are_read_or_are_none(span: str, length: t.Optional[float]) -> None:
    assert seconds(span) == (length if length is None else pytest.approx(length))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("span", ["90s", "355min", "1.5", "1775", "40d", "100ms", "3us"])
def test_systemd_itself_reads_spans_alike(span: str) -> None:
    shown = subprocess.run(["systemd-analyze", "timespan", span], capture_output=True, text=True, check=True).stdout
    told = {name.strip(" \u03bc\u00b5"): value.strip() for name, _colon, value in (line.partition(":") for line in shown.splitlines())}
    microseconds = next(value for name, value in told.items() if name in ("s", "us"))
    assert seconds(told["Human"]) == pytest.approx(int(microseconds) / 1e6)


@pytest.mark.parametrize("lines", ["Job=4711", "ActiveState=deactivating"])
def test_a_queued_job_or_a_stop_decides_what_comes_next(lines: str) -> None:
    assert show_unit(Recorded(f"{RECORDED}{lines}\n"), "vllm-m.service").is_settling


def test_a_unit_that_does_not_exist_is_an_answer() -> None:
    assert not show_unit(Recorded("LoadState=not-found\nActiveState=inactive\n"), "vllm-m.service").exists


def test_no_systemd_is_an_error_with_a_remedy() -> None:
    with pytest.raises(VllmError, match=r"systemctl show vllm-m\.service failed with status 1: not booted") as caught:
        show_unit(Recorded("", 1, "not booted"), "vllm-m.service")
    assert caught.value.code == "systemd_unavailable"


def test_bars_and_bytes_and_long_records_become_lines() -> None:
    bar = list(b"\rLoading:   0%\r\nLoading:  50%\n")
    journal = Recorded("\n".join([record("one\ntwo"), record(bar, 2), "not json", record(None, 3)]))
    entries = read_entries(journal, INVOCATION, after="s=1;i=0")
    assert [entry.lines for entry in entries] == [["one", "two"], ["Loading:   0%", "Loading:  50%"], []]
    assert entries[-1].cursor == "s=1;i=3"
    assert "--after-cursor=s=1;i=0" in journal.asked[0] and f"_SYSTEMD_INVOCATION_ID={INVOCATION}" in journal.asked[0]


def test_the_journal_is_written_out_before_a_failed_start_is_read_whole() -> None:
    journal = Recorded(record("last words"))
    assert read_invocation(journal, "vllm-m.service", INVOCATION) == ["last words"]
    assert journal.asked[0] == ["journalctl", "--sync"]
    assert read_invocation(journal, "vllm-m.service", "") == []


def test_an_unreadable_journal_names_the_unit() -> None:
    with pytest.raises(VllmError, match=r"vllm-m\.service: journalctl failed with status 1"):
        read_invocation(Recorded("", 1, "no permission"), "vllm-m.service", INVOCATION)


@pytest.mark.parametrize(
    ("result", "status", "unasked"),
    [
        ("exit-code", "1", True),
        ("success", "0", True),
        ("success", "TERM", False),
        ("exec-condition", "1", False),
        ("signal", "KILL", True),
    ],
)
def test_only_an_end_by_request_is_left_alone(result: str, status: str, unasked: bool) -> None:
    assert unasked_stop({"SERVICE_RESULT": result, "EXIT_STATUS": status}) is unasked


@pytest.mark.parametrize(
    ("jobs", "asked"),
    [
        ("412 vllm-m.service stop running\n", True),
        ("412 vllm-m.service restart running\n", True),
        ("412 vllm-m.service start running\n", False),
        ("", False),
    ],
)
def test_a_stop_that_was_asked_for_is_told_from_a_death_by_the_job(jobs: str, asked: bool) -> None:
    assert is_asked_to_stop(Recorded(jobs), "vllm-m.service") is asked


def test_a_start_that_still_waits_for_its_gpus_is_preparing_although_its_job_is_not_done() -> None:
    waiting = RECORDED.replace("auto-restart", "start-pre") + "Job=77\n"
    state = show_unit(Recorded(waiting), "vllm-m.service")
    assert state.is_preparing and not state.is_settling
