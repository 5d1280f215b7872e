# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the variables of a role come to, by Ansible's own templating: every case is a host of one run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing as t
from pathlib import Path

from support.plays import role_yaml
from support.running import TREE, environment

__all__ = ["GPUS", "UUIDS", "server_host", "template_all"]

Vars = t.Mapping[str, t.Any]
UUIDS = [f"GPU-f00d000{index}" for index in range(8)]
GPUS = [
    {"index": index, "uuid": uuid, "pci_bus_id": f"0000:{index + 1:02x}:00.0", "numa_node": index // 4} for index, uuid in enumerate(UUIDS)
]


def server_host(
    enabled: t.Mapping[str, t.Sequence[int]], running: t.Sequence[str] = (), stopped: t.Optional[t.Mapping[str, t.Sequence[int]]] = None
) -> dict[str, t.Any]:
    """What the preflight of the role server has registered on a host with these deployments (their GPUs by index)."""
    releases = {**enabled, **(stopped or {})}
    deployments = [_deployment(name, gpus, keeps_gpus=name in enabled or name in running) for name, gpus in releases.items()]
    return {
        "vllm_model": {"arguments": {}, "deployment": "minimax-m25", "served_model_name": "MiniMax-M2.5"},
        "server_gpu_info": {"gpus": GPUS, "numa_nodes": [0, 1]},
        "server_deployments": {"deployments": deployments},
    }


def _deployment(name: str, gpus: t.Sequence[int], *, keeps_gpus: bool) -> dict[str, t.Any]:
    """What deployment_info says of it, as far as the role asks."""
    uuids = [UUIDS[index] for index in gpus]
    state = {"keeps_gpus": keeps_gpus, "active_state": "active" if keeps_gpus else "inactive", "url": "http://127.0.0.1:9"}
    return {"deployment": name, "unit": f"vllm-{name}.service", "gpus": uuids, **state}


def template_all(folder: Path, role: str, hosts: t.Mapping[str, Vars], expression: str) -> dict[str, str]:
    """What Ansible prints of the expression on each host, as JSON ``{"msg": ...}``, with the role's defaults below and its vars above."""
    inventory = {"all": {"hosts": {name: dict(values) for name, values in hosts.items()}, "vars": role_yaml(role, "defaults")}}
    (folder / "hosts.json").write_text(json.dumps(inventory))
    (folder / "vars.json").write_text(json.dumps(role_yaml(role, "vars")))
    command = [str(Path(sys.executable).with_name("ansible")), "all", "-i", f"{folder}/hosts.json", "-c", "local", "-m", "debug"]
    settings = {"ANSIBLE_COLLECTIONS_PATH": str(TREE), "ANSIBLE_HOME": str(folder)}
    done = subprocess.run(
        [*command, "-a", json.dumps({"msg": expression}), "-e", f"@{folder}/vars.json"],
        capture_output=True,
        text=True,
        env=environment(**settings, ANSIBLE_NOCOLOR="1", ANSIBLE_CALLBACK_RESULT_FORMAT="json"),
        check=False,
        timeout=60,
    )
    blocks = dict(re.findall(r"^(\S+) \| [^\n]*=> (\{.*?^\})", done.stdout, re.MULTILINE | re.DOTALL))
    assert set(blocks) == set(hosts), done.stdout + done.stderr
    return blocks
