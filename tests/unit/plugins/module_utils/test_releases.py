# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deployment forgets of an earlier failure, so that it may try again."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils import _releases
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_files import HostFiles
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unit import UnitState

FAILED, PROVEN, NEXT = "1986ff196fc7", "1ebf5d525661", "6952212113e1"


class Module:
    """As much of a module as is asked."""

    def __init__(self, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self.commands: list[t.Sequence[str]] = []

    def run_command(self, argv: t.Sequence[str], **_options: t.Any) -> tuple[int, str, str]:
        self.commands.append(argv)
        return 0, "", ""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFiles:
    """A host that has returned to the proven release, which serves; what it returned from is recorded."""
    files = HostFiles("m", tmp_path)
    for path, content in (
        (files.last_failure, {"release": FAILED, "blocks": True, "message": "out of memory", "remedy": ""}),
        (files.running, {"release": PROVEN, "written": None, "unit_sha256": None}),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    monkeypatch.setattr(_releases, "HostFiles", lambda _deployment: files)
    monkeypatch.setattr(_releases, "show_unit", lambda _run, name: UnitState(name, load_state="loaded", active_state="active"))
    return files


def facts(module: Module, release: str, **options: t.Any) -> dict[str, t.Any]:
    return _releases.unit_facts(t.cast("t.Any", module), "m", release, **options)


@pytest.mark.parametrize("release", [FAILED, NEXT])
def test_a_release_that_is_deployed_again_is_not_blocked_by_its_failure_though_another_serves(files: HostFiles, release: str) -> None:
    module = Module()
    assert facts(module, release)["reset"]
    assert files.block(FAILED) is None
    assert module.commands == [["systemctl", "reset-failed", "vllm-m.service"]]


def test_a_check_says_so_and_forgets_nothing(files: HostFiles) -> None:
    module = Module(check_mode=True)
    assert facts(module, FAILED)["reset"]
    assert files.block(FAILED) and not module.commands


def test_what_serves_and_is_deployed_again_leaves_the_record_of_the_failure(files: HostFiles) -> None:
    assert not facts(Module(), PROVEN)["reset"]
    assert files.block(FAILED)


def test_a_return_keeps_the_record_of_what_it_returns_from(files: HostFiles) -> None:
    files.running.write_text(json.dumps({"release": FAILED, "written": None, "unit_sha256": None}))
    assert not facts(Module(), PROVEN, forget_others=False)["reset"]
    assert files.block(FAILED)
