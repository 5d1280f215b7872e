# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration that the role balancer renders, the options it refuses, and HAProxy itself where it is installed."""

from __future__ import annotations

import http.server
import json
import shutil
import signal
import socket
import subprocess
import threading
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.modules import haproxy_server
from support.role_vars import template_all
from support.running import ROOT, load_file, run_module, wait_for

ROLE = ROOT / "roles" / "balancer"
keeper = load_file(ROLE / "files" / "haproxy_keep_state.py")
SERVERS = [{"name": "gpu1", "address": "127.0.0.1", "port": 18001}, {"name": "gpu-2.rack", "address": "fd00::2", "port": 8000}]
MODEL = {"deployment": "minimax-m25", "served_model_name": 'Mini\'Max "M2.5"'}
PLAIN: dict[str, t.Any] = {"vllm_model": MODEL, "balancer_backends": SERVERS, "ansible_managed": "Ansible managed"}
CASES: dict[str, dict[str, t.Any]] = {
    "plain": PLAIN,
    "with-a-key": {**PLAIN, "balancer_api_key": 'sk-"$x{\\'},
    "routes-with-a-star": {**PLAIN, "balancer_routes": ["/v1/responses/*", "/v1/responses/*/cancel"]},
    "everything-as-text": {
        **PLAIN,
        "balancer_port": "8443",
        "balancer_stats_port": "0",
        "balancer_check_interval": "7",
        "balancer_address": "::1",
    },
}
REFUSED: dict[str, tuple[dict[str, t.Any], str]] = {
    "no-server": ({"balancer_backends": []}, "balancer_backends is empty"),
    "twice": ({"balancer_backends": [SERVERS[0], SERVERS[0]]}, "names a server twice (gpu1, gpu1)"),
    "name": ({"balancer_backends": [{**SERVERS[0], "name": "gpu 1"}]}, "that HAProxy cannot read (gpu 1)"),
    "address": ({"balancer_backends": [{**SERVERS[0], "address": "10.0.0.1 maxconn 1"}]}, "that HAProxy cannot read (gpu1)"),
    "route-up": ({"balancer_routes": ["/v1/../metrics"]}, "/v1/../metrics, which is no path"),
    "route-relative": ({"balancer_routes": ["v1/models"]}, "v1/models, which is no path"),
    "route-two": ({"balancer_routes": ["/v1/models /metrics"]}, "which is no path"),
    "route-pattern": ({"balancer_routes": ["/v1/.*"]}, "which is no path"),
    "key": ({"balancer_api_key": "a b"}, "balancer_api_key holds a blank"),
    "key-quote": ({"balancer_api_key": "a'b"}, "an apostrophe"),
    "deployment": ({"balancer_deployment": "Mini Max"}, "The deployment name Mini Max is none"),
}
HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"
needs_haproxy = pytest.mark.skipif(not Path(HAPROXY).exists(), reason="no HAProxy on this machine")


def render(folder: Path, cases: t.Mapping[str, t.Any], name: str) -> dict[str, str]:
    said = template_all(folder, "balancer", cases, "{{ lookup('ansible.builtin.template', '" + str(ROLE / "templates" / name) + "') }}")
    return {case: json.loads(text)["msg"] + "\n" for case, text in said.items()}


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("balancer")
    parts = {name: render(folder, CASES, f"{name}.cfg.j2") for name in ("base", "key", "deployment")}
    return {case: {name: texts[case] for name, texts in parts.items()} for case in CASES}


def test_requests_and_checks_are_those_of_the_deployment(sections: dict[str, dict[str, str]]) -> None:
    text = sections["plain"]["deployment"]
    assert "server gpu1 127.0.0.1:18001\n" in text and "server gpu-2.rack [fd00::2]:8000\n" in text
    assert "path -m str /health /v1/models /v1/completions /v1/chat/completions /v1/responses /v1/embeddings\n" in text
    assert "check inter 15s fastinter 2s downinter 5s fall 2 rise 2 weight 100 slowstart 20s init-addr libc,last,none\n" in text
    assert "Authorization" not in text


def test_a_server_that_goes_out_or_down_keeps_its_streams(sections: dict[str, dict[str, str]]) -> None:
    assert "on-marked-down" not in "".join(part for parts in sections.values() for part in parts.values())


