# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server as a unit: the fake engine or one made by hand, with stand-ins of systemctl and journalctl that show it as such."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest

from .running import ROOT, Answer, environment, run_module, wait_for

__all__ = ["UNIT", "HandMade", "ServedUnit", "free_port", "says"]

UNIT = "vllm-tiny.service"
INVOCATION = "5c" * 16
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128}
SYSTEMCTL = '#!/bin/sh\nexec cat "$FAKE_SYSTEMD/unit"\n'
JOURNALCTL = """#!/bin/sh
seen=0
for word in "$@"; do
  case $word in --after-cursor=*) seen=${word#*=} ;; --sync) exit 0 ;; esac
done
exec tail -n +$((seen + 1)) "$FAKE_SYSTEMD/journal"
"""


def free_port() -> int:
    """A port that nobody holds, below those that the kernel gives to connections: one of them could take it before it is used."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class ServedUnit:
    """The fake engine as a unit: its state in a file that systemctl prints, its output in one that journalctl prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = self._write_model()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: t.Optional[subprocess.Popen[bytes]] = None
        for name, text in {"systemctl": SYSTEMCTL, "journalctl": JOURNALCTL}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "journal").touch()

    def _write_model(self) -> Path:
        model = self.folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        names = {f"t{number}": f"model-{number:05d}-of-00009.safetensors" for number in range(8)}
        for tensor, name in names.items():
            header = json.dumps({tensor: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
            (model / name).write_bytes(struct.pack("<Q", len(header)) + header + b"data")
        (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
        return model

    def start(self, *arguments: str, script: str = "load-seconds=0.3", **variables: str) -> ServedUnit:
        python_path = str(ROOT / "tests" / "bench" / "engine")
        environment = {**os.environ, "PYTHONPATH": python_path, "FAKE_VLLM_SCRIPT": script, "CUDA_VISIBLE_DEVICES": "", **variables}
        command = [sys.executable, "-m", "fake_vllm", "serve", str(self.model), "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--served-model-name", "tiny", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        self.show("active", "running", self.process.pid)
        threading.Thread(target=self._follow, args=(self.process,), daemon=True).start()
        return self

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        with (self.folder / "journal").open("a") as journal:
            for number, line in enumerate(process.stdout, 1):
                moment = str(int(time.time() * 1e6))
                record = {"MESSAGE": list(line.rstrip(b"\n")), "__CURSOR": str(number), "__REALTIME_TIMESTAMP": moment}
                journal.write(json.dumps(record) + "\n")
                journal.flush()
        status = process.wait()
        self.show("activating", "auto-restart", 0, Result="exit-code" if status else "success", ExecMainCode=1, ExecMainStatus=abs(status))

    def show(self, active: str, sub: str, pid: int, **more: t.Any) -> None:
        state = {"LoadState": "loaded", "ActiveState": active, "SubState": sub, "MainPID": pid, "InvocationID": INVOCATION, **more}
        fresh = self.folder / "unit.new"
        fresh.write_text("".join(f"{key}={value}\n" for key, value in state.items()))
        fresh.rename(self.folder / "unit")

    def is_served_by(self, server: HandMade) -> ServedUnit:
        """A server made by hand in place of the fake engine."""
        self.port, self.url = server.port, server.url
        self.show("active", "running", os.getpid())
        return self

    def health(
        self, *, unit: bool = False, check_mode: bool = False, variables: t.Optional[dict[str, str]] = None, **options: t.Any
    ) -> Answer:
        arguments = {"url": self.url, "timeout": 20, "unit": UNIT if unit else None, "_ansible_check_mode": check_mode, **options}
        path = f"{self.folder}:{os.environ['PATH']}"
        env = environment(PATH=path, FAKE_SYSTEMD=str(self.folder), **(variables or {"http_proxy": "http://127.0.0.1:9"}))
        return run_module("vllm_health", self.folder, env, **{name: value for name, value in arguments.items() if value is not None})

    def ready(self) -> ServedUnit:
        """Once somebody listens."""
        wait_for(self._listens, 20)
        return self

    def _listens(self) -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def end(self) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


Reply = t.Union[tuple[int, t.Any], t.Callable[[http.server.BaseHTTPRequestHandler], None]]


class HandMade:
    """A server of this process: each path has a status and JSON, or a function that writes the answer itself."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.asked: list[tuple[str, dict[str, str], t.Any]] = []
        self.routes: dict[str, Reply] = {
            "/health": (200, None),
            "/version": (200, {"version": "0.33.0"}),
            "/v1/models": (200, {"data": [{"id": "model-a", "root": "/models/a", "max_model_len": 4096}]}),
            "/v1/chat/completions": says("42"),
        }
        handler = type("Handler", (_Handler,), {"owner": self})
        kind = type("Server", (http.server.ThreadingHTTPServer,), {"address_family": socket.AF_INET6 if ":" in host else socket.AF_INET})
        self._server = kind((host, port), handler)
        self.port = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: HandMade

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.owner.asked.append((self.path, dict(self.headers), json.loads(body or b"null")))
        reply = self.owner.routes.get(self.path, (404, {"detail": "Not Found"}))
        if callable(reply):
            reply(self)
            return
        content = reply[1].encode() if isinstance(reply[1], str) else json.dumps(reply[1]).encode()
        self.send_response(reply[0])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, format: str, *args: t.Any) -> None:
        """Quiet."""


def says(text: t.Optional[str], tokens: int = 1, *, finish: str = "stop", logprobs: t.Any = None, **more: t.Any) -> tuple[int, t.Any]:
    """A chat answer as vLLM sends it."""
    choice = {"message": {"role": "assistant", "content": text, **more}, "logprobs": logprobs, "finish_reason": finish}
    return 200, {"choices": [choice], "usage": {"completion_tokens": tokens}}


@pytest.fixture
def unit(tmp_path: Path) -> t.Iterator[ServedUnit]:
    """No process yet."""
    fake = ServedUnit(tmp_path)
    yield fake
    fake.end()


@pytest.fixture
def server() -> t.Iterator[HandMade]:
    """Serves, and belongs to no unit."""
    made = HandMade()
    yield made
    made.end()
