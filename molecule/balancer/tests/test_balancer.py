# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two servers behind a real HAProxy."""

from __future__ import annotations

import concurrent.futures
import http.client
import socket
import ssl
import time
import typing as t

import pytest
from clients import KEY, Front, Load
from on_hosts import Unit, wait_for

if t.TYPE_CHECKING:
    from molecule.conftest import Operator, Play

BACKEND = "vllm-minimax-m25"
HOSTS = {"vllm_hosts": "gpu1,gpu2"}
RECIPE = {**HOSTS, "vllm_recipe": "minimax-m2.5"}
CERTIFICATE = "/etc/haproxy/clients.pem"
# Certificate and key in one file, as HAProxy wants them.
MAKE_CERTIFICATE = f"""
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=vllm -addext subjectAltName=IP:127.0.0.1 \
        -keyout {CERTIFICATE}.key -out {CERTIFICATE} 2>/dev/null && cat {CERTIFICATE}.key >> {CERTIFICATE} && rm {CERTIFICATE}.key"""
SCRIPT = "/run/fake-vllm"
CLOSED = [
    "/",
    "/metrics",
    "/invocations",
    "/tokenize",
    "/detokenize",
    "/docs",
    "/openapi.json",
    "/version",
    "/load",
    "/sleep",
    "/collective_rpc",
    "/v1",
    "/v1/",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/chat/completions/render",
    "/v1/models/",
    "/v1/models/..",
    "/v1/../metrics",
    "/v1/models/../../invocations",
    "/v1/models/%2e%2e/%2e%2e/invocations",
    "//metrics",
    "/v1//models",
    "/.//v1/models",
    "/%76%31/models",
    "/%69nvocations",
    "/v1/%6dodels",
    "/v1/models%00",
    "/v1/models;x",
    "/V1/models",
    "/health/",
    "/health/../metrics",
    "/v1/models\\..\\..\\metrics",
    "http://vllm/metrics",
    "http://vllm/v1/models/../../metrics",
    "*",
]


@pytest.fixture(scope="module")
def front() -> Front:
    return Front()


@pytest.fixture(scope="module")
def plays(operator: Operator) -> dict[str, Play]:
    """The balancer before its servers, the servers, and the balancer once more."""
    return {
        "balancer": operator.play("balancer", "-vvv", "--diff", variables=RECIPE),
        "servers": operator.play("deploy-minimax", variables=HOSTS),
        "again": operator.play("balancer", variables=RECIPE),
        "check": operator.play("balancer", "--check", variables=RECIPE),
    }


@pytest.fixture(autouse=True)
def deployed(plays: dict[str, Play]) -> None:
    assert [play.status for play in plays.values()] == [0, 0, 0, 0]


@pytest.fixture
def disturbed(operator: Operator) -> t.Iterator[None]:
    """Both servers take requests again after the test."""
    yield
    for name in ("gpu1", "gpu2"):
        operator.hosts[name].check_output(f"rm -f {SCRIPT}")
    for name in ("gpu1", "gpu2"):
        answer = server(operator, name, state="ready", wait="up", timeout=60)
        assert answer["operational"] == "up", answer


def server(operator: Operator, name: str, **options: t.Any) -> dict[str, t.Any]:
    return operator.ask("lb", "haproxy_server", backend=BACKEND, server=name, **options)


def slow_down(operator: Operator, *words: str) -> None:
    """Tell the engines how to answer from the next request on."""
    for name in ("gpu1", "gpu2"):
        operator.hosts[name].check_output(f"printf '%s\\n' {' '.join(words)} > {SCRIPT}")


def raw(front: Front, target: str, *headers: str) -> tuple[int, bytes]:
    """What comes back for a target that goes out as it is."""
    lines = [f"GET {target} HTTP/1.1", "Connection: close", f"Authorization: Bearer {KEY}", *(headers or ("Host: vllm",)), "", ""]
    with socket.create_connection(("127.0.0.1", front.port), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split()[1]), answer


