# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a process is, by texts of /proc, and what is done with one that was left behind."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import reap
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unit import UnitState
from hypothesis import given
from hypothesis import strategies as st

UNIT = "vllm-m.service"
HOST = "0::/init.scope\n"
OLDER = "4:memory:/x\n1:name=systemd:/init.scope\n0::/init.scope\n"
PODMAN = "0::/machine.slice/libpod-0123.scope/init.scope\n"
LIBPOD = "/machine.slice/libpod-0123.scope"

# -- whose ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pid_1", "cgroup"),
    [
        (HOST, "0::/system.slice/vllm-m.service\n"),
        (HOST, "0::/system.slice/vllm-m.service/.control\n"),
        (HOST, "0::/gpu.slice/gpu-llm.slice/vllm-m.service\n"),
        (HOST, "0::/vllm-m.service\n"),
        (OLDER, "4:memory:/user.slice\n1:name=systemd:/system.slice/vllm-m.service\n0::/\n"),
        (OLDER, "1:name=systemd:/system.slice/vllm-m.service\n0::/system.slice/vllm-m.service\n"),
        (PODMAN, f"0::{LIBPOD}/system.slice/vllm-m.service\n"),
        ("1:name=systemd:/\n0::/\n", "1:name=systemd:/system.slice/vllm-m.service\n0::/\n"),
    ],
)
def test_a_service_of_the_system_manager_is_known_by_its_control_group(pid_1: str, cgroup: str) -> None:
    assert reap.system_unit(cgroup, reap.manager_roots(pid_1)) == UNIT


