# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps with times, and one table of them at the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["ROOT", "Outcome", "Report", "Skip", "Step", "say"]

ROOT = Path(__file__).resolve().parent.parent.parent
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# The last line of a pytest run, for example "== 2 failed, 16 passed in 11.92s ==".
PYTEST_LINE = re.compile(r"\b\d+ (?:passed|failed|skipped|errors?)\b.* in \d[\d.]*s")
PYTEST_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")


class Skip(Exception):
    """The step cannot run on this machine; the text says why."""


class Outcome(t.NamedTuple):
    step: str
    seconds: float
    failed: bool
    skipped: str
    passed_tests: int
    failed_tests: int


class Step(t.NamedTuple):
    """A name, what it does for a person, and the work: command lines, run one after the other until one fails."""

    name: str
    about: str
    commands: t.Callable[[], t.Iterable[t.Sequence[str]]]
    env: t.Mapping[str, str] = {}


Show = t.Callable[[str], None]


def say(text: str) -> None:
    print(text, flush=True)


def show(text: str) -> None:
    """Output of a command, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def count_tests(line: str) -> tuple[int, int]:
    """Passed and failed tests that a line of output reports."""
    plain = COLOURS.sub("", line)
    if not PYTEST_LINE.search(plain):
        return 0, 0
    counts = {word: int(number) for number, word in PYTEST_COUNT.findall(plain)}
    return counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)


def stream(argv: t.Sequence[str], env: t.Mapping[str, str], shown: Show = show) -> tuple[int, int, int]:
    """Run a command, show its output as it comes; exit status, passed tests, failed tests."""
    shown("$ " + " ".join(os.path.relpath(a) if a.startswith(str(ROOT)) else a for a in argv) + "\n")
    passed = failed = 0
    with subprocess.Popen(
        argv, cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            shown(line)
            counts = count_tests(line)
            passed, failed = passed + counts[0], failed + counts[1]
    return process.returncode, passed, failed


def run_step(step: Step, shown: Show = show, prefix: t.Sequence[str] = ()) -> Outcome:
    """Run the commands of a step, each behind a prefix, and say how it ended where it failed."""
    shown(f"\n=== {step.name}: {step.about}\n")
    start = time.monotonic()
    status = passed = failed = 0
    skipped = ""
    try:
        for argv in step.commands():
            status, more_passed, more_failed = stream([*prefix, *argv], step.env, shown)
            passed, failed = passed + more_passed, failed + more_failed
            if status:
                break
    except Skip as reason:
        skipped = str(reason)
        shown(f"skipped: {skipped}\n")
    outcome = Outcome(step.name, time.monotonic() - start, bool(status), skipped, passed, failed)
    if outcome.failed:
        shown(f"=== {step.name}: FAILED after {outcome.seconds:.0f} s\n")
    return outcome


def run_behind(steps: t.Iterable[Step]) -> tuple[list[Outcome], str]:
    """Run steps with what others leave of the machine; their outcomes, and all that they showed."""
    texts: list[str] = []
    outcomes = [run_step(step, texts.append, ("nice", "-n", "10")) for step in steps]
    return outcomes, "".join(texts)


class Report:
    """Runs steps, goes on after a failed one, and ends with a table and the sums."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.began = time.monotonic()

    def run(self, steps: t.Iterable[Step], behind: t.Sequence[Step] = ()) -> None:
        """One after the other; those behind them at the same time, whose output is shown when all is done."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            others = pool.submit(run_behind, behind)
            self.outcomes += [run_step(step) for step in steps]
            outcomes, text = others.result()
        show(text)
        self.outcomes += outcomes

    @property
    def failed(self) -> bool:
        return any(outcome.failed for outcome in self.outcomes)

    def print(self) -> None:
        """A row a step, then the sums: tests where a step counts them, and each step itself."""
        say(f"\n{'step':32} {'seconds':>8}  result")
        for outcome in self.outcomes:
            say(f"{outcome.step:32} {outcome.seconds:8.1f}  {describe(outcome)}")
        say(f"{'together':32} {sum(o.seconds for o in self.outcomes):8.1f}")
        say(f"{'by the clock':32} {time.monotonic() - self.began:8.1f}\n")
        passed = sum(o.passed_tests + (not o.failed and not o.skipped) for o in self.outcomes)
        failed = sum(o.failed_tests + o.failed for o in self.outcomes)
        say(f"{passed} passed, {failed} failed")


def describe(outcome: Outcome) -> str:
    if outcome.skipped:
        return f"skipped: {outcome.skipped}"
    tests = f" ({outcome.passed_tests} tests passed, {outcome.failed_tests} failed)" if outcome.passed_tests + outcome.failed_tests else ""
    return ("FAILED" if outcome.failed else "ok") + tests
