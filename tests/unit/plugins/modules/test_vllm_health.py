# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_health, really run, against the fake engine over HTTP; systemctl and journalctl are stand-ins that show that process as a unit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t
import urllib.request
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.engine_config import engine_yaml
from support.running import wait_for
from support.served_unit import UNIT, HandMade, ServedUnit, free_port, says
from support.units import UnitGroup, is_possible


def test_it_waits_for_the_load_and_judges_the_answer_past_a_proxy(unit: ServedUnit) -> None:
    health = unit.start(script="load-seconds=4").health(served_model_name="tiny", model_path=str(unit.model))
    assert (health["level"], health["ready"], health["changed"]) == ("answering", True, False)
    assert (health["answer"], health["version"], health["loaded_path"]) == ("42", "0.33.0", str(unit.model))
    assert health["waited_seconds"] > 0.5


def write_release(unit: ServedUnit, model: Path, *keys: str, **more: t.Any) -> dict[str, t.Any]:
    """The current release of a deployment that the fake engine serves; options of the module."""
    current = unit.folder / "etc" / "tiny" / "current"
    current.mkdir(parents=True)
    options = {"host": "127.0.0.1", "port": unit.port, "served-model-name": ["tiny"], "api-key": list(keys), **more}
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


# -- addresses -------------------------------------------------------------------------------------------------------------


def test_a_socket_file_is_asked_and_must_be_the_units_own(unit: ServedUnit) -> None:
    path = unit.folder / "api.sock"
    unit.start("--uds", str(path))
    health = unit.health(unit=True, url=f"unix://{path}", model_path=str(unit.model))
    assert (health["level"], health["address"], health["answer"]) == ("answering", None, "42")
    unit.show("active", "running", 1)
    assert unit.process
    foreign = unit.health(unit=True, url=f"unix:{path}")
    assert foreign["code"] == "port_foreign" and f"{path}: pid {unit.process.pid}" in foreign["msg"]


def test_a_release_with_a_socket_file_needs_no_url(unit: ServedUnit) -> None:
    path = unit.folder / "api.sock"
    of_it = write_release(unit, unit.model, "MARKER", uds=str(path))
    unit.start("--uds", str(path), "--api-key", "MARKER")
    health = unit.health(url=None, **of_it)
    assert (health["level"], health["loaded_path"]) == ("answering", str(unit.model))


def test_a_socket_file_that_nobody_serves_is_waited_for(unit: ServedUnit) -> None:
    path = unit.folder / "api.sock"
    assert "the socket file is not there" in unit.health(url=f"unix://{path}", timeout=0.5)["msg"]
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    assert "connection refused" in unit.health(url=f"unix://{path}", timeout=0.5)["msg"]


@pytest.mark.parametrize(("host", "url"), [("::1", "http://[::1]:{}"), ("::", "http://[::]:{}")])
def test_ipv6_is_asked_by_its_loopback_address(unit: ServedUnit, host: str, url: str) -> None:
    unit.start("--host", host)
    health = unit.health(unit=True, url=url.format(unit.port))
    assert (health["level"], health["address"]) == ("answering", "::1")


def test_a_root_path_is_part_of_the_address(unit: ServedUnit) -> None:
    unit.start("--root-path", "/vllm", "--api-key", "MARKER")
    assert unit.health(url=f"{unit.url}/vllm/", api_key="MARKER")["ready"]


def test_a_private_ca_is_trusted_when_it_is_named(unit: ServedUnit) -> None:
    key, certificate = str(unit.folder / "key.pem"), str(unit.folder / "cert.pem")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=gpu1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*made, *names], check=True, capture_output=True)
    unit.start("--ssl-certfile", certificate, "--ssl-keyfile", key)
    url = unit.url.replace("http:", "https:")
    assert unit.health(url=url, ca_path=certificate)["ready"]
    assert unit.health(url=url)["code"] == "tls_untrusted"


@pytest.mark.parametrize("url", ["http://user:MARKER@127.0.0.1:1", "http://127.0.0.1:1/?key=MARKER", "http://127.0.0.1:x"])
def test_an_address_that_holds_more_than_an_address_is_refused(unit: ServedUnit, url: str) -> None:
    answer = unit.health(url=url)
    assert answer["code"] == "bad_url" and "MARKER" not in answer["msg"]


# -- what the key meets ----------------------------------------------------------------------------------------------------


