# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``vllm serve``: the API server process, from its arguments to its exit status."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
import threading
import time
import typing as t

from . import __version__
from .core import run_engine_core
from .frames import API_SERVER, BIND, CONFIG, OUTPUT_HANDLER
from .logs import Frame, Log, bare_traceback, stderr_line
from .memory import Device, visible_devices
from .model import Model, StartFailure, read_model
from .options import Options, non_default, parse
from .processes import Child, start_child
from .script import Script, read_script
from .server import ROUTES, AnswerLost, Engine, HttpServer

__all__ = ["main"]

_LOGO = """
       █     █     █▄   ▄█
 ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}
  █▄█▀ █     █     █     █  model   {model}
   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀
"""
log = Log("APIServer")


def main(argv: t.Optional[t.Sequence[str]] = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["--version"], ["-v"]):
        print(__version__)
        return 0
    if words[:1] != ["serve"]:
        parse(["--help-is-not-part-of-the-fake"])
    return _serve(parse(words[1:]))


def _serve(options: Options) -> int:
    script = read_script(counted_in=".")
    log.note("api_utils.py:347", _LOGO.format(version=__version__, model=options.model))
    log.note("api_utils.py:286", f"non-default args: {non_default(options)}")
    try:
        bound = _bind(options)
    except OSError as exc:
        bare_traceback(BIND, f"OSError: [Errno {exc.errno}] {exc.strerror}")
        return 1
    _Stop.swallow_while_loading()
    try:
        model, devices = _configure(options, script)
    except StartFailure as failure:
        bare_traceback(CONFIG, str(failure))
        return 1
    engine = start_child("VLLM::EngineCore", lambda channel: run_engine_core(options, model, script, devices, channel), [bound])
    if engine.channel.receive() is None:
        status = engine.status(block=True)
        wrapper = f"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': {status}}}"
        bare_traceback(API_SERVER, wrapper)
        return 1
    return _listen(options, model, engine, bound)


def _bind(options: Options) -> socket.socket:
    """Bound before anything is loaded, so a clash of ports shows at once; clients are refused until the model is there."""
    if options.uds:
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(options.uds)
        return unix
    host = options.host or "0.0.0.0"
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, options.port))
    return bound


def _configure(options: Options, script: Script) -> tuple[Model, list[Device]]:
    if os.environ.get("VLLM_API_KEY") and not options.api_key:
        options.api_key = [os.environ["VLLM_API_KEY"]]
    options.version = __version__
    options.served_model_name = options.served_model_name or [options.model]
    log.caution(
        "system_utils.py:255",
        "Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit. This can cause fd "
        "limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n",
    )
    model = read_model(options)
    log.note("model.py:733", f"Resolved architecture: {model.architecture}")
    log.note("model.py:2152", f"Using max model len {model.max_length}")
    devices = visible_devices(script.linger)
    _settle_batches(options, devices)
    log.note("scheduler.py:307", f"Chunked prefill is enabled with max_num_batched_tokens={options.max_num_batched_tokens}.")
    _check_parallelism(options, model, devices)
    log.caution(
        "vllm.py:725",
        f"Model Runner V2 {'does not yet support batch-sharded sampling' if devices else 'requires Triton'}; "
        "using the V1 model runner instead.",
    )
    return model, devices[: options.tensor_parallel_size]


def _settle_batches(options: Options, devices: t.Sequence[Device]) -> None:
    """vLLM's defaults by device: large GPUs get 1024 sequences."""
    large = bool(devices) and devices[0].total_mib >= 70 * 1024
    world = options.tensor_parallel_size
    sequences, tokens = (1024, 8192) if large else (256, 2048) if devices else (128 * world, 2048 * world)
    options.max_num_seqs = options.max_num_seqs or sequences
    options.max_num_batched_tokens = options.max_num_batched_tokens or max(tokens, options.max_num_seqs)


def _check_parallelism(options: Options, model: Model, devices: t.Sequence[Device]) -> None:
    parallel = options.tensor_parallel_size
    if model.heads % parallel:
        raise StartFailure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, Total number of attention "
            f"heads ({model.heads}) must be divisible by tensor parallel size ({parallel}). [type=value_error, input_type=ArgsKwargs]"
        )
    if devices and parallel > len(devices):
        raise StartFailure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig\n  Value error, World size "
            f"({parallel}) is larger than the number of available GPUs ({len(devices)}) in this node."
        )


