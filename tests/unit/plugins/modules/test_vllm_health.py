# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_health, really run, against the fake engine over HTTP; systemctl and journalctl are stand-ins that show that process as a unit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.engine_config import engine_yaml
from support.served_unit import UNIT, ServedUnit


def test_it_waits_for_the_load_and_judges_the_answer_past_a_proxy(unit: ServedUnit) -> None:
    health = unit.start(script="load-seconds=4").health(served_model_name="tiny", model_path=str(unit.model))
    assert (health["level"], health["ready"], health["changed"]) == ("answering", True, False)
    assert (health["answer"], health["version"], health["loaded_path"]) == ("42", "0.33.0", str(unit.model))
    assert health["waited_seconds"] > 0.5


def write_release(unit: ServedUnit, model: Path, *keys: str) -> dict[str, t.Any]:
    """The current release of a deployment that the fake engine serves; options of the module."""
    current = unit.folder / "etc" / "tiny" / "current"
    current.mkdir(parents=True)
    options = {"host": "127.0.0.1", "port": unit.port, "served-model-name": ["tiny"], "api-key": list(keys)}
    (current / "engine.yaml").write_text(engine_yaml(options))
    (current / "release.json").write_text(json.dumps({"model_path": str(model)}))
    return {"deployment": "tiny", "root": str(unit.folder / "etc")}


def test_of_a_deployment_the_release_says_where_to_ask_with_which_key_and_for_which_model(unit: ServedUnit) -> None:
    unit.start("--api-key", "MARKER-one").ready()
    of_it = write_release(unit, unit.model, "MARKER-one", "MARKER-two")
    health = unit.health(url=None, **of_it)
    assert (health["level"], health["loaded_path"]) == ("answering", str(unit.model))
    assert "MARKER" not in json.dumps(health)
    assert unit.health(url=None, **of_it, api_key="MARKER-wrong")["code"] == "key_refused"


def test_a_release_that_is_not_what_runs_is_a_failure(unit: ServedUnit) -> None:
    unit.start().ready()
    health = unit.health(url=None, **write_release(unit, unit.folder / "another-model"))
    assert health["failed"] and health["code"] == "wrong_model_path"


def test_a_deployment_without_a_release_and_neither_url_nor_deployment_are_refused(unit: ServedUnit) -> None:
    answer = unit.health(url=None, deployment="tiny", root=str(unit.folder))
    assert (answer["failed"], answer["code"]) == (True, "no_release")
    assert "one of the following is required: url, deployment" in unit.health(url=None)["msg"]


def test_with_a_unit_the_journal_tells_phases_and_progress(unit: ServedUnit) -> None:
    progress = unit.folder / "progress"
    unit.show("activating", "start-pre", 0)

    def start_it_once_the_module_waits() -> None:
        end = time.monotonic() + 20
        while not progress.exists() and time.monotonic() < end:
            time.sleep(0.01)
        unit.start(script="load-seconds=1.2")

    helper = threading.Thread(target=start_it_once_the_module_waits)
    helper.start()
    health = unit.health(unit=True, progress_path=str(progress))
    helper.join()
    assert health["ready"] and health["notes"] == []
    assert {"loading_weights", "starting_engine"} <= {phase["name"] for phase in health["phases"]}
    assert health["phase"] == "serving" and json.loads(progress.read_text())["what"]


def test_a_start_that_fails_is_said_within_a_second_with_cause_and_lines(unit: ServedUnit) -> None:
    unit.start(script="load-seconds=0.5,crash-at-shard=4")
    health = unit.health(unit=True)
    assert unit.process
    assert health["failed"] and (health["code"], health["cause"]) == ("unit_failed", "gpu_error")
    assert health["msg"].startswith(f"{UNIT} failed while loading weights: the GPU reported an error")
    assert any("unspecified launch failure" in line for line in health["evidence"])


