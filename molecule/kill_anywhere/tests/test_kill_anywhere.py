# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout is interrupted after each of its tasks in turn; each time the same command again reaches the end that was not reached.

Two releases take turns, so a round begins where the one before it ended and no host is made anew. What the end is, an undisturbed rollout
of each has shown before. Points are counted and not listed: n goes up until a play ends without having been interrupted.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import time
import typing as t
from pathlib import Path

import pytest
import testinfra
from on_hosts import wait_for
from testinfra.utils.ansible_runner import AnsibleRunner

if t.TYPE_CHECKING:
    from molecule.conftest import Operator, Play

    State = dict[str, t.Any]

PLAYBOOK = "deploy-minimax"
HOSTS = ("gpu1", "gpu2")
# One host is through when the other one's turn comes.
EVERY_RUN = {"vllm_hosts": ":".join(HOSTS), "vllm_batches": [1, 1]}
# Nothing was deployed on these, which are of one distribution.
BARE = ("gpu4", "gpu6")
# Nothing in a release of theirs differs from host to host, nor is there a balancer before them.
ALONE: dict[str, t.Any] = {"server_host": "127.0.0.1", "balancer_hosts": []}
# The recipe's own, which converge.yml has left, and one that differs in everything that can: options, variables, the text of the unit.
RELEASES: dict[str, dict[str, t.Any]] = {
    "one": {},
    "two": {
        "server_arguments": {"max-num-seqs": 128},
        "server_environment": {"VLLM_LOGGING_LEVEL": "DEBUG"},
        "server_shutdown_timeout": 31,
    },
    # Its engine dies while it warms up, each time: the first host returns to the release that is proven, the second one is not begun.
    "broken": {"server_arguments": {"max-num-seqs": 1024}},
}
# What a sample takes besides points spread evenly: after these tasks a host is neither what it was nor what it will be.
DELICATE = ("balancer", "release", "start it|restart", "^gate", "proven")
SPREAD = 2
SAMPLE = bool(os.environ.get("GPUFLEET_SAMPLE"))
SUPPORT = Path(__file__).resolve().parents[2] / "support"


class Point(t.NamedTuple):
    """Where a rollout was interrupted."""

    number: int
    host: str
    task: str
    how: str

    def __str__(self) -> str:
        return f"{self.number:3} {self.host} {self.task}"


class Fleet:
    """The hosts of the rollouts, and what has come of them."""

    def __init__(self, operator: Operator, log: Path) -> None:
        self.operator = operator
        self.log = log
        self.ends: dict[str, State] = {}
        self.serves = "one"
        self.points: list[Point] = []
        # What has happened before is part of where it ends.
        self.story = ""

    @property
    def other(self) -> str:
        return "two" if self.serves == "one" else "one"

    def play(self, release: str) -> Play:
        return self.operator.play(PLAYBOOK, variables={**EVERY_RUN, **RELEASES[release]})

    def counted(self, release: str, after: int = 0, by: t.Sequence[str] = ()) -> tuple[Play, list[Point]]:
        """A rollout whose tasks are counted, and which is interrupted after the one of that number; its tasks until then."""
        variables = {**EVERY_RUN, **RELEASES[release]}
        return self.interrupted(HOSTS, variables, INTERRUPTED_AFTER=str(after), INTERRUPTED_BY=json.dumps(list(by)))

    def interrupted(self, hosts: t.Sequence[str], variables: t.Mapping[str, t.Any], **settings: str) -> tuple[Play, list[Point]]:
        """A deployment that the callback `interrupted_after` listens to, and what that counted."""
        self.log.write_text("")
        environment = {
            "ANSIBLE_CALLBACK_PLUGINS": str(SUPPORT),
            "ANSIBLE_CALLBACKS_ENABLED": "interrupted_after",
            "INTERRUPTED_HOSTS": ",".join(hosts),
            "INTERRUPTED_LOG": str(self.log),
            **settings,
        }
        play = self.operator.play(PLAYBOOK, variables=variables, environment=environment)
        notes = [json.loads(line) for line in self.log.read_text().splitlines()]
        assert all(note["status"] == 0 for note in notes if "command" in note), notes
        ended = [note for note in notes if "task" in note]
        return play, [Point(number, note["host"], note["task"], note["how"]) for number, note in enumerate(ended, 1)]

    def state(self) -> State:
        """Of each host, and what each balancer says of it."""
        hosts = {name: self.state_of(name) for name in HOSTS}
        balancers = {name: read(host, SUPPORT / "balancer_state.py") for name, host in balancer_hosts(self.operator).items()}
        return {**hosts, **{name: {host: servers[host] for host in HOSTS} for name, servers in balancers.items()}}

    def state_of(self, host: str) -> State:
        return read(self.operator.hosts[host], SUPPORT / "deployment_state.py", "minimax-m25")

    def finish(self, release: str) -> list[str]:
        """Run the one command that has to be enough, and tell what is not as it would be without the interruption."""
        play = self.play(release)
        self.serves = release
        if play.status:
            return [f"the next run fails: {play.failures or play.output[-2000:]}"]
        return list(differences(self.ends[self.story + release], self.state()))


