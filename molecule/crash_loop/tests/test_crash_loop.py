# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts that fail without Ansible in the loop. Each test begins anew, on both hosts at once."""

from __future__ import annotations

import re
import shlex
import typing as t

import pytest
from on_hosts import Unit, wait_for

SCRIPT = "/run/fake-vllm"
SHM = "RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 0 MiB free. Increase /dev/shm."
FOREVER = {
    "gpu1": ("RuntimeError: nobody has seen this before", "unknown", "the engine said: RuntimeError: nobody has seen this before"),
    "gpu2": (SHM, "shm_too_small", "/dev/shm has 0 MiB free and 160 MiB are needed"),
}


class Start:
    """A start that somebody asks for, of a unit without a history, and what the journal says from there on."""

    def __init__(self, unit: Unit, *words: str) -> None:
        self.unit = unit
        forgotten = f"{unit.state_files}/last-failure.json {unit.state_files}/fake-vllm-crashes"
        unit.host.check_output(f"printf '%s\\n' {shlex.join(words)} > {SCRIPT}; rm --force {forgotten}")
        unit.host.check_output(f"systemctl stop {unit.name}; systemctl reset-failed {unit.name} || true")
        self._before = len(unit.journal("short-unix"))
        self.again("start")

    def again(self, verb: str) -> Start:
        # Whether it worked is asked of the unit: a refused start is no success.
        self.unit.host.run(f"systemctl {verb} {self.unit.name}")
        return self

    def heal(self) -> None:
        self.unit.host.check_output(f"rm {SCRIPT}")

    @property
    def lines(self) -> list[tuple[float, str]]:
        found = re.findall(r"^([\d.]+) \S+ \S+?: (.*)$", self.unit.journal("short-unix")[self._before :], re.MULTILINE)
        return [(float(moment), text) for moment, text in found]

    def said(self, pattern: str) -> list[str]:
        return [text for _moment, text in self.lines if re.search(pattern, text)]

    def engine_starts(self) -> int:
        return len(self.said(r"^release \w+: /\S+/vllm serve"))

    def was_tried_again(self) -> bool:
        return self.unit.shown("NRestarts") != "0" and self.engine_starts() > 1

    def pauses(self) -> list[float]:
        """Seconds from each end of an engine to its next beginning."""
        ends = [moment for moment, text in self.lines if "Main process exited" in text]
        begins = [moment for moment, text in self.lines if re.match(r"release \w+: /\S+/vllm serve", text)]
        return [min(begin for begin in begins if begin > end) - end for end in ends if end < begins[-1]]

    def is_down(self) -> bool:
        """Failed, and not about to be started again."""
        return (self.unit.shown("SubState"), self.unit.shown("Job")) in (("failed", ""), ("failed", "0"))


def test_a_failure_of_the_moment_is_tried_again_after_growing_pauses_and_serves(units: dict[str, Unit]) -> None:
    starts = [Start(unit, "crash-at-shard=3", "crash-times=3") for unit in units.values()]
    for start in starts:
        wait_for(start.unit.answers)
        assert (start.unit.shown("NRestarts"), start.engine_starts()) == ("3", 4)
        pauses = start.pauses()
        assert all(measured >= least for measured, least in zip(pauses, (1, 2, 4))), pauses
        assert [re.sub(r"within \S+ s", "within", line) for line in start.said("^pausing ")] == [
            "pausing 1 s before this automatic restart, 2 s with RestartSec: 2 failures within, the last one gpu_error",
            "pausing 3 s before this automatic restart, 4 s with RestartSec: 3 failures within, the last one gpu_error",
        ]
        failure = start.unit.last_failure()
        assert (failure["cause"], failure["blocks"], len(failure["failures"])) == ("gpu_error", False, 3)


def test_a_fault_of_the_host_blocks_nothing(units: dict[str, Unit]) -> None:
    starts = [Start(unit, "crash-at-shard=1", f"crash-with={SHM}") for unit in units.values()]
    for start in starts:
        wait_for(start.was_tried_again)
        start.heal()
        start.again("restart")
    for start in starts:
        wait_for(start.unit.answers)
        failure = start.unit.last_failure()
        assert (failure["cause"], failure["at_fault"], failure["blocks"]) == ("shm_too_small", "host", False)
        assert failure["failures"] == [], "a start that somebody asks for begins to count anew, whenever it comes"
        assert start.engine_starts() >= 3
        assert not start.said("^refusing release")


def test_a_failure_without_end_is_given_up_with_its_cause_and_tried_again_when_somebody_asks(units: dict[str, Unit]) -> None:
    starts = {name: Start(unit, "crash-at-shard=1", f"crash-with={FOREVER[name][0]}") for name, unit in units.items()}
    for name, start in starts.items():
        _said, cause, message = FOREVER[name]
        wait_for(start.is_down)
        assert (start.engine_starts(), start.unit.shown("ExecMainStatus")) == (5, "78")
        failure = start.unit.last_failure()
        assert (failure["cause"], failure["message"], failure["blocks"]) == (cause, message, False)
        assert len(start.said(f"^{re.escape(f'{cause}: {message}')}")) == 5
        last_words = rf"giving up on release {start.unit.release()['id']} after 5 failures within \d+ s: {re.escape(message)}"
        assert re.search(last_words, start.unit.status())
        assert start.unit.host.run(f"systemctl is-failed {start.unit.name}").stdout.strip() == "failed"
    for start in starts.values():
        start.heal()
        start.again("restart")
    for start in starts.values():
        wait_for(start.unit.answers)


@pytest.fixture
def too_many_sequences(units: dict[str, Unit]) -> t.Iterator[None]:
    """A release that somebody broke by hand, as it can be broken by an update: out of memory each time, at the end of its start."""
    for unit in units.values():
        unit.host.check_output(f"sed --in-place=.right 's/^max-num-seqs: .*/max-num-seqs: 1024/' {unit.files}/current/engine.yaml")
    yield
    for unit in units.values():
        unit.host.check_output(f"mv {unit.files}/current/engine.yaml.right {unit.files}/current/engine.yaml")


def test_a_failure_that_cannot_be_helped_happens_once_and_stays_down_with_its_reason(
    units: dict[str, Unit], too_many_sequences: None
) -> None:
    starts = [Start(unit, "load-seconds=1") for unit in units.values()]
    for start in starts:
        wait_for(start.is_down)
        assert start.engine_starts() <= 2
        assert start.unit.last_failure()["cause"] == "oom_sampler_warmup"
        assert_refused(start, times=1)
    for start in starts:
        start.again("start")
        wait_for(start.is_down)
        assert_refused(start, times=2)
        assert start.engine_starts() == 1, "a start that a boot or a person asks for is refused without trying"


def assert_refused(start: Start, times: int) -> None:
    reason = "the GPU ran out of memory while the sampler was warmed up with 1024 dummy requests Set max-num-seqs to 256"
    assert len(start.said(f"^refusing release {start.unit.release()['id']}: {reason}")) == times
    assert reason in start.unit.status()
    assert start.unit.shown("ExecMainStatus") == "78"
    assert start.unit.host.run(f"systemctl is-failed {start.unit.name}").stdout.strip() == "failed"
