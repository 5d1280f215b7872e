# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real module with the real Hub client, against the fake hub."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.download_bench import REPOSITORY, TOKEN, Bench, flip, make_minimax, make_repository, shard_name
from support.running import Answer


def test_a_fresh_download_is_proven_and_the_second_run_asks_for_the_branch_only(bench: Bench) -> None:
    first = bench.run()
    assert (first["changed"], first["verified"], first["commit"]) == (True, "sha256", bench.commit)
    assert first["shards"]["expected"] == first["shards"]["present"] == [shard_name(number) for number in range(5)]
    assert first["bytes_downloaded"] == first["bytes_total"] == sum(path.stat().st_size for path in bench.repository.iterdir())
    assert {path.name for path in bench.folder.iterdir()} == {path.name for path in bench.repository.iterdir()} | {".gpufleet-receipt.json"}
    assert [path.name for path in bench.models.iterdir() if not path.name.endswith(".lock")] == [bench.commit]
    bench.faults()
    second = bench.look()
    assert (second["changed"], second["verified"], second["bytes_downloaded"]) == (False, "receipt", 0)
    assert bench.hub.log == [f"GET /api/models/{REPOSITORY}/revision/main"]


def test_a_pinned_commit_with_a_receipt_sends_no_request_at_any_level(bench: Bench) -> None:
    bench.run()
    bench.faults()
    for level in ("receipt", "structure", "sha256"):
        again = bench.look(revision=bench.commit, verify=level)
        assert (again["changed"], again["verified"]) == (False, level)
    assert bench.look(offline=True)["changed"] is False
    assert bench.hub.log == []


def test_exactly_the_cut_the_flipped_and_the_deleted_shard_are_fetched_again(bench: Bench) -> None:
    bench.run()
    os.truncate(bench.folder / shard_name(1), 40_000)
    flip(bench.folder / shard_name(2), 50_000)
    (bench.folder / shard_name(4)).unlink()
    bench.faults()
    repaired = bench.run(revision=bench.commit)
    bad = [shard_name(number) for number in (1, 2, 4)]
    assert (repaired["changed"], repaired["repaired"], repaired["fetched"]) == (True, bad, bad)
    assert sorted(line.rsplit("/", 1)[1] for line in bench.hub.log if line.startswith("GET /cdn/")) == bad
    bench.faults()
    assert bench.look(revision=bench.commit)["changed"] is False
    assert bench.hub.log == []


def test_a_flipped_byte_with_its_old_times_is_found_by_sha256_and_by_the_receipt(bench: Bench) -> None:
    bench.run()
    shard = bench.folder / shard_name(2)
    stat = shard.stat()
    flip(shard, 50_000)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert bench.look(check=True, verify="sha256")["shards"]["damaged"] == [shard_name(2)]
    assert bench.run()["repaired"] == [shard_name(2)]


def test_a_disk_with_another_number_after_a_reboot_or_on_another_host_costs_no_hashing(bench: Bench) -> None:
    bench.run()
    receipt = bench.folder / ".gpufleet-receipt.json"
    record = json.loads(receipt.read_text())
    for values in record["files"].values():
        values[4] += 1  # the device
    receipt.write_text(json.dumps(record))
    assert bench.look()["verified"] == "receipt"
    record["files"][shard_name(1)][4] += 1
    receipt.write_text(json.dumps(record))
    assert bench.look()["verified"] == "sha256"


def test_check_mode_names_what_would_be_fetched_and_writes_nothing(bench: Bench) -> None:
    preview = bench.look(check=True, diff=True)
    assert preview["changed"] is True
    assert preview["shards"]["missing"] == [shard_name(number) for number in range(5)]
    assert preview["bytes_downloaded"] == preview["bytes_total"]
    assert shard_name(3) in preview["diff"]["after"]
    assert not bench.models.exists()
    assert not any("/cdn/" in line for line in bench.hub.log)
    bench.run()
    assert bench.look(check=True)["changed"] is False


