# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vLLM, the host helper and systemd print when a start fails, what it means, and what to do. PRIVATE to the collection.

One row a failure, the more telling rows first: where two rows match lines of equally deep processes, the earlier row wins.

Each row says what is at fault, because that decides about the next start. ``release``: its arguments, weights, model or engine make the
same start fail in the same way, so it is not started again before it changes. ``host``: something of the host has to heal, or be
healed, and then the same release starts. ``unclear``: it may have been a matter of the moment. The last two are started again.
"""

from __future__ import annotations

import re
import typing as t

__all__ = ["FAILURES", "HOST", "RELEASE", "UNCLEAR", "Advice", "Facts", "Failure"]

RELEASE, HOST, UNCLEAR = "release", "host", "unclear"


class Advice(t.NamedTuple):
    """One remedy: set ``option`` to ``value``, because ``why``. Without an option, ``why`` says what to do."""

    option: str
    value: t.Any
    why: str


class Facts(t.NamedTuple):
    """What a row may use to compute its remedies: the match in the log and the arguments of the start."""

    match: t.Match[str]
    arguments: t.Mapping[str, t.Any]


class Failure(t.NamedTuple):
    """``message`` is a format of the match's groups, ``at_fault`` one of release, host and unclear."""

    cause: str
    pattern: t.Pattern[str]
    message: str
    advise: t.Callable[[Facts], list[Advice]]
    at_fault: str = RELEASE
    phase: str = ""


def _say(*sentences: str) -> t.Callable[[Facts], list[Advice]]:
    return lambda facts: [Advice("", None, sentence) for sentence in sentences]


def _set(option: str, value: t.Any, why: str) -> t.Callable[[Facts], list[Advice]]:
    return lambda facts: [Advice(option, value, why)]


def _lower_utilization(facts: Facts) -> Advice:
    used = facts.arguments.get("gpu_memory_utilization", 0.92)
    return Advice("gpu-memory-utilization", round(float(used) - 0.03, 3), "a smaller budget leaves memory for what lies outside it")


