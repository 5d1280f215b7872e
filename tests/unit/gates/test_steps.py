# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a sample leaves out; and the scenario with the real engine, which is left out only where that engine is not offered: a small
program stands in for bench.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gates import steps
from gates.report import Report, Step, run_step
from support.another_core import FIRST_OF_A_FILE, LEFT_OUT, TESTS, WHOLE

PROGRAM = "import sys; print('[bench] ERROR: {said}', file=sys.stderr); sys.exit({status})"


def outcome_of_filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str) -> tuple[bool, str]:
    program = tmp_path / "bench.py"
    program.write_text(PROGRAM.format(said=said, status=status))
    monkeypatch.setattr(steps, "BENCH", str(program))
    outcome = run_step(Step("real_engine", "the wheels", steps.fill_engine_wheels))
    return outcome.failed, outcome.skipped


def test_it_is_skipped_with_the_reason_where_the_engine_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_of_filling(tmp_path, monkeypatch, 3, "no torch for it") == (False, "no torch for it")


def test_any_other_failure_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_of_filling(tmp_path, monkeypatch, 1, "no network") == (True, "")


def test_it_goes_on_where_the_wheels_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_of_filling(tmp_path, monkeypatch, 0, "") == (False, "")


def test_steps_behind_others_run_at_the_same_time_and_are_shown_afterwards(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    meet = (
        "import pathlib, sys, time\nmine, other = map(pathlib.Path, sys.argv[1:])\nmine.touch()\nwhile not other.exists(): time.sleep(0.01)"
    )

    def step(mine: str, other: str) -> Step:
        argv = [sys.executable, "-c", meet, str(tmp_path / mine), str(tmp_path / other)]
        return Step(mine, "waits for the other", lambda: [argv])

    report = Report()
    report.run([step("one", "two")], behind=[step("two", "one"), Step("three", "fails", lambda: [["false"]])])
    assert [(outcome.step, outcome.failed) for outcome in report.outcomes] == [("one", False), ("two", False), ("three", True)]
    assert report.failed
    shown = capfd.readouterr().out
    assert shown.index("=== one") < shown.index("=== two") < shown.index("=== three: FAILED")


def test_what_another_core_may_fail_names_only_what_there_is() -> None:
    assert [place for place in (*WHOLE, *FIRST_OF_A_FILE, *LEFT_OUT) if not (TESTS / place).exists()] == []


def test_a_sample_leaves_out_only_scenarios_that_there_are() -> None:
    every, sample = steps.scenarios(), steps.scenarios(sample=True)
    assert every[0] == sample[0] == "default"
    assert set(every) - set(sample) == set(steps.LEFT_TO_TEST_ALL)