@pytest.mark.parametrize("check", [True, False])
def test_an_unreachable_hub_is_a_failure_whatever_lies_in_the_folder(bench: Bench, check: bool) -> None:
    bench.run()
    (bench.folder / shard_name(3)).unlink()
    answer = bench.look(endpoint="http://127.0.0.1:9", check=check)
    assert answer["failed"]
    assert (answer["code"], answer["missing"]) == ("hub_unreachable", [shard_name(3)])
    assert "connection refused" in answer["msg"]
    (bench.folder / "model.safetensors.index.json").write_text("no index")
    assert bench.look(endpoint="http://127.0.0.1:9", check=check)["code"] == "hub_unreachable"


@pytest.mark.parametrize(
    ("settings", "options", "code", "says"),
    [
        ({"gated": True, "tokens": ["other"]}, {}, "access_denied", "gated and no token was sent"),
        ({"gated": True, "tokens": ["other"]}, {"token": TOKEN}, "access_denied", "Accept its licence"),
        ({"private": True, "tokens": ["other"]}, {}, "access_denied", "no token was sent"),
        ({"private": True, "tokens": ["other"]}, {"token": TOKEN}, "access_denied", "refused the token"),
        ({}, {"revision": "v9"}, "revision_not_found", "revision v9"),
        ({}, {"repo_id": "acme/unknown", "token": TOKEN}, "repository_not_found", "acme/unknown"),
        ({}, {"token_file": "/nonexistent/token"}, "token_unreadable", "/nonexistent/token"),
        ({}, {"offline": True}, "incomplete", "offline"),
        ({}, {"include": ["*.gguf"]}, "nothing_selected", "include"),
    ],
)
def test_each_refusal_has_its_own_verdict_also_in_check_mode(bench: Bench, settings: Answer, options: Answer, code: str, says: str) -> None:
    bench.settings(**settings)
    answer = bench.look(check=True, **options)
    assert answer["failed"]
    assert answer["code"] == code
    assert says in answer["msg"]


def test_a_gated_repository_opens_with_the_token_from_a_file(bench: Bench, tmp_path: Path) -> None:
    bench.settings(gated=True, tokens=[TOKEN])
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert bench.run(token_file=str(tmp_path / "token"))["changed"] is True
    assert not any(TOKEN in path.read_text("latin-1") for path in bench.models.rglob("*") if path.is_file())


def test_a_disk_too_small_is_refused_before_the_first_byte(bench: Bench) -> None:
    (bench.repository / "notes.txt").write_text("x")
    listing = bench.hub.repository(REPOSITORY).blobs()
    listing["notes.txt"] = listing["notes.txt"]._replace(size=10**15)
    bench.hub.repository(REPOSITORY)._listed_at = float("inf")
    for check in (True, False):
        answer = bench.look(check=check)
        assert answer["code"] == "disk_full"
        assert answer["bytes_needed"] > 10**15
    assert not any("/cdn/" in line for line in bench.hub.log)


def test_server_errors_cuts_and_short_bodies_are_tried_again(bench: Bench) -> None:
    bench.faults(
        {"match": f"/cdn/.*{shard_name(0)}", "status": 503, "times": 1},
        {"match": f"/cdn/.*{shard_name(1)}", "status": 403, "times": 1},
        {"match": f"/cdn/.*{shard_name(2)}", "truncate": 1000, "times": 1},
        {"match": f"/cdn/.*{shard_name(3)}", "short": 10, "times": 1},
        {"match": f"/cdn/.*{shard_name(4)}", "flip": 50_000, "times": 1},
        {"match": "/revision/", "status": 503, "times": 1},
    )
    answer = bench.run(retry_timeout=20)
    assert answer["changed"] is True
    assert answer["shards"]["present"] == answer["shards"]["expected"]


