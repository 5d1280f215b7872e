# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The readiness ladder over virtual time: a host whose systemd, journal, /proc and server follow a script."""

from __future__ import annotations

import pytest
from support.virtual_host import ACTIVE, BETWEEN, FAILED, FIRST, OOM, SECOND, SHARDS, UNIT, Reply, VirtualHost, says


@pytest.fixture
def host() -> VirtualHost:
    return VirtualHost()


# -- up the ladder ---------------------------------------------------------------------------------------------------------


def test_a_served_model_that_answers_is_ready(host: VirtualHost) -> None:
    health = host.wait(served_model_name="m", model_path="/models/m/", api_key="k")
    assert (health.level, health.ready, health.code) == ("answering", True, "")
    assert (health.facts["answer"], health.facts["version"], health.facts["probe"]) == ("42", "0.33.0", "chat")
    assert all(("Authorization" in headers) == path.startswith("/v1") for path, headers in host.asked)


@pytest.mark.parametrize(("level", "asks"), [("alive", set()), ("listening", {"/health"}), ("healthy", {"/health"})])
def test_no_rung_above_the_wanted_one_is_tried(host: VirtualHost, level: str, asks: set[str]) -> None:
    assert host.wait(level=level).level == level
    assert {path for path, _headers in host.asked} == asks


def test_a_port_that_refuses_for_minutes_is_no_failure_while_the_unit_runs(host: VirtualHost) -> None:
    host.open_from = 1380.0
    health = host.wait(timeout=2700.0)
    assert health.ready and 1380 <= health.facts["waited_seconds"] < 1382


def test_one_look_never_waits_and_never_fails(host: VirtualHost) -> None:
    host.open_from = 9.0
    health = host.look()
    assert (health.level, health.ready, health.code, host.now) == ("alive", False, "", 0.0)


def test_without_a_unit_nothing_is_said_about_life_or_ownership(host: VirtualHost) -> None:
    host.open_from = 5.0
    health = host.wait(unit="")
    assert health.ready and health.facts["notes"] and health.facts["phases"][0]["name"] == "listening"


# -- the unit --------------------------------------------------------------------------------------------------------------


def test_a_failed_unit_ends_the_wait_at_once_with_cause_and_remedy(host: VirtualHost) -> None:
    host.unit += [(7.0, FAILED)]
    host.open_from = 999.0
    host.journal = [(6.0, FIRST, line) for line in OOM]
    health = host.wait()
    assert (health.code, health.facts["cause"], health.facts["phase"]) == ("unit_failed", "oom_sampler_warmup", "starting")
    assert health.reason.startswith(f"{UNIT} failed while warming up the sampler: the GPU ran out of memory")
    assert health.facts["remedies"][0]["option"] == "max-num-seqs" and "Set max-num-seqs to 256" in health.remedy
    assert host.now <= 7.5


def test_a_restart_during_the_wait_is_a_failure_of_the_start_before_it(host: VirtualHost) -> None:
    host.unit += [(4.0, {**ACTIVE, "InvocationID": SECOND, "NRestarts": "1", "MainPID": "41"})]
    host.open_from = 999.0
    host.journal = [(3.0, FIRST, OOM[0]), (4.0, SECOND, "fresh start")]
    health = host.wait()
    assert (health.code, health.facts["cause"], host.now) == ("unit_failed", "oom_sampler_warmup", 4.0)


def test_a_unit_that_keeps_restarting_is_given_up_with_the_count(host: VirtualHost) -> None:
    host.unit = [(0.0, ACTIVE), (20.0, {**BETWEEN, "NRestarts": "2"})]
    host.open_from = 999.0
    assert "restarted 2 times" in host.wait().reason and host.now <= 20.5


def test_a_unit_between_two_starts_has_failed_already(host: VirtualHost) -> None:
    host.unit = [(0.0, BETWEEN)]
    host.journal = [(0.0, FIRST, "vllm: error: unrecognized arguments: --bogus")]
    assert (host.wait().facts["cause"], host.now) == ("bad_argument", 0.0)


