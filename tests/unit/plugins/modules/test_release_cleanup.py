# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""release_cleanup, really run on releases, engines and weights as the other modules leave them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.cleanup import KINDS, REMOVED, Places, survey
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_files import HostFiles, write_json
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.listeners import ProcFs
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.receipt import (
    RECEIPT_NAME,
    Receipt,
    identify,
    read_receipt,
    write_receipt,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.references import is_local
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release import Release
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release_store import ReleaseStore
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.venv import MARKER, Marker
from support.running import Answer, run_module

SHARDS = ("model-0.safetensors", "model-1.safetensors")
OLD = 1_700_000_000


class Host:
    """A host whose deployments, engines and weights are below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.engines, self.models = folder / "etc", folder / "engines", folder / "models"

    def engine(self, version: str) -> Path:
        venv = self.engines / f"vllm-{version}"
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "vllm").write_text("#!/bin/sh\n")
        (venv / MARKER).write_text(Marker("0", f"vllm=={version}", "3.12", {}).to_json())
        os.utime(venv / MARKER, (OLD, OLD))
        return venv

    def weights(self, commit: str, shared_with: t.Optional[Path] = None) -> Path:
        """A proven snapshot; the first of its two shards may be a link to that of another one."""
        folder = self.models / "acme--tiny" / commit
        folder.mkdir(parents=True)
        for name in SHARDS:
            (folder / name).write_text(name * 100)
        if shared_with:
            (folder / SHARDS[0]).unlink()
            (folder / SHARDS[0]).hardlink_to(shared_with / SHARDS[0])
        self.prove(folder)
        return folder

    def prove(self, folder: Path) -> None:
        files = {name: identify(folder / name, "0" * 64) for name in SHARDS}
        write_receipt(folder, Receipt("acme/tiny", folder.name, "main", "sha256", (), (), {}, SHARDS, files))
        os.utime(folder / RECEIPT_NAME, (OLD, OLD))

    def release(self, model: Path, engine: Path, seqs: int = 1, deployment: str = "minimax-m25") -> Path:
        store = ReleaseStore(self.root, deployment)
        release = Release(deployment, str(model), str(engine), {"max-num-seqs": seqs}, {}, [], {}, {})
        store.write(release, "")
        os.utime(store.path(release.id), (OLD + seqs, OLD + seqs))
        store.switch(release.id)
        return store.path(release.id)

    def run(self, *remove: str, check: bool = False, **options: t.Any) -> Answer:
        places = {"root": str(self.root), "engines": str(self.engines), "weights": [str(self.models)]}
        arguments = {"keep": 1, **places, "_ansible_check_mode": check, "_ansible_diff": True, **options}
        return run_module("release_cleanup", self.folder, **arguments, remove=list(remove))

    def everything(self) -> set[str]:
        return {str(path) for path in self.folder.rglob("*") if "ansible" not in path.name}


def paths(answer: Answer) -> set[Path]:
    return {Path(entry["path"]) for entry in answer["unused"]}


def why(answer: Answer, path: Path) -> str:
    [reason] = [entry["why"] for entry in answer["kept"] if entry["path"] == str(path)]
    return t.cast(str, reason)


class Story(t.NamedTuple):
    host: Host
    unused: set[Path]
    used: set[Path]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def story(host: Host) -> Story:
    """Three releases with an engine and weights each, of which the oldest is needed by nothing; another deployment shares the second's."""
    releases = [host.release(host.weights(f"c{number}"), host.engine(f"0.{number}"), seqs=number) for number in (1, 2, 3)]
    host.release(host.models / "acme--tiny" / "c2", host.engines / "vllm-0.2", deployment="other")
    unused = {releases[0], host.engines / "vllm-0.1", host.models / "acme--tiny" / "c1"}
    used = {*releases[1:], host.engines / "vllm-0.2", host.models / "acme--tiny" / "c2"}
    return Story(host, unused, used)


def test_by_default_it_lists_with_bytes_and_removes_nothing(story: Story) -> None:
    before = story.host.everything()
    answer = story.host.run()
    assert paths(answer) == story.unused and not answer["changed"] and answer["removed"] == []
    assert all(entry["bytes"] > 0 for entry in answer["unused"]) and answer["bytes"] == sum(entry["bytes"] for entry in answer["unused"])
    assert story.host.everything() == before


def test_what_check_mode_foretells_goes_and_the_rest_stays(story: Story) -> None:
    foretold = story.host.run(*KINDS, check=True)
    assert foretold["changed"] and all(path.exists() for path in story.unused)
    done = story.host.run(*KINDS)
    assert {**foretold, "invocation": None} == {**done, "invocation": None}
    assert set(map(Path, done["removed"])) == story.unused and done["diff"]["before"].splitlines() == done["removed"]
    assert not any(path.exists() for path in story.unused) and all(path.exists() for path in story.used)
    assert not list(story.host.folder.rglob(f"*{REMOVED}"))
    again = story.host.run(*KINDS)
    assert (again["changed"], again["unused"], again["bytes"]) == (False, [], 0)


def test_a_release_that_stays_keeps_its_engine_and_weights(story: Story) -> None:
    answer = story.host.run("engines", "weights")
    assert (answer["changed"], answer["unused"]) == (False, [])
    assert "refers to it" in why(answer, story.host.engines / "vllm-0.1")
    assert story.host.run(keep=3)["unused"] == []


def test_current_previous_and_running_stay_whatever_keep_says(story: Story) -> None:
    oldest = next(path for path in story.unused if path.parent.name == "releases")
    files = HostFiles("minimax-m25", story.host.folder / "root")
    files.running.parent.mkdir(parents=True)
    write_json(files.running, {"release": oldest.name})
    places = Places(story.host.root, story.host.engines, (story.host.models,), files.root)
    no_process = ProcFs(lambda path: Path(path).read_text(encoding="utf-8"), lambda _path: [], os.readlink)
    found = survey(places, no_process, kinds=KINDS, keep=0, min_age=0)
    assert found.unused == [] and "its unit runs it" in {finding.why for finding in found.kept}


def test_what_is_not_known_to_be_ours_is_never_touched(story: Story) -> None:
    host = story.host
    unfinished, stranger, note = host.engines / "vllm-0.9", host.models / "acme--tiny" / "c9", next(iter(story.used)) / ".." / "notes"
    unfinished.mkdir()
    stranger.mkdir()
    note.write_text("mine")
    with_adapter, in_repair = host.weights("c5"), host.weights("c6")
    (with_adapter / "lora").mkdir()
    (with_adapter / "lora" / "adapter.bin").touch()
    receipt = read_receipt(in_repair)
    assert receipt
    write_receipt(in_repair, receipt._replace(complete=False))
    (host.engines / "stable").symlink_to(host.engine("0.7"))
    edited = host.release(host.weights("c7"), host.engine("0.6"), seqs=0, deployment="third")
    for seqs in (1, 2):
        host.release(host.models / "acme--tiny" / "c3", host.engines / "vllm-0.3", seqs=seqs, deployment="third")
    (edited / "engine.yaml").write_text("max-num-seqs: 7\n")
    answer = host.run(*KINDS)
    assert set(map(Path, answer["removed"])) == story.unused
    assert "no marker" in why(answer, unfinished) and "no receipt" in why(answer, stranger)
    assert "lora/adapter.bin" in why(answer, with_adapter) and "repaired" in why(answer, in_repair)
    assert "stable leads to it" in why(answer, host.engines / "vllm-0.7")
    assert why(answer, edited) == "it was edited" and "refers to it" in why(answer, host.engines / "vllm-0.6")
    assert note.read_text() == "mine"


def test_the_new_the_named_and_what_a_process_uses_stay(story: Story) -> None:
    host = story.host
    new, named, used = host.engine("0.4"), host.weights("c4"), host.weights("c5")
    os.utime(new / MARKER)
    process = subprocess.Popen([sys.executable, "-c", "input()", f"--model={used}/{SHARDS[0]}"], stdin=subprocess.PIPE)
    try:
        answer = host.run(*KINDS, keep_paths=[str(named)])
    finally:
        process.communicate(b"\n")
    assert set(map(Path, answer["removed"])) == story.unused
    assert "new" in why(answer, new) and "keep_paths" in why(answer, named) and f"process {process.pid}" in why(answer, used)


def test_an_engine_or_weights_that_somebody_is_at_work_on_stay(story: Story) -> None:
    with contextlib.ExitStack() as locks:
        for path in story.unused:
            file = locks.enter_context((path.parent / f".{path.name}.lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        answer = story.host.run("releases", "engines", "weights")
    assert {Path(path).parent.name for path in answer["removed"]} == {"releases"}
    assert "at work" in why(answer, story.host.engines / "vllm-0.1")


def test_shared_weights_stay_whole_and_proven_in_the_other_snapshot(host: Host) -> None:
    lender = host.weights("c1")
    other = host.weights("c2", shared_with=lender)
    host.prove(lender)
    (other / RECEIPT_NAME).chmod(0o640)
    host.release(other, host.engine("0.1"))
    answer = host.run(*KINDS)
    receipt = read_receipt(other)
    assert receipt and receipt.holding(other) == set(SHARDS) and not lender.exists()
    assert (other / RECEIPT_NAME).stat().st_mode & 0o777 == 0o640
    size = (other / SHARDS[0]).stat().st_size
    assert answer["unused"][0]["bytes"] - answer["bytes"] == size


def test_files_with_several_links_in_both_snapshots_stay_proven(host: Host) -> None:
    lender = host.weights("c1")
    other = host.weights("c2", shared_with=lender)
    for folder in (lender, other):
        (folder / SHARDS[1]).unlink()
        (folder / SHARDS[1]).hardlink_to(folder / SHARDS[0])
        host.prove(folder)
    host.prove(lender)
    host.prove(other)
    host.release(other, host.engine("0.1"))
    answer = host.run(*KINDS)
    receipt = read_receipt(other)
    assert receipt and receipt.holding(other) == set(SHARDS) and answer["removed"] == [str(lender)]


def test_a_shared_file_that_was_changed_is_not_proven_by_a_removal(host: Host) -> None:
    lender = host.weights("c1")
    other = host.weights("c2", shared_with=lender)
    host.release(other, host.engine("0.1"))
    (other / SHARDS[0]).write_text("x" * (other / SHARDS[0]).stat().st_size)
    host.run(*KINDS)
    receipt = read_receipt(other)
    assert receipt and receipt.holding(other) == {SHARDS[1]}


def test_what_killed_runs_left_is_finished(story: Story) -> None:
    host = story.host
    left = [path.with_name(f".{path.name}.0badcafe{REMOVED}") for path in sorted(story.unused)]
    for path, aside in zip(sorted(story.unused), left):
        path.rename(aside)
    for folder in (left[0], left[1]):
        next(path for path in folder.rglob("*") if path.is_file()).unlink()
    partial = next(iter(story.used & set(host.root.glob("minimax-m25/releases/*")))).with_name(".0123456789ab.partial")
    partial.mkdir()
    assert paths(host.run()) == {*left, partial}
    answer = host.run(*KINDS)
    assert answer["changed"] and not any(path.exists() for path in [*left, partial])
    assert all(path.exists() for path in story.used)


def test_where_no_release_is_everything_stays_and_a_broken_one_is_an_error(host: Host) -> None:
    engine, weights = host.engine("0.1"), host.weights("c1")
    answer = host.run(*KINDS)
    assert not answer["changed"] and {why(answer, engine), why(answer, weights)} == {"there is no release, so what is in use is not known"}
    current = host.release(weights, engine)
    host.engine("0.2")
    (current / "release.json").write_text("{")
    answer = host.run(*KINDS)
    assert (answer["failed"], answer["code"]) == (True, "release_unreadable") and str(current) in answer["msg"]
    assert (host.engines / "vllm-0.2").exists()


def test_a_moved_aside_release_goes_with_the_release_that_took_its_place(story: Story) -> None:
    kept = next(path for path in story.used if path.parent.name == "releases")
    backups = [kept.with_name(f"{kept.name}.drift-20260101T000000"), kept.with_name("0123456789ab.drift-20260101T000000")]
    for backup in backups:
        backup.mkdir()
        (backup / "engine.yaml").touch()
    assert paths(story.host.run("releases", check=True)) - story.unused == {backups[1]}


@pytest.mark.parametrize(("kind", "local"), [("ext4", True), ("nfs4", False), ("lustre", False), ("fuse.sshfs", False)])
def test_a_file_system_that_other_hosts_may_see_is_told_from_a_local_one(kind: str, local: bool) -> None:
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / /shared\\040disk rw shared:1 - {kind} server:/x rw\n"
    assert is_local(Path("/shared disk/models"), lambda _path: mounts) == local
    assert is_local(Path("/var/lib"), lambda _path: mounts)


def test_weights_that_other_hosts_may_refer_to_stay(story: Story) -> None:
    host = story.host
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {host.models} rw - nfs4 server:/x rw\n"
    proc = ProcFs(lambda _path: mounts, lambda _path: [], os.readlink)
    found = survey(Places(host.root, host.engines, (host.models,)), proc, kinds=KINDS, keep=1, min_age=0)
    assert {finding.path for finding in found.unused} == {path for path in story.unused if host.models not in path.parents}
    assert "other hosts" in next(finding.why for finding in found.kept if finding.path == host.models)
