# SPDX-License-Identifier: GPL-3.0-or-later
"""What `verify-weights.yml` says of a fleet that serves, and what deploying again repairs. Each test goes on where the one before ended."""

from __future__ import annotations

import re
import typing as t

import pytest
import yaml

if t.TYPE_CHECKING:
    from molecule.conftest import Operator, Play

UNIT = "vllm-minimax-m25.service"
NOTHING = {"gpu1": 0, "gpu2": 0}
FLIPPED, LOST = "model-00012-of-00126.safetensors", "model-00101-of-00126.safetensors"
FOLDER = "/var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/*"
# All that a write would move, in the store and of the server, and whether it answers.
STATE = f"""
    find /var/lib/gpufleet /etc/gpufleet -printf '%p %i %s %T@ %C@\n' | sort
    systemctl show --property=MainPID {UNIT}
    python3 -c "import urllib.request as u; print('health', u.urlopen('http://127.0.0.1:8000/health').status)\""""
FLIP = f"""python3 - {FOLDER}/{FLIPPED} <<'END'
import os, sys
path = sys.argv[1]
times = os.stat(path)
with open(path, "r+b") as file:
    file.seek(-1, 2)
    last = file.read(1)[0]
    file.seek(-1, 2)
    file.write(bytes([last ^ 1]))
os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
END"""


def table_of(play: Play) -> dict[str, str]:
    """Level and verdict by host."""
    block = re.findall(r"^TASK \[Show what was found\] .*\nok: .* => *\n((?: .*\n)+)", play.output, re.MULTILINE)
    assert len(block) == 1, "the table is printed once"
    head, *rows = [re.split(r"  +", line) for line in yaml.safe_load(block[0])["msg"]]
    assert head == ["host", "model", "commit", "level", "files", "GB", "verdict"]
    assert {row[1] for row in rows} == {"MiniMaxAI/MiniMax-M2.5"}
    return {row[0]: f"{row[3]}: {row[6]}" for row in rows}


def test_a_fleet_that_is_whole_is_proven_while_it_serves(operator: Operator) -> None:
    play = operator.play("verify-weights")
    assert play.status == 0
    assert table_of(play) == {"gpu1": "sha256: proven", "gpu2": "sha256: proven"}
    assert re.search(r"^\[gpu1\] weights: 1 of 1 snapshots proven", play.output, re.MULTILINE)


def test_a_flipped_bit_and_a_lost_file_are_named_and_nothing_is_written(operator: Operator) -> None:
    operator.hosts["gpu1"].check_output(FLIP)
    operator.hosts["gpu2"].check_output(f"rm {FOLDER}/{LOST}")
    before = operator.on_all(STATE)
    play = operator.play("verify-weights")
    assert (play.status != 0, play.changed) == (True, NOTHING)
    assert operator.on_all(STATE) == before
    assert all("health 200" in state for state in before.values())
    assert table_of(play) == {"gpu1": "-: 1 damaged", "gpu2": "-: 1 missing"}
    assert set(play.failures) == {"gpu1", "gpu2"}
    assert re.findall(r"model-\d+-of-\d+\.safetensors", play.failures["gpu1"]) == [FLIPPED]
    assert "has other content than published (sha256 " in play.failures["gpu1"]
    assert re.findall(r"model-\d+-of-\d+\.safetensors", play.failures["gpu2"]) == [LOST]
    assert all("Deploy the model again: that fetches exactly these files." in said for said in play.failures.values())


@pytest.mark.long
def test_headers_alone_cannot_see_the_flipped_bit(operator: Operator) -> None:
    play = operator.play("verify-weights", variables={"vllm_recipe": "minimax-m2.5", "weights_verify": "structure"})
    assert table_of(play) == {"gpu1": "structure: proven", "gpu2": "-: 1 missing"}
    assert (play.status != 0, set(play.failures)) == (True, {"gpu2"})


def test_deploying_again_fetches_exactly_these_files_and_restarts_nothing(operator: Operator) -> None:
    pids = operator.on_all(f"systemctl show --property=MainPID {UNIT}")
    operator.hub(clear_log=True)
    play = operator.play("deploy-minimax")
    assert (play.status, play.changed) == (0, {"gpu1": 1, "gpu2": 1})
    assert play.tasks_changed() == {"Have the weights, whole and proven"}
    requests = operator.hub()["requests"]
    fetched = {name for request in requests for name in re.findall(r"^GET \S*/resolve/\S*?/([^/?\s]+)", request)}
    assert fetched == {FLIPPED, LOST}
    assert operator.on_all(f"systemctl show --property=MainPID {UNIT}") == pids


def test_the_repaired_fleet_is_proven_again(operator: Operator) -> None:
    play = operator.play("verify-weights")
    assert play.status == 0
    assert table_of(play) == {"gpu1": "sha256: proven", "gpu2": "sha256: proven"}
