# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real module on stores and folders that are whole, damaged, half there or being written."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.download_job import lock_of, staging_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import FileSpec
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.receipt import RECEIPT_NAME, Receipt, identify, write_receipt
from support.download_bench import REPOSITORY, flip, make_repository, shard_name
from support.running import Answer, run_module

REPAIR = "Deploy the model again: that fetches exactly these files."
COMMIT, OTHER = "a" * 40, "b" * 40
SHARDS = tuple(shard_name(number) for number in range(5))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_snapshot(store: Path, commit: str = COMMIT, name: str = REPOSITORY, **changes: t.Any) -> Path:
    """A snapshot in a store as a proven download leaves it."""
    folder = store / name.replace("/", "--") / commit
    shutil.move(make_repository(store / "made"), folder)
    shutil.rmtree(store / "made")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    paths = {path.name: path for path in folder.iterdir()}
    manifest = {name: FileSpec(name, path.stat().st_size, sha256(path)) for name, path in paths.items()}
    files = {name: identify(path, sha256(path)) for name, path in paths.items()}
    receipt = Receipt(name, commit, "main", "sha256", (), (), manifest, SHARDS, files)
    write_receipt(folder, receipt._replace(**changes))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def snapshot(store: Path) -> Path:
    return make_snapshot(store)


def state_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """All that a write would move."""
    stats = {str(path): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in stats.items()}


def verify(path: Path, tmp_path: Path, **options: t.Any) -> Answer:
    """The module's answer; nothing at or below the path was written."""
    before = state_of(path) if path.exists() else {}
    answer = run_module("model_verify", tmp_path, path=str(path), **options)
    assert (state_of(path) if path.exists() else {}) == before
    assert answer.get("changed", False) is False
    return answer


def only(answer: Answer) -> Answer:
    [found] = answer["snapshots"]
    return t.cast(Answer, found)


def test_every_snapshot_of_a_store_is_proven_and_nothing_is_written(store: Path, snapshot: Path, tmp_path: Path) -> None:
    newer = make_snapshot(store, OTHER)
    huge = make_snapshot(store, COMMIT, "acme/huge")
    answer = verify(store, tmp_path)
    assert answer["proven"] is True
    assert answer["msg"] == f"3 snapshots proven below {store}."
    found = {entry["path"]: entry for entry in answer["snapshots"]}
    assert list(found) == sorted(map(str, (snapshot, newer, huge)))
    entry = found[str(huge)]
    assert (entry["repo_id"], entry["commit"], entry["revision"]) == ("acme/huge", COMMIT, "main")
    assert (entry["state"], entry["level"], entry["files"]) == ("proven", "sha256", 8)
    assert entry["bytes"] == sum(path.stat().st_size for path in huge.iterdir() if path.name != RECEIPT_NAME)
    assert [only(verify(place, tmp_path))["proven"] for place in (snapshot, huge.parent)] == [True, True]


def test_exactly_what_is_cut_flipped_and_gone_is_named(store: Path, snapshot: Path, tmp_path: Path) -> None:
    make_snapshot(store, OTHER)
    size = (snapshot / SHARDS[1]).stat().st_size
    os.truncate(snapshot / SHARDS[1], size - 1)
    digest = sha256(snapshot / SHARDS[2])
    flip(snapshot / SHARDS[2], 50_000)
    (snapshot / SHARDS[4]).unlink()
    (snapshot / "model-00007-of-00099.safetensors").write_text("stale")
    answer = verify(store, tmp_path)
    bad, good = answer["snapshots"]
    assert (answer["proven"], bad["proven"], bad["state"], good["proven"]) == (False, False, "damaged", True)
    cut = f"has {size - 1} bytes instead of {size}"
    flipped = f"has other content than published (sha256 {sha256(snapshot / SHARDS[2])} instead of {digest})"
    assert bad["damaged"] == [{"name": SHARDS[1], "why": cut}, {"name": SHARDS[2], "why": flipped}]
    assert bad["missing"] == [SHARDS[4]]
    assert bad["unexpected"] == ["model-00007-of-00099.safetensors"]
    said = f"{snapshot} is not whole: {SHARDS[1]} {cut}; {SHARDS[2]} {flipped}; missing: {SHARDS[4]}. {REPAIR}"
    assert answer["msg"] == bad["message"] == said
    quick = verify(store, tmp_path, level="structure")["snapshots"][0]
    assert ([entry["name"] for entry in quick["damaged"]], quick["missing"]) == ([SHARDS[1]], [SHARDS[4]])