def _fewer_sequences(facts: Facts) -> list[Advice]:
    """256 serves nearly every deployment; below it, half of what was asked for."""
    groups = facts.match.groups()
    asked = int(facts.arguments.get("max_num_seqs") or (groups[0] if groups and str(groups[0]).isdigit() else 1024))
    fewer = 256 if asked > 256 else max(1, asked // 2)
    why = "the sampler's memory grows with the number of sequences times the vocabulary and lies outside the budget"
    return [Advice("max-num-seqs", fewer, why), _lower_utilization(facts)]


def _shorter_context(facts: Facts) -> list[Advice]:
    estimate = facts.match.group(4)
    shorter = (
        [Advice("max-model-len", int(estimate) // 256 * 256, "that much context fits the memory left for the KV cache")] if estimate else []
    )
    return [*shorter, Advice("kv-cache-dtype", "fp8", "halves the bytes of each token"), _more_memory(facts)]


def _more_memory(facts: Facts) -> Advice:
    used = float(facts.arguments.get("gpu_memory_utilization", 0.92))
    return Advice("gpu-memory-utilization", min(0.97, round(used + 0.03, 3)), "a larger budget leaves more for the KV cache")


def _dividing_parallel_size(facts: Facts) -> list[Advice]:
    heads, wanted = int(facts.match.group(1)), int(facts.match.group(2))
    fitting = max(size for size in range(1, wanted + 1) if heads % size == 0)
    return [Advice("tensor-parallel-size", fitting, f"the largest size up to {wanted} that divides {heads} heads")]


def _smaller_parallel_size(facts: Facts) -> list[Advice]:
    used = int(facts.arguments.get("tensor_parallel_size", 2))
    return [
        Advice("tensor-parallel-size", max(1, used // 2), "larger shards keep whole quantisation blocks"),
        Advice("enable-expert-parallel", True, "whole experts on each GPU are not split at all"),
    ]


def _row(cause: str, pattern: str, message: str, advise: t.Callable[[Facts], list[Advice]], **more: t.Any) -> Failure:
    return Failure(cause, re.compile(pattern, re.MULTILINE), message, advise, **more)


_FETCH_AGAIN = _say("Download these files again: run the play with verify set to sha256.")
_FABRIC = _say("Look at nvidia-fabricmanager.service: it has to run, and to be of the driver's version.")
_HELD = _say("Stop what holds the memory, or wait until it is free: the same start then succeeds.")

FAILURES = [
    _row(
        "release_blocked",
        r"^refusing release (\S+): (.*)$",
        "release {0} is blocked since its last start failed: {1}",
        _say("Change what is named there and deploy again."),
    ),
    _row(
        "release_given_up",
        r"^(giving up on release \S+ after .*?)\.?$",
        "{0}",
        _say("Heal that, then start the unit or deploy again."),
        at_fault=UNCLEAR,
    ),
    _row(
        "gpu_wait_timeout",
        r"^(\d+ of \d+ GPUs did not become free in .*|The memory of .* did not stay still in .*)$",
        "{0}",
        _HELD,
        at_fault=HOST,
        phase="waiting_for_gpus",
    ),
    _row(
        "gpu_lost",
        r"^(A target GPU (?:cannot be opened|needs a reset|is lost to the driver).*"
        r"|\d+ of \d+ GPUs of the release are not listed by NVML.*)$",
        "{0}",
        _say("Look for Xid lines in the kernel log; reset the GPU or reboot the host."),
        at_fault=HOST,
        phase="waiting_for_gpus",
    ),
    _row(
        "fabric_not_ready",
        r"^(The NVLink fabric of .* (?:was not up after|failed \().*)$",
        "{0}",
        _FABRIC,
        at_fault=HOST,
        phase="waiting_for_gpus",
    ),
    _row(
        "driver_mismatch",
        r"^(NVML cannot be used: the NVIDIA library and the loaded kernel module are of different versions.*)$",
        "{0}",
        _say("Reboot the host, and hold the driver packages against unattended upgrades."),
        at_fault=HOST,
        phase="waiting_for_gpus",
    ),
    _row(
        "nvml_unavailable",
        r"^(NVML (?:cannot be (?:used|opened):|gave no answer within|shows no GPU).*)$",
        "{0}",
        _say("Look at nvidia-smi, at nvidia-persistenced.service and at the kernel log."),
        at_fault=HOST,
        phase="waiting_for_gpus",
    ),
    _row(
        "gpu_wedged",
        r"^(.* stays taken by a process that was killed and cannot die.*)$",
        "{0}",
        _say("Only a reboot of the host frees that memory."),
        at_fault=HOST,
        phase="waiting_for_gpus",
    ),
    _row(
        "oom_sampler_warmup",
        r"CUDA out of memory occurred when warming up sampler with (\d+) dummy requests",
        "the GPU ran out of memory while the sampler was warmed up with {0} dummy requests",
        _fewer_sequences,
        phase="warming_up_sampler",
    ),
    _row(
        "gpu_memory_held",
        r"Free memory on device (\S+) \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired "
        r"GPU memory utilization \(([\d.]+), ([\d.]+) GiB\)",
        "only {1} of {2} GiB are free on {0}, and gpu-memory-utilization {3} asks for {4} GiB: something else holds memory there",
        _HELD,
        at_fault=HOST,
    ),
    _row(
        "gpu_memory_moved",
        r"Error in memory profiling\. Initial free memory",
        "another process freed GPU memory while the engine measured its own",
        _say("Start one engine at a time on a GPU; the next try may succeed."),
        at_fault=HOST,
    ),
    _row(
        "no_kv_memory",
        r"No available memory for the cache blocks",
        "weights and activations leave no GPU memory for the KV cache",
        lambda facts: [_more_memory(facts), Advice("tensor-parallel-size", None, "more GPUs share the weights")],
        phase="allocating_kv_cache",
    ),
    _row(
        "kv_cache_too_small",
        r"max seq len \((\d+)\), \(([\d.]+) GiB KV cache is needed, which is larger than the available KV cache memory \(([\d.]+) GiB\)"
        r"(?:\.? Based on the available memory, the estimated maximum model length is (\d+))?",
        "one request of {0} tokens needs {1} GiB of KV cache, and {2} GiB are left",
        _shorter_context,
        phase="allocating_kv_cache",
    ),
    _row(
        "max_model_len_too_large",
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=(\d+)",
        "max-model-len {0} is more than the model's own limit of {1}",
        lambda facts: [Advice("max-model-len", int(facts.match.group(2)), "the model's own limit")],
    ),
    _row(
        "batch_too_small",
        r"max_num_batched_tokens \((\d+)\) (?:is smaller than max_model_len|must be greater than or equal to max_num_seqs) \((\d+)\)",
        "max-num-batched-tokens {0} is below {1}",
        lambda facts: [Advice("max-num-batched-tokens", int(facts.match.group(2)), "the smallest value that is accepted")],
    ),
    _row(
        "heads_not_divisible",
        r"Total number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "{0} attention heads cannot be split over tensor-parallel-size {1}",
        _dividing_parallel_size,
    ),
    _row(
        "fp8_block_not_divisible",
        r"(?:The output_size of gate's and up's weight|The input_size of down's weight|Weight \w+) = (\d+) is not divisible by weight "
        r"quantization block_[nk] = (\d+)",
        "a shard of {0} is no multiple of the FP8 block of {1}",
        _smaller_parallel_size,
    ),
    _row(
        "quantization_group_split",
        r"is not divisible by\s+min_thread_[nk] = |not aligned with the quantized weight shape|happens when tensor_parallel_size splits",
        "tensor-parallel-size splits the quantisation groups of this checkpoint",
        _smaller_parallel_size,
    ),
    _row(
        "no_kernel",
        r"No (\w+) MoE backend supports the deployment configuration|Failed to find a kernel that can implement the (\w+) linear layer",
        "no kernel runs this quantisation on this GPU with these options",
        _set("moe-backend", "auto", "lets the engine choose among all its kernels"),
    ),
    _row(
        "weights_missing",
        r"Weight files referenced in index but missing: \{(.*)\}",
        "weight files of the index are missing: {0}",
        _FETCH_AGAIN,
        phase="loading_weights",
    ),
    _row(
        "weights_missing",
        r"Cannot find any model weights with `(.*?)`",
        "there are no weight files in {0}",
        _FETCH_AGAIN,
        phase="loading_weights",
    ),
    _row(
        "weights_damaged",
        r"Error while deserializing header: (.*)$",
        "a weight file is damaged ({0})",
        _FETCH_AGAIN,
        phase="loading_weights",
    ),
    _row(
        "weights_missing",
        r"Following weights were not initialized from checkpoint: \{(.{0,120})",
        "the weight files lack tensors of the model: {0}",
        _FETCH_AGAIN,
        phase="loading_weights",
    ),
    _row(
        "weights_mismatch",
        r"exceeds dimension size \(\d+\)|Attempted to load weight \(.*\) into parameter",
        "config.json and the weights do not belong together",
        _say("Deploy one commit of the repository, files and config.json alike."),
        phase="loading_weights",
    ),
    _row(
        "model_not_found",
        r"Invalid repository ID or local directory specified: '?([^'\n]*)|Repo id must be in the form.*: '([^']*)'"
        r"|Cannot find an appropriate cached snapshot folder",
        "the model folder is not there, or has no config.json",
        _say("Check the model path of the release and download the model."),
        at_fault=HOST,
    ),
    _row("bad_config_json", r"config file at '(.*?)' is not a valid JSON file", "{0} is not valid JSON", _FETCH_AGAIN),
    _row(
        "access_denied",
        r"You are trying to access a gated repo|GatedRepoError|401 Client Error|RepositoryNotFoundError",
        "the engine tried to fetch from the hub and was refused",
        _say("Serve from a downloaded folder, or set a token of an account that accepted the model's terms."),
    ),
    _row(
        "trust_remote_code",
        r"contains custom code which must be executed|pass the argument `trust_remote_code=True`",
        "the model brings its own code, which is not trusted by default",
        _set("trust-remote-code", True, "runs the code of the model's repository: review it first"),
    ),
    _row(
        "architecture_not_supported",
        r"Model architectures (\[.*?\]) are not supported for now|does not recognize this architecture|is not supported in-tree anymore",
        "this engine does not know the model's architecture",
        _say("Deploy an engine version that supports the model."),
    ),
    _row(
        "quantization_mismatch",
        r"Unknown quantization method: |Quantization method specified in the model config \(.*\) does not match",
        "the option quantization does not fit the checkpoint",
        _say("Remove the option quantization: the checkpoint says what it is."),
    ),
    _row(
        "gpu_too_old",
        r"is not supported for the current GPU\. Minimum capability: (\d+)\. Current capability: (\d+)|Bfloat16 is only supported on GPUs",
        "this GPU is too old for the checkpoint",
        _say("Use another checkpoint or another GPU."),
    ),
    _row(
        "port_in_use",
        r"\[Errno 98\] Address already in use",
        "the port is taken by another process",
        _say("Stop what listens there, or give this deployment another port."),
        at_fault=HOST,
    ),
    _row(
        "tool_parser_unknown",
        r"invalid tool call parser: (\S+)",
        "tool-call-parser {0} does not exist in this engine",
        lambda facts: [Advice("tool-call-parser", facts.match.group(1).replace("-", "_"), "names of parsers are written with underscores")],
    ),
    _row(
        "reasoning_parser_unknown",
        r"Reasoning parser '(\S+)' not found|invalid reasoning parser: (\S+)",
        "the reasoning parser does not exist in this engine",
        lambda facts: [
            Advice("reasoning-parser", (facts.match.group(1) or facts.match.group(2)).replace("-", "_"), "names have underscores")
        ],
    ),
    _row(
        "tool_parser_missing",
        r"--enable-auto-tool-choice requires --tool-call-parser",
        "enable-auto-tool-choice is set without a tool-call-parser",
        _set("tool-call-parser", None, "name the parser of this model"),
    ),
    _row(
        "bad_argument",
        r"^(?:vllm|vllm serve): error: (.*)$",
        "the engine does not take its arguments: {0}",
        _say("Correct or remove that argument; its spelling may belong to another engine version."),
        phase="reading_configuration",
    ),
    _row(
        "unknown_environment",
        r"Unknown vLLM environment variable detected: (\S+)",
        "the environment variable {0} is unknown to this engine",
        _say("Remove it from the environment of the release."),
    ),
    _row(
        "too_few_gpus",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "the engine needs {0} GPUs and sees {1}",
        lambda facts: [Advice("tensor-parallel-size", int(facts.match.group(2)), "as many as there are")],
        at_fault=HOST,
    ),
    _row(
        "no_ray",
        r"No module named 'ray'",
        "ray is not installed beside the engine",
        _set("distributed-executor-backend", "mp", "needs no ray"),
    ),
    _row(
        "fabric_not_ready",
        r"(Error 802: system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY)",
        "CUDA does not start ({0}) although the GPUs are there: their NVLink fabric is not up",
        _FABRIC,
        at_fault=HOST,
    ),
    _row(
        "device_name_not_accepted",
        r"invalid literal for int\(\) with base 10: '((?:MIG|GPU)-[^']*)'",
        "this engine reads only numbers in CUDA_VISIBLE_DEVICES, and it holds {0}",
        _say("Deploy an engine version that takes UUIDs there; a MIG device cannot be named otherwise, a whole GPU can by its number."),
    ),
    _row(
        "driver_mismatch",
        r"Driver/library version mismatch|NVMLError_LibRmVersionMismatch",
        "the NVIDIA driver was upgraded under the running kernel module",
        _say("Reboot the host."),
        at_fault=HOST,
    ),
    _row(
        "driver_too_old",
        r"The NVIDIA driver on your system is too old|CUDA driver version is insufficient|Error 804: forward compatibility",
        "the NVIDIA driver is too old for this engine",
        _say("Upgrade the driver and reboot."),
        at_fault=HOST,
    ),
    _row(
        "no_gpu",
        r"Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device is detected|CUDA driver initialization failed",
        "the engine sees no usable GPU",
        _say("Check nvidia-smi and the unit's access to /dev/nvidia*."),
        at_fault=HOST,
    ),
    _row(
        "shm_too_small",
        r"Insufficient space in (\S+) for .*: (\d+) MiB required, (\d+) MiB free",
        "{0} has {2} MiB free and {1} MiB are needed",
        _say("Enlarge it: mount -o remount,size=2G /dev/shm."),
        at_fault=HOST,
    ),
    _row(
        "no_compiler",
        r"No working C\+\+ compiler found|InvalidCxxCompiler: Compiler: \S+ is not found|Failed to find C compiler"
        r"|No such file or directory: '(?:[\w./+-]*/)?(?:gcc|cc|clang|[gc]\+\+|clang\+\+)'",
        "the engine compiles code while it runs, and the host has no compiler for it",
        _say("Install gcc and g++ (gcc-c++ on Red Hat's systems), as engine_system_packages of the role engine does by default."),
        at_fault=HOST,
    ),
    _row(
        "disk_full",
        r"\[Errno 28\] No space left on device",
        "a disk is full",
        _say("Free space where the engine's caches and the model lie."),
        at_fault=HOST,
    ),
    _row(
        "too_many_files",
        r"\[Errno 24\] Too many open files|ZMQError: Too many open files",
        "the limit of open files is too low",
        _say("Raise LimitNOFILE of the unit."),
        at_fault=HOST,
    ),
    _row(
        "tls_files",
        r"^\s*ctx\.load_cert_chain\(",
        "the TLS certificate or key cannot be read",
        _say("Check the paths and rights of ssl-certfile and ssl-keyfile."),
        at_fault=HOST,
    ),
    _row(
        "gpu_error",
        r"CUDA error: (uncorrectable ECC error encountered|unspecified launch failure|an illegal memory access was encountered"
        r"|the launch timed out|device-side assert triggered)",
        "the GPU reported an error: {0}",
        _say("Look for NVRM Xid lines in the kernel log of that moment; a fault that comes again needs a GPU reset or a repair."),
        at_fault=UNCLEAR,
    ),
    _row(
        "nccl_error",
        r"(?:NCCL error|ncclUnhandledCudaError|ncclInternalError|ncclRemoteError|Watchdog caught collective operation timeout)",
        "the GPUs could not talk to each other (NCCL)",
        _say("Start once with NCCL_DEBUG=INFO in the environment to see why."),
        at_fault=UNCLEAR,
    ),
    _row(
        "engine_timeout",
        r"RPC call to (\w+) timed out|Timed out waiting for engine core processes to start",
        "a process of the engine did not answer in time",
        _say("Raise VLLM_ENGINE_READY_TIMEOUT_S where loading is slow; else look for a GPU that hangs."),
        at_fault=UNCLEAR,
    ),
    _row(
        "host_out_of_memory",
        r"has been killed by the OOM killer|Failed with result 'oom-kill'|Memory cgroup out of memory: Killed process"
        r"|\[Errno 12\] Cannot allocate memory|DefaultCPUAllocator: can't allocate memory",
        "the host ran out of memory",
        _say("Give the unit or the host more memory, or lower cpu-offload-gb and kv-offloading-size."),
        at_fault=HOST,
    ),
    _row(
        "worker_died",
        r"Worker proc (\S+) died unexpectedly \(exit code: (-\d+|None)\)",
        "{0} was killed (exit code {1})",
        _say("Look at the kernel log of that moment: the OOM killer and GPU faults do this."),
        at_fault=UNCLEAR,
    ),
    _row(
        "engine_died",
        r"EngineDeadError|engine core exited unexpectedly; starting cleanup|EngineCore encountered a fatal error",
        "the engine process died while it was serving",
        _say("The unit starts it again; if it dies again, look at the kernel log of that moment."),
        at_fault=UNCLEAR,
        phase="serving",
    ),
]
