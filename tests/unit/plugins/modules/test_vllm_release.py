# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_release, really run; systemctl is a stand-in that prints a file and notes what it was asked."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from support.running import Answer, environment, run_module

DEPLOYMENT = "unit-test-of-releases"
KEYS = ["MARKER-key-one", "MARKER-key-two"]
SYSTEMCTL = '#!/bin/sh\necho "$1" >> "$FAKE_SYSTEMD/asked"\nexec cat "$FAKE_SYSTEMD/unit"\n'


class Host:
    """A folder for releases and a unit in a state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deployment = folder / "etc" / DEPLOYMENT
        (folder / "systemctl").write_text(SYSTEMCTL)
        (folder / "systemctl").chmod(0o755)
        self.unit("inactive")

    def unit(self, active: str, **more: str) -> None:
        state = {"LoadState": "loaded", "ActiveState": active, "NeedDaemonReload": "no", **more}
        (self.folder / "unit").write_text("".join(f"{name}={value}\n" for name, value in state.items()))

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().split()

    def release(self, *, check: bool = False, **options: t.Any) -> Answer:
        arguments = {
            "deployment": DEPLOYMENT,
            "root": str(self.folder / "etc"),
            "model_path": "/models/m/c1",
            "engine_path": "/engines/vllm-0.33.0",
            "arguments": {"max-num-seqs": 256},
            "api_keys": KEYS,
            "_ansible_check_mode": check,
            "_ansible_diff": True,
        }
        env = environment(PATH=f"{self.folder}:{os.environ['PATH']}", FAKE_SYSTEMD=str(self.folder))
        answer = run_module("vllm_release", self.folder, env, **{**arguments, **options})
        assert "MARKER" not in json.dumps(answer)
        return answer

    def current(self) -> str:
        return (self.deployment / "current").readlink().name


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_checked_and_done_twice_it_changes_once(host: Host) -> None:
    foretold = host.release(check=True)
    assert foretold["changed"] and not host.deployment.exists()
    done = host.release()
    again = [host.release(check=True), host.release()]
    assert done["changed"] and [answer["changed"] for answer in again] == [False, False]
    assert foretold["release"] == done["release"] == again[1]["release"] == host.current()
    assert "diff" not in again[1]


def test_the_keys_reach_the_engines_file_and_nothing_that_is_shown(host: Host) -> None:
    answer = host.release()
    written = (Path(answer["path"]) / "engine.yaml").read_text()
    assert all(key in written for key in KEYS)
    assert answer["diff"][0]["before"] == "" and answer["diff"][0]["after"] == "max-num-seqs: 256\n"
    assert "MARKER" not in (Path(answer["path"]) / "release.json").read_text()


def test_other_keys_are_another_release_whose_diff_shows_none_of_them(host: Host) -> None:
    first = host.release()
    second = host.release(api_keys=[KEYS[0]])
    assert second["changed"] and second["release"] != first["release"]
    assert second["diff"][0]["before"] == second["diff"][0]["after"]


def test_a_change_leaves_the_old_release_as_previous(host: Host) -> None:
    first = host.release()
    second = host.release(arguments={"max-num-seqs": 128})
    assert (host.current(), second["previous"]) == (second["release"], first["release"])
    assert (host.deployment / "previous").readlink().name == first["release"]
    assert (second["diff"][0]["before"], second["diff"][0]["after"]) == ("max-num-seqs: 256\n", "max-num-seqs: 128\n")


def test_an_edited_release_is_shown_moved_aside_and_written_again(host: Host) -> None:
    written = Path(host.release()["path"]) / "engine.yaml"
    written.write_text(written.read_text().replace("256", "512"))
    foretold = host.release(check=True)
    assert (foretold["changed"], foretold["drift"]) == (True, [str(written)]) and "backup" not in foretold
    mended = host.release()
    assert mended["diff"][0]["before_header"] == f"{written} (edited)"
    assert (mended["diff"][0]["before"], mended["diff"][0]["after"]) == ("max-num-seqs: 512\n", "max-num-seqs: 256\n")
    assert "512" in (Path(mended["backup"]) / "engine.yaml").read_text() and "256" in written.read_text()
    assert not host.release()["changed"]


def test_keys_that_were_made_readable_are_hidden_again_without_a_new_writing(host: Host) -> None:
    written = Path(host.release()["path"]) / "engine.yaml"
    inode = written.stat().st_ino
    written.chmod(0o644)
    foretold = host.release(check=True)
    assert (foretold["changed"], foretold["opened"]) == (True, [str(written)]) and written.stat().st_mode & 0o777 == 0o644
    done = host.release()
    assert (done["changed"], done["drift"], done["opened"]) == (True, [], [str(written)])
    assert (done["diff"][0]["before"], done["diff"][0]["after"]) == ("mode 0644\n", "mode 0600\n")
    assert (written.stat().st_mode & 0o777, written.stat().st_ino) == (0o600, inode)
    assert not host.release()["changed"]


def test_a_running_unit_that_nobody_here_started_must_be_restarted(host: Host) -> None:
    host.unit("active", NeedDaemonReload="yes")
    answer = host.release()
    assert (answer["restart_required"], answer["reload_required"], answer["unit_loaded"]) == (True, True, True)
    assert "did not start" in answer["restart_reason"]
    host.unit("inactive", LoadState="not-found")
    answer = host.release()
    assert (answer["restart_required"], answer["reload_required"], answer["unit_loaded"]) == (False, False, False)


def test_a_failed_unit_may_be_started_again_after_a_deployment_but_not_after_a_check(host: Host) -> None:
    host.unit("failed")
    assert host.release(check=True)["reset"] and "reset-failed" not in host.asked()
    assert host.release()["reset"] and "reset-failed" in host.asked()


def test_a_deployment_s_own_restart_is_not_counted_among_failed_starts(host: Host) -> None:
    host.unit("active")
    assert not host.release()["reset"] and "reset-failed" in host.asked()


@pytest.mark.parametrize(
    ("state", "still_there"),
    [
        ({"active": "active", "UnitFileState": "disabled"}, True),
        ({"active": "inactive", "UnitFileState": "enabled"}, True),
        ({"active": "failed", "UnitFileState": "enabled-runtime"}, True),
        ({"active": "inactive", "UnitFileState": "disabled"}, False),
        ({"active": "inactive", "LoadState": "not-found", "UnitFileState": ""}, False),
    ],
)
def test_a_replaced_unit_has_yet_to_make_room_while_it_runs_or_is_enabled(host: Host, state: dict[str, str], still_there: bool) -> None:
    host.unit(**state)
    assert host.release(replaces=["vllm-old.service"])["replaced"] == ["vllm-old.service"] * still_there


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"deployment": "Not A Name"}, "bad_deployment"),
        ({"arguments": {"max num seqs": 1}}, "bad_argument"),
        ({"arguments": {"max-num-seqs": "--port"}}, "bad_argument"),
        ({"environment": {"A-B": "x"}}, "bad_environment"),
        ({"environment": {"A": "x\0y"}}, "bad_environment"),
        ({"model_path": "models"}, "bad_path"),
        ({"engine_path": "/engines/a:b"}, "bad_path"),
    ],
)
def test_what_cannot_be_a_release_is_refused_and_leaves_nothing(host: Host, options: Answer, code: str) -> None:
    answer = host.release(**options)
    assert answer["failed"] and answer["code"] == code
    assert not (host.folder / "etc").exists()


def test_what_is_different_from_the_current_release_is_named_without_values(host: Host) -> None:
    first = host.release(check=True)
    assert (first["differences"], first["converged"], first["proven"]) == (["first release"], False, None)
    host.release()
    same = host.release(check=True)
    assert (same["differences"], same["converged"]) == ([], True)
    arguments = {"max-num-seqs": 512, "enable-prefix-caching": False}
    other = host.release(check=True, arguments=arguments, api_keys=["MARKER-new"], environment={"A": "b"}, engine_path="/engines/other")
    assert other["differences"] == ["keys", "enable-prefix-caching", "max-num-seqs", "environment", "engine"]
    assert not other["converged"]


def test_a_unit_file_that_is_to_be_another_one_is_a_difference_and_a_reason_to_restart(host: Host) -> None:
    host.release()
    told = host.release(check=True, unit_text="[Service]\nExecStart=/bin/true\n")
    assert (told["differences"], told["changed"], told["converged"]) == (["unit"], False, False)
