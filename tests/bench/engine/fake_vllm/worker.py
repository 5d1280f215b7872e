# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rank: its GPU memory, the shards it reads, and the ways in which that ends a start."""

from __future__ import annotations

import math
import os
import signal
import time
import typing as t

from .frames import WORKER
from .logs import Log, progress_bar, stderr_line
from .memory import Device
from .model import Model, StartFailure, check_shard, indexed_shards, missing_shards, weight_bytes
from .options import Options
from .processes import Channel
from .script import Script

__all__ = ["Rank", "serve_rank"]

GIB = 2**30
MIB = 2**20
NON_TORCH_MIB = 225
SAMPLER_BYTES = 14


class Rank:
    """The worker of one GPU (or of the CPU, when ``device`` is ``None``)."""

    def __init__(self, rank: int, world: int, options: Options, model: Model, script: Script, device: t.Optional[Device], log: Log) -> None:
        self.rank, self.world, self.options, self.model, self.script, self.device, self.log = (
            rank,
            world,
            options,
            model,
            script,
            device,
            log,
        )
        self.weights_mib = 0
        self.requested_mib = 0
        self.free_at_start = 0

    def init_device(self) -> None:
        backend = "nccl" if self.device else "gloo"
        self.log.note(
            "parallel_state.py:1906",
            f"world_size={self.world} rank={self.rank} local_rank={self.rank} distributed_init_method=tcp://127.0.0.1:45513 "
            f"backend={backend}",
        )
        if self.device and self.rank == 0 and self.world > 1:
            self.log.note("pynccl.py:113", "vLLM is using nccl==2.28.9")
        self.log.note(
            "parallel_state.py:2350",
            f"rank {self.rank} in world size {self.world} is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank {self.rank}, "
            "EP rank N/A, EPLB rank N/A",
        )
        if self.device:
            self._request_memory(self.device)

    def _request_memory(self, device: Device) -> None:
        device.take(512 if self.world == 1 else 1024)  # the CUDA context, and NCCL's buffers where there are peers
        utilization = self.options.gpu_memory_utilization
        self.requested_mib = math.ceil(device.total_mib * utilization)
        self.free_at_start = device.free_mib()
        if self.free_at_start < self.requested_mib:
            raise StartFailure(
                f"ValueError: Free memory on device cuda:{self.rank} ({_gib(self.free_at_start)}/{_gib(device.total_mib)} GiB) on startup "
                f"is less than desired GPU memory utilization ({utilization}, {_gib(self.requested_mib)} GiB). Decrease GPU memory "
                "utilization or reduce GPU memory used by other processes."
            )

    def load_model(self) -> None:
        self.log.note("gpu_model_runner.py:5120", f"Starting to load model {self.model.path}...")
        if self.device and self.rank == 0:
            self.log.note("cuda.py:482", "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN'].")
            self._note_refined_blocks()
        started = time.monotonic()
        if self.options.load_format == "dummy":
            shards: list[t.Any] = []
        else:
            shards = indexed_shards(self.model)
            missing_shards(shards)
        size = weight_bytes(self.model, shards)
        if self.rank == 0 and shards:
            self.log.note(
                "weight_utils.py:1108",
                f"Filesystem type for checkpoints: EXT4. Checkpoint size: {size / GIB:.2f} GiB. Available RAM: 512.00 GiB.",
            )
        self._read_shards(shards, size // MIB // self.world, started)
        self._loaded(time.monotonic() - started)

    def _note_refined_blocks(self) -> None:
        shard = self.model.moe_intermediate // self.world
        if self.model.block and shard % self.model.block and not self.options.enable_expert_parallel:
            block = self.model.block
            fine = math.gcd(block, shard)
            self.log.note(
                "fp8.py:611",
                f"FP8 MoE block scales refined from [{block}, {block}] to [{fine}, {fine}] to fit the TP-sharded intermediate size "
                f"{shard}.",
            )

    def _read_shards(self, shards: t.Sequence[t.Any], weights_mib: int, started: float) -> None:
        total = len(shards)
        bar = "Loading safetensors checkpoint shards"
        for number, shard in enumerate(shards, 1):
            if self.rank == 0:
                progress_bar(bar, number - 1, total, started)
            check_shard(shard)
            self._scripted_trouble(number)
            if number % max(1, total // 10) == 0:
                self._grow(weights_mib * number // total)
            _sleep_until(started + self.script.load_seconds * number / total)
        if self.rank == 0 and total:
            progress_bar(bar, total, total, started)
        self._grow(weights_mib)

    def _scripted_trouble(self, number: int) -> None:
        if number == self.script.crash_at_shard:
            raise StartFailure(self.script.crash_with)
        while number == self.script.hang_at_shard:
            signal.pause()

    def _grow(self, weights_mib: int) -> None:
        step = weights_mib - self.weights_mib
        if self.device and step > 0:
            if step > self.device.free_mib():
                raise StartFailure(_out_of_memory(self.device, step))
            self.device.take(step)
        self.weights_mib = weights_mib

    def _loaded(self, seconds: float) -> None:
        if self.rank == 0:
            self.log.note("default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")
        if self.device:
            self.log.note("gpu_model_runner.py:5190", f"Model loading took {_gib(self.weights_mib)} GiB memory and {seconds:.6f} seconds")

    def profile(self) -> int:
        """MiB left for the KV cache in this rank's share of its GPU."""
        if not self.device:
            return 1024 // self.world
        if self.rank == 0 and not self.options.enforce_eager:
            cache = os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm")
            self.log.note(
                "backends.py:1094",
                f"Using cache directory: {cache}/torch_compile_cache/02b1e2b648/rank_0_0/backbone for vLLM's torch.compile",
            )
            self.log.note("backends.py:1155", "Dynamo bytecode transform time: 4.08 s")
            self.log.note("backends.py:393", "Compiling a graph for compile range (1, 8192) takes 15.49 s")
            self.log.note("monitor.py:53", "torch.compile took 21.46 s in total")
            self.log.note("monitor.py:81", "Initial profiling/warmup run took 0.44 s")
        available = self.requested_mib - self.weights_mib - self.activation_mib - NON_TORCH_MIB
        fixed = self.options.kv_cache_memory_bytes
        available = fixed // MIB if fixed else available
        if self.rank == 0:
            self.log.note("gpu_worker.py:560", f"Available KV cache memory: {_gib(available)} GiB")
        return int(available)

    @property
    def activation_mib(self) -> int:
        return 1638 if self.model.layers > 32 else 420

    def initialize_kv_cache(self, mib: int) -> None:
        """The KV cache and, beside it, what profiling left behind: together the rest of the budget."""
        if not self.device:
            return
        wanted = mib + self.activation_mib + NON_TORCH_MIB
        if wanted > self.device.free_mib():
            raise StartFailure(_out_of_memory(self.device, wanted))
        self.device.take(wanted)

    def capture_graphs(self) -> None:
        if not self.device or self.options.enforce_eager:
            return
        graphs = 256 + 20 * self.model.layers
        if self.rank == 0:
            stderr_line("\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/51 [00:00<?, ?it/s]")
        if graphs > self.device.free_mib():
            raise StartFailure(_out_of_memory(self.device, graphs))
        self.device.take(graphs)
        if self.rank == 0:
            stderr_line("\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|██████████| 51/51 [00:01<00:00, 36.53it/s]")
            self.log.note("gpu_model_runner.py:6044", f"Graph capturing finished in 1 secs, took {_gib(graphs)} GiB")

    def warm_up_sampler(self) -> None:
        """The last large allocation of a start: logits for every sequence at once, outside the budget."""
        if not self.device:
            return
        requests = min(self.options.max_num_seqs, self.options.max_num_batched_tokens)
        needed = SAMPLER_BYTES * requests * self.model.vocabulary / MIB
        if needed > self.device.free_mib():
            raise StartFailure(
                f"RuntimeError: CUDA out of memory occurred when warming up sampler with {requests} dummy requests. Please try lowering "
                "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
            )


def serve_rank(rank: Rank, channel: Channel) -> int:
    """Run what the engine core asks for until it is gone; a failure is logged here first, by its deepest process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        request = channel.receive()
        if request is None:
            rank.log.note("multiproc_executor.py:843", "Parent process exited, terminating worker queues")
            return 0
        step = request["step"]
        try:
            channel.send({"value": getattr(rank, step)(*request["arguments"])})
        except StartFailure as failure:
            starting = step in ("init_device", "load_model")
            headline = "WorkerProc failed to start." if starting else "WorkerProc hit an exception."
            rank.log.failure("multiproc_executor.py:953", headline, WORKER[step], str(failure))
            channel.send({"failed": str(failure), "starting": starting})


def _out_of_memory(device: Device, mib: int) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_gib(mib)} GiB. GPU {device.local_index} has a total capacity of "
        f"{_gib(device.total_mib)} GiB of which {_gib(device.free_mib())} GiB is free."
    )


def _gib(mib: float) -> float:
    return round(mib / 1024, 2)


def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
