# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One model replaces another on the same GPUs and the same port. Each test goes on where the one before ended."""

from __future__ import annotations

import json
import os
import shutil
import typing as t

import pytest

if t.TYPE_CHECKING:
    from molecule.conftest import Operator, Play

OLD = "vllm-minimax-m25.service"
NEW = "vllm-successor.service"
NOTHING = {"gpu1": 0, "gpu2": 0}
MODELS = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/v1/models', timeout=5).read().decode())"


@pytest.fixture(scope="module", autouse=True)
def another_model(operator: Operator) -> t.Iterator[None]:
    """The hub has it: the same files under another name."""
    hub = operator.root / ".cache" / "bench" / "hub"
    folder = hub / "gpufleet" / "successor"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(hub / "MiniMaxAI" / "MiniMax-M2.5", folder, copy_function=os.link)
    yield
    shutil.rmtree(folder)


def swap(operator: Operator, *options: str, **variables: t.Any) -> Play:
    recipe = str(operator.root / "molecule" / "model_swap" / "vars" / "successor.yml")
    return operator.play("deploy", *options, variables={"vllm_recipe": recipe, **variables})


def shown(host: t.Any, unit: str, *names: str) -> tuple[str, ...]:
    return tuple(host.check_output(f"systemctl show --value --property={name} {unit}") for name in names)


def state(host: t.Any, unit: str) -> tuple[str, ...]:
    """Whether it runs, and whether it would after a boot."""
    return shown(host, unit, "ActiveState", "UnitFileState")


def since_boot(host: t.Any, unit: str, event: str) -> int:
    """Microseconds."""
    return int(shown(host, unit, f"{event}TimestampMonotonic")[0])


def served(host: t.Any) -> str:
    return str(json.loads(host.check_output(f'python3 -c "{MODELS}"'))["data"][0]["id"])


def used_gpus(host: t.Any) -> list[int]:
    lines = host.check_output("python3 /srv/bench/nvml/fake_nvml.py show").splitlines()
    return [int(line.split()[0]) for line in lines if " 0 MiB used" not in line]


@pytest.mark.long
def test_gpus_that_another_deployment_has_are_refused_with_both_ways_out(operator: Operator) -> None:
    pids = {name: shown(host, OLD, "MainPID") for name, host in operator.hosts.items()}
    play = swap(operator, server_replaces=[], server_gpus=[0, 1, 2, 3], server_port=8001)
    assert (play.status, play.changed) == (2, NOTHING)
    for said in play.failures.values():
        assert "is taken: the deployment minimax-m25 on this host has it" in said
        assert "stop minimax-m25 first, or replace it (server_replaces: [minimax-m25])" in said
    assert {name: shown(host, OLD, "MainPID") for name, host in operator.hosts.items()} == pids


def test_a_successor_that_fails_its_gate_gives_gpus_and_port_back(operator: Operator) -> None:
    first, second = operator.hosts["gpu1"], operator.hosts["gpu2"]
    untouched = shown(second, OLD, "MainPID", "InvocationID")

    play = swap(operator, server_arguments={"max-num-seqs": 1024})

    assert play.status == 2
    assert "warming up the sampler" in play.failures["gpu1"] or "sampler was warmed up" in play.failures["gpu1"]
    assert f"{OLD} was started again in its place." in play.failures["gpu1"]
    assert state(first, OLD) == ("active", "enabled")
    assert served(first) == "MiniMax-M2.5"
    assert state(first, NEW)[1] == "disabled" and state(first, NEW)[0] in ("inactive", "failed")
    assert used_gpus(first) == [0, 1, 2, 3]
    assert shown(second, OLD, "MainPID", "InvocationID") == untouched


def test_one_that_answers_takes_over_when_its_weights_are_there_and_the_memory_is_free(operator: Operator) -> None:
    play = swap(operator)

    assert play.status == 0
    for host in operator.hosts.values():
        assert (state(host, OLD), state(host, NEW)) == (("inactive", "disabled"), ("active", "enabled"))
        assert served(host) == "Successor"
        assert used_gpus(host) == [0, 1, 2, 3]
        assert since_boot(host, OLD, "InactiveEnter") <= since_boot(host, NEW, "InactiveExit")
        proven = host.check_output("stat --format=%Y /var/lib/gpufleet/models/gpufleet--successor/*/.gpufleet-receipt.json")
        stopped = host.check_output(f"date --date='{shown(host, OLD, 'InactiveEnterTimestamp')[0]}' +%s")
        assert int(proven) <= int(stopped)
        assert shown(host, NEW, "NRestarts") == ("0",)
    assert swap(operator).changed == NOTHING


@pytest.mark.long
def test_starting_the_old_one_by_hand_stops_the_new_one_first(operator: Operator) -> None:
    host = operator.hosts["gpu1"]
    host.check_output(f"systemctl start {OLD}")
    assert (state(host, OLD)[0], state(host, NEW)[0]) == ("active", "inactive")
    assert since_boot(host, NEW, "InactiveEnter") <= since_boot(host, OLD, "InactiveExit")
    assert not host.file("/var/lib/gpufleet/successor/last-failure.json").exists
    assert swap(operator, "--limit=gpu1").status == 0
    assert (state(host, OLD), state(host, NEW)) == (("inactive", "disabled"), ("active", "enabled"))


@pytest.mark.long
def test_a_play_that_was_killed_between_gate_and_retirement_is_completed_by_the_next(operator: Operator) -> None:
    host = operator.hosts["gpu2"]
    variables = {"server_replaces": ["successor"]}
    operator.play_until("Retire | ", "deploy-minimax", "--limit=gpu2", variables=variables)
    assert (state(host, OLD), state(host, NEW)) == (("active", "disabled"), ("inactive", "enabled"))
    pid = shown(host, OLD, "MainPID")

    play = operator.play("deploy-minimax", "--limit=gpu2", variables=variables)

    assert (play.status, play.tasks_changed()) == (0, {"Retire | Enable the new server, then disable what it replaced"})
    assert (state(host, OLD), state(host, NEW)) == (("active", "enabled"), ("inactive", "disabled"))
    assert shown(host, OLD, "MainPID") == pid
