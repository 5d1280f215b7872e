# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_release_proven, really run on links as vllm_release makes them."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release_store import ReleaseStore
from support.running import Answer, environment, run_module

FIRST, SECOND = "0a9b8c7d6e5f", "5d1f8a0b6c3e"
Prove = t.Callable[..., Answer]


@pytest.fixture
def store(tmp_path: Path) -> ReleaseStore:
    made = ReleaseStore(tmp_path / "etc", "acme")
    for release in (FIRST, SECOND):
        made.path(release).mkdir(parents=True)
        made.switch(release)
    return made


@pytest.fixture
def prove(store: ReleaseStore, tmp_path: Path) -> Prove:
    def run(release: str, *, check: bool = False, deployment: str = "acme") -> Answer:
        root = str(store.folder.parent)
        options = {"deployment": deployment, "release": release, "root": root, "_ansible_check_mode": check}
        return run_module("vllm_release_proven", tmp_path, environment(), **options)

    return run


def test_the_release_that_passed_is_remembered_once_as_check_mode_foretold(prove: Prove, store: ReleaseStore) -> None:
    foretold = prove(SECOND, check=True)
    assert foretold["changed"] and store.linked("proven") is None
    done = prove(SECOND)
    assert (done["changed"], done["before"], store.linked("proven")) == (True, None, SECOND)
    assert foretold["diff"] == done["diff"] and done["diff"]["after"] == f"releases/{SECOND}\n"
    assert not prove(SECOND)["changed"]


def test_a_run_that_only_asks_says_what_would_be_proven_before_anything_was_written(prove: Prove, store: ReleaseStore) -> None:
    assert prove("0123456789ab", check=True)["changed"] and store.linked("proven") is None


def test_a_release_that_is_not_current_any_more_is_refused_and_what_was_proven_stays(prove: Prove, store: ReleaseStore) -> None:
    prove(SECOND)
    store.switch(FIRST)
    refused = prove(SECOND)
    assert (refused["failed"], refused["code"]) == (True, "not_current") and FIRST in refused["msg"]
    store.prove(SECOND)
    assert prove(FIRST)["before"] == SECOND and store.linked("proven") == FIRST


def test_without_any_release_it_says_so_and_makes_nothing(prove: Prove, store: ReleaseStore) -> None:
    refused = prove(FIRST, deployment="other")
    assert refused["code"] == "not_current" and "none is" in refused["msg"]
    assert not (store.folder.parent / "other").exists()
