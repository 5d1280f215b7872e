# SPDX-License-Identifier: GPL-3.0-or-later
"""What the gate says of the real engine in each state it can be in. The tests build on each other: a start of the engine takes long."""

from __future__ import annotations

import json
import shlex
import typing as t
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from on_hosts import Unit, wait_for

if t.TYPE_CHECKING:
    from molecule.conftest import Operator

DEPLOYMENT = "tiny-qwen3"
URL = "http://127.0.0.1:8000"
TLS = "/run/tls"
KEY = "sk-right-EXAMPLE"
# Half a minute on a machine of its own.
PATIENCE = 300
TOKENS = 1000
ANSWER = "/run/answer"
# What a connection and a look at /proc take where the machine has other work, on top of the second that a verdict needs.
SOON = 6
# Phases that every start goes through before its port opens, in their order.
LOADING = ["starting", "reading_configuration", "starting_engine", "loading_weights", "allocating_kv_cache"]
Gate = t.Callable[..., dict[str, t.Any]]
DropIn = t.Callable[..., None]


@pytest.fixture
def unit(host: t.Any) -> Unit:
    return Unit(host, DEPLOYMENT)


@pytest.fixture
def gate(operator: Operator, host: t.Any) -> Gate:
    """The gate that a deployment ends with: it reads from the release whom to ask for what.

    By ``host`` every test is one of the same host, or pytest would run those that do not name it last.
    """

    def ask(**options: t.Any) -> dict[str, t.Any]:
        return operator.ask("gpu1", "vllm_health", **{"deployment": DEPLOYMENT, "timeout": PATIENCE, **options})

    return ask


@pytest.fixture
def in_background() -> t.Iterator[t.Callable[..., Future[dict[str, t.Any]]]]:
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def engine(unit: Unit) -> list[int]:
    """The processes behind the server: the engine core and its worker."""
    return [pid for pid, name in unit.members().items() if name.startswith("VLLM::")]


def core(unit: Unit) -> int:
    return next(pid for pid, name in unit.members().items() if name.startswith("VLLM::EngineCor"))


def signal_all(host: t.Any, name: str, pids: t.Sequence[int]) -> None:
    host.check_output(f"kill -s {name} {' '.join(map(str, pids))}")


def release(host: t.Any) -> dict[str, t.Any]:
    return t.cast("dict[str, t.Any]", json.loads(host.file(f"/etc/gpufleet/{DEPLOYMENT}/current/release.json").content_string))


def is_asking(host: t.Any) -> bool:
    """Whether a client on the host has a connection to the server."""
    return bool(host.run("ss --no-header --numeric --tcp state established dport = :8000").stdout.strip())


# -- it serves ----------------------------------------------------------------------------------------------------------------


def test_ready_is_an_answer_that_is_right_from_the_model_that_the_release_names(host: t.Any, gate: Gate) -> None:
    answer = gate()
    assert (answer["level"], answer["ready"], answer["answer"].strip()) == ("answering", True, "The answer is 42.")
    assert answer["loaded_path"] == release(host)["model_path"]
    assert answer["version"].startswith("0.32.0") and answer["probe"] == "chat"
    assert answer["latency"] > 0 and answer["tokens_per_second"] > 0
    assert answer["listeners"] and {listener["unit"] for listener in answer["listeners"]} == {f"vllm-{DEPLOYMENT}.service"}


def test_another_model_than_was_meant_is_known_at_once(gate: Gate) -> None:
    name, path = gate(served_model_name="kimi-k2"), gate(model_path="/var/lib/gpufleet/models/other")
    assert (name["code"], name["level"]) == ("wrong_model_name", "healthy") and "serves tiny-qwen3, not kimi-k2" in name["msg"]
    assert (path["code"], path["level"]) == ("wrong_model_path", "healthy") and "another model is loaded" in path["msg"]
    assert max(name["waited_seconds"], path["waited_seconds"]) < SOON


