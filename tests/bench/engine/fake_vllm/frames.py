# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tracebacks vLLM prints around a failed start, shortened to the levels that tell where it happened."""

from __future__ import annotations

from .logs import Frame

__all__ = ["API_SERVER", "BIND", "BUSY_LOOP", "CONFIG", "ENGINE_CORE", "OUTPUT_HANDLER", "PROCESS", "WORKER", "WORKER_START"]

_ENTRY = "entrypoints/launchers/api_server/entry.py"
_RUN = [
    Frame("entrypoints/cli/main.py", 120, "main", "args.dispatch_function(args)"),
    Frame("entrypoints/cli/serve.py", 156, "cmd", "uvloop.run(run_server(args))"),
]
BIND = [
    *_RUN,
    Frame(_ENTRY, 176, "run_server", "listen_address, sock = setup_server(args, reuse_port=False)"),
    Frame("entrypoints/launchers/launcher.py", 398, "setup_server", "sock = create_server_socket(sock_addr, reuse_port=reuse_port)"),
    Frame("entrypoints/launchers/launcher.py", 348, "create_server_socket", "sock.bind(addr)"),
]
CONFIG = [
    *_RUN,
    Frame(_ENTRY, 177, "run_server", "await run_server_worker(listen_address, sock, args, **uvicorn_kwargs)"),
    Frame(
        _ENTRY,
        83,
        "build_async_engine_client_from_engine_args",
        "vllm_config = engine_args.create_engine_config(usage_context=usage_context)",
    ),
    Frame("engine/arg_utils.py", 2838, "create_engine_config", "config = VllmConfig("),
]
API_SERVER = [
    *CONFIG[:3],
    Frame(_ENTRY, 95, "build_async_engine_client_from_engine_args", "async_llm = AsyncLLM.from_vllm_config("),
    Frame("v1/engine/core_client.py", 682, "__init__", "with launch_core_engines("),
    Frame("v1/engine/utils.py", 1431, "wait_for_engine_startup", "raise RuntimeError("),
]
ENGINE_CORE = [
    Frame("v1/engine/core.py", 1482, "run_engine_core", "engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)"),
    Frame("v1/engine/core.py", 144, "__init__", "self.model_executor = executor_class(vllm_config)"),
]
PROCESS = [
    Frame("/python/lib/multiprocessing/process.py", 314, "_bootstrap", "self.run()"),
    Frame("v1/engine/core.py", 1514, "run_engine_core", "raise e"),
    *ENGINE_CORE,
]
BUSY_LOOP = [
    Frame("v1/engine/core.py", 1505, "run_engine_core", "engine_core.run_busy_loop()"),
    Frame("v1/engine/core.py", 1690, "_handle_client_request", 'raise RuntimeError("Executor failed.")'),
]
OUTPUT_HANDLER = [
    Frame("v1/engine/async_llm.py", 849, "output_handler", "outputs = await engine_core.get_output_async()"),
    Frame("v1/engine/core_client.py", 1235, "get_output_async", "raise self._format_exception(outputs) from None"),
]
WORKER_START = [
    Frame("v1/executor/multiproc_executor.py", 920, "worker_main", "worker = WorkerProc(*args, **kwargs)"),
]
_WORKER_CALL = [
    Frame("v1/executor/multiproc_executor.py", 1012, "worker_busy_loop", "output = func(*args, **kwargs)"),
]
WORKER = {
    "init_device": [
        *WORKER_START,
        Frame("v1/worker/gpu_worker.py", 389, "init_device", "self.requested_memory = request_memory(init_snapshot, self.cache_config)"),
        Frame("v1/worker/utils.py", 435, "request_memory", "raise ValueError("),
    ],
    "load_model": [
        *WORKER_START,
        Frame("v1/executor/multiproc_executor.py", 687, "__init__", "self.worker.load_model()"),
        Frame("v1/worker/gpu_worker.py", 594, "load_model", "self.model_runner.load_model(load_dummy_weights=load_dummy_weights)"),
        Frame("model_executor/model_loader/base_loader.py", 88, "load_model", "self.load_weights(model, model_config)"),
        Frame("model_executor/model_loader/default_loader.py", 498, "load_weights", "loaded_weights = model.load_weights("),
        Frame(
            "model_executor/model_loader/weight_utils.py",
            1208,
            "safetensors_weights_iterator",
            'with safe_open(st_file, framework="pt") as f:',
        ),
    ],
    "profile": [
        *_WORKER_CALL,
        Frame("v1/worker/gpu_worker.py", 702, "determine_available_memory", "self.model_runner.profile_run()"),
    ],
    "initialize_kv_cache": [
        *_WORKER_CALL,
        Frame("v1/worker/gpu_worker.py", 732, "initialize_from_config", "self.model_runner.initialize_kv_cache(kv_cache_config)"),
        Frame(
            "v1/worker/gpu/attn_utils.py",
            186,
            "_allocate_kv_cache",
            "tensor = torch.zeros(kv_cache_tensor.size, dtype=torch.int8, device=device)",
        ),
    ],
    "capture_graphs": [
        *_WORKER_CALL,
        Frame("v1/worker/gpu_worker.py", 790, "compile_or_warm_up_model", "cuda_graph_memory_bytes = self.model_runner.capture_model()"),
        Frame("v1/worker/gpu_model_runner.py", 6010, "capture_model", "self._capture_cudagraphs("),
    ],
    "warm_up_sampler": [
        *_WORKER_CALL,
        Frame(
            "v1/worker/gpu_worker.py",
            834,
            "compile_or_warm_up_model",
            "self.model_runner._dummy_sampler_run(hidden_states=last_hidden_states)",
        ),
        Frame("v1/worker/gpu_model_runner.py", 5466, "_dummy_sampler_run", "raise RuntimeError("),
    ],
}
