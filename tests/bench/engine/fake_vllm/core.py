# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The EngineCore process: brings its workers up step by step, then answers requests until it, or one of them, dies."""

from __future__ import annotations

import functools
import itertools
import os
import select
import signal
import time
import typing as t

from .answers import words
from .frames import BUSY_LOOP, ENGINE_CORE, PROCESS, WORKER
from .logs import Log, bare_traceback
from .memory import Device
from .model import Model, StartFailure, kv_bytes_per_token
from .options import Options
from .processes import Channel, Child, start_child
from .script import Script, read_script
from .worker import MIB, Rank, serve_rank

__all__ = ["run_engine_core"]

_WRAPPED = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."


class _Executor:
    """The ranks: in processes of their own, or the only GPU's inside this one."""

    def __init__(self, options: Options, model: Model, script: Script, devices: t.Sequence[Device], log: Log) -> None:
        world = options.tensor_parallel_size
        self.workers: list[Child] = []
        self.inside: t.Optional[Rank] = None
        if devices and world == 1:
            self.inside = Rank(0, 1, options, model, script, devices[0], log)
            return
        log.note(
            "multiproc_executor.py:153",
            f"DP group leader: node_rank=0, node_rank_within_dp=0, world_size={world}, local_world_size={world}",
        )
        for rank in range(world):
            title = "Worker" if world == 1 else f"Worker_TP{rank}"
            worker = Rank(rank, world, options, model, script, devices[rank] if devices else None, Log(title))
            siblings = [child.channel.socket for child in self.workers]
            self.workers.append(start_child(f"VLLM::{title}", functools.partial(_rank, worker), siblings))

    def call(self, step: str, *arguments: t.Any) -> list[t.Any]:
        if self.inside:
            return [getattr(self.inside, step)(*arguments)]
        for worker in self.workers:
            worker.channel.send({"step": step, "arguments": arguments})
        answers = [worker.channel.receive() for worker in self.workers]
        for number, reply in enumerate(answers):
            if reply is None:
                raise StartFailure("RuntimeError: cancelled" if step != "load_model" else _WRAPPED, number)
        failed = [reply for reply in answers if reply and "failed" in reply]
        if failed:
            text = failed[0]["failed"].partition(": ")[2]
            wrapped = f"RuntimeError: Worker failed with error '{text}', please check the stack trace above for the root cause"
            raise StartFailure(_WRAPPED if failed[0]["starting"] else wrapped)
        return [reply["value"] for reply in answers if reply]

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.status(block=True)


def _rank(rank: Rank, channel: Channel) -> int:
    if rank.device:
        rank.device.become_owner()
    return serve_rank(rank, channel)


