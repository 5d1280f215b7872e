# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people who asked whether a server is well, and the answer they should have had.

Each test is one situation that was reported in public, reduced to the facts that decide it: the real module against a server made by hand
or the fake engine, and over virtual time where the situation lasts longer than a test may.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.server_url import server_root
from support.running import Answer, wait_for
from support.served_unit import UNIT, HandMade, ServedUnit, says
from support.virtual_host import ACTIVE, BETWEEN, FIRST, OOM, SECOND, VirtualHost

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the tokenizer does not "
    "define one."
)
NOT_FOUND = (404, {"detail": "Not Found"})


def silence(_handler: t.Any) -> None:
    """Accepts, and sends nothing for as long as anybody waits."""
    time.sleep(20)


def ask(unit: ServedUnit, server: HandMade, **options: t.Any) -> Answer:
    return unit.health(url=server.url, **options)


# -- it listens, and nothing moves -----------------------------------------------------------------------------------------


def test_health_says_200_and_no_request_ever_moves(unit: ServedUnit, server: HandMade) -> None:
    server.routes[CHAT] = server.routes[COMPLETIONS] = silence
    began = time.monotonic()
    answer = ask(unit, server, served_model_name="model-a", answer_timeout=2)
    assert (answer["failed"], answer["code"], answer["level"]) == (True, "generation_timeout", "serving")
    assert "/health answered 200" in answer["msg"] and "no answer in 2 s: generation timed out" in answer["msg"]
    assert time.monotonic() - began < 10


def test_a_port_that_refuses_for_twenty_three_minutes_and_then_works() -> None:
    host = VirtualHost()
    host.open_from = 1380.0
    health = host.wait(timeout=2700.0)
    assert health.ready and 1380 <= health.facts["waited_seconds"] < 1382
    assert any("nothing listens on port 8000 yet" in report["what"] for report in host.reports)


def test_a_unit_that_failed_already_is_not_waited_for() -> None:
    host = VirtualHost()
    started = {"ActiveState": "activating", "SubState": "start", "MainPID": "100", "InvocationID": FIRST, "NRestarts": "0"}
    restarting = {**BETWEEN, "NRestarts": "1"}
    host.unit = [(0.0, started), (20.0, restarting), (45.0, {**ACTIVE, "InvocationID": SECOND, "NRestarts": "1", "MainPID": "180"})]
    host.open_from = 9999.0
    host.journal = [(19.0, FIRST, line) for line in OOM]
    health = host.wait(timeout=2700.0)
    assert (health.code, health.facts["restarts"]) == ("unit_failed", 1) and host.now < 22
    assert "the GPU ran out of memory" in health.reason and "dummy requests" in health.facts["evidence"][0]