def read(host: t.Any, script: Path, *words: str) -> State:
    done = host.run(f"python3 - {' '.join(words)} <<'END'\n{script.read_text()}\nEND")
    assert done.rc == 0, done.stderr
    return t.cast("State", json.loads(done.stdout))


def balancer_hosts(operator: Operator) -> dict[str, t.Any]:
    names = AnsibleRunner(operator.inventory).get_hosts("balancer_hosts")
    found = testinfra.get_hosts([f"ansible://{name}" for name in names], ansible_inventory=operator.inventory) if names else []
    return {host.backend.host: host for host in found}


def differences(wanted: t.Any, found: t.Any, place: str = "") -> t.Iterator[str]:
    """Where two states are not the same, and what each has there."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted(wanted.keys() | found.keys()):
            yield from differences(wanted.get(key), found.get(key), f"{place} {key}".strip())
    elif isinstance(wanted, list) and isinstance(found, list) and wanted != found:
        yield from (f"{place}: {item} is missing" for item in wanted if item not in found)
        yield from (f"{place}: {item} is left over" for item in found if item not in wanted)
    elif wanted != found:
        yield f"{place}: {found!r} instead of {wanted!r}"


def answers(host: t.Any) -> bool:
    """Whether it can be reached; testinfra raises where ssh itself fails."""
    try:
        return bool(host.run("true").rc == 0)
    except RuntimeError:
        return False


def sample_of(points: t.Sequence[Point]) -> list[int]:
    """A few spread evenly, and on the first host the last task of each delicate kind."""
    spread = [points[len(points) * part // SPREAD].number for part in range(SPREAD)]
    titles = {point.number: point.task.rpartition(" : ")[2] for point in points if point.host == HOSTS[0]}
    delicate = [[number for number, title in titles.items() if re.search(kind, title, re.IGNORECASE)][-1:] for kind in DELICATE]
    return sorted({*spread, *itertools.chain.from_iterable(delicate)})


def turns(points: t.Sequence[Point], one_of: int = 1) -> t.Iterable[int]:
    """Every point; of a sample, which takes minutes as well, one of so many."""
    return sample_of(points)[::one_of] if SAMPLE else itertools.count(1)


@pytest.fixture(scope="module")
def fleet(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """After a rollout of each release that nothing disturbed."""
    fleet = Fleet(operator, tmp_path_factory.mktemp("interrupted") / "log")
    for release in ("two", "one"):
        play, fleet.points = fleet.counted(release)
        assert play.status == 0 and {point.host for point in fleet.points} == set(HOSTS)
        fleet.ends[release] = fleet.state()
    return fleet


def go_round(fleet: Fleet, rounds: t.Iterable[int], interrupt: t.Callable[[int], t.Optional[Point]]) -> None:
    """One round after the other until a play is not interrupted any more; what any of them left wrong is told at the end."""
    wrong, seconds, done = [], [], 0
    for number in rounds:
        started = time.monotonic()
        release = fleet.other
        point = interrupt(number)
        if point is None:
            break
        found = fleet.finish(release)
        seconds.append(time.monotonic() - started)
        done += 1
        print(f"== {point}: {seconds[-1]:.0f} s, {'; '.join(found) or 'the same end'}", file=sys.stderr, flush=True)
        if found:
            wrong.append(f"{point}: {'; '.join(found)}")
            fleet.play(release)
    print(f"== {done} points, {sum(seconds):.0f} s, {sum(seconds) / max(done, 1):.0f} s a round", file=sys.stderr, flush=True)
    assert done and not wrong, "\n".join(wrong)


def test_a_controller_that_is_killed_anywhere_is_completed_by_one_run(fleet: Fleet) -> None:
    def kill(number: int) -> t.Optional[Point]:
        release = fleet.other
        play, ended = fleet.counted(release, number)
        if play.status == 0:
            fleet.serves = release
            return None
        assert play.status == -signal.SIGKILL, play.output
        return ended[-1]

    go_round(fleet, turns(fleet.points), kill)
    assert set(fleet.play(fleet.serves).changed.values()) == {0}


def test_a_host_that_loses_its_power_anywhere_is_completed_by_one_run(fleet: Fleet) -> None:
    bench = [sys.executable, str(fleet.operator.root / "tests" / "bench" / "bench.py")]
    power_cut = [*bench, "restart", "--no-wait", f"{os.environ['GPUFLEET_FLEET']}-{{host}}"]

    def reboot(number: int) -> t.Optional[Point]:
        release = fleet.other
        play, ended = fleet.counted(release, number, power_cut)
        if len(ended) < number:
            assert play.status == 0, play.output
            fleet.serves = release
            return None
        point = ended[number - 1]
        wait_for(lambda: answers(fleet.operator.hosts[point.host]))
        return point

    go_round(fleet, turns(fleet.points, 3), reboot)
    assert set(fleet.play(fleet.serves).changed.values()) == {0}


def test_a_controller_that_is_killed_while_a_host_returns_is_completed_by_one_run(fleet: Fleet) -> None:
    for release in (fleet.other, fleet.serves):
        play, ended = fleet.counted("broken")
        assert play.status == 2 and {point.host for point in ended if point.how == "failed"} == {HOSTS[0]}, play.output
        fleet.ends["failed " + fleet.serves] = fleet.state()
        assert fleet.play(release).status == 0
        fleet.serves = release
        fleet.ends["after a failure " + release] = fleet.state()
    fleet.story = "after a failure "
    first = next(point.number for point in ended if point.how == "failed")

    def kill(number: int) -> t.Optional[Point]:
        play, ended = fleet.counted("broken", number)
        if play.status == 2:
            return None
        assert play.status == -signal.SIGKILL, play.output
        return ended[-1]

    go_round(fleet, [first, len(ended) - 1] if SAMPLE else itertools.count(first), kill)
    assert kill(first) is not None
    assert fleet.play("broken").status == 2
    assert list(differences(fleet.ends["failed " + fleet.serves], fleet.state())) == []


def test_a_first_deployment_that_is_killed_after_each_change_makes_each_once_and_gets_there(operator: Operator, tmp_path: Path) -> None:
    fleet = Fleet(operator, tmp_path / "log")

    def deploy(host: str, after: int) -> tuple[Play, list[Point]]:
        variables = {**ALONE, "vllm_hosts": host}
        return fleet.interrupted([host], variables, INTERRUPTED_FROM="playbook", INTERRUPTED_ONLY="changed", INTERRUPTED_AFTER=str(after))

    disturbed, undisturbed = BARE
    play, changes = deploy(undisturbed, after=0)
    assert play.status == 0
    made: list[Point] = []
    for _change in changes:
        play, ended = deploy(disturbed, after=1)
        assert play.status == -signal.SIGKILL, play.output
        made += ended
    assert [point.task for point in made] == [point.task for point in changes]
    play, ended = deploy(disturbed, after=1)
    assert (play.status, ended) == (0, [])
    assert list(differences(fleet.state_of(undisturbed), fleet.state_of(disturbed))) == []