def test_a_file_that_never_arrives_leaves_no_folder_and_the_next_run_fetches_only_it(bench: Bench) -> None:
    bench.faults({"match": f"/cdn/.*{shard_name(2)}", "status": 500})
    answer = bench.run()
    assert (answer["code"], answer["missing"]) == ("incomplete", [shard_name(2)])
    assert not bench.folder.exists()
    bench.faults()
    assert bench.run()["fetched"] == [shard_name(2)]


def test_two_writers_at_once_both_end_well_and_fetch_each_file_once(bench: Bench) -> None:
    bench.faults({"match": "/cdn/", "rate": 200_000})
    answers = [json.loads(child.communicate(timeout=60)[0]) for child in [bench.start(), bench.start()]]
    assert sorted(answer["changed"] for answer in answers) == [False, True]
    assert len([line for line in bench.hub.log if line.startswith("GET /cdn/")]) == 5


def test_a_folder_copied_by_hand_is_adopted_by_its_hashes(bench: Bench) -> None:
    shutil.copytree(bench.repository, bench.folder)
    preview = bench.look(check=True)
    assert (preview["changed"], preview["fetched"], len(preview["unproven"])) == (True, [], 7)
    answer = bench.look()
    assert (answer["changed"], answer["fetched"], answer["verified"], answer["unproven"]) == (True, [], "sha256", [])
    assert bench.look()["changed"] is False


def test_links_that_lead_nowhere_are_named_as_such(bench: Bench) -> None:
    shutil.copytree(bench.repository, bench.folder)
    (bench.folder / shard_name(1)).unlink()
    (bench.folder / shard_name(1)).symlink_to("../../blobs/0123")
    answer = bench.look(revision=bench.commit, offline=True)
    assert answer["code"] == "damaged"
    assert "is a link to ../../blobs/0123" in answer["msg"]


def test_an_index_that_names_an_absent_shard_is_the_repositorys_fault(bench: Bench) -> None:
    (bench.repository / shard_name(4)).unlink()
    answer = bench.look()
    assert answer["code"] == "repository_inconsistent"
    assert shard_name(4) in answer["msg"]
    assert "Downloading again will not help" in answer["msg"]


def test_a_shard_that_is_broken_as_published_is_not_fetched_for_ever(bench: Bench) -> None:
    os.truncate(bench.repository / shard_name(2), 40_000)
    answer = bench.run(retry_timeout=20)
    assert (answer["code"], answer["damaged"]) == ("repository_inconsistent", [shard_name(2)])


def test_tensors_that_their_shard_does_not_hold_are_the_repositorys_fault(bench: Bench) -> None:
    index = bench.repository / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("layers.3.b", "layers.3.z"))
    answer = bench.run()
    assert (answer["code"], answer["damaged"]) == ("repository_inconsistent", [shard_name(3)])
    assert "layers.3.z" in answer["msg"]


def test_owner_and_mode_are_settled_and_do_not_cost_the_proof(bench: Bench) -> None:
    bench.run(mode="0600")
    assert (bench.folder / shard_name(0)).stat().st_mode & 0o777 == 0o600
    assert bench.folder.stat().st_mode & 0o777 == 0o700
    assert bench.look(mode="u=rwX,g=rX,o=", check=True)["changed"] is True
    changed = bench.look(mode="u=rwX,g=rX,o=")
    assert (changed["changed"], changed["verified"], changed["fetched"]) == (True, "receipt", [])
    assert bench.folder.stat().st_mode & 0o777 == 0o750
    assert bench.look(mode="u=rwX,g=rX,o=")["changed"] is False


def test_a_folder_that_holds_one_commit_is_never_turned_into_another(bench: Bench) -> None:
    fixed = str(bench.models / "fixed")
    bench.run(dest=fixed)
    old = bench.commit
    bench.publish("config.json", b'{"model_type": "tiny", "version": 2}')
    for check in (True, False):
        answer = bench.look(dest=fixed, check=check)
        assert (answer["failed"], answer["code"]) == (True, "other_commit")
        assert old in answer["msg"] and bench.commit in answer["msg"]
    assert bench.look(dest=fixed, revision=old)["changed"] is False


