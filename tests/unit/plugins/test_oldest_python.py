# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules for weights on the oldest Python of a host, with the newest Hub client that runs on it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import ansible
import pytest
from support.download_bench import Bench, shard_name
from support.running import TREE, environment, run_module


@pytest.fixture(name="old")
def on_the_oldest_python(bench: Bench, tmp_path: Path, pytestconfig: pytest.Config) -> Bench:
    """Module code runs on older Pythons than the controller's, so only that part of the tools is shared with it."""
    python = pytestconfig.getoption("--oldest-python")
    if not python:
        pytest.skip("needs --oldest-python")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "ansible").symlink_to(Path(str(ansible.__file__)).parent)
    bench.python = python
    bench.environment = environment(PYTHONPATH=f"{TREE}{os.pathsep}{tmp_path / 'tools'}")
    return bench


def test_it_is_that_python_and_that_client(old: Bench) -> None:
    question = "import sys, huggingface_hub; print(*sys.version_info[:2], huggingface_hub.__version__)"
    said = subprocess.run([old.python, "-c", question], capture_output=True, text=True, check=True).stdout.split()
    assert said == ["3", "9", "1.8.0"]


def test_a_model_is_fetched_proven_repaired_and_trusted_again(old: Bench) -> None:
    first = old.run()
    assert (first["changed"], first["verified"]) == (True, "sha256")
    os.truncate(old.folder / shard_name(1), 40_000)
    (old.folder / shard_name(4)).unlink()
    assert old.run()["repaired"] == [shard_name(1), shard_name(4)]
    assert old.run()["changed"] is False


def test_cuts_short_bodies_and_a_refused_range_are_tried_again(old: Bench) -> None:
    old.faults(
        {"match": f"/cdn/.*{shard_name(0)}", "status": 503, "times": 1},
        {"match": f"/cdn/.*{shard_name(1)}", "truncate": 1000, "times": 1},
        {"match": f"/cdn/.*{shard_name(2)}", "short": 10, "times": 1},
        {"match": f"/cdn/.*{shard_name(3)}", "status": 416, "times": 1},
    )
    answer = old.run(retry_timeout=20)
    assert answer["shards"]["present"] == answer["shards"]["expected"]


def test_access_denied_is_told_apart(old: Bench) -> None:
    old.settings(gated=True, tokens=["another"])
    assert old.run()["code"] == "access_denied"


def test_a_new_commit_shares_what_an_older_one_holds(old: Bench) -> None:
    old.run()
    old.publish("config.json", b'{"model_type": "tiny", "version": 2}')
    assert old.run()["linked"] == [shard_name(number) for number in range(5)]


def test_a_model_is_copied_from_a_folder_verified_and_read(old: Bench, tmp_path: Path) -> None:
    old.run()
    copied = old.run(source=str(old.folder), dest=f"{tmp_path}/copies/{{commit}}", endpoint="http://127.0.0.1:9")
    assert (copied["changed"], copied["verified"]) == (True, "sha256")
    for name, options in (("model_verify", {"path": copied["path"]}), ("model_info", {"path": copied["path"]})):
        answer = run_module(name, tmp_path, old.environment, old.python, **options)
        assert not answer.get("failed"), answer