def test_a_receipt_is_believed_for_the_very_files_that_were_proven(snapshot: Path, tmp_path: Path) -> None:
    assert only(verify(snapshot, tmp_path, level="receipt"))["level"] == "receipt"
    os.utime(snapshot / SHARDS[0])
    (snapshot / SHARDS[1]).unlink()
    found = only(verify(snapshot, tmp_path, level="receipt"))
    assert found["damaged"] == [{"name": SHARDS[0], "why": "is not the file that was proven"}]
    assert found["missing"] == [SHARDS[1]]
    assert [entry["name"] for entry in only(verify(snapshot, tmp_path))["damaged"]] == []


def test_a_changed_index_and_lacking_tensors_are_found_without_hashing_the_weights(store: Path, tmp_path: Path) -> None:
    index = "model.safetensors.index.json"
    changed = make_snapshot(store)
    flip(changed / index, 30)
    found = only(verify(changed, tmp_path, level="structure"))
    assert found["damaged"] == [{"name": index, "why": "has other content than published"}]

    flip(changed / index, 30)
    document = json.loads((changed / index).read_text())
    document["weight_map"]["layers.9.a"] = SHARDS[3]
    (changed / index).write_text(json.dumps(document))
    manifest = {name: FileSpec(name, (changed / name).stat().st_size, sha256(changed / name)) for name in (index, *SHARDS)}
    files = {name: identify(changed / name, spec.sha256) for name, spec in manifest.items()}
    write_receipt(changed, Receipt(REPOSITORY, COMMIT, "main", "sha256", (), (), manifest, SHARDS, files))
    found = only(verify(changed, tmp_path))
    assert found["damaged"] == [{"name": SHARDS[3], "why": "lacks 1 tensors of the index (layers.9.a)"}]
    assert found["message"].endswith("exactly as published, so that downloading again will not help.")


@pytest.mark.parametrize("held", [True, False])
def test_a_download_is_incomplete_and_not_damaged(store: Path, tmp_path: Path, held: bool) -> None:
    folder = make_snapshot(store)
    lock = lock_of(folder).open("w")
    if held:
        fcntl.flock(lock, fcntl.LOCK_EX)
    word = "is under way. Wait for it." if held else "was interrupted. Deploy the model again to complete it."
    write_receipt(folder, Receipt(REPOSITORY, COMMIT, "main", "sha256", (), (), {}, SHARDS, {}, complete=False))
    found = only(verify(store, tmp_path))
    assert (found["state"], found["damaged"], found["missing"]) == ("incomplete", [], [])
    assert found["message"] == f"{folder} is incomplete: a repair {word}"
    folder.rename(staging_of(folder))
    for place in (store, store / "acme--tiny", folder):
        found = only(verify(place, tmp_path))
        assert (found["repo_id"], found["commit"], found["state"]) == (REPOSITORY, COMMIT, "incomplete")
        assert found["message"] == f"{folder} is incomplete: a download {word}"
    lock.close()


def test_files_are_only_called_damaged_while_nobody_repairs_them(snapshot: Path, tmp_path: Path) -> None:
    (snapshot / SHARDS[1]).unlink()
    staging_of(snapshot).mkdir()
    assert only(verify(snapshot, tmp_path))["state"] == "damaged"
    record = lock_of(snapshot).with_name(f"{lock_of(snapshot).name}.otherhost,1,2,3,4,,ab")
    record.touch()
    found = only(verify(snapshot, tmp_path))
    assert (found["state"], found["message"]) == ("incomplete", f"{snapshot} is incomplete: a repair is under way. Wait for it.")
    os.utime(record, (1, 1))
    assert only(verify(snapshot, tmp_path))["state"] == "damaged"


