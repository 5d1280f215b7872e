# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook balancer puts behind the balancer, by what an inventory says of the hosts."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from support.running import ROOT, TREE, environment

VARS = ROOT / "playbooks" / "vars" / "balancer.yml"
NAMES = ("balancer_backends", "vllm_unreachable", "balancer_api_key", "balancer_model")
GPU_HOSTS: dict[str, dict[str, t.Any]] = {
    "gpu1": {"ansible_host": "127.0.0.1", "vllm_address": "10.0.0.1", "server_host": "{{ vllm_address }}", "server_api_keys": ["a", "b"]},
    "gpu2": {"ansible_host": "10.0.0.2", "server_port": 9000, "server_host": "0.0.0.0"},
    "gpu3": {"server_port": "9001"},
    "lb": {"ansible_host": "192.0.2.1", "server_port": 1, "vllm_address": "192.0.2.1"},
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    folder = tmp_path_factory.mktemp("inventory")
    groups = {
        "gpu_hosts": {"hosts": {name: GPU_HOSTS[name] for name in ("gpu1", "gpu2", "gpu3")}},
        "balancer_hosts": {"hosts": {"lb": GPU_HOSTS["lb"]}},
    }
    (folder / "hosts.json").write_text(json.dumps(groups))
    message = json.dumps({"msg": "{{ dict(" + json.dumps(NAMES) + " | zip([" + ", ".join(NAMES) + "])) }}"})
    model = json.dumps({"vllm_model": {"deployment": "minimax-m25", "served_model_name": "MiniMax-M2.5"}})
    command = [str(Path(sys.executable).with_name("ansible")), "lb", "-i", f"{folder}/hosts.json", "-c", "local", "-m", "debug"]
    done = subprocess.run(
        [*command, "-e", f"@{VARS}", "-e", model, "-a", message],
        capture_output=True,
        text=True,
        env=environment(
            ANSIBLE_COLLECTIONS_PATH=str(TREE), ANSIBLE_HOME=str(folder), ANSIBLE_NOCOLOR="1", ANSIBLE_CALLBACK_RESULT_FORMAT="json"
        ),
        check=False,
        timeout=60,
    )
    answer: dict[str, t.Any] = json.loads(done.stdout.rpartition(" => ")[2])["msg"]
    return answer


def test_a_server_has_the_address_of_its_own_host(said: dict[str, t.Any]) -> None:
    """Never the one of the host that is configured."""
    assert said["balancer_backends"] == [
        {"name": "gpu1", "address": "10.0.0.1", "port": 8000},
        {"name": "gpu2", "address": "10.0.0.2", "port": 9000},
        {"name": "gpu3", "address": "gpu3", "port": 9001},
    ]


def test_servers_on_loopback_are_told(said: dict[str, t.Any]) -> None:
    assert said["vllm_unreachable"] == ["gpu3"]


def test_the_check_has_the_servers_key_and_the_models_name(said: dict[str, t.Any]) -> None:
    assert (said["balancer_api_key"], said["balancer_model"]) == ("a", "MiniMax-M2.5")