def test_an_engine_that_hangs_is_found_although_health_says_200(host: t.Any, unit: Unit, gate: Gate) -> None:
    hung = engine(unit)
    signal_all(host, "STOP", hung)
    try:
        answer = gate(answer_timeout=3)
        assert unit.answers()
    finally:
        signal_all(host, "CONT", hung)
    assert (answer["code"], answer["level"]) == ("generation_timeout", "serving")
    assert "/health answered 200, and a request got no answer in 3 s: generation timed out" in answer["msg"]
    assert 3 <= answer["waited_seconds"] < 3 + SOON
    assert gate()["ready"], "and it goes on where it stood"


# -- its engine dies, and systemd starts it again -------------------------------------------------------------------------------


def verdict_after(host: t.Any, answer: dict[str, t.Any]) -> float:
    """When the gate that was asked last had its answer, in seconds since the epoch: it has noted its own beginning in the journal."""
    found = host.check_output("journalctl --output=json --lines=1 --grep=Invoked --identifier=ansible-gpufleet.vllm.vllm_health")
    return int(json.loads(found)["__REALTIME_TIMESTAMP"]) / 1e6 + float(answer["waited_seconds"])


@pytest.mark.long
def test_an_engine_that_is_killed_under_a_question_ends_the_wait_at_once(
    host: t.Any, unit: Unit, gate: Gate, in_background: t.Callable[..., Future[dict[str, t.Any]]]
) -> None:
    hung = engine(unit)
    signal_all(host, "STOP", hung)
    asked = in_background(gate)
    wait_for(lambda: is_asking(host) or asked.done())
    killed_at = float(host.check_output(f"date +%s.%N; kill -s KILL {core(unit)}"))
    answer = asked.result()
    assert (answer["code"], answer["cause"]) == ("unit_failed", "engine_died")
    assert verdict_after(host, answer) - killed_at < SOON


@pytest.mark.long
def test_a_start_is_told_phase_by_phase_until_it_answers(unit: Unit, gate: Gate) -> None:
    wait_for(lambda: unit.shown("ActiveState") == "active")
    soon = gate(timeout=1, stall_timeout=1)
    assert (soon["code"], soon["level"], soon["ready"]) == ("timeout", "alive", False)
    assert "nothing listens on port 8000 yet, " in soon["msg"]
    assert soon["phase"] in LOADING
    answer = gate()
    assert (answer["ready"], answer["restarts"], answer["phase"]) == (True, 1, "serving")
    phases = [phase["name"] for phase in answer["phases"]]
    assert [name for name in phases if name in LOADING] == LOADING
    assert sum(phase["seconds"] for phase in answer["phases"]) > 3


# -- it is asked to stop in the middle of an answer ------------------------------------------------------------------------------


