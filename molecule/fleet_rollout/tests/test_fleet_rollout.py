# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One story, told in order: clients ask without a pause while releases are rolled out, and never notice.

A sample goes from the first release to the one that fails, and ends with the one that is right: its hosts show a good rollout as well.
"""

from __future__ import annotations

import json
import os
import shlex
import typing as t
from pathlib import Path

import pytest
from clients import Front, Load
from on_hosts import Unit, wait_for

if t.TYPE_CHECKING:
    from molecule.conftest import Operator, Play

BACKEND = "vllm-minimax-m25"
HOSTS = [f"gpu{number}" for number in range(1, 7)]
FLOOR = 3  # half of them, the default of vllm_serving_floor
WATCH = Path(__file__).resolve().parents[2] / "support" / "watch_backend.py"
RECORD = "/run/serving.jsonl"
SAMPLE = bool(os.environ.get("GPUFLEET_SAMPLE"))
# The chapter that the bad one follows.
PROVEN = "before" if SAMPLE else "good"
FIRST, SECOND, THIRD = ({"server_arguments": {"max-num-seqs": number}} for number in (256, 192, 128))
# Healthy as /health sees it, and it talks nonsense.
FAULT = {"gpu3": {"server_environment": {"FAKE_VLLM_SCRIPT": "answer=gibberish"}}}


class Seen(t.NamedTuple):
    """What a host runs."""

    pid: int
    release: str


class Story:
    """What was done, and what the hosts and the clients had of it."""

    def __init__(self, operator: Operator, load: Load) -> None:
        self.operator = operator
        self.load = load
        self.units = {name: Unit(operator.hosts[name]) for name in HOSTS}
        self.plays: dict[str, Play] = {}
        self.seen: dict[str, dict[str, Seen]] = {"before": self.look()}
        self.lost: dict[str, list[str]] = {}

    def look(self) -> dict[str, Seen]:
        return {name: Seen(unit.main_pid, unit.running()["release"]) for name, unit in self.units.items()}

    def deploy(self, chapter: str, **more: t.Any) -> None:
        before = len(self.load.lost)
        self.plays[chapter] = self.operator.play("deploy-minimax", **more)
        self.seen[chapter] = self.look()
        self.lost[chapter] = self.load.lost[before:]

    def restarted(self, chapter: str, since: str) -> list[str]:
        return [name for name in HOSTS if self.seen[chapter][name].pid != self.seen[since][name].pid]


@pytest.fixture(scope="module")
def story(operator: Operator) -> t.Iterator[Story]:
    """Balancer and servers, clients, and then three rollouts one after another."""
    assert operator.play("balancer", variables={"vllm_recipe": "minimax-m2.5"}).status == 0
    assert operator.play("deploy-minimax", variables=FIRST).status == 0
    for name in HOSTS:
        # Streams of five seconds.
        operator.hosts[name].check_output("echo token-seconds=0.3 > /run/fake-vllm")
    watch(operator)
    with Load(Front()) as load:
        wait_for(lambda: load.count("stream") > 2)
        story = Story(operator, load)
        if not SAMPLE:
            story.deploy("good", variables=SECOND)
        story.deploy("bad", variables=THIRD, host_variables=FAULT)
        operator.hosts["gpu6"].check_output(f"systemctl stop {story.units['gpu6'].name}")
        story.deploy("rest", variables=THIRD)
        if not SAMPLE:
            story.deploy("again", variables=THIRD)
        yield story


def watch(operator: Operator) -> None:
    lb = operator.hosts["lb"]
    lb.check_output(f"printf %s {shlex.quote(WATCH.read_text())} > /run/watch_backend.py")
    lb.check_output(f"systemd-run --unit=watch-backend python3 /run/watch_backend.py {BACKEND} {RECORD}")


@pytest.mark.long
def test_a_good_rollout_reaches_every_host_and_loses_no_request(story: Story) -> None:
    assert story.plays["good"].status == 0
    assert story.restarted("good", since="before") == HOSTS
    assert story.lost["good"] == []


def test_a_release_that_fails_on_the_third_host_goes_no_further(story: Story) -> None:
    assert story.plays["bad"].status != 0
    assert "gpu3" in story.plays["bad"].failures
    untouched = HOSTS[3:]
    assert {name: story.seen["bad"][name] for name in untouched} == {name: story.seen[PROVEN][name] for name in untouched}


def test_the_host_that_failed_serves_the_release_of_before(story: Story) -> None:
    seen, before = story.seen["bad"]["gpu3"], story.seen[PROVEN]["gpu3"]
    assert (seen.release, seen.pid != before.pid) == (before.release, True)
    assert [name for name in HOSTS[:2] if story.seen["bad"][name].release == story.seen[PROVEN][name].release] == []


def test_no_request_is_lost_by_a_release_that_fails(story: Story) -> None:
    assert story.lost["bad"] == []


def test_without_the_fault_the_same_command_finishes_what_is_left(story: Story) -> None:
    assert story.plays["rest"].status == 0
    assert story.restarted("rest", since="bad") == HOSTS[2:]
    assert story.lost["rest"] == []


def test_a_host_that_does_not_serve_goes_first(story: Story) -> None:
    started = {name: int(story.units[name].shown("ActiveEnterTimestampMonotonic")) for name in HOSTS[2:]}
    assert min(started, key=lambda name: started[name]) == "gpu6", started


@pytest.mark.long
def test_then_nothing_is_left_to_do(story: Story) -> None:
    assert story.plays["again"].status == 0
    assert story.restarted("again", since="rest") == []
    assert set(story.plays["again"].changed.values()) == {0}


def test_enough_hosts_served_at_every_moment(story: Story) -> None:
    lines = story.operator.hosts["lb"].check_output(f"cat {RECORD}").splitlines()
    record = [json.loads(line) for line in lines]
    assert len(record) > len(HOSTS), record
    assert [moment for moment in record if len(moment["serving"]) < FLOOR] == []


def test_the_clients_asked_all_the_time(story: Story) -> None:
    assert story.load.count("short") > 100 and story.load.count("stream") > 20
    gaps = [later.ended - earlier.ended for earlier, later in zip(story.load.requests, story.load.requests[1:])]
    assert max(gaps) < 30