class _Stop:
    """SIGTERM as vLLM takes it: swallowed once while loading, an orderly end after that."""

    requested = threading.Event()
    happened = threading.Event()

    @classmethod
    def swallow_while_loading(cls) -> None:
        def second(_number: int, _frame: t.Any) -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

        def first(_number: int, _frame: t.Any) -> None:
            signal.signal(signal.SIGTERM, second)
            signal.signal(signal.SIGINT, second)

        signal.signal(signal.SIGTERM, first)
        signal.signal(signal.SIGINT, first)

    @classmethod
    def take_requests(cls) -> None:
        def stop(_number: int, _frame: t.Any) -> None:
            cls.requested.set()
            cls.happened.set()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)


def _listen(options: Options, model: Model, child: Child, bound: socket.socket) -> int:
    engine = Engine(child.channel, _Stop.happened.set)
    log.note("entry.py:136", "Supported tasks: ['generate']")
    scheme = "https" if options.ssl_certfile else "http"
    where = f"unix:{options.uds}" if options.uds else f"{scheme}://{options.host or '0.0.0.0'}:{options.port}"
    log.note("entry.py:140", f"Starting vLLM server on {where}")
    log.note("launcher.py:186", "Available routes are:")
    for path, method in ROUTES.items():
        log.note("launcher.py:195", f"Route: {path}, Methods: {method}")
    try:
        bound = _secure(options, bound)
    except OSError as exc:
        child.kill()
        frame = Frame("/site-packages/uvicorn/config.py", 112, "create_ssl_context", "ctx.load_cert_chain(certfile, keyfile, get_password)")
        bare_traceback([*CONFIG[:3], frame], f"{type(exc).__name__}: {exc}")
        return 1
    stderr_line(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.")
    server = HttpServer(bound, options, model, engine)
    _Stop.take_requests()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    stderr_line("INFO:     Application startup complete.")
    return _until_the_end(options, server, engine, child)


def _secure(options: Options, bound: socket.socket) -> socket.socket:
    if not options.ssl_certfile:
        return bound
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    return context.wrap_socket(bound, server_side=True)


def _until_the_end(options: Options, server: HttpServer, engine: Engine, child: Child) -> int:
    keep_alive = os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") == "1"
    _Stop.happened.wait()
    if not _Stop.requested.is_set():
        _note_engine_death()
        if keep_alive:
            _Stop.requested.wait()
    if _Stop.requested.is_set():
        _stop_engine(options, engine, child)
    stderr_line("INFO:     Shutting down")
    server.shutdown()
    server.server_close()
    if server.busy:
        stderr_line("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
    server.wait_until_idle()
    stderr_line("INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.")
    stderr_line(f"INFO:     Finished server process [{os.getpid()}]")
    return 0


def _note_engine_death() -> None:
    log.caution("core_client.py:819", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup")
    for word in ("stopping engine manager", "engine manager stopped", "cleaning up background resources", "complete"):
        log.note("core_client.py:772", f"[shutdown] MPClient: {word}")
    final = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
    log.failure("async_llm.py:906", "AsyncLLM output_handler failed.", OUTPUT_HANDLER, final)


def _stop_engine(options: Options, engine: Engine, child: Child) -> None:
    """Drain within the shutdown timeout. What is in flight after it is lost: its clients get no answer and no end, as was recorded."""
    patience = options.shutdown_timeout
    mode = "drain" if patience else "abort"
    log.note("launcher.py:254", "[shutdown] API server: shutdown triggered")
    log.note("launcher.py:270", f"[shutdown] API server: stopping engine client mode={mode} timeout={patience}s")
    deadline = time.monotonic() + patience
    engine.draining = True
    while engine.running and not engine.dead and time.monotonic() < deadline:
        time.sleep(0.05)
    if patience and engine.running:
        log.caution("utils.py:648", "[shutdown] Process manager: force killing remaining processes count=1")
        engine.give_up(AnswerLost)
        child.kill()
    child.kill(signal.SIGTERM)
    engine.give_up()
    child.status(block=True)
    log.note("core_client.py:777", "[shutdown] MPClient: complete")
    log.note("launcher.py:279", "[shutdown] API server: engine client stopped")