def test_a_unit_that_keeps_restarting_is_counted(unit: ServedUnit) -> None:
    unit.show("activating", "auto-restart", 0, NRestarts=2, Result="exit-code", ExecMainCode=1, ExecMainStatus=1)
    line = "(APIServer pid=7) OSError: [Errno 98] Address already in use"
    (unit.folder / "journal").write_text(
        json.dumps({"MESSAGE": line, "__CURSOR": "1", "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6))}) + "\n"
    )
    answer = unit.health(unit=True, timeout=2700)
    assert (answer["code"], answer["cause"], answer["restarts"]) == ("unit_failed", "port_in_use", 2)
    assert "It was restarted 2 times" in answer["msg"] and any("Address already in use" in line for line in answer["evidence"])
    assert answer["waited_seconds"] < 5


def test_a_slow_answer_under_load_is_not_death() -> None:
    host = VirtualHost()
    host.unit = [(0.0, ACTIVE)]
    host.tokens_per_second = 800.0
    host.late = {"/health": [99.0, 99.0, 12.0]}
    health = host.wait(timeout=120.0)
    assert health.ready
    assert [report["what"] for report in host.reports] == [
        "/health did not answer in time",
        "/health did not answer in time, busy: tokens are being produced",
    ]


def test_a_server_that_takes_the_connection_and_nothing_else_is_not_alive(unit: ServedUnit) -> None:
    with socket.create_server(("127.0.0.1", unit.port)):
        answer = unit.health(timeout=1)
    assert (answer["code"], answer["level"]) == ("timeout", "") and "/health did not answer in time" in answer["msg"]


# -- it answers nonsense ---------------------------------------------------------------------------------------------------


def test_answers_of_exclamation_marks_alone(unit: ServedUnit, server: HandMade) -> None:
    server.routes[CHAT] = says("!" * 32, 32, finish="length")
    answer = ask(unit, server)
    assert (answer["failed"], answer["code"]) == (True, "degenerate_answer") and "!!!!" in answer["msg"]
    assert "First suspects: a damaged or missing shard, the wrong quantization or dtype" in answer["msg"]


@pytest.mark.parametrize("text", ["42", "Die Summe ist 42.", "答案是42", "It is very, very, very sure that 17 + 25 is 42 and nothing else"])
def test_what_is_short_or_foreign_or_repeats_a_word_is_no_nonsense(unit: ServedUnit, server: HandMade, text: str) -> None:
    server.routes[CHAT] = says(text, 9)
    assert ask(unit, server)["ready"]


def test_numbers_that_json_cannot_hold_are_found_although_the_words_are_right(unit: ServedUnit, server: HandMade) -> None:
    def overflow(handler: t.Any) -> None:
        broken = "logprobs" in (server.asked[-1][2] or {})
        status, value = (500, {"error": {"message": "Out of range float values are not JSON compliant"}}) if broken else says("42")
        content = json.dumps(value).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    server.routes[CHAT] = overflow
    answer = ask(unit, server, logprobs=True)
    assert (answer["code"], answer["level"]) == ("broken_numbers", "serving")


def test_a_reasoning_model_that_spends_its_tokens_on_thinking_is_well(unit: ServedUnit, server: HandMade) -> None:
    for field in ("reasoning_content", "reasoning"):
        server.routes[CHAT] = says(None, 16, finish="length", **{field: "The user asks"})
        answer = ask(unit, server)
        assert answer["ready"] and any("16 tokens were generated" in note for note in answer["notes"])
    server.routes[CHAT] = says("", 0)
    assert ask(unit, server)["code"] == "empty_answer"


def test_a_model_without_a_chat_template_is_asked_to_complete(unit: ServedUnit, server: HandMade) -> None:
    server.routes[CHAT] = (400, {"error": {"message": NO_TEMPLATE}})
    completion = {"text": " 42", "logprobs": {"token_logprobs": [-0.1]}, "finish_reason": "stop"}
    server.routes[COMPLETIONS] = (200, {"choices": [completion], "usage": {"completion_tokens": 1}})
    assert ask(unit, server)["probe"] == "completions"


@pytest.mark.parametrize(
    ("vector", "code"),
    [([0.1, -0.2], None), ([0.0, 0.0], "broken_numbers"), ([float("nan")] * 2, "broken_numbers"), ([None, 1.0], "broken_numbers")],
)
def test_a_model_that_embeds_is_judged_by_its_vectors(
    unit: ServedUnit, server: HandMade, vector: list[t.Any], code: t.Optional[str]
) -> None:
    server.routes[CHAT] = NOT_FOUND
    server.routes[EMBEDDINGS] = (200, {"data": [{"embedding": vector}]})
    answer = ask(unit, server)
    assert (answer.get("code"), answer["probe"]) == (code, "embeddings")


# -- it is another one than was meant --------------------------------------------------------------------------------------


def test_the_served_name_is_the_path_with_its_slash(unit: ServedUnit, server: HandMade) -> None:
    server.routes["/v1/models"] = (200, {"data": [{"id": "/srv/models/model-a/", "root": "/srv/models/model-a/"}]})
    server.routes[CHAT] = server.routes[COMPLETIONS] = (404, {"error": {"message": "The model `model-a` does not exist."}})
    answer = ask(unit, server, served_model_name="model-a")
    assert (answer["code"], answer["level"]) == ("wrong_model_name", "healthy") and answer["waited_seconds"] < 5
    assert "serves /srv/models/model-a/, not model-a" in answer["msg"]


def test_the_name_is_right_and_the_model_behind_it_is_the_old_one(unit: ServedUnit, server: HandMade) -> None:
    def serve(**root: str) -> Answer:
        server.routes["/v1/models"] = (200, {"data": [{"id": "prod-chat", **root}]})
        return ask(unit, server, served_model_name="prod-chat", model_path="/srv/models/model-new")

    old = serve(root="/srv/models/model-old")
    assert old["code"] == "wrong_model_path" and "another model is loaded" in old["msg"]
    assert "/srv/models/model-old" in old["msg"] and "/srv/models/model-new" in old["msg"]
    assert serve(root="/srv/models/model-new")["ready"]
    silent = serve()
    assert silent["ready"] and any("could not be compared" in note for note in silent["notes"])


def test_a_link_to_the_intended_folder_is_the_intended_folder(unit: ServedUnit, server: HandMade, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "current").symlink_to("new")
    server.routes["/v1/models"] = (200, {"data": [{"id": "m", "root": str(tmp_path / "new")}]})
    assert ask(unit, server, model_path=str(tmp_path / "current"))["ready"]


def test_the_old_server_answers_on_the_port_of_the_new_one(unit: ServedUnit, server: HandMade) -> None:
    unit.is_served_by(server)
    unit.show("active", "running", 1)
    answer = unit.health(unit=True)
    assert (answer["code"], answer["level"]) == ("port_foreign", "alive") and f"port {server.port} does not belong to {UNIT}" in answer[
        "msg"
    ]


# -- the key ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "code"), [(None, "key_needed"), ("sk-bad-EXAMPLE", "key_refused"), ("sk-right-EXAMPLE", None)])
def test_401_proves_that_a_server_is_there(unit: ServedUnit, key: t.Optional[str], code: t.Optional[str]) -> None:
    unit.start("--api-key", "sk-right-EXAMPLE").ready()
    answer = unit.health(api_key=key, timeout=1800)
    assert answer.get("code") == code and answer["waited_seconds"] < 15
    assert "EXAMPLE" not in json.dumps(answer)
    if code:
        assert "401" in answer["msg"] and "the server runs" in answer["msg"]


def test_a_key_that_only_the_question_needs_is_asked_for_as_well(unit: ServedUnit, server: HandMade) -> None:
    server.routes[CHAT] = server.routes[COMPLETIONS] = (401, {"error": "Unauthorized"})
    assert ask(unit, server)["code"] == "key_needed"


# -- the way there ---------------------------------------------------------------------------------------------------------


def own_address() -> str:
    """An address of this host that is no loopback one; nothing is sent to find it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    pytest.skip("this host has no address but loopback")


def proxied_by(proxy: HandMade) -> dict[str, str]:
    return {"http_proxy": proxy.url, "https_proxy": proxy.url, "no_proxy": ""}


class RefusingProxy(HandMade):
    """Answers 403, whatever it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.routes = {f"http://192.0.2.1:8000{path}": (403, None) for path in ("/health", "/v1/models")}


def test_proxy_variables_never_catch_a_request_to_the_host_itself(unit: ServedUnit) -> None:
    proxy = RefusingProxy()
    for host in ("127.0.0.1", own_address()):
        server = HandMade(host)
        assert unit.health(url=server.url, variables=proxied_by(proxy))["ready"]
        server.end()
    assert proxy.asked == []
    proxy.end()


def test_an_answer_of_a_proxy_is_said_to_be_one_and_proxies_can_be_left_out(unit: ServedUnit) -> None:
    proxy = RefusingProxy()
    answer = unit.health(url="http://192.0.2.1:8000", variables=proxied_by(proxy), timeout=0.5)
    assert "answers 403; the answer came from a proxy" in answer["msg"]
    asked = len(proxy.asked)
    unit.health(url="http://192.0.2.1:8000", variables=proxied_by(proxy), check_mode=True, use_proxy=False)
    assert len(proxy.asked) == asked
    proxy.end()


@pytest.mark.parametrize(
    ("bound", "asked"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("[::]", "http://[::1]:8000"),
        ("10.20.30.40", "http://10.20.30.40:8000"),
        ("[fd00::5]", "http://[fd00::5]:8000"),
    ],
)
def test_where_a_server_is_bound_is_where_it_is_asked(bound: str, asked: str) -> None:
    assert server_root(f"http://{bound}:8000") == asked


def test_a_name_with_two_addresses_is_answered_by_the_one_that_listens(unit: ServedUnit, server: HandMade) -> None:
    answer = unit.health(url=f"http://localhost:{server.port}")
    assert answer["ready"] and answer["address"] == "127.0.0.1"


# -- before it is stopped --------------------------------------------------------------------------------------------------


def test_a_server_is_drained_when_the_last_request_has_its_answer(unit: ServedUnit, server: HandMade) -> None:
    counts = {"running": 1, "waiting": 2, "success": 0}

    def metrics(handler: t.Any) -> None:
        label = '{engine="0",model_name="model-a"}'
        lines = [f"vllm:num_requests_{kind}{label} {counts[kind]}.0" for kind in ("running", "waiting")]
        content = "\n".join([*lines, f"vllm:request_success_total{label} {counts['success']}.0", ""]).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def finish_once_waited_for() -> None:
        wait_for(lambda: server.asked, 20)
        counts.update(running=0, waiting=0, success=3)

    server.routes["/metrics"] = metrics
    helper = threading.Thread(target=finish_once_waited_for)
    helper.start()
    answer = ask(unit, server, level="drained", timeout=20)
    helper.join()
    assert (answer["level"], answer["requests_running"], answer["requests_waiting"]) == ("drained", 0, 0)
    assert len(server.asked) >= 3
