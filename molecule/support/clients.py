# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the balancer: one request in full view, or many of them without a pause, each of which is written down."""

from __future__ import annotations

import http.client
import json
import threading
import time
import typing as t
from pathlib import Path

import yaml

__all__ = ["KEY", "Front", "Load", "Request"]

INVENTORY = Path(__file__).resolve().parents[1] / "rollout_inventory"
KEY: str = yaml.safe_load((INVENTORY / "group_vars" / "gpu_hosts" / "behind.yml").read_text())["server_api_keys"][0]
SUM = "What is 17 + 25? Answer with the number only."
TALK = "Tell me about yourself."
DEADLINE = 120.0


class Request(t.NamedTuple):
    """How one request went: why it counts as lost, or nothing."""

    kind: str
    began: float
    ended: float
    lost: str
    text: str = ""


class Front:
    """The balancer as clients reach it from this machine."""

    def __init__(self) -> None:
        hosts = yaml.safe_load((INVENTORY / "hosts.yml").read_text())
        self.port = int(hosts["balancer_hosts"]["hosts"]["lb"]["published_port"])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)

    def complete(self, prompt: str, *, stream: bool = False, tokens: int = 16, connection: t.Any = None) -> Request:
        """One completion. What ends without its last line, or with another status, is lost."""
        began = time.time()
        body = json.dumps({"model": "MiniMax-M2.5", "prompt": prompt, "max_tokens": tokens, "stream": stream})
        connection = connection or self.connect()
        lost, text = "", ""
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            whole = text.rstrip().endswith("data: [DONE]") if stream else '"choices"' in text
            lost = "" if answer.status == 200 and whole else f"{answer.status} {text[-200:]!r}"
        except (OSError, http.client.HTTPException) as exc:
            lost = f"{type(exc).__name__}: {exc}"
        return Request("stream" if stream else "short", began, time.time(), lost, text)


class Load:
    """Short completions, on connections that are kept as real clients keep them, and streams of some seconds."""

    def __init__(self, front: Front, short: int = 3, streams: int = 2) -> None:
        self.requests: list[Request] = []
        self._front = front
        self._over = threading.Event()
        kinds = [False] * short + [True] * streams
        self._threads = [threading.Thread(target=self._ask, args=(stream,), daemon=True) for stream in kinds]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE)

    @property
    def lost(self) -> list[str]:
        """What went wrong, with the moment."""
        lost = [request for request in self.requests if request.lost]
        return [f"{time.strftime('%H:%M:%S', time.gmtime(r.ended))} {r.kind} after {r.ended - r.began:.1f} s: {r.lost}" for r in lost]

    def count(self, kind: str) -> int:
        return sum(request.kind == kind for request in self.requests)

    def _ask(self, stream: bool) -> None:
        connection = self._front.connect()
        while not self._over.is_set():
            request = self._front.complete(TALK if stream else SUM, stream=stream, connection=connection)
            self.requests.append(request)
            if request.lost:
                connection.close()
            self._over.wait(0.1)
