# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP surface of the API server: routes, key rules, error bodies, metrics and access log of vLLM."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import queue
import socket
import sys
import threading
import time
import typing as t

from . import __version__
from .logs import stderr_line
from .model import Model
from .options import Options
from .processes import Channel

__all__ = ["ROUTES", "AnswerLost", "Engine", "Handler", "HttpServer"]

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
ROUTES = {
    "/load": "GET", "/version": "GET", "/health": "GET", "/metrics": "GET", "/tokenize": "POST", "/detokenize": "POST", "/v1/models": "GET",
    "/ping": "GET", "/invocations": "POST", "/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/embeddings": "POST",
}  # fmt: skip
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}
_REASONS[503] = "Service Unavailable"


Generation = t.Iterator[tuple[list[str], t.Optional[str]]]


class EngineGone(Exception):
    """The engine died, or takes no requests any more."""


class AnswerLost(Exception):
    """The engine was killed while it drained: nothing more comes, and nobody tells the client."""


class Engine:
    """The engine core as the API server sees it: questions go down the channel, words come back by number."""

    def __init__(self, channel: Channel, on_death: t.Callable[[], None]) -> None:
        self.channel = channel
        self.dead = False
        self.draining = False
        self.counts = {"prompt_tokens": 0, "generation_tokens": 0, "requests": 0, "seconds": 0.0}
        self._on_death = on_death
        self._numbers = itertools.count(1)
        self._pending: dict[int, queue.SimpleQueue[t.Any]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def running(self) -> int:
        return len(self._pending)

    def ask(self, prompt: str, limit: int) -> Generation:
        """The words as they come; with the last ones comes why it ended."""
        started = time.monotonic()
        number, box = next(self._numbers), queue.SimpleQueue[t.Any]()
        with self._lock:
            if self.dead or self.draining:
                raise EngineGone
            self._pending[number] = box
        self.channel.send({"id": number, "prompt": prompt, "limit": limit})
        try:
            yield from _until_finished(box)
        finally:
            self.channel.send({"abort": number})
            with self._lock:
                self._pending.pop(number, None)
                self.counts["requests"] += 1
                self.counts["seconds"] += time.monotonic() - started

    def give_up(self, reason: type[Exception] = EngineGone) -> None:
        """Release everyone who waits for an answer: there will be none."""
        with self._lock:
            if not self.dead:
                self.dead = True
                for box in self._pending.values():
                    box.put(reason())

    def _read(self) -> None:
        while True:
            message = self.channel.receive()
            if message is None:
                break
            box = self._pending.get(message["id"])
            if box:
                box.put((message["words"], message["finished"]))
        self.give_up()
        self._on_death()


def _logprobs(request: t.Mapping[str, t.Any], chat: bool, words: t.Sequence[str]) -> t.Optional[dict[str, t.Any]]:
    """What chat and completions give who asks for it: the one wants a yes, the other a number, which may be 0."""
    wanted = request.get("logprobs")
    if wanted is None or wanted is False:
        return None
    if chat:
        return {"content": [{"token": word, "logprob": -0.01, "bytes": list(word.encode()), "top_logprobs": []} for word in words]}
    offsets = list(itertools.accumulate((len(word) + 1 for word in words), initial=0))[:-1]
    return {"text_offset": offsets, "token_logprobs": [-0.01 for _word in words], "tokens": list(words), "top_logprobs": None}


def _until_finished(box: queue.SimpleQueue[t.Any]) -> Generation:
    finished = None
    while not finished:
        message = box.get()
        if isinstance(message, Exception):
            raise message
        words, finished = message
        yield words, finished


class HttpServer(http.server.ThreadingHTTPServer):
    """Takes a socket that is bound already and starts to listen on it."""

    daemon_threads = True
    request_queue_size = 2048

    def __init__(self, bound: socket.socket, options: Options, model: Model, engine: Engine) -> None:
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_address = bound.getsockname()
        self.options, self.model, self.engine = options, model, engine
        self.created = int(time.time())
        self.busy = 0
        self.idle = threading.Condition()
        self.server_activate()

    def wait_until_idle(self) -> None:
        """Until the last client has its answer or has hung up, however long that takes."""
        with self.idle:
            self.idle.wait_for(lambda: self.busy == 0)

    def count(self, step: int) -> None:
        """A request more that is being answered, or one less."""
        with self.idle:
            self.busy += step
            self.idle.notify_all()

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """A client that hangs up, or speaks plain HTTP to TLS, is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "uvicorn", ""
    timeout = 60
    server: HttpServer

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        path = self.path.partition("?")[0]
        root = self.server.options.root_path.rstrip("/")
        if root and path.startswith(f"{root}/"):
            path = path[len(root) :]
        if path.startswith(GUARDED) and not self._key_fits():
            self._json(401, {"error": "Unauthorized"})
        elif path not in ROUTES:
            self._json(404, {"detail": "Not Found"})
        elif method not in ROUTES[path] and path != "/ping":
            self._json(405, {"detail": "Method Not Allowed"})
        else:
            self._route(path, body)

    def _key_fits(self) -> bool:
        keys = self.server.options.api_key
        scheme, _space, key = (self.headers.get("Authorization") or "").partition(" ")
        return not keys or (scheme.lower() == "bearer" and key in keys)

    def _route(self, path: str, body: bytes) -> None:
        engine = self.server.engine
        if path in ("/health", "/ping"):
            self._send(503 if engine.dead else 200, b"", "text/plain")
        elif path == "/version":
            self._json(200, {"version": __version__})
        elif path == "/load":
            self._json(200, {"server_load": 0})
        elif path == "/metrics":
            self._send(200, self._metrics().encode(), "text/plain; version=1.0.0; charset=utf-8")
        elif path == "/v1/models":
            self._json(200, {"object": "list", "data": [self._card(name) for name in self.server.options.served_model_name]})
        else:
            self._post(path, body)

    def _card(self, name: str) -> dict[str, t.Any]:
        model = self.server.model
        card = {"id": name, "object": "model", "created": self.server.created, "owned_by": "vllm", "root": model.path, "parent": None}
        return {**card, "max_model_len": model.max_length, "permission": []}

    def _post(self, path: str, body: bytes) -> None:
        try:
            request = json.loads(body or b"{}")
        except ValueError:
            self._error(400, "BadRequestError", "JSON decode error")
            return
        names = self.server.options.served_model_name
        if request.get("model") not in (None, *names):
            self._error(404, "NotFoundError", f"The model `{request['model']}` does not exist. Valid aliases: {', '.join(names)}")
        elif path == "/tokenize":
            tokens = list(range(len(str(request.get("prompt", "")).split())))
            self._json(200, {"count": len(tokens), "max_model_len": self.server.model.max_length, "tokens": tokens, "token_strs": None})
        elif path == "/detokenize":
            self._json(200, {"prompt": ""})
        elif path == "/v1/embeddings":
            self._json(404, {"detail": "Not Found"})
        else:
            self._complete(path, request)

    def _complete(self, path: str, request: dict[str, t.Any]) -> None:
        chat = "messages" in request
        if chat and path == "/v1/chat/completions" and not self._has_chat_template():
            message = "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template"
            self._error(400, "BadRequestError", f"{message} if the tokenizer does not define one.")
            return
        prompt = str(request["messages"][-1].get("content") if chat else request.get("prompt", ""))
        limit = int(request.get("max_tokens") or request.get("max_completion_tokens") or 16)
        self.server.count(+1)
        try:
            self._answer(request, chat, prompt, self.server.engine.ask(prompt, limit))
        except EngineGone:
            self._error(500, "InternalServerError", self._why_no_answer())
        except AnswerLost:
            self._wait_for_hang_up()
        finally:
            self.server.count(-1)

    def _why_no_answer(self) -> str:
        if self.server.engine.draining:
            return "cannot schedule new futures after shutdown"
        return "EngineCore encountered an issue. See stack trace (above) for the root cause."

    def _wait_for_hang_up(self) -> None:
        self.connection.settimeout(None)
        with contextlib.suppress(OSError):
            while self.connection.recv(1024):
                continue
        self.close_connection = True

    def _has_chat_template(self) -> bool:
        return bool(self.server.options.chat_template) or not self.server.model.config.get("_no_chat_template")

    def _count(self, usage: t.Mapping[str, int]) -> None:
        counts = self.server.engine.counts
        counts["prompt_tokens"] += usage["prompt_tokens"]
        counts["generation_tokens"] += usage["completion_tokens"]

    def _answer(self, request: dict[str, t.Any], chat: bool, prompt: str, generation: Generation) -> None:
        name = request.get("model") or self.server.options.served_model_name[0]
        frame = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.server.engine.counts['requests']}",
            "created": int(time.time()),
            "model": name,
        }
        if request.get("stream"):
            self._stream(frame, chat, prompt, generation)
            return
        parts = list(generation)
        words, finished = [word for some, _finished in parts for word in some], parts[-1][1]
        usage = self._usage(prompt, words)
        reasoning = "The user asks something easy." if chat and self.server.options.reasoning_parser else None
        message: dict[str, t.Any] = {"role": "assistant", "content": " ".join(words), "reasoning": reasoning, "tool_calls": []}
        said: dict[str, t.Any] = {"message": message} if chat else {"text": message["content"]}
        choice = {"index": 0, **said, "logprobs": _logprobs(request, chat, words), "finish_reason": finished}
        kind = "chat.completion" if chat else "text_completion"
        self._json(200, {**frame, "object": kind, "choices": [choice], "usage": usage})

    def _usage(self, prompt: str, words: t.Sequence[str]) -> dict[str, int]:
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len([word for word in words if word])}
        self._count(usage)
        return {**usage, "total_tokens": sum(usage.values())}

    def _stream(self, frame: dict[str, t.Any], chat: bool, prompt: str, generation: Generation) -> None:
        """A part for each word as it comes; an engine that dies meanwhile is told of in a last part, since the status is out already."""
        words, finished = next(generation)
        self.send_response_only(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self._log_access(200)
        try:
            sent = self._send_words(frame, chat, words, finished)
            for more, finished in generation:
                sent += self._send_words(frame, chat, more, finished)
            self._usage(prompt, sent)
        except EngineGone:
            error = {"message": self._why_no_answer(), "type": "InternalServerError", "param": None, "code": 500}
            self.wfile.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def _send_words(self, frame: dict[str, t.Any], chat: bool, words: list[str], finished: t.Optional[str]) -> list[str]:
        for number, word in enumerate(words):
            last = finished is not None and number == len(words) - 1
            text = word if last else f"{word} "
            said = {"delta": {"content": text}} if chat else {"text": text}
            chunk = {**frame, "choices": [{"index": 0, **said, "finish_reason": finished if last else None}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        return words

    def _metrics(self) -> str:
        engine = self.server.engine
        label = f'{{engine="0",model_name="{self.server.options.served_model_name[0]}"}}'
        figures = {
            "num_requests_running gauge": engine.running,
            "num_requests_waiting gauge": 0,
            "kv_cache_usage_perc gauge": 0.001 * engine.running,
            "num_preemptions_total counter": 0,
            "admission_rejections_total counter": 0,
            "engine_sleep_state gauge": 0,
            "prompt_tokens_total counter": engine.counts["prompt_tokens"],
            "generation_tokens_total counter": engine.counts["generation_tokens"],
            "request_success_total counter": engine.counts["requests"],
            "e2e_request_latency_seconds_count counter": engine.counts["requests"],
            "e2e_request_latency_seconds_sum counter": engine.counts["seconds"],
        }
        lines = []
        for words, value in figures.items():
            name, kind = words.split()
            family = name.replace("_total", "").replace("_seconds_count", "_seconds").replace("_seconds_sum", "_seconds")
            lines += [f"# TYPE vllm:{family} {kind}", f"vllm:{name}{label} {float(value)}"]
        return "\n".join(lines) + "\n"

    def _error(self, status: int, kind: str, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})

    def _json(self, status: int, value: t.Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self._log_access(status)

    def _log_access(self, status: int) -> None:
        options = self.server.options
        if options.disable_uvicorn_access_log or self.path in options.disable_access_log_for_endpoints.split(","):
            return
        client = ":".join(str(part) for part in self.client_address[:2]) if self.client_address else "unix"
        reason = _REASONS.get(status, "")
        stderr_line(f'INFO:     {client} - "{self.command} {self.path} HTTP/1.1" {status} {reason}')

    def log_message(self, format: str, *args: t.Any) -> None:
        if "Bad request" in format:
            sys.stderr.write("WARNING:  Invalid HTTP request received.\n")
