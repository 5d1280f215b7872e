# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGKILL of one process of a serving engine, with requests open: what is left, and how long it takes to serve again."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

if t.TYPE_CHECKING:
    from on_hosts import Unit

SCRIPT = Path(__file__).resolve().parents[2] / "support" / "kill_under_load.py"
LINGER = 2.0
VICTIMS = {"gpu1": ("VLLM::Worker_TP", "worker_died"), "gpu2": ("VLLM::EngineCor", "engine_died")}


class Aftermath(t.NamedTuple):
    """What was measured, and the unit's restarts before."""

    seconds: dict[str, float]
    ends: list[str]
    restarts: int


def kill(unit: Unit, victim: str, capsys: pytest.CaptureFixture[str]) -> Aftermath:
    before, release = int(unit.shown("NRestarts")), unit.running()["release"]
    found = unit.run_python(SCRIPT, unit.name, victim, "/run/fake-vllm", python="/opt/gpufleet/host/bin/python")
    assert found["gpus"] == 4
    assert unit.running()["release"] == unit.release()["id"] == release
    assert int(unit.shown("NRestarts")) == before + 1
    seconds = found["seconds"]
    with capsys.disabled():
        print(
            f"\n{unit.host.backend.host}, SIGKILL of {found['killed']} with {len(found['ends'])} requests open: last process gone after"
            f" {seconds['gone']} s, memory of 4 GPUs back after {seconds['memory']} s, answering again after {seconds['answering']} s"
        )
    return Aftermath(seconds, found["ends"], before)


def assert_bounded(unit: Unit, after: Aftermath) -> None:
    """Every open request ended and the unit served again; it took its own pause, the driver's time and a load."""
    assert not [how for how in after.ends if how.endswith("whole")]
    assert after.seconds["requests"] < 10
    assert after.seconds["gone"] < 10
    assert after.seconds["memory"] < after.seconds["gone"] + LINGER + 2
    pause = float(unit.shown("RestartUSec").removesuffix("s")) * 2**after.restarts
    assert after.seconds["answering"] < pause + LINGER + 25


def test_the_api_server(unit: Unit, capsys: pytest.CaptureFixture[str]) -> None:
    after = kill(unit, "main", capsys)
    assert_bounded(unit, after)
    assert after.seconds["gone"] < 2, "KillMode=mixed leaves none, and waits for none"
    assert unit.shown("NRestarts") == "1"
    failure = unit.last_failure()
    assert (failure["service_result"], failure["exit_status"], failure["blocks"]) == ("signal", "KILL", False)
    assert "left over from an earlier run" not in unit.journal()


def test_a_process_whose_death_vllm_ends_with_status_0_for(unit: Unit, capsys: pytest.CaptureFixture[str]) -> None:
    victim, cause = VICTIMS[unit.host.backend.host]
    assert_bounded(unit, kill(unit, victim, capsys))
    failure = unit.last_failure()
    assert (failure["cause"], failure["phase"], failure["blocks"]) == (cause, "serving", False)
    assert (failure["service_result"], failure["exit_status"]) == ("success", "0")
    assert failure["release"] == unit.release()["id"]
    assert "EngineDeadError" in unit.journal()


def test_nothing_is_blocked_and_only_one_engine_is_there(unit: Unit) -> None:
    assert "refusing release" not in unit.journal()
    assert unit.shown("ActiveState") == "active"
    assert len(unit.members()) == 6
    assert unit.used_gpus() == [0, 1, 2, 3]