def test_an_engine_that_dies_while_it_answers_leaves_its_cause(unit: ServedUnit) -> None:
    unit.start(script="load-seconds=0.2,answer-seconds=3,engine-dies-after=1")
    health = unit.health(unit=True)
    assert (health["code"], health["cause"], health["restarts"]) == ("unit_failed", "engine_died", 0)


def test_a_load_that_hangs_is_told_from_a_slow_one(unit: ServedUnit) -> None:
    health = unit.start(script="load-seconds=0.2,hang-at-shard=4").health(unit=True, stall_timeout=1.5)
    assert (health["code"], health["level"]) == ("stalled", "alive")
    assert "loading weights, 3/8 shards" in health["msg"]


def test_a_port_that_another_process_holds_is_refused(unit: ServedUnit) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", unit.port))
        other.listen()
        unit.show("active", "running", 1)
        health = unit.health(unit=True)
    assert health["code"] == "port_foreign" and f"pid {os.getpid()}" in health["msg"]


def test_the_key_is_needed_checked_and_never_shown(unit: ServedUnit) -> None:
    unit.start("--api-key", "right-MARKER").ready()
    assert unit.health()["code"] == "key_needed"
    refused = unit.health(api_key="wrong-MARKER")
    assert refused["code"] == "key_refused"
    accepted = unit.health(api_key="right-MARKER")
    assert accepted["ready"]
    assert "MARKER" not in json.dumps([refused, accepted])


@pytest.mark.parametrize(
    ("options", "code"), [({"served_model_name": "other"}, "wrong_model_name"), ({"model_path": "/new"}, "wrong_model_path")]
)
def test_another_model_is_refused_at_once(unit: ServedUnit, options: dict[str, t.Any], code: str) -> None:
    health = unit.start().health(**options)
    assert (health["code"], health["level"]) == (code, "healthy")


def test_incoherent_answers_fail_unless_any_text_will_do(unit: ServedUnit) -> None:
    unit.start(script="load-seconds=0.1,answer=gibberish")
    judged = unit.health()
    assert (judged["code"], judged["level"]) == ("wrong_answer", "serving") and "ancé" in judged["msg"]
    assert unit.health(answer_check="any")["ready"]


def test_a_stopped_engine_process_is_found_by_its_silence(unit: ServedUnit) -> None:
    unit.start().ready()
    assert unit.process
    children = Path(f"/proc/{unit.process.pid}/task/{unit.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGSTOP)
    health = unit.health(answer_timeout=1)
    assert health["code"] == "generation_timeout" and "/health answered 200" in health["msg"]


def test_check_mode_looks_once_and_fails_for_nothing(unit: ServedUnit) -> None:
    before = unit.health(check_mode=True)
    assert "failed" not in before and (before["level"], before["ready"]) == ("", False)
    unit.start("--api-key", "k").ready()
    assert unit.health(check_mode=True)["level"] == "healthy"


@pytest.mark.parametrize(
    ("options", "said"), [({"url": "127.0.0.1:8000"}, "no http, https or unix address"), ({"level": "alive"}, "unit is not given")]
)
def test_bad_options_are_refused(unit: ServedUnit, options: dict[str, t.Any], said: str) -> None:
    assert said in unit.health(**options)["msg"]


def test_without_systemd_a_unit_cannot_be_judged(unit: ServedUnit) -> None:
    (unit.folder / "systemctl").write_text("#!/bin/sh\necho 'System has not been booted with systemd' >&2\nexit 1\n")
    assert unit.health(unit=True)["code"] == "systemd_unavailable"


def test_something_that_does_not_speak_http_is_waited_for_and_named(unit: ServedUnit) -> None:
    with socket.create_server(("127.0.0.1", unit.port)) as other:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _address = other.accept()
                    client.sendall(b"SSH-2.0-OpenSSH\r\n")
                    client.close()

        threading.Thread(target=greet, daemon=True).start()
        health = unit.health(timeout=1)
    assert health["code"] == "timeout" and health["level"] == ""