@pytest.mark.parametrize("state", [{**FAILED, "Job": "88"}, {**ACTIVE, "ActiveState": "deactivating", "SubState": "stop-sigterm"}])
def test_a_queued_job_or_a_stop_means_not_yet(host: VirtualHost, state: dict[str, str]) -> None:
    host.unit = [(0.0, state), (3.0, {**ACTIVE, "InvocationID": SECOND})]
    assert host.wait().ready and host.now >= 3.0


def test_a_start_by_hand_during_the_wait_is_followed(host: VirtualHost) -> None:
    host.unit += [(5.0, {**ACTIVE, "InvocationID": SECOND})]
    host.open_from = 8.0
    assert host.wait().ready


@pytest.mark.parametrize(
    ("state", "code"),
    [({"ActiveState": "inactive", "SubState": "dead"}, "unit_not_running"), ({"LoadState": "not-found"}, "unit_not_found")],
)
def test_a_unit_that_is_not_there_or_not_started_is_said_at_once(host: VirtualHost, state: dict[str, str], code: str) -> None:
    host.unit = [(0.0, state)]
    assert (host.wait().code, host.now) == (code, 0.0)


def test_before_the_engine_the_helpers_last_line_is_what_is_waited_for(host: VirtualHost) -> None:
    host.unit = [(0.0, {**ACTIVE, "ActiveState": "activating", "SubState": "start-pre", "MainPID": "0"}), (4.0, ACTIVE)]
    host.journal = [(1.0, FIRST, "GPU 2 held by pid 812 python3 (holder.service, user root) 58.6 GiB")]
    host.open_from = 5.0
    assert host.wait().ready
    assert any("waiting for its GPUs: GPU 2 held by pid 812" in report["what"] for report in host.reports)


# -- deadlines -------------------------------------------------------------------------------------------------------------


def test_progress_moves_the_deadline_and_is_reported(host: VirtualHost) -> None:
    host.journal = [(float(k), FIRST, SHARDS.format(k)) for k in range(1, 101)]
    host.open_from = 105.0
    assert host.wait(timeout=30.0, stall_timeout=10.0).ready
    assert {"what": "loading weights", "done": 50, "total": 100, "unit": "shards"} in host.reports


def test_counted_steps_that_stand_still_end_the_wait_before_its_time(host: VirtualHost) -> None:
    host.journal = [(float(k), FIRST, SHARDS.format(k)) for k in range(1, 41)]
    host.open_from = 9999.0
    health = host.wait(timeout=2000.0, stall_timeout=15.0)
    assert (health.code, round(host.now)) == ("stalled", 56)
    assert "loading weights, 40/100 shards" in health.reason and health.facts["evidence"]


def test_silence_that_cannot_be_counted_lasts_until_the_timeout(host: VirtualHost) -> None:
    host.journal = [(1.0, FIRST, "(Worker pid=3) INFO 11-29 18:00:00 [d.py:1] Loading weights took 3.00 seconds")]
    host.open_from = 9999.0
    health = host.wait(timeout=100.0, stall_timeout=10.0)
    assert (health.code, round(host.now)) == ("timeout", 100)
    assert "preparing the loaded weights" in health.reason


# -- what answers ----------------------------------------------------------------------------------------------------------


def test_a_port_of_someone_else_is_said_at_once(host: VirtualHost) -> None:
    host.owner = "nginx.service"
    health = host.wait()
    assert (health.code, health.level) == ("port_foreign", "alive") and "pid 40 (vllm, nginx.service)" in health.reason


@pytest.mark.parametrize(("key", "code"), [("", "key_needed"), ("sk-bad-EXAMPLE", "key_refused")])
def test_401_is_a_verdict_and_hides_the_key(host: VirtualHost, key: str, code: str) -> None:
    host.routes["/v1/models"] = (401, {"error": "Unauthorized"})
    health = host.wait(api_key=key)
    assert (health.code, health.level, host.now) == (code, "healthy", 0.0)
    assert "401" in health.reason and "sk-bad-EXAMPLE" not in str(health)


def test_another_name_is_named_beside_the_wanted_one(host: VirtualHost) -> None:
    host.routes["/v1/models"] = (200, {"data": [{"id": "/srv/models/model-a/", "root": "/srv/models/model-a/"}]})
    health = host.wait(served_model_name="model-a")
    assert health.code == "wrong_model_name" and "/srv/models/model-a/" in health.reason