def test_the_key_goes_to_guarded_routes_alone_and_never_where_a_server_refers_to(unit: ServedUnit, server: HandMade) -> None:
    elsewhere = HandMade()

    def refer(handler: t.Any) -> None:
        handler.send_response(307)
        handler.send_header("Location", f"{elsewhere.url}/v1/models")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    assert unit.health(url=server.url, api_key="MARKER")["ready"]
    assert {path for path, headers, _body in server.asked if "Authorization" in headers} == {"/v1/models", "/v1/chat/completions"}
    assert all("MARKER" not in path for path, _headers, _body in server.asked)
    server.routes["/v1/models"] = refer
    health = unit.health(url=server.url, api_key="MARKER", timeout=0.5)
    assert "answers 307, it refers to" in health["msg"] and elsewhere.asked == []
    elsewhere.end()


def test_a_key_that_a_server_repeats_reaches_neither_result_nor_progress(unit: ServedUnit, server: HandMade) -> None:
    progress = unit.folder / "progress"
    server.routes["/v1/chat/completions"] = (503, {"error": {"message": "MARKER-key is busy"}})
    health = unit.health(url=server.url, api_key="MARKER-key", timeout=0.5, progress_path=str(progress))
    assert "503" in health["msg"] and "MARKER" not in json.dumps(health) + progress.read_text()


def test_a_key_that_no_header_can_carry_is_refused_before_it_is_sent(unit: ServedUnit) -> None:
    answer = unit.health(api_key="MARKER\nX-Other: 1")
    assert answer["code"] == "bad_options" and "MARKER" not in json.dumps(answer)


# -- who else listens ------------------------------------------------------------------------------------------------------


def test_a_second_listener_beyond_loopback_is_a_failure_unless_it_is_expected(unit: ServedUnit, server: HandMade) -> None:
    unit.is_served_by(server)
    with socket.create_server(("127.0.0.1", 0)), socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        health = unit.health(unit=True)
        assert (health["code"], health["level"]) == ("unexpected_listener", "alive")
        assert f"0.0.0.0 port {port}: pid {os.getpid()}" in health["msg"]
        assert unit.health(unit=True, expected_listeners=[f"0.0.0.0:{port}"])["ready"]
        assert unit.health(unit=True, expected_listeners=["10.0.0.0/8"])["code"] == "unexpected_listener"
        assert unit.health()["ready"]
    health = unit.health(unit=True)
    assert health["ready"] and {"address": "127.0.0.1", "port": server.port} == {
        key: health["listeners"][0][key] for key in ("address", "port")
    }


@pytest.mark.skipif(not is_possible(), reason="control groups cannot be made here")
def test_a_worker_of_the_unit_that_listens_beyond_loopback_is_named(unit: ServedUnit, server: HandMade) -> None:
    listen = "import socket, time; held = socket.create_server(('0.0.0.0', 0)); print(flush=True); time.sleep(60)"
    unit.is_served_by(server)
    with UnitGroup(UNIT) as group:
        worker = group.start([sys.executable, "-c", listen])
        health = unit.health(unit=True)
    assert health["code"] == "unexpected_listener" and f"pid {worker.pid} (" in health["msg"] and f", {UNIT})" in health["msg"]
    assert {listener["pid"] for listener in health["listeners"]} == {os.getpid(), worker.pid}


def test_the_served_port_may_be_open_to_all_and_an_entry_that_says_nothing_is_refused(unit: ServedUnit) -> None:
    unit.start("--host", "0.0.0.0")
    assert unit.health(unit=True)["ready"]
    assert unit.health(unit=True, expected_listeners=["eth0"])["code"] == "bad_options"


# -- time ------------------------------------------------------------------------------------------------------------------


def trickle(handler: t.Any) -> None:
    """A status, and then a header that never ends, a byte at a time."""
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.1)


def test_a_server_that_sends_a_byte_now_and_then_holds_nobody(unit: ServedUnit, server: HandMade) -> None:
    server.routes["/v1/chat/completions"] = trickle
    began = time.monotonic()
    health = unit.health(url=server.url, answer_timeout=1)
    assert health["code"] == "generation_timeout" and time.monotonic() - began < 8


def test_a_slow_first_answer_is_no_failure_and_its_speed_is_told(unit: ServedUnit) -> None:
    unit.start(script="load-seconds=0.1,answer-seconds=2")
    health = unit.health(answer_timeout=30)
    assert health["ready"] and 2 <= health["latency"] < 10
    assert health["tokens_per_second"] == pytest.approx(health["tokens"] / health["latency"], rel=0.05)


