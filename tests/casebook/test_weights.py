# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people with large models, and the answer they should have had.

Each test is one situation that was reported in public, reduced to the facts that decide it, with the real module, the real Hub client
and a hub of our own. Sizes are smaller than they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import typing as t
from pathlib import Path

import pytest
from support.download_bench import TOKEN, Bench, flip, make_minimax
from support.running import Answer, run_module

MODEL = "acme/model"
INDEX = "model.safetensors.index.json"
NOWHERE = "http://127.0.0.1:9"
PETABYTE = 10**15


def shard(number: int, count: int) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


class Shelf:
    """A repository on the hub, made file by file, and the module run for it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.published = bench.hub.root / MODEL
        self.published.mkdir(parents=True)
        self.write("config.json", b'{"model_type": "tiny"}')

    def write(self, name: str, content: bytes) -> None:
        path = self.published / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def weights(self, name: str, size: int = 50_000) -> None:
        """A whole safetensors file that holds one tensor, called after it."""
        (self.published / name).parent.mkdir(parents=True, exist_ok=True)
        make_minimax.write_shard(self.published / name, [name], size, seed=len(list(self.published.iterdir())))

    def sharded(self, *names: str, size: int = 50_000) -> None:
        """Shards, and the index that names them."""
        for name in names:
            self.weights(name, size)
        self.index(*names)

    def index(self, *names: str) -> None:
        self.write(INDEX, json.dumps({"metadata": {}, "weight_map": {name: name for name in names}}).encode())

    def claim(self, name: str, **facts: t.Any) -> None:
        """Let the hub list a file with another size or hash than it has."""
        repository = self.bench.hub.repository(MODEL)
        if repository._listed_at != float("inf"):
            repository._listed_at = float("-inf")
        listing = repository.blobs()
        listing[name] = listing[name]._replace(**facts)
        repository._listed_at = float("inf")

    @property
    def commit(self) -> str:
        return str(self.bench.hub.repository(MODEL).commit)

    @property
    def folder(self) -> Path:
        return self.bench.models / self.commit

    def copy(self, *, without: t.Container[str] = ()) -> Path:
        """The folder as another tool left it: files, and no receipt."""
        shutil.copytree(self.published, self.folder, ignore=lambda _folder, names: [name for name in names if name in without])
        return self.folder

    def run(self, **options: t.Any) -> Answer:
        return self.bench.run(**{"repo_id": MODEL, **options})

    def look(self, **options: t.Any) -> Answer:
        return self.bench.look(**{"repo_id": MODEL, **options})

    def offline(self, **options: t.Any) -> Answer:
        """What is said without any network."""
        return self.look(revision=self.commit, offline=True, endpoint=NOWHERE, **options)

    def fetched(self) -> list[str]:
        """The large files that were asked for, in order of their names."""
        return sorted(line.rsplit("/", 1)[1] for line in self.bench.hub.log if line.startswith("GET /cdn/"))


@pytest.fixture
def shelf(bench: Bench) -> Shelf:
    return Shelf(bench)


# -- layouts that are odd and right --------------------------------------------------------------------------------------------


def test_shards_numbered_from_zero_are_complete_without_a_last_number(shelf: Shelf) -> None:
    names = [shard(number, 4) for number in range(4)]
    shelf.sharded(*names)
    first, second = shelf.run(), shelf.look()
    assert (first["changed"], second["changed"]) == (True, False)
    assert second["shards"]["expected"] == second["shards"]["present"] == names
    assert shard(4, 4) not in json.dumps([first, second, shelf.bench.hub.log])


def test_a_shard_hundreds_of_times_smaller_than_its_neighbours_is_no_damage(shelf: Shelf) -> None:
    names = [shard(number, 10) for number in (7, 8, 9)]
    shelf.sharded(names[0], names[2], size=400_000)
    shelf.weights(names[1], 700)
    shelf.index(*names)
    answer = shelf.run()
    assert (answer["changed"], answer["shards"]["damaged"], answer.get("warnings")) == (True, [], None)


def test_weights_that_are_published_twice_are_fetched_once_and_count_once(shelf: Shelf, tmp_path: Path) -> None:
    names = [shard(number, 3) for number in (1, 2, 3)]
    shelf.sharded(*names)
    shelf.weights("consolidated.safetensors", 150_000)
    answer = shelf.run()
    assert (answer["left_out"], answer["shards"]["expected"]) == (["consolidated.safetensors"], names)
    assert answer["bytes_total"] < 200_000
    held = sum((shelf.folder / name).stat().st_size for name in names)
    assert 0 < run_module("model_info", tmp_path, path=str(shelf.folder))["weights"]["bytes"] <= held


def test_with_the_mistral_format_the_consolidated_weights_are_the_ones(shelf: Shelf) -> None:
    shelf.sharded(shard(1, 2), shard(2, 2))
    shelf.weights("consolidated.safetensors", 150_000)
    answer = shelf.run(load_format="mistral")
    assert answer["shards"]["expected"] == ["consolidated.safetensors"]
    assert shelf.fetched() == ["consolidated.safetensors"]
    assert shelf.look(load_format="mistral")["verified"] == "receipt"


def test_further_copies_in_sub_folders_cost_neither_disk_nor_time(shelf: Shelf) -> None:
    names = [shard(0, 2), shard(1, 2)]
    shelf.sharded(*names)
    copies = ["original/model--00001-of-00002.safetensors", "original/model--00002-of-00002.safetensors", "metal/model.bin"]
    for name in copies:
        shelf.write(name, b"x")
    for name in copies:
        shelf.claim(name, size=PETABYTE)
    preview = shelf.look(check=True)
    assert preview["changed"] is True, preview  # not refused for lack of space
    assert preview["bytes_downloaded"] < 200_000
    assert preview["left_out"] == sorted(copies)
    assert not set(copies) & set(preview["fetched"])


# -- what is missing or damaged ------------------------------------------------------------------------------------------------


def test_an_indexed_shard_that_is_absent_fails_before_anything_could_serve_the_rest(shelf: Shelf) -> None:
    names = [shard(number, 4) for number in (1, 2, 3, 4)]
    shelf.sharded(*names)
    shelf.copy(without={names[2]})
    for level in ("receipt", "structure"):
        answer = shelf.offline(verify=level)
        assert (answer["failed"], answer["code"], answer["missing"]) == (True, "incomplete", [names[2]])
        assert names[2] in answer["msg"]


def test_a_shard_cut_short_is_told_with_both_sizes_even_without_a_hub(shelf: Shelf) -> None:
    shelf.weights("model.safetensors", 440_449)
    whole = (shelf.published / "model.safetensors").stat().st_size
    folder = shelf.copy()
    os.truncate(folder / "model.safetensors", 76_954)
    offline, preview = shelf.offline(), shelf.look(check=True)
    assert (offline["code"], offline["damaged"]) == ("damaged", ["model.safetensors"])
    assert str(whole) in offline["msg"] and "76954" in offline["msg"]
    assert preview["shards"]["damaged"] == ["model.safetensors"]
    repaired = shelf.run()
    assert (repaired["changed"], repaired["repaired"]) == (True, ["model.safetensors"])
    assert shelf.look()["changed"] is False


def test_the_right_size_with_other_content_is_found_by_hashing_only_and_said_so(shelf: Shelf) -> None:
    names = [shard(1, 2), shard(2, 2)]
    shelf.sharded(*names)
    shelf.claim(names[0], sha256="06" * 32)
    folder = shelf.copy()
    digest = hashlib.sha256((folder / names[0]).read_bytes()).hexdigest()
    hashed = shelf.run(verify="sha256", retry_timeout=20)
    assert (hashed["failed"], hashed["damaged"]) == (True, [names[0]])
    assert "06060606" in hashed["msg"] and digest in hashed["msg"]
    structure = shelf.look(verify="structure")
    assert structure["verified"] == "structure"
    assert "the content was not hashed" in structure["msg"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 50000\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>Please log in</body></html>", "HTML"),
        (b"", "is empty"),
        (b"\0" * 5000, "safetensors"),
    ],
    ids=["pointer", "login-page", "empty", "zeros"],
)
def test_something_else_under_a_shards_name_is_told_for_what_it_is(shelf: Shelf, content: bytes, says: str) -> None:
    names = [shard(1, 2), shard(2, 2)]
    shelf.sharded(*names)
    folder = shelf.copy()
    (folder / names[1]).write_bytes(content)
    offline = shelf.offline()
    assert (offline["code"], offline["damaged"]) == ("damaged", [names[1]])
    assert says in offline["msg"]
    shelf.bench.faults()
    assert shelf.run()["repaired"] == [names[1]] == shelf.fetched()


def test_a_model_copied_with_its_links_is_neither_called_incomplete_nor_no_model(shelf: Shelf, tmp_path: Path) -> None:
    names = ["config.json", *(shard(number, 3) for number in (1, 2, 3))]
    copied = tmp_path / "copied"
    copied.mkdir()
    for number, name in enumerate(names):
        (copied / name).symlink_to(f"../../blobs/{number:040x}")
    answer = shelf.look(source=str(copied), revision="0" * 40)
    assert answer["failed"]
    assert names[0] in answer["msg"] and names[1] in answer["msg"]
    assert "link" in answer["msg"] and "links followed" in answer["msg"]
    assert "ncomplete" not in answer["msg"] + answer["code"]


def test_a_cached_blob_that_differs_from_its_own_name_is_found_without_a_network(shelf: Shelf, tmp_path: Path) -> None:
    shelf.weights("model.safetensors")
    content, commit = (shelf.published / "model.safetensors").read_bytes(), "c0ffee" + "0" * 34
    promised = hashlib.sha256(content).hexdigest()
    cache = tmp_path / "cache" / "models--acme--model"
    snapshot, blob = cache / "snapshots" / commit, cache / "blobs" / promised
    for folder in (snapshot, blob.parent):
        folder.mkdir(parents=True)
    blob.write_bytes(content)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{promised}")
    flip(blob, len(content) - 100)
    answer = shelf.look(source=str(cache), revision=commit, endpoint=NOWHERE)
    found = hashlib.sha256(blob.read_bytes()).hexdigest()
    assert (answer["failed"], answer.get("damaged")) == (True, ["model.safetensors"]), answer
    assert promised in answer["msg"] and found in answer["msg"]
    assert not (shelf.bench.models / commit).exists()


# -- the repository's own fault ------------------------------------------------------------------------------------------------


def test_an_index_of_an_older_sharding_is_the_publishers_fault_and_is_not_fetched_for(shelf: Shelf) -> None:
    for number in (1, 2, 3):
        shelf.weights(shard(number, 3))
    shelf.index(*(shard(number, 6) for number in range(1, 7)))
    shelf.copy()
    answer = shelf.run(retry_timeout=20)
    assert (answer["failed"], answer["code"]) == (True, "repository_inconsistent")
    assert shard(1, 6) in answer["msg"] and INDEX in answer["msg"]
    assert "every file that it lists is here in its published size" in answer["msg"]
    assert "Downloading again will not help" in answer["msg"]
    assert "incomplete" not in answer["msg"]
    assert shelf.fetched() == []


# -- hubs that fail ------------------------------------------------------------------------------------------------------------


def test_a_hub_that_fails_never_makes_a_half_empty_folder_a_success(shelf: Shelf) -> None:
    names = [shard(number, 4) for number in (1, 2, 3, 4)]
    shelf.sharded(*names)
    shelf.bench.faults({"match": f"/cdn/.*({names[2]}|{names[3]})", "status": 500})
    assert shelf.run()["code"] == "incomplete"
    shelf.bench.faults({"match": "/api/models/", "status": 503})
    answer = shelf.run()
    assert (answer["failed"], answer["code"], answer.get("missing")) == (True, "hub_unreachable", names[2:])
    assert "The hub could not be reached" in answer["msg"]


def test_an_incomplete_folder_offline_is_told_without_a_traceback(shelf: Shelf) -> None:
    names = [shard(1, 2), shard(2, 2)]
    shelf.sharded(*names)
    shelf.copy(without={names[1]})
    answer = shelf.offline()
    assert (answer["failed"], answer["missing"]) == (True, [names[1]])
    assert "Traceback" not in json.dumps(answer)


def test_a_range_that_is_refused_for_a_stale_partial_file_costs_one_fresh_start_of_that_file(shelf: Shelf) -> None:
    names = [shard(number, 4) for number in (1, 2, 3, 4)]
    shelf.sharded(*names)
    staging = shelf.bench.models / f".{shelf.commit}.incomplete"
    partial = staging / ".cache" / "huggingface" / "download" / f"{names[1]}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * 60_000)
    for name in (names[0], names[2]):
        shutil.copy(shelf.published / name, staging / name)
    shelf.bench.faults({"match": f"/cdn/.*{names[1]}", "status": 416, "times": 1})
    answer = shelf.run(retry_timeout=20)
    assert (answer["changed"], answer["shards"]["present"]) == (True, names)
    assert set(shelf.fetched()) == {names[1], names[3]}
    assert shelf.fetched().count(names[1]) == 2


def test_a_disk_filled_by_partial_files_of_killed_jobs_is_told_with_their_bytes(shelf: Shelf) -> None:
    shelf.weights("model.safetensors")
    shelf.claim("model.safetensors", size=PETABYTE)
    blobs = shelf.bench.models / "models--other--model" / "blobs"
    blobs.mkdir(parents=True)
    for number in range(14):
        (blobs / f"{number:064x}.incomplete").touch()
        os.truncate(blobs / f"{number:064x}.incomplete", 310_000_000_000 // 14)
    store = f"{shelf.bench.models}/acme--model/{{commit}}"
    answer = shelf.look(dest=store, remove_unexpected=True)
    assert (answer["failed"], answer["code"], len(answer["leftovers"])) == (True, "disk_full", 14)
    assert "310.0 GB" in answer["msg"] and ".incomplete" in answer["msg"]
    assert answer["bytes_needed"] >= PETABYTE > answer["bytes_free"]
    assert len(list(blobs.iterdir())) == 14


@pytest.mark.parametrize(
    ("settings", "token", "says"),
    [
        ({"private": True}, None, ["no token was sent", "wrong repo_id"]),
        ({"gated": True}, None, ["no token was sent"]),
        ({"gated": True}, TOKEN, ["has not been granted access", "Accept its licence"]),
    ],
    ids=["missing-or-private", "gated-anonymous", "gated-not-granted"],
)
def test_access_denied_says_whether_a_token_was_sent_and_what_it_lacks(
    shelf: Shelf, settings: Answer, token: t.Optional[str], says: list[str]
) -> None:
    shelf.weights("model.safetensors")
    shelf.write(".hub.json", json.dumps({**settings, "tokens": ["another"]}).encode())
    answer = shelf.run(retry_timeout=20, **({"token": token} if token else {}))
    assert (answer["failed"], answer["code"]) == (True, "access_denied")
    assert all(part in answer["msg"] for part in says)
    assert TOKEN not in json.dumps(answer)
    assert len([line for line in shelf.bench.hub.log if "/resolve/" in line]) <= 1