def stop_in_the_middle_of_an_answer(host: t.Any, unit: Unit, held: t.Sequence[int]) -> str:
    """What /health says after a stop while a client is given a long answer. The engine pauses, so that there is time to look."""
    body = {"model": DEPLOYMENT, "prompt": "17+25", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    curl = ["curl", "--silent", "--no-buffer", "--fail", "--header", "Content-Type: application/json", "--data", json.dumps(body)]
    client = f"systemd-run --quiet --collect --unit=client --property=StandardOutput=truncate:{ANSWER}"
    is_counted = f"curl --silent {URL}/metrics | grep -q '^vllm:num_requests_running{{.*}} 1.0'"
    pause = f"until {is_counted}; do sleep 0.02; done; kill -s STOP {' '.join(map(str, held))}"
    health = f"curl --silent --max-time 10 --output /dev/null --write-out '%{{http_code}}' {URL}/health"
    return str(
        host.check_output(
            f"{client} {shlex.join([*curl, URL + '/v1/completions'])}; {pause}; systemctl stop --no-block {unit.name}; {health}"
        )
    )


@pytest.mark.long
def test_a_stop_waits_for_the_answer_under_way_and_the_gate_tells_when_it_is_drained(host: t.Any, unit: Unit, gate: Gate) -> None:
    held = engine(unit)
    health = stop_in_the_middle_of_an_answer(host, unit, held)
    early = gate(timeout=1, level="drained")
    signal_all(host, "CONT", held)
    assert health == "200", "it says that it is well, and takes no question any more"
    assert (early["code"], early["requests_running"]) == ("timeout", 1)
    assert "has 1 requests running and 0 waiting" in early["msg"]
    assert gate(level="drained")["level"] == "drained"
    wait_for(lambda: unit.shown("ActiveState") == "inactive")
    answer = host.file(ANSWER).content_string.splitlines()
    assert answer.count("data: [DONE]") == 1 and len([line for line in answer if line.startswith("data: {")]) > TOKENS / 2
    stopped = gate()
    assert (stopped["code"], stopped["level"]) == ("unit_not_running", "")
    assert gate(level="drained")["ready"], "what does not run is drained"


# -- it has a key, a certificate, and stays when its engine dies -----------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(host: t.Any) -> str:
    """A CA of our own, and what it signed for the server."""
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    host.check_output(
        f"mkdir -p {TLS} && cd {TLS} && exec 2>/dev/null"
        f" && {request} -subj /CN=ours -keyout ca.key -out ca.pem"
        f" && {request} -subj /CN=gpu1 -addext subjectAltName=IP:127.0.0.1 -CA ca.pem -CAkey ca.key -keyout server.key -out server.pem"
    )
    return f"{TLS}/ca.pem"


@pytest.fixture
def guarded(host: t.Any, unit: Unit, drop_in: DropIn, certificate: str, gate: Gate) -> Gate:
    """The gate to a server of the same release, with a certificate and a key until its next start."""
    credentials = f"/run/credentials/{unit.name}"
    options = f'ssl-certfile: "{credentials}/server.pem"\\nssl-keyfile: "{credentials}/server.key"\\napi-key: ["{KEY}"]\\n'
    host.check_output(f"(cat {unit.files}/current/engine.yaml; printf '{options}') > {TLS}/engine.yaml && chmod 600 {TLS}/engine.yaml")
    loaded = [f"LoadCredential={name}:{TLS}/{name}" for name in ("engine.yaml", "server.pem", "server.key")]
    drop_in(host, unit.name, "Environment=VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1", *loaded)
    host.check_output(f"systemctl restart {unit.name}")
    return lambda **more: gate(**{"url": URL.replace("http:", "https:"), "ca_path": certificate, **more})


@pytest.mark.long
def test_behind_a_private_ca_and_a_key_each_mistake_has_its_name_and_a_dead_engine_its_own(host: t.Any, unit: Unit, guarded: Gate) -> None:
    right = guarded(api_key=KEY)
    assert (right["ready"], right["answer"].strip()) == (True, "The answer is 42.")
    wrong: dict[str, dict[str, t.Any]] = {
        "key_needed": {},
        "key_refused": {"api_key": "sk-bad-EXAMPLE"},
        "tls_untrusted": {"api_key": KEY, "ca_path": None},
    }
    for code, options in wrong.items():
        answer = guarded(**options)
        assert (answer["code"], answer["waited_seconds"] < SOON) == (code, True)
        assert "EXAMPLE" not in json.dumps({**answer, "invocation": ""})
    assert guarded(level="drained", api_key=KEY)["ready"], "counters are behind no key"

    signal_all(host, "KILL", [core(unit)])
    dead = guarded(api_key=KEY)
    assert (dead["code"], dead["level"]) == ("engine_dead", "listening")
    assert "/health answers 503, its engine process is dead" in dead["msg"]
    assert dead["waited_seconds"] < 2 * SOON and unit.main_pid, "the server stays, so nothing restarts it"
    host.check_output(f"systemctl stop {unit.name}")