def test_a_new_commit_lands_beside_the_old_one(bench: Bench) -> None:
    bench.run()
    old = bench.folder
    bench.publish("config.json", b'{"model_type": "tiny", "version": 2}')
    assert bench.run()["path"] == str(bench.folder) != str(old)
    assert (old / "config.json").read_text() == '{"model_type": "tiny"}'


def test_another_repository_is_not_mixed_into_a_folder(bench: Bench) -> None:
    bench.run(dest=str(bench.models / "fixed"))
    make_repository(bench.hub.root, "acme/other")
    assert bench.look(repo_id="acme/other", dest=str(bench.models / "fixed"))["code"] == "other_repository"


def test_a_renamed_repository_is_followed_with_a_warning(bench: Bench) -> None:
    old = bench.hub.root / "acme" / "old"
    old.mkdir()
    (old / ".hub.json").write_text(json.dumps({"renamed_to": REPOSITORY}))
    answer = bench.run(repo_id="acme/old")
    assert (answer["changed"], answer["renamed_to"]) == (True, REPOSITORY)
    assert REPOSITORY in str(answer["warnings"])


def test_second_copies_of_the_weights_are_left_out_and_stale_shards_reported(bench: Bench) -> None:
    (bench.repository / "original").mkdir()
    for name in ("consolidated.safetensors", "pytorch_model.bin", "original/model.pth"):
        (bench.repository / name).write_bytes(b"x" * 1000)
    answer = bench.run()
    assert answer["left_out"] == ["consolidated.safetensors", "original/model.pth", "pytorch_model.bin"]
    (bench.folder / "model-00009-of-00009.safetensors").write_bytes(b"x")
    again = bench.run()  # in a process of its own: Ansible shows a warning once a process
    assert (again["changed"], again["shards"]["unexpected"]) == (False, ["model-00009-of-00009.safetensors"])
    assert again["left_out"] == answer["left_out"]
    assert "remove_unexpected" in str(again["warnings"])


def test_tensors_that_the_index_leaves_out_are_a_warning(bench: Bench) -> None:
    index = json.loads((bench.repository / "model.safetensors.index.json").read_text())
    del index["weight_map"]["layers.3.b"]
    (bench.repository / "model.safetensors.index.json").write_text(json.dumps(index))
    answer = bench.run()
    assert (answer["tensors_unindexed"], answer["tensors_unindexed_names"]) == (1, ["layers.3.b"])
    assert "layers.3.b" in str(answer["warnings"])


@pytest.fixture(scope="module")
def minimax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    make_minimax.make_minimax(root)
    return root


def test_the_minimax_repository_has_125_shards_that_are_all_expected(minimax: Path) -> None:
    folder = minimax / "MiniMaxAI" / "MiniMax-M2.5"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == [f"model-{number:05d}-of-00126.safetensors" for number in range(125)]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 60_000_000


def test_of_125_shards_exactly_the_cut_the_flipped_and_the_deleted_one_are_named_and_fetched(bench: Bench, minimax: Path) -> None:
    bench.hub.root, model = minimax, {"repo_id": "MiniMaxAI/MiniMax-M2.5", "retry_timeout": 20}
    folder = Path(bench.run(**model)["path"])
    cut, flipped, deleted = names = [f"model-{number:05d}-of-00126.safetensors" for number in (73, 12, 101)]
    os.truncate(folder / cut, (folder / cut).stat().st_size - 1)
    flip(folder / flipped, (folder / flipped).stat().st_size // 2)
    (folder / deleted).unlink()
    found = bench.look(**model, verify="sha256", check=True)["shards"]
    assert (found["damaged"], found["missing"]) == ([flipped, cut], [deleted])
    bench.faults()
    repaired = bench.run(**model)
    assert repaired["repaired"] == repaired["fetched"] == sorted(names)
    assert sorted(line.rsplit("/", 1)[1] for line in bench.hub.log if line.startswith("GET /cdn/")) == sorted(names)
    assert bench.look(**model)["changed"] is False
