# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host over virtual time: its systemd, journal, /proc and server follow a script."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.effects import CommandResult
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.health import Effects, Health, Want, look_once, wait_ready
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.http import Response, Unreachable
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.listeners import ProcFs

__all__ = ["ACTIVE", "BETWEEN", "FAILED", "FIRST", "HEAD", "OOM", "SECOND", "SHARDS", "UNIT", "Reply", "VirtualHost", "says"]

UNIT = "vllm-m.service"
FIRST, SECOND = "a1" * 16, "b2" * 16
HEAD = "sl local rem st q tr tm uid timeout inode\n"
SHARDS = "Loading safetensors checkpoint shards: {0}% Completed | {0}/100 [00:20<00:41, 2.0it/s]"
ACTIVE = {"ActiveState": "active", "SubState": "running", "MainPID": "39", "InvocationID": FIRST, "NRestarts": "0"}
BETWEEN = {"ActiveState": "activating", "SubState": "auto-restart", "MainPID": "0", "InvocationID": FIRST, "NRestarts": "0"}
FAILED = {**BETWEEN, "ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "1"}
OOM = [
    "(Worker_TP0 pid=3) ERROR 11-29 18:00:00 [m.py:1] RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 "
    "dummy requests.",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]
Reply = t.Union[str, tuple[int, t.Any]]


class VirtualHost:
    """Times are virtual seconds. ``unit`` is a list of (from when, what), ``journal`` of (when, start, line).

    ``late`` has how long each of the next answers of a path takes.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.unit: list[tuple[float, dict[str, str]]] = [(0.0, ACTIVE)]
        self.journal: list[tuple[float, str, str]] = []
        self.open_from = 0.0
        self.owner = UNIT
        self.routes: dict[str, Reply] = {
            "/health": (200, None),
            "/version": (200, {"version": "0.33.0"}),
            "/metrics": (200, None),
            "/v1/models": (200, {"data": [{"id": "m", "root": "/models/m", "max_model_len": 4096}]}),
            "/v1/chat/completions": says("42"),
        }
        self.late: dict[str, list[float]] = {}
        self.tokens_per_second = 0.0
        self.reports: list[t.Mapping[str, t.Any]] = []
        self.asked: list[tuple[str, t.Mapping[str, str]]] = []

    def wait(self, **options: t.Any) -> Health:
        return wait_ready(self.want(**options), self.effects())

    def look(self, **options: t.Any) -> Health:
        return look_once(self.want(**options), self.effects())

    @staticmethod
    def want(**options: t.Any) -> Want:
        return Want(**{"url": "http://127.0.0.1:8000", "unit": UNIT, "timeout": 60.0, "stall_timeout": 20.0, **options})

    def effects(self) -> Effects:
        proc = ProcFs(self._read, lambda path: ["3"] if path.endswith("/fd") else ["40"], lambda path: "socket:[501]")
        return Effects(self._transport, self._run, lambda: self.now, self._sleep, self.reports.append, proc)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _run(self, argv: t.Sequence[str]) -> CommandResult:
        if argv[0] == "systemctl":
            state = [state for since, state in self.unit if since <= self.now][-1]
            return CommandResult(0, "\n".join(f"{key}={value}" for key, value in {"LoadState": "loaded", **state}.items()), "")
        after = next((int(word.rpartition("=")[2]) for word in argv if word.startswith("--after-cursor=")), -1)
        wanted = str(argv[-1]).rpartition("=")[2]
        records = [
            json.dumps({"MESSAGE": line, "__CURSOR": str(number), "__REALTIME_TIMESTAMP": str(int(when * 1e6))})
            for number, (when, start, line) in enumerate(self.journal)
            if start == wanted and number > after and when <= self.now
        ]
        return CommandResult(0, "\n".join(records), "")

    def _read(self, path: str) -> str:
        if path == "/proc/net/tcp" and self.now >= self.open_from:
            return f"{HEAD}0: 0100007F:1F40 00000000:0000 0A 0:0 0:0 0 0 0 501"
        texts = {"/proc/40/comm": "vllm", "/proc/40/cgroup": f"0::/system.slice/{self.owner}"}
        if path not in texts:
            raise FileNotFoundError(path)
        return texts[path]

    def _transport(
        self, method: str, url: str, headers: t.Optional[t.Mapping[str, str]] = None, body: t.Optional[bytes] = None, timeout: float = 10.0
    ) -> Response:
        path = url.partition("8000")[2]
        self.asked.append((path, headers or {}))
        delay = self.late[path].pop(0) if self.late.get(path) else 0.0
        if delay >= timeout:
            self.now += timeout
            raise Unreachable(f"{url}: timeout.", code="timeout")
        self.now += delay
        reply = "refused" if self.now < self.open_from else self.routes.get(path, (404, {"detail": "Not Found"}))
        if isinstance(reply, str):
            self.now += timeout if reply == "timeout" else 0
            raise Unreachable(f"{url}: {reply}.", code=reply)
        metrics = f'vllm:generation_tokens_total{{engine="0"}} {self.tokens_per_second * self.now}'
        text = metrics if path == "/metrics" else json.dumps(reply[1])
        return Response(reply[0], {}, text.encode())


def says(text: t.Optional[str], tokens: int = 1, **more: t.Any) -> tuple[int, t.Any]:
    return 200, {"choices": [{"message": {"content": text, **more}}], "usage": {"completion_tokens": tokens}}