def test_snapshots_of_a_store_without_a_sound_receipt_are_unproven(store: Path, snapshot: Path, tmp_path: Path) -> None:
    (snapshot / RECEIPT_NAME).unlink()
    (make_snapshot(store, OTHER) / RECEIPT_NAME).write_text("{}")
    answer = verify(store, tmp_path)
    assert [(entry["state"], entry["repo_id"]) for entry in answer["snapshots"]] == [("unproven", REPOSITORY)] * 2
    assert "has no receipt, so nothing says which files belong to it." in answer["msg"]
    assert "has a receipt that cannot be understood." in answer["msg"]


def test_a_folder_with_sums_is_proven_as_far_as_they_go(tmp_path: Path) -> None:
    folder = make_repository(tmp_path)
    sums = subprocess.run(["sha256sum", *SHARDS, "model.safetensors.index.json"], cwd=folder, check=True, capture_output=True, text=True)
    (folder / "SHA256SUMS").write_text(sums.stdout)
    found = only(verify(folder, tmp_path))
    assert (found["state"], found["level"], found["commit"]) == ("unproven", "structure", "")
    assert "nothing tells the published hashes of config.json" in found["message"]
    assert only(verify(folder, tmp_path, level="structure"))["proven"] is True
    assert "Set level to structure or sha256." in only(verify(folder, tmp_path, level="receipt"))["message"]
    (folder / "SHA256SUMS").write_text(f"{sums.stdout}{sha256(folder / 'config.json')}  config.json\n")
    assert only(verify(folder, tmp_path))["proven"] is True


def test_a_cache_of_the_hub_client_is_proven_by_the_names_of_its_blobs(tmp_path: Path) -> None:
    folder, home = make_repository(tmp_path), tmp_path / "cache" / "models--acme--tiny"
    snapshot = home / "snapshots" / COMMIT
    for path in (snapshot, home / "blobs", home / "refs"):
        path.mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    for path in list(folder.iterdir()):
        digest = sha256(path)
        (snapshot / path.name).symlink_to(f"../../blobs/{digest}")
        path.rename(home / "blobs" / digest)
    found = only(verify(tmp_path / "cache", tmp_path))
    assert (found["proven"], found["repo_id"], found["commit"], found["revision"]) == (True, REPOSITORY, COMMIT, "main")
    blob = (snapshot / SHARDS[0]).resolve()
    flip(blob, 50_000)
    (snapshot / SHARDS[1]).resolve().unlink()
    found = only(verify(tmp_path / "cache", tmp_path))
    damaged = {entry["name"]: entry["why"] for entry in found["damaged"]}
    assert damaged[SHARDS[0]] == f"has other content than published (sha256 {sha256(blob)} instead of {blob.name})"
    assert damaged[SHARDS[1]].startswith("is a link to ../../blobs/")
    assert list(damaged) == [SHARDS[0], SHARDS[1]]


def test_input_it_cannot_work_with_is_a_failure(tmp_path: Path) -> None:
    missing = verify(tmp_path / "models", tmp_path)
    assert (missing["failed"], missing["code"]) == (True, "path_missing")
    (tmp_path / "models" / "acme--tiny").mkdir(parents=True)
    (tmp_path / "models" / "acme--tiny" / "config.json").write_text("{}")
    empty = verify(tmp_path / "models", tmp_path)
    assert (empty["failed"], empty["code"]) == (True, "nothing_to_prove")
    assert "Set path to a snapshot or a store of models, or deploy a model first." in empty["msg"]


def test_progress_is_written_and_check_mode_is_the_same(snapshot: Path, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    checked = verify(snapshot, tmp_path, progress_path=str(progress), _ansible_check_mode=True)
    record = json.loads(progress.read_text())
    assert (record["what"], record["done"], record["total"]) == ("proving", only(checked)["bytes"], only(checked)["bytes"])
    plain = verify(snapshot, tmp_path)
    assert checked["snapshots"] == plain["snapshots"]