@pytest.mark.parametrize(
    ("pid_1", "cgroup"),
    [
        # A user's own service, a session, another systemd in a container, a container of the unit's name, another unit below this one.
        (HOST, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm-m.service\n"),
        (HOST, "0::/user.slice/user-1000.slice/session-3.scope\n"),
        (HOST, "0::/machine.slice/libpod-0123.scope/system.slice/vllm-m.service\n"),
        (HOST, "0::/system.slice/docker-0123.scope/vllm-m.service\n"),
        (HOST, "0::/docker/0123/system.slice/vllm-m.service\n"),
        (HOST, "0::/system.slice/vllm-m.service/libpod-0123.scope\n"),
        (HOST, "0::/system.slice/vllm-m.service/nested.service\n"),
        # Outside of the namespace, outside of this container's manager, in a group that is being removed.
        (HOST, "0::/../system.slice/vllm-m.service\n"),
        (HOST, "0::/system.slice/vllm-m.service/../other.service\n"),
        (PODMAN, "0::/system.slice/vllm-m.service\n"),
        (PODMAN, "0::/machine.slice/libpod-0123.scopes/system.slice/vllm-m.service\n"),
        (HOST, "0::/system.slice/vllm-m.service (deleted)\n"),
        # Names that only look alike; hierarchies that contradict each other; hierarchies that do not matter.
        (HOST, "0::/system.slice/vllm-m2.service\n"),
        (HOST, "0::/system.slice/xvllm-m.service\n"),
        (HOST, "0::/system.slice/vllm-m.service.d\n"),
        (HOST, "0::/system.slice/vllm-m\n"),
        (OLDER, "1:name=systemd:/system.slice/vllm-m.service\n0::/system.slice/other.service\n"),
        (OLDER, "1:name=systemd:/user.slice/user-1.slice/user@1.service/vllm-m.service\n0::/system.slice/vllm-m.service\n"),
        (OLDER, "4:memory:/system.slice/vllm-m.service\n1:name=systemd:/system.slice/other.service\n0::/\n"),
        (HOST, "1:name=systemd:/system.slice/vllm-m.service\n"),
        # Nothing known of the manager, or nothing known of the process.
        ("", "0::/system.slice/vllm-m.service\n"),
        (HOST, "0::/\n"),
        (HOST, ""),
    ],
)
def test_whatever_else_bears_the_name_is_a_strangers(pid_1: str, cgroup: str) -> None:
    assert reap.system_unit(cgroup, reap.manager_roots(pid_1)) != UNIT


@given(st.lists(st.sampled_from(["system.slice", "a.slice", UNIT, "b.service", "c.scope", "d", "..", ""]), max_size=6))
def test_no_path_but_slices_and_then_the_unit_is_the_units(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    found = reap.system_unit(f"0::{path}\n", reap.manager_roots(HOST))
    before, _unit, below = path.partition(f"/{UNIT}")
    slices_only = all(part.endswith(".slice") for part in before.split("/")[1:])
    harmless = not any(part.endswith((".service", ".scope")) or part == ".." for part in below.split("/"))
    assert (found == UNIT) == (UNIT in parts and slices_only and harmless)


def member(start: int = 100, unit: t.Optional[str] = UNIT, invocation: t.Optional[str] = None, dead: bool = False) -> reap.Member:
    return reap.Member(4711, start, "VLLM::EngineCore", "vllm-m", unit, invocation, dead)


@pytest.mark.parametrize(
    ("one", "run", "left_behind"),
    [
        (member(), reap.UnitRun(UNIT), True),
        (member(), reap.UnitRun(UNIT, 500), True),
        (member(499), reap.UnitRun(UNIT, 500), True),
        (member(500), reap.UnitRun(UNIT, 500), False),
        (member(501), reap.UnitRun(UNIT, 500), False),
        (member(invocation="old"), reap.UnitRun(UNIT, 500, "new"), True),
        (member(invocation="new"), reap.UnitRun(UNIT, 500, "new"), False),
        (member(invocation="new"), reap.UnitRun(UNIT, None, "new"), True),
        (member(), reap.UnitRun(UNIT, is_certain=False), False),
        (member(), reap.UnitRun(UNIT, 500, is_certain=False), False),
        (member(dead=True), reap.UnitRun(UNIT), False),
        (member(unit="other.service"), reap.UnitRun(UNIT), False),
        (member(unit=None), reap.UnitRun(UNIT), False),
    ],
)
def test_left_behind_is_what_began_before_the_present_run(one: reap.Member, run: reap.UnitRun, left_behind: bool) -> None:
    assert reap.is_left_behind(one, run) is left_behind


RUNNING = {"active_state": "active", "sub_state": "running", "main_pid": 10, "invocation_id": "f" * 32}


@pytest.mark.parametrize(
    ("state", "run"),
    [
        ({"active_state": "inactive", "sub_state": "dead", "invocation_id": "f" * 32}, reap.UnitRun(UNIT)),
        ({"active_state": "failed", "sub_state": "failed"}, reap.UnitRun(UNIT)),
        ({"active_state": "activating", "sub_state": "auto-restart"}, reap.UnitRun(UNIT)),
        ({"active_state": "activating", "sub_state": "auto-restart-queued"}, reap.UnitRun(UNIT)),
        (RUNNING, reap.UnitRun(UNIT, 1000, "f" * 32)),
        ({"active_state": "activating", "sub_state": "start-pre", "control_pid": 20}, reap.UnitRun(UNIT, 2000)),
        ({"active_state": "activating", "sub_state": "start-post", "main_pid": 10, "control_pid": 20}, reap.UnitRun(UNIT, 1000)),
        ({"active_state": "reloading", "main_pid": 20, "control_pid": 10}, reap.UnitRun(UNIT, 1000)),
        ({"active_state": "deactivating", "sub_state": "stop-sigterm", "main_pid": 10}, reap.UnitRun(UNIT, is_certain=False)),
        ({"active_state": "deactivating", "sub_state": "stop-post", "control_pid": 20}, reap.UnitRun(UNIT, is_certain=False)),
        ({"active_state": "active", "sub_state": "exited"}, reap.UnitRun(UNIT, is_certain=False)),
        ({**RUNNING, "main_pid": 30}, reap.UnitRun(UNIT, is_certain=False)),
        ({"active_state": "active", "main_pid": 10, "control_pid": 30}, reap.UnitRun(UNIT, is_certain=False)),
        ({}, reap.UnitRun(UNIT, is_certain=False)),
    ],
)
def test_what_runs_of_a_unit_is_the_managers_word(state: dict[str, t.Any], run: reap.UnitRun) -> None:
    assert reap.run_of_unit(UnitState(UNIT, **state), {10: 1000, 20: 2000}.get) == run


@pytest.mark.parametrize("unit", [None, "", "vllm-m", "session-3.scope", "system.slice", "a b.service", "x/y.service", ".service"])
def test_only_a_service_by_its_full_name_can_have_left_overs(unit: t.Optional[str]) -> None:
    with pytest.raises(VllmError, match="whose processes are left over cannot be told"):
        reap.check_unit(unit)
    assert reap.check_unit(r"vllm-a@1\x2d2.service") == r"vllm-a@1\x2d2.service"


def test_the_environment_tells_the_invocation_unless_a_title_was_written_over_it() -> None:
    assert reap.invocation_of(f"PATH=/bin\0INVOCATION_ID={'5c' * 16}\0HOME=/\0") == "5c" * 16
    assert reap.invocation_of("VLLM::EngineCore\0\0\0\0") is None
    assert reap.invocation_of("INVOCATION_ID=none\0NOT_INVOCATION_ID=" + "5c" * 16) is None


# -- ending it -----------------------------------------------------------------------------------------------------------------


class Scene:
    """Left-overs that die of the signal they are said to die of, and a clock that only sleep moves."""

    def __init__(self, **dies_of: str) -> None:
        self.members = {name: member(100 + place)._replace(pid=4711 + place, name=name) for place, name in enumerate(dies_of)}
        self.dies_of = dies_of
        self.dead: set[str] = set()
        self.denied: set[str] = set()
        self.sent: list[tuple[float, str, str]] = []
        self.said: list[str] = []
        self.now = 0.0
        self.reaper = reap.Reaper(UNIT, self, self.said.append)

    def left_behind(self) -> t.Sequence[reap.Member]:
        return [one for name, one in self.members.items() if name not in self.dead]

    def lives(self, one: reap.Member) -> bool:
        return one.name not in self.dead

    def signal(self, one: reap.Member, name: str) -> bool:
        if one.name in self.denied:
            return False
        self.sent.append((self.now, one.name, name))
        if self.dies_of[one.name] == name:
            self.dead.add(one.name)
        return True

    def sleep(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 3)

    def settle(self) -> None:
        reap.settle(self.reaper, 0.25, lambda: self.now, self.sleep)


def test_nothing_left_behind_is_settled_at_once() -> None:
    scene = Scene()
    assert not scene.reaper.is_settled
    scene.settle()
    assert (scene.now, scene.said, scene.reaper.records()) == (0.0, [], [])


def test_one_that_listens_goes_with_sigterm() -> None:
    scene = Scene(engine="TERM")
    scene.settle()
    assert scene.sent == [(0.0, "engine", "TERM")]
    assert scene.said == [
        "pid 4711 engine (vllm-m.service, user vllm-m) is left over from an earlier run of vllm-m.service: sent SIGTERM",
        "pid 4711 engine is gone 0.0 s after SIGTERM",
    ]
    assert scene.reaper.records() == [
        {"pid": 4711, "name": "engine", "user": "vllm-m", "unit": UNIT, "start_time": 100, "signal": "TERM", "gone": True}
    ]


def test_one_that_does_not_listen_is_killed_when_its_time_is_up_and_each_is_signalled_once() -> None:
    scene = Scene(engine="KILL", worker="TERM")
    scene.settle()
    assert scene.sent == [(0.0, "engine", "TERM"), (0.0, "worker", "TERM"), (reap.GRACE, "engine", "KILL")]
    assert "pid 4711 engine (vllm-m.service, user vllm-m) is still there 10 s after SIGTERM: sent SIGKILL" in scene.said
    assert [(one["signal"], one["gone"]) for one in scene.reaper.records()] == [("KILL", True), ("TERM", True)]


def test_one_that_cannot_die_is_given_up_and_said_to_be_there() -> None:
    scene = Scene(engine="nothing")
    scene.settle()
    assert scene.now == reap.GRACE + reap.GIVE_UP
    assert scene.said[-1] == "pid 4711 engine (vllm-m.service, user vllm-m) does not die 10 s after SIGKILL"
    assert scene.reaper.records()[0]["gone"] is False


def test_one_that_is_no_longer_what_it_was_gets_no_signal_and_no_word() -> None:
    scene = Scene(engine="TERM")
    scene.denied.add("engine")
    scene.settle()
    assert (scene.sent, scene.said, scene.reaper.records()) == ([], [], [])


def test_one_that_turns_up_later_is_ended_too() -> None:
    scene = Scene(engine="TERM", worker="TERM")
    late = scene.members.pop("worker")
    scene.reaper.look(0.0)
    scene.members["worker"] = late
    scene.reaper.look(reap.LOOK_EVERY / 2)
    assert [name for _at, name, _signal in scene.sent] == ["engine"]
    scene.reaper.look(reap.LOOK_EVERY)
    assert [name for _at, name, _signal in scene.sent] == ["engine", "worker"]


def test_the_same_pid_with_another_start_time_is_another_process() -> None:
    scene = Scene(engine="TERM")
    scene.reaper.look(0.0)
    scene.dead.clear()
    scene.members["engine"] = scene.members["engine"]._replace(start_time=900)
    scene.reaper.look(reap.LOOK_EVERY)
    assert len(scene.sent) == 2


def test_a_preview_names_them_and_sends_nothing() -> None:
    scene = Scene(engine="TERM")
    assert [(one["pid"], one["signal"], one["gone"]) for one in scene.reaper.preview()] == [(4711, None, False)]
    assert scene.sent == []


def test_those_a_process_descends_from_are_told_as_far_as_proc_shows_them() -> None:
    stats = {"/proc/30/stat": "30 (a) b) S 20 0", "/proc/20/stat": "20 (sh) S 1 0", "/proc/1/stat": "1 (systemd) S 0 0"}

    def read_text(path: str) -> str:
        if path not in stats:
            raise FileNotFoundError(path)
        return stats[path]

    assert reap.ancestors(30, read_text) == [30, 20, 1]
    del stats["/proc/20/stat"]
    assert reap.ancestors(30, read_text) == [30, 20]