def test_the_key_is_only_in_the_file_of_the_key(sections: dict[str, dict[str, str]]) -> None:
    parts = sections["with-a-key"]
    assert "setenv VLLM_KEY_MINIMAX_M25 'sk-\"$x{\\'\n" in parts["key"]
    assert "sk-" not in parts["base"] + parts["deployment"]
    assert '"Bearer ${VLLM_KEY_MINIMAX_M25}"' in parts["deployment"]


def test_a_star_is_one_segment(sections: dict[str, dict[str, str]]) -> None:
    assert "acl is_route path -m reg ^/v1/responses/[A-Za-z0-9_-]+/cancel$\n" in sections["routes-with-a-star"]["deployment"]


def test_numbers_may_come_as_text(sections: dict[str, dict[str, str]]) -> None:
    parts = sections["everything-as-text"]
    assert "bind [::1]:8443\n" in parts["deployment"] and "inter 7s" in parts["deployment"] and "bind 127.0.0.1" not in parts["base"]


@needs_haproxy
@pytest.mark.parametrize("case", CASES)
def test_haproxy_takes_it(sections: dict[str, dict[str, str]], case: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.cfg" for name in sections[case]]
    for file, text in zip(files, sections[case].values()):
        # This machine need not have the user.
        file.write_text(
            text.replace("    user haproxy\n", "").replace("    group haproxy\n", "").replace("    chroot /var/lib/haproxy\n", "")
        )
        used = [argument for file in files if file.exists() for argument in ("-f", str(file))]
        done = subprocess.run([HAPROXY, "-c", *used], capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    said = template_all(
        tmp_path, "balancer", {case: {**PLAIN, **options} for case, (options, _) in REFUSED.items()}, "{{ __balancer_refusal }}"
    )
    for case, (_, words) in REFUSED.items():
        assert words in json.loads(said[case])["msg"], case


def test_what_works_is_not(tmp_path: Path) -> None:
    said = template_all(tmp_path, "balancer", CASES, "{{ __balancer_refusal }}")
    assert {json.loads(text)["msg"] for text in said.values()} == {""}


STATE = (ROOT / "tests" / "unit" / "fixtures" / "haproxy" / "2.6" / "servers-state").read_text()


def test_a_saved_state_has_the_ports_that_are_configured() -> None:
    """HAProxy prefers the port of the state to that of its configuration."""
    configuration = (
        "backend other\n server gpu1 10.0.0.1:1\nbackend vllm-x\n server gpu1 10.0.0.1:8001\n  server gpu4 [fd00::4]:8004 check\n"
    )
    lines = keeper.corrected(STATE, configuration).splitlines()
    assert lines[:2] == STATE.splitlines()[:2]
    rows = {line.split()[3]: line.split() for line in lines[2:] if line.strip()}
    assert {name: (row[18], row[6]) for name, row in rows.items()} == {"gpu1": ("8001", "0"), "gpu4": ("8004", "8")}
    assert all(len(row) == len(STATE.splitlines()[2].split()) for row in rows.values())


class Balanced(t.NamedTuple):
    """A real HAProxy with two servers, of which only the first answers."""

    folder: Path
    process: subprocess.Popen[bytes]

    def ask(self, **options: t.Any) -> dict[str, t.Any]:
        sockets = {"socket": str(self.folder / "admin.sock"), "master_socket": str(self.folder / "master.sock")}
        return run_module("haproxy_server", self.folder, **{**sockets, "backend": "vllm-x", "server": "gpu1", **options})

    def configure(self, *servers: str) -> None:
        (self.folder / "haproxy.cfg").write_text(
            f"global\n stats socket {self.folder}/admin.sock level admin\n server-state-file {self.folder}/state\n"
            "defaults\n mode http\n timeout connect 2s\n timeout client 9s\n timeout server 9s\n load-server-state-from-file global\n"
            f"backend vllm-x\n option httpchk GET /\n default-server check inter 200ms fall 2 rise 2\n"
            + "".join(f" server {server}\n" for server in servers)
            + f"frontend f\n bind unix@{self.folder}/front.sock\n default_backend vllm-x\n"
        )

    def reload(self) -> None:
        state = keeper.ask(str(self.folder / "admin.sock"), "show servers state")
        (self.folder / "state").write_text(keeper.corrected(state, (self.folder / "haproxy.cfg").read_text()))
        self.process.send_signal(signal.SIGUSR2)


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: t.Any) -> None:
        """In silence."""


@pytest.fixture
def balanced(tmp_path: Path) -> t.Iterator[Balanced]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server, socket.socket() as taken:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        taken.bind(("127.0.0.1", 0))
        command = [HAPROXY, "-W", "-S", str(tmp_path / "master.sock"), "-f", str(tmp_path / "haproxy.cfg")]
        found = Balanced(tmp_path, t.cast("subprocess.Popen[bytes]", None))
        found.configure(f"gpu1 127.0.0.1:{server.server_port}", f"gpu2 127.0.0.1:{taken.getsockname()[1]}")
        with subprocess.Popen(command, stderr=(tmp_path / "log").open("wb"), cwd=tmp_path) as process:
            # The socket is there before somebody listens to it.
            wait_for(lambda: found.ask().get("state") == "ready")
            yield found._replace(process=process)
            process.terminate()
        server.shutdown()


@needs_haproxy
def test_a_server_goes_out_and_comes_back(balanced: Balanced) -> None:
    seen = balanced.ask(wait="up", timeout=20)
    assert (seen["changed"], seen["state"], seen["operational"]) == (False, "ready", "up")
    out = balanced.ask(state="drain", wait="drained", timeout=20)
    assert (out["changed"], out["was"], out["state"], out["in_flight"]) == (True, "ready", "drain", 0)
    assert "gpu1" not in out["serving"]
    assert not balanced.ask(state="drain")["changed"]
    back = balanced.ask(state="ready", wait="up", timeout=20)
    assert (back["changed"], back["state"]) == (True, "ready") and "gpu1" in back["serving"]


@needs_haproxy
def test_check_mode_says_what_it_would_do_and_waits_for_nothing(balanced: Balanced) -> None:
    said = balanced.ask(server="gpu2", state="drain", wait="up", timeout=60, _ansible_check_mode=True)
    assert (said["changed"], said["was"], said["state"], said["waited_seconds"]) == (True, "ready", "drain", 0)
    assert balanced.ask(server="gpu2")["state"] == "ready"


@needs_haproxy
def test_a_server_that_does_not_answer_does_not_come_up(balanced: Balanced) -> None:
    late = balanced.ask(server="gpu2", wait="up", timeout=3)
    assert late["code"] == "not_up" and "Connection refused" in late["msg"], late["msg"]


@needs_haproxy
def test_names_that_are_not_there_are_refused(balanced: Balanced) -> None:
    assert balanced.ask(server="nix")["code"] == "unknown_server"
    assert balanced.ask(backend="nix")["code"] == "unknown_backend"


def test_a_socket_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    said = run_module("haproxy_server", tmp_path, socket=str(tmp_path / "none.sock"), backend="vllm-x", server="gpu1")
    assert said["code"] == "no_socket" and "none.sock (No such file or directory). Start haproxy.service" in said["msg"]


@needs_haproxy
def test_a_master_that_executes_itself_again_is_waited_for(balanced: Balanced) -> None:
    path = balanced.folder / "late.sock"
    with socket.socket(socket.AF_UNIX) as master:
        master.bind(str(path))

        def answer() -> None:
            master.listen()
            for _question in range(2):
                connection, _address = master.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"# old workers\n")

        late = threading.Timer(1, answer)
        late.start()
        assert balanced.ask(master_socket=str(path))["state"] == "ready"
        late.join()


