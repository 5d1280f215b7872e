# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What HAProxy 2.6 and 3.0 were recorded to answer, and what is made of it."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.haproxy import (
    Exchange,
    Server,
    patient,
    read_servers,
    set_state,
    the_server,
    wait_for,
)
from support.running import ROOT

RECORDS = sorted((ROOT / "tests" / "unit" / "fixtures" / "haproxy").iterdir())
BACKEND = "vllm-x"


def recorded(folder: t.Any, stat: str = "stat", states: str = "servers-state") -> Exchange:
    """Answers as this version gave them."""

    def ask(command: str) -> str:
        answers = {
            f"show servers state {BACKEND}": states,
            f"show stat {BACKEND} 4 -1": stat,
            "show servers state nix": "unknown-backend",
            "show stat nix 4 -1": "unknown-backend-stat",
            "show backend": "backend",
            f"set server {BACKEND}/nix state drain": "unknown-server",
            "show proc": "proc-after-reload",
        }
        name = "stat-of-old-worker" if command.startswith("@!") else answers[command]
        return str((folder / name).read_text())

    return ask


@pytest.fixture(params=RECORDS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> t.Any:
    return request.param


def test_each_server_is_read(folder: t.Any) -> None:
    servers = read_servers(recorded(folder), BACKEND)
    seen = {name: (server.state, server.operational, server.in_flight, server.serves) for name, server in servers.items()}
    assert seen == {
        "gpu1": ("ready", "up", 1, True),
        "gpu2": ("ready", "down", 0, False),
        "gpu3": ("ready", "down", 0, False),
        "gpu4": ("drain", "up", 0, False),
    }


def test_the_last_check_is_told_in_haproxys_words(folder: t.Any) -> None:
    servers = read_servers(recorded(folder), BACKEND)
    assert servers["gpu2"].check == "L7STS: Layer7 wrong status, status 500, Internal Server Error"
    assert servers["gpu3"].check == "L4CON: Layer4 connection problem, Connection refused"


def test_a_server_in_maintenance_says_nothing_of_its_health(folder: t.Any) -> None:
    gpu1 = read_servers(recorded(folder, "stat-maint", "servers-state-maint"), BACKEND)["gpu1"]
    assert (gpu1.state, gpu1.operational, gpu1.serves) == ("maint", "unknown", False)


def test_what_the_worker_of_before_a_reload_has_in_flight_counts(folder: t.Any) -> None:
    ask = recorded(folder, "stat-after-reload")
    assert read_servers(ask, BACKEND)["gpu1"].in_flight == 0
    assert read_servers(ask, BACKEND, ask)["gpu1"].in_flight == 1


def test_a_worker_that_ended_in_between_has_nothing_in_flight(folder: t.Any) -> None:
    ask = recorded(folder, "stat-after-reload")
    gone = (folder / "no-worker").read_text()
    assert read_servers(ask, BACKEND, lambda command: gone if command.startswith("@!") else ask(command))["gpu1"].in_flight == 0


def test_an_unknown_backend_is_refused_with_those_there_are(folder: t.Any) -> None:
    with pytest.raises(VllmError, match=r"no backend nix\. There are vllm-x") as caught:
        read_servers(recorded(folder), "nix")
    assert caught.value.code == "unknown_backend" and "vllm-x" in caught.value.details["backends"]


def test_an_unknown_server_is_refused_with_those_there_are(folder: t.Any) -> None:
    with pytest.raises(VllmError, match=r"no server nix in vllm-x\. There are gpu1, gpu2, gpu3, gpu4") as caught:
        the_server(read_servers(recorded(folder), BACKEND), BACKEND, "nix")
    assert caught.value.code == "unknown_server"


def test_what_haproxy_says_against_a_state_is_passed_on(folder: t.Any) -> None:
    with pytest.raises(VllmError, match="No such server"):
        set_state(recorded(folder), BACKEND, "nix", "drain")


def test_a_socket_without_the_right_level_is_explained() -> None:
    with pytest.raises(VllmError, match="must have the level admin"):
        set_state(lambda command: "Permission denied\n", BACKEND, "gpu1", "drain")


@pytest.mark.parametrize(
    ("status", "operational"),
    [
        ("UP", "up"),
        ("UP 1/2", "failing"),
        ("DOWN", "down"),
        ("DOWN 1/2", "recovering"),
        ("DOWN (agent)", "down"),
        ("DRAIN", "up"),
        ("DRAIN 1/2", "failing"),
        ("NOLB", "stopping"),
        ("MAINT", "unknown"),
        ("MAINT (resolution)", "unknown"),
        ("no check", "unchecked"),
    ],
)
def test_every_word_for_a_state_is_known(status: str, operational: str) -> None:
    table = f"# pxname,svname,qcur,scur,status,check_status\nvllm-x,gpu1,2,1,{status},\n"
    server = read_servers(lambda command: table if "stat " in command else "1\n# srv_name srv_admin_state\n", BACKEND)["gpu1"]
    assert (server.operational, server.in_flight) == (operational, 3)


@pytest.mark.parametrize(
    ("bits", "state"), [("0", "ready"), ("1", "maint"), ("8", "drain"), ("9", "maint"), ("16", "drain"), ("32", "maint")]
)
def test_the_bits_of_an_administrator_are_told_apart(bits: str, state: str) -> None:
    stat = "# pxname,svname,qcur,scur,status,check_status\nvllm-x,gpu1,0,0,DOWN,\n"
    ask = {"servers": f"1\n# srv_name srv_admin_state\ngpu1 {bits}\n", "stat": stat}
    assert read_servers(lambda command: ask[command.split()[1]], BACKEND)["gpu1"].state == state


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waits(goal: str, *seen: Server, timeout: float = 5.0) -> tuple[Server, float]:
    time, looks = Time(), iter(seen)
    last = [seen[-1]]
    return wait_for(goal, lambda: next(looks, last[0]), BACKEND, timeout=timeout, clock=time.clock, sleep=time.sleep)


UP = Server("gpu1", "ready", "up", 0, "")


def test_it_waits_until_nothing_is_in_flight() -> None:
    server, waited = waits("drained", UP._replace(in_flight=2), UP._replace(in_flight=1), UP)
    assert server.in_flight == 0 and 0 < waited < 1


def test_it_waits_until_no_check_speaks_against_it() -> None:
    server, waited = waits("up", UP._replace(operational="recovering"), UP._replace(operational="failing"), UP)
    assert server == UP and 0 < waited < 1


def test_a_drain_that_lasts_too_long_says_how_many_are_left() -> None:
    with pytest.raises(VllmError, match="gpu1 of vllm-x still has 2 requests in flight after 5 s") as caught:
        waits("drained", UP._replace(in_flight=2))
    assert caught.value.code == "not_drained" and caught.value.details["in_flight"] == 2


def test_a_server_that_does_not_come_up_is_told_with_its_last_check() -> None:
    with pytest.raises(VllmError, match="it is down, and its last check said L4CON: Connection refused") as caught:
        waits("up", UP._replace(operational="down", check="L4CON: Connection refused"))
    assert caught.value.code == "not_up"


def test_a_server_that_is_out_cannot_come_up_and_says_so() -> None:
    with pytest.raises(VllmError, match=r"its state is drain\. Set it to ready"):
        waits("up", UP._replace(state="drain"))


def test_a_socket_that_a_reload_replaces_is_tried_again() -> None:
    time, tries = Time(), iter([FileNotFoundError(), ConnectionRefusedError()])

    def ask(command: str) -> str:
        for error in tries:
            raise error
        return command

    assert patient(ask, time.clock, time.sleep)("show info") == "show info"


def test_a_socket_that_stays_away_is_an_error() -> None:
    time = Time()

    def ask(command: str) -> str:
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(FileNotFoundError):
        patient(ask, time.clock, time.sleep)("show info")
    assert 2 < time.now < 5
