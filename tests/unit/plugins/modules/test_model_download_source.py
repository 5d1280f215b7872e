# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real module where a folder stands in for the hub: what it copies is proven as if it had come over a network."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from support.download_bench import Bench, flip, shard_name

COMMIT = "c" * 40
SHARDS = [shard_name(number) for number in range(5)]


@pytest.fixture
def folder(bench: Bench, tmp_path: Path) -> Path:
    """The repository's files on a stick, with their sums."""
    stick = shutil.copytree(bench.repository, tmp_path / "stick")
    names = sorted(path.name for path in stick.iterdir())
    sums = subprocess.run(["sha256sum", *names], cwd=stick, check=True, capture_output=True, text=True).stdout
    (stick / "SHA256SUMS").write_text(sums)
    return stick


def test_a_copy_is_proven_and_the_second_run_needs_neither_folder_nor_hub(bench: Bench, folder: Path) -> None:
    checked = bench.look(source=str(folder), revision=COMMIT, check=True)
    assert (checked["changed"], len(checked["fetched"])) == (True, 7)
    copied = bench.look(source=str(folder), revision=COMMIT)
    assert (copied["changed"], copied["verified"], copied["commit"]) == (True, "sha256", COMMIT)
    assert copied["shards"]["present"] == SHARDS
    shutil.rmtree(folder)
    again = bench.look(source=str(folder), revision=COMMIT)
    assert (again["changed"], again["verified"]) == (False, "receipt")
    assert bench.hub.log == []


def test_only_what_is_bad_is_copied_again(bench: Bench, folder: Path) -> None:
    target = Path(bench.look(source=str(folder), revision=COMMIT)["path"])
    flip(target / SHARDS[1], 50_000)
    (target / SHARDS[3]).unlink()
    repaired = bench.look(source=str(folder), revision=COMMIT)
    assert (repaired["changed"], repaired["repaired"], repaired["fetched"]) == (True, [SHARDS[1], SHARDS[3]], [SHARDS[1], SHARDS[3]])
    assert bench.look(source=str(folder), revision=COMMIT)["changed"] is False


def test_another_hosts_store_is_a_source_by_branch(bench: Bench, folder: Path, tmp_path: Path) -> None:
    first = bench.look(source=str(folder), revision=COMMIT)["path"]
    second = bench.look(source=first, revision=COMMIT, dest=f"{tmp_path}/second/{{commit}}")
    assert (second["changed"], second["verified"], second["commit"]) == (True, "sha256", COMMIT)
    refused = bench.look(source=first, revision="main", dest=f"{tmp_path}/third/{{commit}}")
    assert (refused["code"], f"at {COMMIT}, not at main" in refused["msg"]) == ("revision_not_found", True)


def test_a_flipped_bit_on_the_stick_is_named_with_both_hashes_and_nothing_counts(bench: Bench, folder: Path) -> None:
    digest = hashlib.sha256((folder / SHARDS[2]).read_bytes()).hexdigest()
    flip(folder / SHARDS[2], 50_000)
    found = hashlib.sha256((folder / SHARDS[2]).read_bytes()).hexdigest()
    refused = bench.look(source=str(folder), revision=COMMIT, retry_timeout=5)
    assert (refused["failed"], refused["code"], refused["damaged"]) == (True, "damaged", [SHARDS[2]])
    assert f"{SHARDS[2]} has other content than published (sha256 {found} instead of {digest})" in refused["msg"]
    assert not (bench.models / COMMIT).exists()


def test_links_that_lead_nowhere_are_told_in_check_mode_already(bench: Bench, folder: Path) -> None:
    (folder / SHARDS[2]).unlink()
    (folder / SHARDS[2]).symlink_to("../../blobs/b2")
    for check in (True, False):
        refused = bench.look(source=str(folder), revision=COMMIT, check=check)
        assert (refused["code"], refused["dangling"]) == ("source_dangling", [SHARDS[2]])
        assert "points to ../../blobs/b2. The folder was copied with its links" in refused["msg"]


def test_a_folder_without_hashes_is_accepted_only_where_structure_is_enough(bench: Bench, folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    refused = bench.look(source=str(folder), revision=COMMIT)
    assert (refused["failed"], refused["code"]) == (True, "hashes_unknown")
    copied = bench.look(source=str(folder), revision=COMMIT, verify="structure")
    assert (copied["changed"], copied["verified"]) == (True, "structure")
    assert bench.look(source=str(folder), revision=COMMIT, verify="structure")["changed"] is False


def test_a_folder_that_lacks_a_shard_is_refused_before_the_first_byte(bench: Bench, folder: Path) -> None:
    (folder / SHARDS[4]).unlink()
    refused = bench.look(source=str(folder), revision=COMMIT)
    assert (refused["code"], refused["missing"]) == ("source_incomplete", [SHARDS[4]])
    assert not bench.models.exists() or [path for path in bench.models.iterdir() if path.is_dir()] == []
