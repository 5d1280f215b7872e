# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders as the real Hub client, sha256sum and our own downloads leave them, and what is copied out of them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.download_job import Order
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.folder_source import FolderCopier, FolderSource
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import FileSpec
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.proof import prove_all
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.receipt import Entry, Receipt, write_receipt
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.throttle import Throttle
from support.download_bench import REPOSITORY, fake_hub, flip, make_repository, shard_name
from support.running import environment

OTHER = "0" * 40
SHARDS = [shard_name(number) for number in range(5)]
FILES = sorted([*SHARDS, "config.json", "model.safetensors.index.json", "sub/notes.txt"])
CACHED = "models--acme--tiny"


class Published(t.NamedTuple):
    """What the Hub client made of one repository: a cache and a plain folder."""

    repository: Path
    commit: str
    cache: Path
    folder: Path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Published]:
    """Downloaded once by the real client."""
    root = tmp_path_factory.mktemp("published")
    repository = make_repository(root / "hub")
    (repository / "sub").mkdir()
    (repository / "sub" / "notes.txt").write_text("notes")
    (repository / ".gitattributes").write_text("*.safetensors filter=lfs")
    hub = fake_hub.FakeHub(root / "hub", 0, "127.0.0.1")
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    code = "import sys, huggingface_hub as h; h.snapshot_download('acme/tiny', **{sys.argv[1]: sys.argv[2]})"
    env = environment(HF_ENDPOINT=f"http://127.0.0.1:{hub.port}", HF_HOME=str(root / "home"), HF_HUB_DISABLE_XET="1")
    for option, name in (("cache_dir", "cache"), ("local_dir", "folder")):
        done = subprocess.run(
            [sys.executable, "-c", code, option, str(root / name)], env=env, check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    yield Published(repository, str(hub.repository(REPOSITORY).commit), root / "cache", root / "folder")
    hub.shutdown()
    hub.server_close()


@pytest.fixture
def published(original: Published, tmp_path: Path) -> Published:
    """A copy that a test may spoil."""
    for folder in (original.cache, original.folder):
        shutil.copytree(folder, tmp_path / folder.name, symlinks=True)
    return original._replace(cache=tmp_path / "cache", folder=tmp_path / "folder")


def source_of(folder: Path) -> FolderSource:
    return FolderSource(folder, REPOSITORY)


def refusal(code: str, call: t.Callable[..., t.Any], *arguments: t.Any) -> str:
    with pytest.raises(VllmError) as raised:
        call(*arguments)
    assert raised.value.code == code, raised.value
    return str(raised.value)


def plain_copy(published: Published, target: Path) -> Path:
    """The files alone, as rsync brings them."""
    shutil.copytree(published.repository, target, ignore=shutil.ignore_patterns(".*"))
    return target


def sums_of(folder: Path, *options: str) -> str:
    paths = [f"./{path.relative_to(folder)}" for path in sorted(folder.rglob("*")) if path.is_file()]
    return subprocess.run(["sha256sum", *options, *paths], cwd=folder, check=True, capture_output=True, text=True).stdout


def is_proven(folder: Path, specs: t.Mapping[str, FileSpec]) -> dict[str, str]:
    """What a proof by hash finds wrong."""
    return {name: str(damage) for name, damage in prove_all(folder, list(specs.values()), content=True).bad.items()}


# -- the Hub client's cache ----------------------------------------------------------------------------------------------------


def test_the_cache_one_repository_of_it_and_one_snapshot_are_the_same_source(published: Published) -> None:
    home = published.cache / CACHED
    for folder in (published.cache, home, home / "snapshots" / published.commit):
        source = source_of(folder)
        assert source.resolve("main").commit == source.resolve(published.commit).commit == published.commit
        specs = source.files(published.commit)
        assert list(specs) == FILES
        assert all(spec.sha256 for name, spec in specs.items() if name in SHARDS)
        assert all(spec.git_sha1 for name, spec in specs.items() if name not in SHARDS)
        assert is_proven(source.path(published.commit, "."), specs) == {}


def test_a_blob_that_differs_from_its_own_name_is_convicted_without_a_network(published: Published) -> None:
    link = published.cache / CACHED / "snapshots" / published.commit / SHARDS[2]
    digest = link.resolve().name
    flip(link.resolve(), 50_000)
    source = source_of(published.cache)
    found = is_proven(source.path(published.commit, "."), source.files(published.commit))
    actual = hashlib.sha256(link.read_bytes()).hexdigest()
    assert found == {SHARDS[2]: f"has other content than published (sha256 {actual} instead of {digest})"}


def test_a_blob_that_is_itself_a_link_into_a_store_of_blobs_keeps_its_name_as_its_digest(published: Published) -> None:
    blobs = published.cache / CACHED / "blobs"
    blob = (published.cache / CACHED / "snapshots" / published.commit / SHARDS[0]).resolve()
    store = published.cache / "blobs" / "ab" / ("ab" * 32)
    store.parent.mkdir(parents=True)
    blob.replace(store)
    (blobs / blob.name).symlink_to(os.path.relpath(store, blobs))
    assert source_of(published.cache).files(published.commit)[SHARDS[0]].sha256 == blob.name


def test_a_branch_counts_only_as_refs_name_it(published: Published) -> None:
    refs = published.cache / CACHED / "refs"
    (refs / "pr").mkdir()
    (refs / "pr" / "1").write_text(published.commit)
    (refs / "gone").write_text(OTHER)
    source = source_of(published.cache)
    assert source.resolve("pr/1").commit == published.commit
    for revision in ("gone", "v2", OTHER):
        said = refusal("revision_not_found", source.resolve, revision)
        assert f"at {published.commit} (main, pr/1), not at {revision}. Set revision to {published.commit}" in said


def test_a_snapshot_of_another_repository_is_refused(published: Published) -> None:
    for folder in (published.cache, published.cache / CACHED, published.cache / CACHED / "snapshots" / published.commit):
        said = refusal("other_repository", FolderSource(folder, "acme/huge").resolve, "main")
        assert "holds acme/tiny, not acme/huge" in said


def test_a_cache_whose_snapshots_were_left_behind_says_so(published: Published) -> None:
    shutil.rmtree(published.cache / CACHED / "snapshots")
    assert "without any snapshot" in refusal("source_missing", source_of(published.cache).resolve, "main")


def test_links_whose_blobs_stayed_behind_are_told_as_such_before_a_commit_is_asked_for(published: Published, tmp_path: Path) -> None:
    snapshot = published.cache / CACHED / "snapshots" / published.commit
    target = (snapshot / "config.json").readlink()
    alone = shutil.copytree(snapshot, tmp_path / "models" / "tiny", symlinks=True)
    shutil.rmtree(published.cache / CACHED / "blobs")
    in_place = source_of(published.cache)
    for look in (source_of(alone).resolve, in_place.files):
        said = refusal("source_dangling", look, published.commit)
        assert "holds 8 links to files that are not here: config.json, model-00000-of-00006.safetensors" in said
        assert f"config.json points to {target}" in said
        assert "copy it again with links followed" in said


# -- a folder the Hub client filled --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["present", "older"])
def test_the_records_of_a_download_into_a_folder_give_commit_and_hashes(published: Published, client: str) -> None:
    if client == "older":
        # 1.x writes the same three lines for each file and keeps no list.
        shutil.rmtree(published.folder / ".cache" / "huggingface" / "trees")
    source = source_of(published.folder)
    assert source.resolve("main").commit == source.resolve("v1").commit == published.commit
    specs = source.files(published.commit)
    assert list(specs) == FILES
    assert all(spec.sha256 or spec.git_sha1 for spec in specs.values())
    assert is_proven(published.folder, specs) == {}
    assert f"holds acme/tiny at {published.commit}, not at {OTHER}" in refusal("revision_not_found", source.resolve, OTHER)


def test_what_the_client_never_fetched_is_no_part_of_the_model(published: Published) -> None:
    (published.folder / "my-own.txt").write_text("mine")
    assert list(source_of(published.folder).files(published.commit)) == FILES


def test_an_indexed_shard_without_a_record_has_no_known_hash(published: Published) -> None:
    records = published.folder / ".cache" / "huggingface"
    shutil.rmtree(records / "trees")
    (records / "download" / f"{SHARDS[1]}.metadata").unlink()
    size = (published.folder / SHARDS[1]).stat().st_size
    assert source_of(published.folder).files(published.commit)[SHARDS[1]] == FileSpec(SHARDS[1], size)


def test_the_size_that_the_hub_listed_counts_where_a_file_was_cut(published: Published) -> None:
    size = (published.folder / SHARDS[1]).stat().st_size
    os.truncate(published.folder / SHARDS[1], size - 1)
    specs = source_of(published.folder).files(published.commit)
    assert specs[SHARDS[1]].size == size
    assert is_proven(published.folder, specs) == {SHARDS[1]: f"has {size - 1} bytes instead of {size}"}


def test_files_of_two_commits_are_refused_with_both_until_one_is_gone(published: Published) -> None:
    (published.folder / "dropped.json").write_text("{}")
    record = published.folder / ".cache" / "huggingface" / "download" / "dropped.json.metadata"
    record.write_text(f"{OTHER}\n{'1' * 40}\n1795989318.8\n")
    said = refusal("source_inconsistent", source_of(published.folder).resolve, "main")
    assert f"holds files of 2 commits: {OTHER} (dropped.json), {published.commit} (.gitattributes, config.json and 7 more)" in said
    (published.folder / "dropped.json").unlink()
    assert source_of(published.folder).resolve("main").commit == published.commit


# -- a receipt -----------------------------------------------------------------------------------------------------------------


def stored(published: Published, folder: Path, **changes: t.Any) -> Path:
    """A snapshot as our own download leaves it."""
    plain_copy(published, folder)
    manifest = {**source_of(published.folder).files(published.commit), "original/copy.bin": FileSpec("original/copy.bin", 9, "9" * 64)}
    known = {name: Entry(0, 0, 0, 0, 0, "") for name in FILES}
    receipt = Receipt(REPOSITORY, published.commit, "stable", "sha256", (), (), manifest, tuple(SHARDS), known)
    write_receipt(folder, receipt._replace(**changes))
    return folder


def test_a_store_of_another_host_is_a_source_by_its_receipts(published: Published, tmp_path: Path) -> None:
    folder = stored(published, tmp_path / "store" / "acme--tiny" / published.commit)
    stored(published, tmp_path / "store" / "acme--tiny" / OTHER, commit=OTHER, revision="main")
    stored(published, tmp_path / "store" / "acme--tiny" / f".{OTHER}.incomplete", revision="main")
    for place in (tmp_path / "store", folder.parent):
        source = source_of(place)
        assert (source.resolve("stable").commit, source.resolve("main").commit) == (published.commit, OTHER)
        assert list(source.files(published.commit)) == FILES
        assert source.path(published.commit, "config.json") == folder / "config.json"
    assert source_of(folder).resolve("stable").commit == published.commit
    assert f"at {published.commit} (stable), not at main" in refusal("revision_not_found", source_of(folder).resolve, "main")


def test_a_receipt_of_another_repository_is_refused(published: Published, tmp_path: Path) -> None:
    folder = stored(published, tmp_path / "model", repo_id="acme/huge")
    assert "holds acme/huge, not acme/tiny" in refusal("other_repository", source_of(folder).resolve, "main")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/../../outside"])
def test_names_in_a_receipt_that_leave_the_folder_are_refused(published: Published, tmp_path: Path, name: str) -> None:
    files = {name: Entry(0, 0, 0, 0, 0, "")}
    folder = stored(published, tmp_path / "model", manifest={name: FileSpec(name, 1, "1" * 64)}, files=files)
    assert f"names a file outside itself ({name})" in refusal("source_inconsistent", source_of(folder).files, published.commit)


def test_a_receipt_that_is_no_receipt_says_nothing(published: Published, tmp_path: Path) -> None:
    folder = plain_copy(published, tmp_path / "model")
    (folder / ".gpufleet-receipt.json").write_text("{}")
    assert "neither commit nor hashes" in refusal("revision_not_found", source_of(folder).resolve, "main")


# -- SHA256SUMS, and nothing at all --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--binary"], ["--tag"]])
def test_sums_give_hashes_and_the_commit_has_to_be_given(published: Published, tmp_path: Path, options: list[str]) -> None:
    folder = plain_copy(published, tmp_path / "model")
    (folder / "SHA256SUMS").write_text("# taken on the build host\n" + sums_of(folder, *options))
    source = source_of(folder)
    said = refusal("revision_not_found", source.resolve, "main")
    assert "holds a file SHA256SUMS, so it cannot tell which commit main is. Set revision to the full 40-digit commit" in said
    assert source.resolve(OTHER).commit == OTHER
    specs = source.files(OTHER)
    assert list(specs) == FILES
    assert all(spec.sha256 for spec in specs.values())
    assert is_proven(folder, specs) == {}


def test_sums_that_name_themselves_hidden_files_and_odd_names_are_understood(tmp_path: Path) -> None:
    (tmp_path / "new\nline.json").write_text("{}")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    (tmp_path / "unnamed.json").write_text("{}")
    sums = subprocess.run(["sha256sum", "new\nline.json", ".git/HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    (tmp_path / "SHA256SUMS").write_text(f"{sums}{'e' * 64}  SHA256SUMS\r\n")
    specs = source_of(tmp_path).files(OTHER)
    assert [(name, bool(spec.sha256)) for name, spec in specs.items()] == [("new\nline.json", True), ("unnamed.json", False)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{'1' * 64}  ../outside", "names a file outside itself (../outside)"),
        (f"{'1' * 64}  /etc/shadow", "names a file outside itself (/etc/shadow)"),
        ("<html>", "line 1 is no line of sha256sum"),
        (f"{'1' * 64}  config.json\n{'2' * 64} *./config.json", "it names config.json twice, with different hashes"),
    ],
)
def test_sums_that_cannot_be_right_are_refused(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "SHA256SUMS").write_text(f"{line}\n")
    assert said in refusal("source_inconsistent", source_of(tmp_path).files, OTHER)


def test_plain_files_have_sizes_and_no_hashes(published: Published, tmp_path: Path) -> None:
    folder = plain_copy(published, tmp_path / "model")
    (folder / f"{SHARDS[0]}.aria2.incomplete").write_text("x")
    specs = source_of(folder).files(OTHER)
    assert specs == {name: FileSpec(name, (folder / name).stat().st_size) for name in FILES}


def test_missing_shards_are_named_with_the_remedy(published: Published, tmp_path: Path) -> None:
    folder = plain_copy(published, tmp_path / "model")
    (folder / SHARDS[1]).unlink()
    (folder / SHARDS[4]).unlink()
    said = refusal("source_incomplete", source_of(folder).files, OTHER)
    assert f"lacks 2 of the files that belong to the model: {SHARDS[1]}, {SHARDS[4]}. Bring these files there" in said


def test_folders_that_are_absent_empty_or_no_folder_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, why in {"absent": "does not exist", "empty": "holds no file", "file": "is not a folder"}.items():
        assert why in refusal("source_missing", source_of(tmp_path / name).resolve, "main")


def refusal_of_nobody(folder: Path) -> str:
    """What a user who is not root is told; root may read everything."""
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            source_of(folder).files(OTHER)
        except VllmError as exc:
            os.write(question, f"{exc.code}: {exc}".encode())
        finally:
            os._exit(0)
    os.close(question)
    os.waitpid(child, 0)
    with os.fdopen(answer) as told:
        return told.read()


def test_what_may_not_be_read_is_named(published: Published) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = plain_copy(published, Path(place) / "model")
        (folder / SHARDS[1]).chmod(0)
        assert refusal_of_nobody(folder).startswith(f"source_unreadable: {folder / SHARDS[1]} cannot be read (permission denied).")
        (folder / "sub").chmod(0)
        assert refusal_of_nobody(folder).startswith(f"source_unreadable: {folder / 'sub'} cannot be read (Permission denied).")
        folder.chmod(0)
        assert refusal_of_nobody(folder).startswith(f"source_unreadable: {folder}")


def test_links_that_lead_in_circles_are_walked_once(published: Published, tmp_path: Path) -> None:
    folder = plain_copy(published, tmp_path / "model")
    (folder / "again").symlink_to(folder)
    (folder / "sub" / "up").symlink_to("..")
    assert list(source_of(folder).files(OTHER)) == FILES


def test_small_files_are_read_and_probed(published: Published, tmp_path: Path) -> None:
    source = source_of(plain_copy(published, tmp_path / "model"))
    assert source.read(OTHER, "config.json") == b'{"model_type": "tiny"}'
    source.probe(OTHER, "config.json")
    for look in (source.read, source.probe):
        assert "lacks 1 of the files" in refusal("source_incomplete", look, OTHER, "gone.json")


# -- copying -------------------------------------------------------------------------------------------------------------------


class Watch:
    """An order, with a record of what was told on the way."""

    def __init__(self, folder: Path, source: FolderSource, commit: str) -> None:
        self.folder = folder
        self.whole: list[str] = []
        self.looks: list[float] = []
        self.specs = source.files(commit)
        self.order = Order(commit, tuple(self.specs.values()), folder, 0, self.seen, self.landed)
        folder.mkdir()

    def seen(self) -> int:
        self.looks.append(time.monotonic())
        return 0

    def landed(self, path: str) -> None:
        assert (self.folder / path).stat().st_size == self.specs[path].size
        self.whole.append(path)


def copier(source: FolderSource, limit: t.Optional[int] = None) -> FolderCopier:
    return FolderCopier(source, throttle=Throttle(limit, time.monotonic, time.sleep), max_workers=3)


def test_what_is_copied_is_content_and_no_link(published: Published, tmp_path: Path) -> None:
    source = source_of(published.cache)
    watch = Watch(tmp_path / "staging", source, published.commit)
    assert copier(source).fetch(watch.order) == {}
    assert sorted(watch.whole) == FILES
    found = [path for path in watch.folder.rglob("*") if not path.is_dir()]
    assert sorted(path.relative_to(watch.folder).as_posix() for path in found) == FILES
    assert all(not path.is_symlink() and path.stat().st_nlink == 1 for path in found)
    assert is_proven(watch.folder, watch.specs) == {}


def test_a_file_that_vanishes_is_told_and_the_others_arrive(published: Published, tmp_path: Path) -> None:
    source = source_of(plain_copy(published, tmp_path / "model"))
    watch = Watch(tmp_path / "staging", source, OTHER)
    (tmp_path / "model" / SHARDS[3]).unlink()
    failures = copier(source).fetch(watch.order)
    assert {name: failure.kind for name, failure in failures.items()} == {SHARDS[3]: "entry"}
    assert f"model/{SHARDS[3]} is no longer there" in failures[SHARDS[3]].message
    assert sorted(watch.whole) == [name for name in FILES if name != SHARDS[3]]


def test_a_file_that_cannot_be_read_may_be_tried_again(published: Published, tmp_path: Path) -> None:
    source = source_of(plain_copy(published, tmp_path / "model"))
    watch = Watch(tmp_path / "staging", source, OTHER)
    (tmp_path / "model" / SHARDS[3]).unlink()
    (tmp_path / "model" / SHARDS[3]).mkdir()
    failures = copier(source).fetch(watch.order)
    assert {name: failure.kind for name, failure in failures.items()} == {SHARDS[3]: "transfer"}
    assert failures[SHARDS[3]].message == f"{tmp_path / 'model' / SHARDS[3]}: Is a directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
def test_a_full_disk_ends_the_copying(published: Published, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "small", small], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine mounts nothing")
    try:
        source = source_of(published.folder)
        watch = Watch(small / "staging", source, published.commit)
        failures = copier(source).fetch(watch.order)
        assert "disk_full" in {failure.kind for failure in failures.values()}
        assert {failure.kind for failure in failures.values()} <= {"disk_full", "transfer"}
        assert set(failures) == set(FILES) - set(watch.whole)
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_limit_of_the_rate_holds_and_progress_is_told_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for number in range(4):
        (tmp_path / "model" / f"{number}.bin").write_bytes(os.urandom(1_500_000))
    source = source_of(tmp_path / "model")
    watch = Watch(tmp_path / "staging", source, OTHER)
    started = time.monotonic()
    assert copier(source, limit=3_000_000).fetch(watch.order) == {}
    assert 1.0 < time.monotonic() - started < 5.0
    pauses = [later - sooner for sooner, later in zip([started, *watch.looks], watch.looks)]
    assert len(pauses) >= 2
    assert max(pauses) < 1.0