@needs_haproxy
def test_a_master_that_never_listens_is_named(balanced: Balanced) -> None:
    path = balanced.folder / "dead.sock"
    with socket.socket(socket.AF_UNIX) as master:
        master.bind(str(path))
        said = balanced.ask(master_socket=str(path))
    assert (said["code"], f"{path} (Connection refused)" in said["msg"]) == ("no_socket", True)


def test_a_socket_that_never_answers_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy_server, "ANSWER_TIMEOUT", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(OSError, match="timed out") as said:
            haproxy_server.exchange(str(tmp_path / "silent.sock"))("show stat")
    assert (said.value.strerror, said.value.filename) == ("timed out", str(tmp_path / "silent.sock"))


@needs_haproxy
def test_a_reload_keeps_a_server_out_and_takes_its_new_address(balanced: Balanced) -> None:
    balanced.ask(state="drain")
    balanced.configure("gpu1 127.0.0.2:18999", "gpu3 127.0.0.1:18003")
    balanced.reload()
    wait_for(lambda: balanced.ask(server="gpu3").get("state") == "ready")
    assert balanced.ask()["state"] == "drain"
    rows = [line.split() for line in keeper.ask(str(balanced.folder / "admin.sock"), "show servers state vllm-x").splitlines()]
    assert [(row[4], row[18]) for row in rows if len(row) > 18 and row[3] == "gpu1"] == [("127.0.0.2", "18999")]
