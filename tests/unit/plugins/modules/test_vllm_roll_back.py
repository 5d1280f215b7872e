# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_roll_back, really run on releases that vllm_release wrote; systemctl is a stand-in."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_files import HostFiles, write_json
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.receipt import Receipt, identify, write_receipt
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release_store import Links, ReleaseStore
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.roll_back import choose_release, refuse_unfit
from support.running import Answer, environment, run_module

DEPLOYMENT = "unit-test-of-roll-backs"
SYSTEMCTL = '#!/bin/sh\necho "$1" >> "$FAKE_SYSTEMD/asked"\nexec cat "$FAKE_SYSTEMD/unit"\n'


class Host:
    """A host with weights, an engine and releases that differ in one argument, each named by it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "etc"
        self.store = ReleaseStore(self.root, DEPLOYMENT)
        self.model, self.engine = folder / "models" / "m" / "c1", folder / "engines" / "vllm-0.33.0"
        self.model.mkdir(parents=True)
        (self.engine / "bin").mkdir(parents=True)
        self.program("systemctl", SYSTEMCTL)
        self.program("engines/vllm-0.33.0/bin/vllm", "#!/bin/sh\n")
        self.unit("active")

    def program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def unit(self, active: str) -> None:
        (self.folder / "unit").write_text(f"LoadState=loaded\nActiveState={active}\nNeedDaemonReload=no\n")

    def run(self, module: str, check: bool = False, **options: t.Any) -> Answer:
        env = environment(PATH=f"{self.folder}:{os.environ['PATH']}", FAKE_SYSTEMD=str(self.folder))
        common: dict[str, t.Any] = {"deployment": DEPLOYMENT, "root": str(self.root), "_ansible_check_mode": check, "_ansible_diff": True}
        answer = run_module(module, self.folder, env, **common, **options)
        assert "MARKER" not in json.dumps(answer)
        return answer

    def deploy(self, max_num_seqs: int) -> str:
        options: dict[str, t.Any] = {"arguments": {"max-num-seqs": max_num_seqs}, "api_keys": ["MARKER-key"]}
        answer = self.run("vllm_release", model_path=str(self.model), engine_path=str(self.engine), **options)
        return t.cast(str, answer["release"])

    def back(self, release: t.Optional[str] = None, *, check: bool = False) -> Answer:
        return self.run("vllm_roll_back", check, **({"release": release} if release else {}))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_it_returns_to_the_release_before_as_check_mode_foretold(host: Host) -> None:
    first, second = host.deploy(256), host.deploy(1024)
    foretold = host.back(check=True)
    assert host.store.links() == Links(second, first, None)
    done = host.back()
    assert host.store.links() == Links(first, second, second)
    told = ("changed", "release", "left", "diff", "restart_required", "restart_reason")
    assert [foretold[name] for name in told] == [done[name] for name in told]
    assert (done["changed"], done["release"], done["left"], done["restart_required"]) == (True, first, second, True)
    switched, _record, arguments = done["diff"]
    assert (switched["before"], switched["after"]) == (f"releases/{second}\n", f"releases/{first}\n")
    assert (arguments["before"], arguments["after"]) == ("max-num-seqs: 1024\n", "max-num-seqs: 256\n")


def test_a_second_run_does_not_go_forth_again(host: Host) -> None:
    first, _second = host.deploy(256), host.deploy(1024)
    assert host.back()["changed"]
    for check in (True, False):
        again = host.back(check=check)
        assert (again["changed"], again["release"]) == (False, first) and "diff" not in again


def test_after_another_deployment_it_returns_to_the_good_one_again(host: Host) -> None:
    first, _second = host.deploy(256), host.deploy(1024)
    host.back()
    host.deploy(2048)
    assert host.back()["release"] == first
    host.deploy(1024)
    assert (host.back()["release"], host.store.links().current) == (first, first)


def test_a_named_one_is_reached_from_anywhere_and_once(host: Host) -> None:
    first, _second, third = host.deploy(256), host.deploy(512), host.deploy(1024)
    assert host.back(first)["changed"] and not host.back(first)["changed"]
    assert host.store.links() == Links(first, third, third)
    assert host.back(third)["release"] == third


def test_without_a_release_before_it_says_so(host: Host) -> None:
    none = host.back()
    assert (none["failed"], none["code"]) == (True, "no_release") and not host.root.exists()
    only = host.deploy(256)
    answer = host.back(check=True)
    assert answer["code"] == "no_previous" and only in answer["msg"]
    unknown = host.back("0123456789ab")
    assert (unknown["code"], unknown["releases"]) == ("no_such_release", [only]) and only in unknown["msg"]


@pytest.mark.parametrize("name", ["engine.yaml", "environment", "release.json", "engine"])
def test_an_edited_release_is_refused(host: Host, name: str) -> None:
    first, second = host.deploy(256), host.deploy(1024)
    edited = host.store.path(first) / name
    if edited.is_symlink():
        edited.unlink()
        edited.symlink_to("/elsewhere")
    else:
        edited.write_text(edited.read_text() + "\n")
        if name == "release.json":
            edited.write_text(edited.read_text().replace("vllm-0.33.0", "vllm-0.34.0"))
    answer = host.back(check=True)
    assert (answer["failed"], answer["code"]) == (True, "release_drifted") and str(edited) in answer["drift"]
    assert host.store.links().current == second


def test_a_release_without_its_weights_or_its_engine_is_refused(host: Host) -> None:
    host.deploy(256)
    host.deploy(1024)
    shard = host.model / "model.safetensors"
    shard.touch()
    write_receipt(host.model, Receipt("acme/tiny", "c1", "main", "sha256", (), (), {}, (), {shard.name: identify(shard)}))
    assert host.back(check=True)["release"]
    shard.unlink()
    answer = host.back()
    assert answer["code"] == "weights_gone" and "model.safetensors is gone" in answer["msg"]
    shard.touch()
    (host.engine / "bin" / "vllm").unlink()
    answer = host.back()
    assert answer["code"] == "engine_gone" and str(host.engine) in answer["msg"]


def test_a_blocked_release_is_refused_with_what_it_failed_of(host: Host) -> None:
    first, second = host.deploy(256), host.deploy(1024)
    files = HostFiles(DEPLOYMENT, host.folder / "root")
    files.last_failure.parent.mkdir(parents=True)
    write_json(
        files.last_failure, {"release": second, "blocks": True, "message": "it ran out of memory.", "remedy": "Set max-num-seqs to 256."}
    )
    refuse_unfit(host.store, files, first)
    with pytest.raises(VllmError, match=f"Release {second} .* is blocked.*out of memory. Set max-num-seqs to 256. Deploy it so") as refused:
        refuse_unfit(host.store, files, second)
    assert refused.value.code == "release_blocked"


def test_a_roll_back_killed_at_any_step_is_completed_and_not_undone(host: Host) -> None:
    first, second = host.deploy(256), host.deploy(1024)
    before = host.store.links()
    after = before.after_return(first)
    killed = [before._replace(rolled_back=second), before._replace(rolled_back=second, current=first), after]
    for links in killed:
        target = choose_release(links, [first, second], DEPLOYMENT, None)
        assert (target, links.after_return(target)) == (first, after)


def test_a_release_that_was_left_and_is_deployed_again_can_be_left_again(host: Host) -> None:
    """Also where the roll-back was killed before it switched."""
    first, second = host.deploy(256), host.deploy(1024)
    (host.store.folder / "rolled-back").symlink_to(Path("releases") / second)
    third = host.deploy(2048)
    assert host.store.links() == Links(third, second, None)
    assert host.back()["release"] == second != first


def test_a_stopped_or_failed_unit_needs_no_restart_and_may_start(host: Host) -> None:
    host.deploy(256)
    host.deploy(1024)
    host.unit("failed")
    answer = host.back()
    assert (answer["restart_required"], answer["reset"]) == (False, True)
    assert "reset-failed" in (host.folder / "asked").read_text().split()