def run_engine_core(options: Options, model: Model, script: Script, devices: t.Sequence[Device], api: Channel) -> int:
    """The body of the process; its answer is the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = Log("EngineCore")
    started = time.monotonic()
    log.note(
        "core.py:133",
        f"Initializing a V1 LLM engine (v{options.version}) with config: model='{model.path}', dtype=torch.bfloat16, "
        f"max_seq_len={model.max_length}, tensor_parallel_size={options.tensor_parallel_size}, seed=0, "
        f"served_model_name={options.served_model_name[0]}",
    )
    for device in devices:
        device.become_owner()
    executor = _Executor(options, model, script, devices, log)
    step = ["init_device"]
    try:
        _bring_up(executor, options, model, bool(devices), log, step)
    except StartFailure as failure:
        return _fail_to_start(executor, step[0], str(failure.args[0]), log)
    log.note("core.py:402", f"init engine (profile, create kv cache, warmup model) took {time.monotonic() - started:.2f} s")
    api.send({"ready": True})
    return _busy_loop(executor, script, api, log)


def _bring_up(executor: _Executor, options: Options, model: Model, on_gpu: bool, log: Log, step: list[str]) -> None:
    def call(name: str, *arguments: t.Any) -> list[t.Any]:
        step[0] = name
        return executor.call(name, *arguments)

    call("init_device")
    call("load_model")
    available = min(call("profile"))
    _plan_kv_cache(options, model, available, on_gpu, log)
    call("initialize_kv_cache", available)
    call("capture_graphs")
    call("warm_up_sampler")


def _plan_kv_cache(options: Options, model: Model, available: int, on_gpu: bool, log: Log) -> None:
    if available <= 0:
        raise StartFailure(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine "
            "(this flag also controls CPU memory reservation on the CPU backend, despite its name)."
        )
    each = kv_bytes_per_token(model, options.tensor_parallel_size, options.kv_cache_dtype)
    tokens = available * MIB // each // 16 * 16
    if tokens < model.max_length:
        raise StartFailure(
            f"ValueError: To serve at least one request with the model's max seq len ({model.max_length}), "
            f"({model.max_length * each / 2**30:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({available / 1024:.2f} GiB). Based on the available memory, the estimated maximum model length is {tokens - 16}. Try "
            "increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing `max_model_len` "
            "when initializing the engine."
        )
    log.note(
        "kv_cache_utils.py:2327",
        f"{'GPU' if on_gpu else 'CPU'} KV cache size: {tokens:,} tokens, Maximum concurrency for {model.max_length:,} tokens per request: "
        f"{tokens / model.max_length:.2f}x",
    )


def _fail_to_start(executor: _Executor, step: str, final: str, log: Log) -> int:
    frames = [*ENGINE_CORE, *(WORKER[step][1:] if executor.inside else [])]
    if executor.workers:
        log.note("multiproc_executor.py:479", f"[shutdown] Executor: waiting for worker exit count={len(executor.workers)}")
        executor.end()
        log.note("multiproc_executor.py:486", "[shutdown] Executor: all workers exited gracefully")
    log.failure("core.py:1510", "EngineCore failed to start.", frames, final)
    bare_traceback([*PROCESS, *frames[len(ENGINE_CORE) :]], final, "Process EngineCore:")
    return 1


class _Generation:
    """One request in flight: its words leave one by one when they are due, or all at once where they take no time."""

    def __init__(self, request: t.Mapping[str, t.Any]) -> None:
        script = read_script()
        limit = int(request["limit"])
        found = words(request["prompt"], script.answer)
        self.number, self.step = request["id"], script.token_seconds
        self.words = list(itertools.islice(found, limit))
        self.finished = "length" if next(found, None) is not None else "stop"
        self.due = time.monotonic() + script.answer_seconds + self.step

    def send_due(self, api: Channel) -> bool:
        """Whether more is to come."""
        while self.words and self.due <= time.monotonic():
            count = 1 if self.step else len(self.words)
            sent, self.words = self.words[:count], self.words[count:]
            self.due += self.step
            api.send({"id": self.number, "words": sent, "finished": None if self.words else self.finished})
        return bool(self.words)


def _busy_loop(executor: _Executor, script: Script, api: Channel, log: Log) -> int:
    """Answer requests; the death of a worker is fatal, that of the API server goes unnoticed, as in vLLM."""
    dies_at = time.monotonic() + script.engine_dies_after if script.engine_dies_after else None
    running: dict[int, _Generation] = {}
    channels = {worker.channel.socket: worker for worker in executor.workers}
    sources = [api.socket, *channels]
    while True:
        readable, _w, _x = select.select(sources, [], [], _pause(dies_at, running.values()))
        if dies_at is not None and time.monotonic() >= dies_at:
            _say_last_words(script, log)
            os.kill(os.getpid(), signal.SIGKILL)
        for source in readable:
            if source is not api.socket:
                return _worker_died(executor, executor.workers.index(channels[source]), log)
            request = api.receive()
            if request is None:
                sources.remove(api.socket)
            elif "abort" in request:
                running.pop(request["abort"], None)
            else:
                running[request["id"]] = _Generation(request)
        running = {number: generation for number, generation in running.items() if generation.send_due(api)}


def _say_last_words(script: Script, log: Log) -> None:
    for number in range(script.last_words):
        log.complain("core.py:1512", f"last word {number + 1} of {script.last_words}")


def _pause(dies_at: t.Optional[float], running: t.Iterable[_Generation]) -> t.Optional[float]:
    moments = [generation.due for generation in running] + ([dies_at] if dies_at is not None else [])
    return max(0.0, min(moments) - time.monotonic()) if moments else None


def _worker_died(executor: _Executor, number: int, log: Log) -> int:
    died = f"Worker proc VllmWorker-{number} died unexpectedly (exit code: None), shutting down executor."
    log.complain("multiproc_executor.py:334", died)
    executor.end()
    log.note("multiproc_executor.py:486", "[shutdown] Executor: all workers exited gracefully")
    log.failure("core.py:1512", "EngineCore encountered a fatal error.", BUSY_LOOP, "RuntimeError: Executor failed.")
    bare_traceback([PROCESS[0], *BUSY_LOOP], "RuntimeError: Executor failed.", "Process EngineCore:")
    return 1
