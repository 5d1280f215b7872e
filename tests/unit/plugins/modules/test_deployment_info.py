# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""deployment_info, really run; systemctl is a stand-in that prints the file of the unit it is asked about."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release import Release
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release_store import ReleaseStore
from support.running import Answer, environment, run_module

SYSTEMCTL = '#!/bin/sh\nfor unit in "$@"; do :; done\nexec cat "$FAKE_SYSTEMD/$unit"\n'


class Host:
    """A folder of deployments and the states of their units."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "systemctl").write_text(SYSTEMCTL)
        (folder / "systemctl").chmod(0o755)

    def deploy(self, name: str, active: str, enabled: str, **arguments: t.Any) -> Release:
        release = Release(name, "/models/m/c1", "/engines/vllm-0.33.0", arguments, {}, ["GPU-1", "GPU-2"], {}, {})
        store = ReleaseStore(self.folder / "etc", name)
        store.write(release, "x")
        store.switch(release.id)
        state = {"LoadState": "loaded", "ActiveState": active, "UnitFileState": enabled}
        (self.folder / f"vllm-{name}.service").write_text("".join(f"{key}={value}\n" for key, value in state.items()))
        return release

    def read(self) -> Answer:
        env = environment(PATH=f"{self.folder}:{os.environ['PATH']}", FAKE_SYSTEMD=str(self.folder))
        return run_module("deployment_info", self.folder, env, root=str(self.folder / "etc"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_host_on_which_nothing_was_deployed_has_none(host: Host) -> None:
    assert (host.read()["deployments"], host.read()["changed"]) == ([], False)


def test_each_deployment_is_told_by_its_release_and_its_unit_without_its_keys(host: Host) -> None:
    options = {"host": "::1", "port": 8001, "served-model-name": ["M", "m"], "api-key": ["MARKER"]}
    release = host.deploy("minimax-m25", "active", "enabled", **options)
    answer = host.read()
    assert answer["deployments"] == [
        {
            "deployment": "minimax-m25",
            "unit": "vllm-minimax-m25.service",
            "release": release.id,
            "model_path": "/models/m/c1",
            "engine_path": "/engines/vllm-0.33.0",
            "gpus": ["GPU-1", "GPU-2"],
            "url": "http://[::1]:8001",
            "served_model_names": ["M", "m"],
            "active_state": "active",
            "enabled": True,
            "keeps_gpus": True,
        }
    ]
    assert "MARKER" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("active", "enabled", "keeps"),
    [
        ("inactive", "enabled", True),
        ("activating", "disabled", True),
        ("failed", "enabled-runtime", True),
        ("failed", "disabled", False),
        ("inactive", "", False),
    ],
)
def test_one_that_runs_or_would_after_a_boot_keeps_its_gpus(host: Host, active: str, enabled: str, keeps: bool) -> None:
    host.deploy("kimi-k2", active, enabled)
    assert [one["keeps_gpus"] for one in host.read()["deployments"]] == [keeps]


def test_what_has_no_release_is_no_deployment(host: Host) -> None:
    host.deploy("kimi-k2", "inactive", "disabled")
    (host.folder / "etc" / "glm-5").mkdir()
    (host.folder / "etc" / "glm-5" / "current").symlink_to("releases/gone")
    assert [one["deployment"] for one in host.read()["deployments"]] == ["kimi-k2"]
