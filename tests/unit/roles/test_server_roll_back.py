# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The entry points roll_back and roll_back_preflight on this machine, by real plays; systemctl is a stand-in."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release import Release
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release_store import Links, ReleaseStore
from support.plays import play

DEPLOYMENT = "unit-test-of-roll-backs"
STATE = ("LoadState=loaded", "ActiveState=active", "SubState=running", "MainPID=1", "NeedDaemonReload=no", "UnitFileState=enabled")
SYSTEMCTL = """#!/bin/sh
[ "$1" = --no-block ] && shift
echo "$1" >> "$FAKE_SYSTEMD/asked"
case $1 in
  show) cat "$FAKE_SYSTEMD/unit" ;;
  is-enabled) echo enabled ;;
esac
"""


MODULES = ("vllm_health", "vllm_release_proven", "vllm_roll_back")


class Host:
    """This machine with two releases, the second of them current."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ReleaseStore(folder / "etc", DEPLOYMENT)
        (folder / "unit").write_text("\n".join(STATE) + "\n")
        for program, text in (("systemctl", SYSTEMCTL), ("journalctl", "#!/bin/sh\n"), ("engine/bin/vllm", "#!/bin/sh\n")):
            (folder / program).parent.mkdir(parents=True, exist_ok=True)
            (folder / program).write_text(text)
            (folder / program).chmod(0o755)
        (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"here": {"ansible_become": False}}}}))
        (folder / "model").mkdir()
        self.first, self.second = self.release(256), self.release(1024)

    def release(self, seqs: int) -> str:
        paths = str(self.folder / "model"), str(self.folder / "engine")
        release = Release(DEPLOYMENT, *paths, {"host": "127.0.0.1", "port": 1, "max-num-seqs": seqs}, {}, [], {}, {})
        self.store.write(release, "")
        self.store.switch(release.id)
        return release.id

    def play(self, *entry_points: str, **variables: t.Any) -> tuple[int, str]:
        root = {f"gpufleet.vllm.{module}": {"root": str(self.store.folder.parent)} for module in MODULES}
        roles = [{"ansible.builtin.import_role": {"name": "gpufleet.vllm.server", "tasks_from": name}} for name in entry_points]
        model = {"deployment": DEPLOYMENT, "served_model_name": "tiny", "arguments": {}}
        given = {"vllm_model": model, "server_health_level": "alive", **variables}
        return play(self.folder, [{"name": "Roll back", "module_defaults": root, "block": roles}], variables=given)

    def asked(self) -> list[str]:
        asked = self.folder / "asked"
        return asked.read_text().split() if asked.exists() else []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    monkeypatch.setenv("ANSIBLE_ASYNC_DIR", str(tmp_path / "async"))
    return Host(tmp_path)


def test_the_release_before_is_served_and_a_second_play_stays_there(host: Host) -> None:
    for _again in range(2):
        status, output = host.play("roll_back_preflight", "roll_back")
        assert status == 0, output
        assert host.store.links() == Links(host.first, host.second, host.second)
    assert "restart" in host.asked()


def test_a_release_that_is_named_is_served(host: Host) -> None:
    host.release(2048)
    status, output = host.play("roll_back", server_roll_back_to=host.first)
    assert status == 0, output
    assert host.store.linked("current") == host.first


def test_the_preflight_refuses_before_anything_is_touched(host: Host) -> None:
    (host.folder / "engine" / "bin" / "vllm").unlink()
    status, output = host.play("roll_back_preflight", "roll_back")
    assert status != 0 and "there is no program" in output
    assert host.store.links() == Links(host.second, host.first, None) and not {"restart", "start"} & set(host.asked())
