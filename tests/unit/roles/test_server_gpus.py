# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs the role server gives a deployment beside others on the host, by Ansible's own templating."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from support.running import ROOT, TREE, environment

UUIDS = [f"GPU-f00d000{index}" for index in range(8)]
GPUS = [
    {"index": index, "uuid": uuid, "pci_bus_id": f"0000:{index + 1:02x}:00.0", "numa_node": index // 4} for index, uuid in enumerate(UUIDS)
]


def read_release(deployment: str, gpus: t.Sequence[int]) -> dict[str, t.Any]:
    """What slurp returns of a release."""
    text = json.dumps({"deployment": deployment, "gpus": [UUIDS[index] for index in gpus]})
    return {"item": deployment, "content": base64.b64encode(text.encode()).decode(), "encoding": "base64"}


def host(*releases: dict[str, t.Any]) -> dict[str, t.Any]:
    """What the preflight has registered on a host with these enabled deployments, and one unit that is a stranger's."""
    units = [*(release["item"] for release in releases), "stranger"]
    return {
        "server_deployment": "minimax-m25",
        "vllm_model": {"arguments": {}},
        "server_arguments": {},
        "server_gpu_info": {"gpus": GPUS},
        "server_enabled_units": {"files": [{"path": f"/etc/systemd/system/multi-user.target.wants/vllm-{name}.service"} for name in units]},
        "server_enabled_releases": {"results": [*releases, {"item": "stranger", "failed": False, "msg": "file not found"}]},
    }


CASES: dict[str, tuple[t.Any, list[dict[str, t.Any]], t.Any]] = {
    "alone": (4, [], [0, 1, 2, 3]),
    "beside-others": (4, [read_release("kimi-k2", [1]), read_release("glm-5", [0])], [4, 5, 6, 7]),
    "again-as-before": (2, [read_release("minimax-m25", [4, 5])], [4, 5]),
    "again-with-more": (4, [read_release("minimax-m25", [0, 1])], [0, 1, 2, 3]),
    "by-name": (["5", "4"], [read_release("minimax-m25", [4]), read_release("kimi-k2", [0])], [5, 4]),
    "on-the-cpu": ("0", [read_release("minimax-m25", [])], []),
    "a-name-that-is-taken": (["0", "1"], [read_release("kimi-k2", [1])], "the deployment kimi-k2 on this host has it"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What Ansible prints of each case's GPUs: every case is a host of one run."""
    folder = tmp_path_factory.mktemp("server")
    hosts = {name: {**host(*releases), "server_gpus": wanted} for name, (wanted, releases, _found) in CASES.items()}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    command = [str(Path(sys.executable).with_name("ansible")), "all", "-i", f"{folder}/hosts.json", "-c", "local", "-m", "debug"]
    done = subprocess.run(
        [*command, "-a", "var=__server_gpus", "-e", f"@{ROOT}/roles/server/vars/main.yml"],
        capture_output=True,
        text=True,
        env=environment(
            ANSIBLE_COLLECTIONS_PATH=str(TREE), ANSIBLE_HOME=str(folder), ANSIBLE_NOCOLOR="1", ANSIBLE_CALLBACK_RESULT_FORMAT="json"
        ),
        check=False,
        timeout=60,
    )
    blocks = re.findall(r"^(\S+) \| [^\n]*=> (\{.*?^\})", done.stdout, re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(CASES), done.stdout + done.stderr
    return dict(blocks)


@pytest.mark.parametrize("case", CASES)
def test_a_deployment_keeps_its_own_and_gets_none_of_the_others(said: dict[str, str], case: str) -> None:
    found = CASES[case][2]
    if isinstance(found, str):
        assert found in said[case]
    else:
        assert json.loads(said[case])["__server_gpus"] == [UUIDS[index] for index in found]