def test_a_server_that_dies_with_our_question_in_flight_is_noticed_within_a_second(unit: ServedUnit) -> None:
    unit.start(script="load-seconds=0.1,answer-seconds=60").ready()
    ended: list[float] = []

    def end_it_once_asked() -> None:
        wait_for(lambda: running(unit) == 1, 60)
        ended.append(time.monotonic())
        unit.end()

    helper = threading.Thread(target=end_it_once_asked)
    helper.start()
    health = unit.health(unit=True, answer_timeout=60)
    returned = time.monotonic()
    helper.join()
    noticed = returned - ended[0]
    assert health["code"] == "unit_failed"
    # A second, and what the process of the module takes to end.
    assert noticed < 2.5


# -- drained ---------------------------------------------------------------------------------------------------------------


def running(unit: ServedUnit) -> int:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{unit.url}/metrics", timeout=5) as answer:
        return int(float(re.findall(r"(?m)^vllm:num_requests_running\S* (\S+)", answer.read().decode())[0]))
    return -1


def ask_slowly(unit: ServedUnit, answers: list[int]) -> threading.Thread:
    """A request in flight."""

    def ask() -> None:
        body = json.dumps({"prompt": "What is 1 + 1?", "model": "tiny"}).encode()
        request = urllib.request.Request(f"{unit.url}/v1/completions", body, {"Content-Type": "application/json"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
            answers.append(answer.status)

    client = threading.Thread(target=ask)
    client.start()
    wait_for(lambda: running(unit) == 1)
    return client


def test_drained_waits_for_the_requests_in_flight(unit: ServedUnit) -> None:
    unit.start(script="load-seconds=0.1,answer-seconds=4").ready()
    answers: list[int] = []
    client = ask_slowly(unit, answers)
    now = unit.health(unit=True, level="drained", check_mode=True)
    assert (now["ready"], now["requests_running"], now["requests_waiting"]) == (False, 1, 0)
    health = unit.health(unit=True, level="drained")
    assert answers == [200]
    assert (health["level"], health["ready"], health["requests_running"]) == ("drained", True, 0)
    client.join()


def test_what_never_ends_is_not_waited_for_beyond_the_timeout(unit: ServedUnit) -> None:
    unit.start(script="load-seconds=0.1,answer-seconds=20").ready()
    client = ask_slowly(unit, [])
    health = unit.health(unit=True, level="drained", timeout=1)
    assert health["code"] == "timeout" and "1 requests running and 0 waiting" in health["msg"]
    unit.end()
    client.join()


def test_a_server_that_does_not_run_or_only_loads_is_drained_and_one_that_does_not_count_is_not(unit: ServedUnit, server: HandMade) -> None:
    unit.show("inactive", "dead", 0)
    stopped = unit.health(unit=True, level="drained")
    assert stopped["ready"] and "answers nobody" in stopped["notes"][0]
    unit.show("active", "running", os.getpid())
    assert unit.health(unit=True, level="drained", url=f"http://127.0.0.1:{free_port()}")["ready"]
    server.routes["/metrics"] = (200, "python_info 1\n")
    assert unit.health(url=server.url, level="drained")["code"] == "no_metrics"
    unit.show("active", "running", 1)
    assert unit.health(unit=True, url=server.url, level="drained")["code"] == "port_foreign"


# -- what is said ----------------------------------------------------------------------------------------------------------


def test_the_numbers_behind_the_words_are_asked_for_and_a_server_may_refuse_them(unit: ServedUnit, server: HandMade) -> None:
    def refuse(handler: t.Any) -> None:
        asked = server.asked[-1][2]
        status, value = (400, {"error": {"message": "Requested sample logprobs of 0"}}) if "logprobs" in asked else says("42")
        content = json.dumps(value).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    server.routes["/v1/chat/completions"] = refuse
    assert unit.health(url=server.url)["ready"]
    assert "logprobs" not in server.asked[-1][2], "they are not asked for unless somebody wants them"
    health = unit.health(url=server.url, logprobs=True)
    assert health["ready"] and any("refused to give logprobs (400" in note for note in health["notes"])


@pytest.mark.parametrize("check", ["judged", "any"])
def test_logprobs_that_are_no_numbers_fail_beside_the_right_answer(unit: ServedUnit, server: HandMade, check: str) -> None:
    server.routes["/v1/chat/completions"] = says("42", logprobs={"content": [{"token": "42", "logprob": float("nan")}]})
    health = unit.health(url=server.url, answer_check=check, logprobs=True)
    assert (health["code"], health["level"]) == ("broken_numbers", "serving")


def test_the_fake_engine_gives_logprobs_to_chat_and_to_completions(unit: ServedUnit) -> None:
    assert not [note for note in unit.start().health(logprobs=True)["notes"] if "logprobs" in note]
