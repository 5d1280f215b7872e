# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does to a deployment that serves: nothing, a change, a mistake, a stop. Each test goes on where the one before ended."""

from __future__ import annotations

import re
import typing as t

import pytest
from on_hosts import Unit

if t.TYPE_CHECKING:
    from molecule.conftest import Operator

UNIT = "vllm-minimax-m25.service"
SECOND = "vllm-second.service"
CURRENT = "/etc/gpufleet/minimax-m25/current"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
NOTHING = {"gpu1": 0, "gpu2": 0}


def main_pids(operator: Operator, *units: str) -> dict[str, list[str]]:
    return {name: [Unit(host).shown("MainPID", unit) for unit in units] for name, host in operator.hosts.items()}


def releases(host: t.Any) -> tuple[str, str]:
    """The release that runs and the one that is current."""
    return Unit(host).running()["release"], Unit(host).release()["id"]


def deploy_second(operator: Operator, **arguments: t.Any) -> None:
    recipe = str(operator.root / "molecule" / "deploy" / "vars" / "second.yml")
    variables = {"vllm_recipe": recipe, "server_port": 8001, "server_arguments": arguments}
    assert operator.play("deploy", "--limit=gpu1", variables=variables).status == 0


def test_the_same_command_again_touches_nothing_and_fetches_nothing(operator: Operator) -> None:
    pids = main_pids(operator, UNIT, "ssh.service")
    reloads = operator.on_all("journalctl --no-pager --output=cat _PID=1 | grep --ignore-case --count reload")
    operator.hub(clear_log=True)
    play = operator.play("deploy-minimax")
    assert (play.status, play.changed) == (0, NOTHING)
    assert main_pids(operator, UNIT, "ssh.service") == pids
    assert operator.on_all("journalctl --no-pager --output=cat _PID=1 | grep --ignore-case --count reload") == reloads
    requests = [request for request in operator.hub()["requests"] if "/_control" not in request]
    assert requests
    assert [request for request in requests if "/revision/main" not in request] == []


@pytest.mark.long
def test_check_mode_finds_nothing_to_do(operator: Operator) -> None:
    play = operator.play("deploy-minimax", "--check", "--diff")
    assert (play.status, play.changed) == (0, NOTHING)


def test_a_changed_argument_restarts_exactly_its_own_unit(operator: Operator) -> None:
    host = operator.hosts["gpu1"]
    before = main_pids(operator, UNIT, "ssh.service")
    deploy_second(operator)
    first_start = Unit(host).shown("MainPID", SECOND)
    deploy_second(operator, max_num_seqs=128)
    assert main_pids(operator, UNIT, "ssh.service") == before
    assert Unit(host).shown("MainPID", SECOND) != first_start
    assert "max-num-seqs: 128\n" in host.check_output("cat /etc/gpufleet/second/current/engine.yaml")
    assert Unit(host).used_gpus() == list(range(8))


def test_edits_on_a_host_are_reported_kept_aside_and_undone(operator: Operator) -> None:
    of_release, of_unit = operator.hosts["gpu1"], operator.hosts["gpu2"]
    unit_text = of_unit.check_output(f"cat {UNIT_FILE}")
    of_release.check_output(f"sed -i 's/^max-num-seqs: .*/max-num-seqs: 64/' {CURRENT}/engine.yaml && systemctl restart {UNIT}")
    of_unit.check_output(f"echo 'Environment=BY_HAND=1' >> {UNIT_FILE}")
    before = main_pids(operator, UNIT, SECOND)

    play = operator.play("deploy-minimax", "--diff")

    assert play.status == 0
    assert play.changed == {"gpu1": 2, "gpu2": 1}
    after = main_pids(operator, UNIT, SECOND)
    assert after["gpu1"][0] != before["gpu1"][0], "the engine still runs with the edited arguments"
    assert (after["gpu1"][1], after["gpu2"]) == (before["gpu1"][1], before["gpu2"])
    assert re.search(r"^--- before: /etc/gpufleet/minimax-m25/releases/\w+/engine.yaml \(edited\)$", play.output, re.MULTILINE)
    assert "-max-num-seqs: 64\n+max-num-seqs: 256\n" in play.output
    assert "-Environment=BY_HAND=1\n" in play.output
    assert "max-num-seqs: 256\n" in of_release.check_output(f"cat {CURRENT}/engine.yaml")
    assert "max-num-seqs: 64\n" in of_release.check_output("cat /etc/gpufleet/minimax-m25/releases/*.drift-*/engine.yaml")
    assert of_unit.check_output(f"cat {UNIT_FILE}") == unit_text
    assert "BY_HAND" in of_unit.check_output(f"cat {UNIT_FILE}.*~")
    assert Unit(of_unit).shown("NeedDaemonReload") == "no"


def test_a_play_that_was_killed_before_the_restart_is_completed_by_the_next(operator: Operator) -> None:
    host = operator.hosts["gpu2"]
    variables = {"server_arguments": {"max-num-seqs": 128}}
    before = Unit(host).shown("MainPID")
    operator.play_until("Service | ", "deploy-minimax", "--limit=gpu2", variables=variables)
    running, current = releases(host)
    assert running != current
    assert Unit(host).shown("MainPID") == before

    play = operator.play("deploy-minimax", "--limit=gpu2", variables=variables)

    assert play.status == 0
    assert play.tasks_changed() == {
        "Service | Enable and start it, or restart what runs something else",
        "Proven | Remember the release that passed its gate",
    }
    assert releases(host) == (current, current)
    assert Unit(host).shown("MainPID") != before


def test_roll_back_serves_the_release_before_and_a_second_one_stays_there(operator: Operator) -> None:
    host = operator.hosts["gpu2"]
    left, pid = releases(host)[1], Unit(host).shown("MainPID")
    variables = {"vllm_recipe": "minimax-m2.5"}

    play = operator.play("roll-back", "--limit=gpu2", variables=variables)

    assert play.status == 0
    running, current = releases(host)
    assert running == current != left
    assert "max-num-seqs: 256\n" in host.check_output(f"cat {CURRENT}/engine.yaml")
    assert Unit(host).shown("MainPID") != pid
    assert operator.play("roll-back", "--limit=gpu2", variables=variables).changed == {"gpu2": 0}
    assert releases(host) == (current, current)


@pytest.mark.long
def test_stop_frees_the_gpus_and_leaves_the_other_deployment_alone(operator: Operator) -> None:
    host = operator.hosts["gpu1"]
    second = Unit(host).shown("MainPID", SECOND)
    variables = {"vllm_recipe": "minimax-m2.5"}

    play = operator.play("stop", variables=variables)

    assert (play.status, play.changed) == (0, {"gpu1": 1, "gpu2": 1})
    assert not any(each.service(UNIT).is_running or each.service(UNIT).is_enabled for each in operator.hosts.values())
    assert Unit(host).used_gpus() == [4, 5, 6, 7]
    assert Unit(host).shown("MainPID", SECOND) == second
    assert operator.play("stop", variables=variables).changed == NOTHING


@pytest.mark.long
def test_a_deployment_after_a_stop_serves_again(operator: Operator) -> None:
    play = operator.play("deploy-minimax")
    assert play.status == 0
    assert play.tasks_changed() <= {
        "Release | Write what runs and make it current",
        "Service | Enable and start it, or restart what runs something else",
        "Proven | Remember the release that passed its gate",
    }
    assert all(host.service(UNIT).is_running and host.service(UNIT).is_enabled for host in operator.hosts.values())