def test_a_second_run_changes_nothing(plays: dict[str, Play]) -> None:
    assert plays["again"].changed == {"lb": 0}
    assert plays["check"].changed == {"lb": 0}


def test_the_documented_routes_pass(front: Front) -> None:
    assert raw(front, "/v1/models")[0] == 200
    assert raw(front, "/health")[0] == 200
    assert front.complete("What is 17 + 25?").lost == ""


@pytest.mark.parametrize("target", CLOSED)
def test_nothing_else_passes(front: Front, target: str) -> None:
    status, answer = raw(front, target)
    assert status in (400, 404), answer
    assert b"vllm:" not in answer and b"uvicorn" not in answer.lower()


def test_a_host_of_the_clients_choice_and_another_protocol_do_not_reach_the_engine(front: Front) -> None:
    """Old engines took a crafted name for a part of the path."""
    assert raw(front, "/metrics", "Host: x/v1?a")[0] in (400, 404)
    assert raw(front, "/v1/models", "Host: vllm", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")[0] == 200


@pytest.mark.usefixtures("disturbed")
def test_a_drain_lets_streams_finish_and_sends_new_requests_elsewhere(operator: Operator, front: Front) -> None:
    slow_down(operator, "answer=endless", "token-seconds=0.5")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        streams = [pool.submit(front.complete, "go on", stream=True, tokens=100) for _ in range(4)]
        wait_for(lambda: server(operator, "gpu1")["in_flight"] >= 1, 20)
        drained = server(operator, "gpu1", state="drain")
        assert (drained["was"], drained["state"], drained["changed"]) == ("ready", "drain", True)
        assert drained["in_flight"] >= 1 and drained["serving"] == ["gpu2"]
        more = [pool.submit(front.complete, "go on", tokens=2) for _ in range(4)]
        assert [request.result().lost for request in more] == [""] * 4
        empty = server(operator, "gpu1", wait="drained", timeout=90)
        assert [request.result().lost for request in streams] == [""] * 4
    assert empty["in_flight"] == 0 and not empty["changed"]


@pytest.mark.usefixtures("disturbed")
def test_a_drain_that_lasts_too_long_says_what_it_waits_for(operator: Operator, front: Front) -> None:
    slow_down(operator, "answer=endless", "token-seconds=0.5")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        streams = [pool.submit(front.complete, "go on", stream=True, tokens=100) for _ in range(2)]
        wait_for(lambda: server(operator, "gpu1")["in_flight"] >= 1, 20)
        late = server(operator, "gpu1", state="drain", wait="drained", timeout=1)
        assert [request.result().lost for request in streams] == ["", ""]
    assert late["code"] == "not_drained" and "still has 1 request in flight after 1 s" in late["msg"]


@pytest.mark.usefixtures("disturbed")
def test_a_reload_drops_nothing_and_keeps_a_server_out(operator: Operator, front: Front) -> None:
    slow_down(operator, "answer=endless", "token-seconds=0.5")
    lb = operator.hosts["lb"]
    main_pid = lb.check_output("systemctl show --value --property=MainPID haproxy")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        streams = [pool.submit(front.complete, "go on", stream=True, tokens=240) for _ in range(2)]
        wait_for(lambda: server(operator, "gpu1")["in_flight"] >= 1, 20)
        server(operator, "gpu1", state="drain")
        play = operator.play("balancer", variables={**RECIPE, "balancer_slow_start": 3})
        now = server(operator, "gpu1")
        assert (now["state"], now["in_flight"], now["serving"]) == ("drain", 1, ["gpu2"])
        assert [request.result().lost for request in streams] == ["", ""]
    assert play.status == 0 and "Start HAProxy, or reload it without dropping a connection" in play.tasks_changed()
    assert lb.check_output("systemctl show --value --property=MainPID haproxy") == main_pid
    assert "slowstart 3s" in lb.check_output("cat /etc/haproxy/haproxy.cfg")


@pytest.mark.usefixtures("disturbed")
def test_a_server_that_is_killed_costs_no_later_request(operator: Operator, front: Front) -> None:
    """What it was answering at that moment ends with it; nobody can ask for that again but the client."""
    unit = Unit(operator.hosts["gpu1"])
    with Load(front, short=4, streams=0) as load:
        wait_for(lambda: load.count("short") > 20, 60)
        unit.host.check_output(f"systemctl kill --kill-whom=all --signal=KILL {unit.name}")
        killed = time.time()
        wait_for(lambda: server(operator, "gpu1")["operational"] != "up", 60)
        wait_for(lambda: server(operator, "gpu1")["operational"] == "up", 90)
    lost = [request for request in load.requests if request.lost]
    assert [request for request in lost if request.began > killed] == []
    assert len(lost) <= 4
    assert sum(request.began > killed for request in load.requests) > 20


def test_broken_configuration_is_refused_and_the_running_one_goes_on(operator: Operator, front: Front) -> None:
    lb = operator.hosts["lb"]
    files = "find /etc/haproxy /etc/systemd/system/haproxy.service.d -type f -not -name '*~' | sort | xargs sha256sum"
    before = lb.check_output(files)
    play = operator.play("balancer", variables={**RECIPE, "balancer_certificate": "/etc/haproxy/none.pem"})
    assert play.status != 0 and "none.pem" in play.output
    assert lb.check_output(files) == before
    assert front.complete("What is 17 + 25?").lost == ""


@pytest.fixture
def secure(operator: Operator) -> t.Iterator[ssl.SSLContext]:
    """The balancer with a certificate, and what a client believes; without one after the test."""
    lb = operator.hosts["lb"]
    lb.check_output(MAKE_CERTIFICATE)
    certified = {**RECIPE, "balancer_certificate": CERTIFICATE}
    assert operator.play("balancer", variables=certified).status == 0
    assert operator.play("balancer", variables=certified).changed == {"lb": 0}
    yield ssl.create_default_context(cadata=lb.check_output(f"openssl x509 -in {CERTIFICATE}"))
    assert operator.play("balancer", variables=RECIPE).status == 0
    lb.check_output(f"rm {CERTIFICATE}")


def test_with_a_certificate_clients_talk_tls_and_nothing_else(front: Front, secure: ssl.SSLContext) -> None:
    one = http.client.HTTPSConnection("127.0.0.1", front.port, context=secure, timeout=30)
    assert front.complete("What is 17 + 25?", connection=one).lost == ""
    assert front.complete("What is 17 + 25?").lost
    secure.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", front.port), timeout=30)
    with secure.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        assert (connection.selected_alpn_protocol(), connection.version()) == ("h2", "TLSv1.3")


@pytest.mark.usefixtures("disturbed")
def test_a_server_that_is_healthy_and_answers_nothing_goes_down(operator: Operator) -> None:
    operator.hosts["gpu1"].check_output(f"echo answer-seconds=600 > {SCRIPT}")
    wait_for(lambda: server(operator, "gpu1")["operational"] == "down", 90)
    health = "curl --silent --output /dev/null --write-out '%{http_code}' http://$(hostname --ip-address):8000/health"
    assert operator.hosts["gpu1"].check_output(health) == "200"
    assert server(operator, "gpu2")["serving"] == ["gpu2"]


def test_the_key_of_the_check_is_shown_nowhere(operator: Operator, plays: dict[str, Play]) -> None:
    lb = operator.hosts["lb"]
    assert KEY not in plays["balancer"].output
    places = "cat /proc/$(pgrep -o haproxy)/cmdline; systemctl cat haproxy; systemctl show haproxy; journalctl --no-pager --unit=haproxy"
    assert KEY not in lb.check_output(places)
    # As a pattern that does not match itself.
    pattern = f"{KEY[:5]}[{KEY[5]}]{KEY[6:]}"
    holding = lb.check_output(
        f"grep --files-with-matches --recursive --devices=skip {pattern} /etc /run /usr/local /var /tmp /root || true"
    )
    modes = {lb.check_output(f"stat --format='%a %U:%G' {path}") for path in holding.split()}
    assert holding and modes == {"640 root:haproxy"}, holding
