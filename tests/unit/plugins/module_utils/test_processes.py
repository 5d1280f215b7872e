# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ending real processes: those of the unit that began before its run, and nobody else. Only their control groups are made up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils import _processes
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import reap
from support.running import wait_for

UNIT = "vllm-m.service"
OBEYS = "import time; print('up', flush=True); time.sleep(60)"
RESISTS = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEYS}"


class Groups:
    """Real processes, and the control groups they are said to be in."""

    def __init__(self) -> None:
        self.units: dict[int, str] = {}
        self.children: list[subprocess.Popen[str]] = []
        self.run = reap.UnitRun(UNIT)
        self.asked = 0
        self.said: list[str] = []
        self.processes = _processes.UnitProcesses(UNIT, self.find_run, self.read)

    def find_run(self) -> reap.UnitRun:
        self.asked += 1
        return self.run

    def read(self, path: str) -> str:
        pid = path.split("/")[2]
        return "0::/init.scope\n" if pid == "1" else f"0::{self.units.get(int(pid), '/')}\n"

    def start(self, group: str = f"/system.slice/{UNIT}", code: str = OBEYS, **variables: str) -> int:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
        self.children.append(child)
        assert child.stdout and child.stdout.readline()
        self.units[child.pid] = group
        return child.pid

    def lives(self, pid: int) -> bool:
        return next(child for child in self.children if child.pid == pid).poll() is None

    def member(self, pid: int) -> reap.Member:
        return next(one for one in self.processes.left_behind() if one.pid == pid)

    def settle(self, grace: float = 5.0) -> list[dict[str, t.Any]]:
        reaper = reap.Reaper(UNIT, self.processes, self.said.append, grace)
        reap.settle(reaper, 0.01, time.monotonic, time.sleep)
        return reaper.records()


@pytest.fixture
def groups() -> t.Iterator[Groups]:
    made = Groups()
    yield made
    for child in made.children:
        child.kill()
        child.communicate()


STRANGERS = (
    "/system.slice/other.service",
    "/user.slice/user-1000.slice/session-3.scope",
    f"/user.slice/user-1000.slice/user@1000.service/app.slice/{UNIT}",
    f"/machine.slice/libpod-0123.scope/system.slice/{UNIT}",
    f"/system.slice/{UNIT}/nested.scope",
    "/",
)


def test_what_a_dead_unit_left_behind_ends_and_strangers_of_the_same_name_live_on(groups: Groups) -> None:
    ours, strangers = groups.start(), [groups.start(group) for group in STRANGERS]
    records = groups.settle()
    assert [(one["pid"], one["signal"], one["gone"]) for one in records] == [(ours, "TERM", True)]
    assert [groups.lives(pid) for pid in (ours, *strangers)] == [False, *[True] * len(strangers)]


def test_one_that_does_not_listen_is_killed(groups: Groups) -> None:
    ours = groups.start(code=RESISTS)
    assert [(one["pid"], one["signal"], one["gone"]) for one in groups.settle(grace=0.1)] == [(ours, "KILL", True)]
    assert not groups.lives(ours)


def test_what_belongs_to_the_present_run_is_spared(groups: Groups) -> None:
    invocation = "5c" * 16
    old, of_this_run = groups.start(), groups.start(INVOCATION_ID=invocation)
    time.sleep(0.03)  # start times are told in hundredths of a second
    main, child = groups.start(), groups.start()
    groups.run = reap.UnitRun(UNIT, _processes.start_time(main), invocation)
    assert [one["pid"] for one in groups.settle()] == [old]
    assert [groups.lives(pid) for pid in (of_this_run, main, child)] == [True, True, True]


def test_nothing_is_ended_while_it_cannot_be_told_what_runs(groups: Groups) -> None:
    ours = groups.start()
    groups.run = reap.UnitRun(UNIT, is_certain=False)
    assert groups.settle() == [] and groups.lives(ours)


def test_a_reused_pid_gets_no_signal(groups: Groups) -> None:
    ours = groups.start()
    member = groups.member(ours)
    assert not groups.processes.signal(member._replace(start_time=member.start_time - 1), "KILL")
    assert not groups.processes.lives(member._replace(start_time=member.start_time - 1))
    assert groups.lives(ours)


def test_one_that_left_the_unit_gets_no_signal(groups: Groups) -> None:
    ours = groups.start()
    member = groups.member(ours)
    groups.units[ours] = "/system.slice/other.service"
    assert not groups.processes.signal(member, "KILL") and groups.lives(ours)


def test_one_that_is_gone_gets_no_signal(groups: Groups) -> None:
    member = groups.member(groups.start())
    child = groups.children[0]
    child.kill()
    wait_for(lambda: not groups.processes.lives(member))
    assert not groups.processes.signal(member, "TERM"), "a zombie"
    child.wait()
    assert not groups.processes.signal(member, "TERM"), "nobody"


def test_where_there_are_no_handles_of_processes_it_works_all_the_same(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    ours = groups.start()
    assert [one["pid"] for one in groups.settle()] == [ours] and not groups.lives(ours)


def test_this_process_and_those_around_it_are_no_left_overs(groups: Groups) -> None:
    for pid in (os.getpid(), os.getppid()):
        groups.units[pid] = f"/system.slice/{UNIT}"
    assert groups.processes.left_behind() == []


def test_the_manager_is_asked_only_where_the_unit_has_processes(groups: Groups) -> None:
    groups.settle()
    assert groups.asked == 0


def test_by_hand_nothing_is_left_over() -> None:
    assert _processes.own_run(UNIT, None) == reap.UnitRun(UNIT, is_certain=False)
