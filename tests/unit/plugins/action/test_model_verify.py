# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real playbook, with its role, action plugin and table, on hosts that are this machine and on one that is not there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import FileSpec
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.receipt import Receipt, identify, write_receipt
from support.download_bench import make_repository, shard_name
from support.running import ROOT

COMMIT = "a" * 40


def make_store(store: Path) -> Path:
    """A store with one proven snapshot."""
    folder = store / "acme--tiny" / COMMIT
    folder.parent.mkdir(parents=True)
    make_repository(store).rename(folder)
    (store / "acme").rmdir()
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    manifest = {name: FileSpec(name, (folder / name).stat().st_size, digest) for name, digest in digests.items()}
    files = {name: identify(folder / name, digest) for name, digest in digests.items()}
    write_receipt(folder, Receipt("acme/tiny", COMMIT, "main", "sha256", (), (), manifest, tuple(shard_name(n) for n in range(5)), files))
    return folder


class Fleet:
    """Hosts of an inventory, each with a store of its own, and the playbook run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: dict[str, dict[str, t.Any]] = {}

    def add(self, name: str, **variables: t.Any) -> Path:
        """A host that is this machine, with a store that is not there yet."""
        store = self.folder / name
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
        self.hosts[name] = {**local, "weights_store": str(store), **variables}
        return store

    def play(self, **variables: t.Any) -> subprocess.CompletedProcess[str]:
        inventory = self.folder / "inventory.json"
        inventory.write_text(json.dumps({"gpu_hosts": {"hosts": self.hosts}}))
        command = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            f"--inventory={inventory}",
            f"--extra-vars={json.dumps(variables)}",
        ]
        environment = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_ASYNC_DIR": str(self.folder / "async")}
        return subprocess.run(
            [*command, str(ROOT / "playbooks" / "verify-weights.yml")],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def table_of(output: str) -> list[str]:
    """The lines of the table, of which there is one."""
    [block] = re.findall(r"^TASK \[Show what was found\] .*\n(?:ok: .* => *\n)((?: .*\n)+)", output, re.MULTILINE)
    return [re.sub(r" {2,}", " | ", line) for line in yaml.safe_load(block)["msg"]]


def failures_of(output: str) -> dict[str, str]:
    blocks = re.findall(r"^fatal: \[([^\]]+)\]: FAILED! => *\n((?: +.*\n|\n)+)", output, re.MULTILINE)
    return {host: str(yaml.safe_load(block)["msg"]) for host, block in blocks}


def test_a_fleet_that_is_whole_ends_well(fleet: Fleet) -> None:
    make_store(fleet.add("gpu1"))
    fleet.add("gpu2")
    played = fleet.play()
    assert played.returncode == 0, played.stdout + played.stderr
    head, first, second = table_of(played.stdout)
    assert head == "host | model | commit | level | files | GB | verdict"
    assert first == "gpu1 | acme/tiny | aaaaaaaaaaaa | sha256 | 7 | 0.0 | proven"
    assert second.endswith("| no weights")
    assert re.search(r"^\[gpu1\] weights: 1 of 1 snapshots proven \(\d+ kB in \d+s\)$", played.stdout, re.MULTILINE)
    assert "changed=0 " in played.stdout


def test_each_host_that_is_not_whole_or_not_there_fails_with_the_reason(fleet: Fleet) -> None:
    whole, damaged = make_store(fleet.add("gpu1")), make_store(fleet.add("gpu2"))
    fleet.add("gpu3", ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1)
    (damaged / shard_name(1)).unlink()
    played = fleet.play(weights_verify="structure")
    assert played.returncode != 0
    assert table_of(played.stdout)[1:] == [
        "gpu1 | acme/tiny | aaaaaaaaaaaa | structure | 7 | 0.0 | proven",
        "gpu2 | acme/tiny | aaaaaaaaaaaa | - | 7 | 0.0 | 1 missing",
        "gpu3 | - | - | - | - | - | not reached",
    ]
    failures = failures_of(played.stdout)
    assert sorted(failures) == ["gpu2", "gpu3"]
    assert failures["gpu2"] == (
        f"gpu2: {damaged} is not whole: missing: {shard_name(1)}. Deploy the model again: that fetches exactly these files."
    )
    assert failures["gpu3"].startswith("gpu3 was not reached, so nothing is known of its weights: ")
    assert str(whole) not in "".join(failures.values())


def test_with_a_recipe_only_its_model_counts_and_has_to_be_there(fleet: Fleet, tmp_path: Path) -> None:
    folder = make_store(fleet.add("gpu1"))
    (folder / shard_name(1)).unlink()
    recipe = tmp_path / "other.yml"
    recipe.write_text("repo_id: acme/other\n")
    played = fleet.play(vllm_recipe=str(recipe), weights_verify="receipt")
    assert played.returncode != 0
    assert table_of(played.stdout)[1].endswith("| no weights")
    assert "acme--other is no folder on this host" in failures_of(played.stdout)["gpu1"]
    recipe.write_text("repo_id: acme/tiny\n")
    assert "1 missing" in table_of(fleet.play(vllm_recipe=str(recipe), weights_verify="receipt").stdout)[1]
