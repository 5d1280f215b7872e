# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several commits of one model side by side: what they share, and what interrupted runs leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.download_bench import Bench, flip, shard_name

SHARDS = [shard_name(number) for number in range(5)]
NEW_CONFIG = b'{"model_type": "tiny", "version": 2}'


def inode(path: Path) -> int:
    return path.stat().st_ino


@pytest.fixture(name="old")
def old_snapshot(bench: Bench) -> Path:
    """A proven snapshot of a commit that is no longer the newest: the newest has one more line in its configuration."""
    bench.run()
    old = bench.folder
    bench.publish("config.json", NEW_CONFIG)
    return old


def test_a_new_commit_shares_unchanged_shards_by_hard_link_and_fetches_the_rest(bench: Bench, old: Path) -> None:
    bench.faults()
    preview = bench.look(check=True)
    answer = bench.run()
    for said in (preview, answer):
        assert (said["changed"], said["linked"]) == (True, SHARDS)
        assert said["fetched"] == ["config.json", "model.safetensors.index.json"]
    assert answer["verified"] == "sha256"
    assert not any("GET /cdn/" in line for line in bench.hub.log)
    assert all(inode(bench.folder / name) == inode(old / name) for name in SHARDS)
    assert inode(bench.folder / "config.json") != inode(old / "config.json")


def test_lending_costs_the_older_snapshot_neither_its_content_nor_its_receipt(bench: Bench, old: Path) -> None:
    before = {path.name: path.read_bytes() for path in old.iterdir() if path.name in SHARDS}
    bench.run()
    assert {name: (old / name).read_bytes() for name in SHARDS} == before
    bench.faults()
    again = bench.look(revision=old.name)
    assert (again["changed"], again["verified"]) == (False, "receipt")
    assert bench.look()["verified"] == "receipt"


def test_a_shard_that_no_longer_is_what_was_proven_is_not_lent(bench: Bench, old: Path) -> None:
    flip(old / SHARDS[2], 50_000)
    answer = bench.run()
    assert answer["linked"] == [name for name in SHARDS if name != SHARDS[2]]
    assert SHARDS[2] in answer["fetched"]
    assert bench.look(verify="sha256", check=True)["shards"]["damaged"] == []


def test_a_shard_is_found_by_its_content_under_whatever_name(bench: Bench, old: Path) -> None:
    index = (bench.repository / "model.safetensors.index.json").read_text()
    (bench.repository / SHARDS[4]).rename(bench.repository / "model-last.safetensors")
    bench.publish("model.safetensors.index.json", index.replace(SHARDS[4], "model-last.safetensors").encode())
    answer = bench.run()
    assert answer["linked"] == [*SHARDS[:4], "model-last.safetensors"]
    assert inode(bench.folder / "model-last.safetensors") == inode(old / SHARDS[4])


def test_a_shared_shard_is_repaired_without_touching_the_other_snapshot(bench: Bench, old: Path) -> None:
    bench.run()
    (bench.folder / SHARDS[1]).unlink()
    kept = inode(old / SHARDS[1])
    assert bench.run()["repaired"] == [SHARDS[1]]
    assert inode(old / SHARDS[1]) == kept


def test_files_of_another_mode_are_not_shared_since_that_would_change_them_there(bench: Bench, old: Path) -> None:
    modes = {name: (old / name).stat().st_mode for name in SHARDS}
    assert bench.run(mode="0600")["linked"] == []
    assert {name: (old / name).stat().st_mode for name in SHARDS} == modes


def test_an_index_that_asks_a_shared_shard_for_other_tensors_is_found_out(bench: Bench, old: Path) -> None:
    index = (bench.repository / "model.safetensors.index.json").read_text()
    bench.publish("model.safetensors.index.json", index.replace("layers.3.b", "layers.3.z").encode())
    answer = bench.run()
    assert (answer["code"], answer["damaged"]) == ("repository_inconsistent", [SHARDS[3]])
    assert not bench.folder.exists()


def test_unexpected_files_and_leftovers_are_removed_only_when_that_is_asked(bench: Bench, old: Path) -> None:
    bench.run()
    stale, partial = bench.folder / "model-00009.safetensors", bench.folder / ".cache/huggingface/download/x.incomplete"
    beside = bench.models / f".{'0' * 40}.incomplete"
    partial.parent.mkdir(parents=True)
    for path in (stale, partial, beside / "shard"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    everything = {str(stale), str(partial), str(beside)}
    plain = bench.look()
    assert (plain["changed"], plain["removed"], plain["leftovers"]) == (False, [], [str(beside)])
    preview = bench.look(check=True, remove_unexpected=True)
    assert (preview["changed"], set(preview["removed"])) == (True, everything)
    assert stale.exists() and partial.exists() and beside.exists()
    removed = bench.look(remove_unexpected=True)
    assert (removed["changed"], set(removed["removed"]), removed["shards"]["unexpected"]) == (True, everything, [])
    assert not (stale.exists() or partial.exists() or beside.exists())
    assert old.exists()
    assert bench.look(remove_unexpected=True)["changed"] is False


def test_what_a_process_has_open_is_never_removed(bench: Bench, old: Path) -> None:
    bench.run()
    partial = bench.folder / "x.incomplete"
    with partial.open("wb"):
        assert bench.look(remove_unexpected=True)["removed"] == []
        assert partial.exists()
    assert bench.look(remove_unexpected=True)["removed"] == [str(partial)]


def test_a_disk_filled_by_forgotten_partial_files_is_said_to_be_so(bench: Bench) -> None:
    forgotten = bench.models / f".{'0' * 40}.incomplete" / "shard"
    forgotten.parent.mkdir(parents=True)
    forgotten.touch()
    os.truncate(forgotten, 310_000_000_000)
    listing = bench.hub.repository("acme/tiny").blobs()
    listing["config.json"] = listing["config.json"]._replace(size=10**15)
    bench.hub.repository("acme/tiny")._listed_at = float("inf")
    answer = bench.look()
    assert (answer["code"], answer["leftovers"]) == ("disk_full", [str(forgotten.parent)])
    assert "310.0 GB" in answer["msg"] and ".incomplete" in answer["msg"]
    assert answer["bytes_needed"] > answer["bytes_free"] > 0
    assert forgotten.exists()