def test_the_old_model_behind_the_right_name_is_found(host: VirtualHost) -> None:
    health = host.wait(served_model_name="m", model_path="/models/new")
    assert health.code == "wrong_model_path" and "/models/m" in health.reason and "/models/new" in health.reason


def test_a_server_that_does_not_say_its_path_passes_with_a_note(host: VirtualHost) -> None:
    host.routes["/v1/models"] = (200, {"data": [{"id": "m"}]})
    health = host.wait(model_path="/models/m")
    assert health.ready and "could not be compared" in health.facts["notes"][0]


def test_503_of_the_units_own_server_means_a_dead_engine(host: VirtualHost) -> None:
    host.routes["/health"] = (503, None)
    assert host.wait().code == "engine_dead"


def test_a_slow_health_check_under_load_is_waited_out(host: VirtualHost) -> None:
    host.routes["/health"] = "timeout"
    host.tokens_per_second = 800.0
    host.unit += [(25.0, FAILED)]
    host.wait()
    assert any("busy: tokens are being produced" in report["what"] for report in host.reports)


def test_a_busy_server_that_never_answers_us_is_given_up_in_time(host: VirtualHost) -> None:
    host.routes["/v1/chat/completions"] = "timeout"
    host.tokens_per_second = 800.0
    health = host.wait(answer_timeout=10.0, timeout=100.0, stall_timeout=5.0)
    assert health.code == "timeout" and "busy" in health.reason and host.now < 125


def test_a_request_that_never_moves_fails_although_health_is_fine(host: VirtualHost) -> None:
    host.routes["/v1/chat/completions"] = "timeout"
    health = host.wait(answer_timeout=20.0)
    assert health.code == "generation_timeout" and "/health answered 200" in health.reason and "20 s" in health.reason
    assert host.now < 30


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (says("!" * 32, 32), "degenerate_answer"),
        (says("the the the the the the", 6), "degenerate_answer"),
        (says("", 0), "empty_answer"),
        (says("wherebyzna ##ung tslib orchid", 12), "wrong_answer"),
    ],
)
def test_nonsense_is_told_from_an_answer(host: VirtualHost, reply: Reply, code: str) -> None:
    host.routes["/v1/chat/completions"] = reply
    assert host.wait().code == code


@pytest.mark.parametrize(
    "reply",
    [
        says("42."),
        says("17 + 25 = 42, and 42 is very, very, very good", 12),
        says("<think>17 and 25 make 42</think>42", 9),
        says(None, 16, reasoning_content="The user asks"),
        says(None, 16, reasoning="The user asks"),
        says("<think>The user asks for a sum. First", 16),
    ],
)
def test_sensible_and_unfinished_answers_pass(host: VirtualHost, reply: Reply) -> None:
    host.routes["/v1/chat/completions"] = reply
    assert host.wait().ready


def test_any_text_is_enough_when_the_model_knows_nothing(host: VirtualHost) -> None:
    host.routes["/v1/chat/completions"] = says("wherebyzna ##ung tslib orchid", 12)
    assert host.wait(answer_check="any").ready


def test_a_model_without_a_chat_template_is_asked_by_completion(host: VirtualHost) -> None:
    message = "you must provide a chat template if the tokenizer does not define one."
    host.routes["/v1/chat/completions"] = (400, {"error": {"message": message}})
    host.routes["/v1/completions"] = (200, {"choices": [{"text": " 42"}], "usage": {"completion_tokens": 1}})
    assert host.wait().facts["probe"] == "completions"


@pytest.mark.parametrize(("vector", "ready"), [([0.1, -0.2], True), ([0.0, 0.0], False), ([float("nan")], False)])
def test_a_model_that_does_not_generate_is_judged_by_its_vectors(host: VirtualHost, vector: list[float], ready: bool) -> None:
    del host.routes["/v1/chat/completions"]
    host.routes["/v1/embeddings"] = (200, {"data": [{"embedding": vector}]})
    health = host.wait()
    assert (health.ready, health.facts["probe"]) == (ready, "embeddings")
