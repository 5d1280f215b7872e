# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hashing import digest_bytes, digest_file, is_cached
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import FileSpec
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.proof import Meter, Prover, is_published, prove_all
from support.running import Answer

MIB = 1024 * 1024


def cached(path: Path) -> bool:
    with path.open("rb") as file:
        return is_cached(file.fileno(), path.stat().st_size)


def forget(path: Path) -> None:
    """Put the file out of the page cache, where the file system has one of that kind."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path):
        pytest.skip("this file system keeps everything in memory")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(MIB) * 40)
    return path


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1])
def test_the_hashes_are_those_of_sha256sum_and_git(tmp_path: Path, size: int) -> None:
    raw = os.urandom(size)
    (tmp_path / "x").write_bytes(raw)
    digests = digest_file(tmp_path / "x", git=True)
    assert digests.sha256 == hashlib.sha256(raw).hexdigest()
    assert digests.git_sha1 == hashlib.sha1(b"blob %d\0" % size + raw).hexdigest()
    assert digest_bytes(raw, git=True) == digests


def test_hashing_a_cold_file_leaves_the_page_cache_as_it_was(large: Path) -> None:
    forget(large)
    digest_file(large, git=False)
    assert not cached(large)


def test_hashing_does_not_throw_out_what_was_cached_before(large: Path) -> None:
    forget(large)
    large.read_bytes()
    digest_file(large, git=False)
    assert cached(large)


def test_a_file_that_is_needed_next_stays_cached(large: Path) -> None:
    forget(large)
    digest_file(large, git=False, keep_cache=True)
    assert cached(large)


def test_every_byte_is_reported_once(tmp_path: Path) -> None:
    records: list[Answer] = []
    specs = [FileSpec(f"file-{number}", 3 * MIB + number, sha256="0" * 64) for number in range(4)]
    for spec in specs:
        (tmp_path / spec.path).write_bytes(b"x" * (spec.size or 0))
    prove_all(tmp_path, specs, content=True, meter=Meter(lambda record: records.append(dict(record)), "proving", specs))
    assert records[-1] == {"what": "proving", "done": 12 * MIB + 6, "total": 12 * MIB + 6, "unit": "B", "files": 4, "files_total": 4}
    assert [record["done"] for record in records] == sorted(record["done"] for record in records)


def test_files_may_be_added_while_others_are_being_proven(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"x")
    with Prover(tmp_path, content=True) as prover:
        prover.add(FileSpec("here", 1))
        prover.add(FileSpec("absent", 1))
        proof = prover.result()
    assert (list(proof.good), proof.bad["absent"].kind) == (["here"], "missing")


def test_a_file_that_may_not_be_read_is_damage_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    proof = prove_all(tmp_path, [FileSpec("folder", None, sha256="0" * 64)], content=True)
    assert "cannot be read" in str(proof.bad["folder"])


def test_content_is_compared_with_whatever_hash_is_published() -> None:
    raw = b"content"
    digests = digest_bytes(raw, git=True)
    assert is_published(raw, FileSpec("x", 7, sha256=digests.sha256))
    assert is_published(raw, FileSpec("x", 7, git_sha1=digests.git_sha1))
    assert is_published(raw, FileSpec("x", None))
    assert not is_published(raw, FileSpec("x", 7, sha256="0" * 64))
    assert not is_published(raw, FileSpec("x", 8))
