# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cause of a failed start, from logs that the real vLLM wrote."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.diagnose import Diagnosis, diagnose, is_deterministic
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.failures import FAILURES, HOST, RELEASE, UNCLEAR

LOGS = Path(__file__).resolve().parents[3] / "fixtures" / "vllm_logs"


def lines_of(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()


def read(name: str) -> Diagnosis:
    return diagnose(lines_of(name))


@pytest.mark.parametrize(
    ("log", "cause", "repeats"),
    [
        ("gpu-memory-held-by-another", "gpu_memory_held", False),
        ("gpu-no-kv-memory", "no_kv_memory", True),
        ("gpu-kv-too-small", "kv_cache_too_small", True),
        ("gpu-kv-allocation-oom-many-seqs", "oom_kv_cache", True),
        ("gpu-tp2-fp8-moe-192-triton", "fp8_block_not_divisible", True),
        ("missing-shard-with-index", "weights_missing", True),
        ("safetensors-truncated", "weights_damaged", True),
        ("safetensors-lfs-pointer", "weights_damaged", True),
        ("unknown-flag", "bad_argument", True),
        ("config-yaml-unknown-key", "bad_argument", True),
        ("port-in-use", "port_in_use", False),
        ("tp-not-dividing-heads", "heads_not_divisible", True),
        ("max-model-len-too-large", "max_model_len_too_large", True),
        ("bad-tool-parser", "tool_parser_unknown", True),
        ("bad-config-json", "bad_config_json", True),
        ("tls-missing-cert", "tls_files", False),
        ("no-cxx-compiler", "no_compiler", False),
        ("kill9-engine-core", "engine_died", False),
        ("gpu-tp2-ok-then-worker-killed", "worker_died", False),
        ("cgroup-host-oom", "worker_died", False),
    ],
)
def test_the_cause_is_named_and_known_to_repeat_or_not(log: str, cause: str, repeats: bool) -> None:
    found = read(log)
    assert (found.cause, is_deterministic(found)) == (cause, repeats)
    assert found.evidence
    assert found.message and found.remedy


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
        "torch._inductor.exc.InductorError: InvalidCxxCompiler: Compiler: g++ is not found.",
        "FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/gcc'",
    ],
)
def test_a_compiler_that_is_not_there_is_the_hosts_lack(line: str) -> None:
    found = diagnose([f"(EngineCore pid=8) ERROR 11-30 07:44:05 [core.py:1512] {line}"])
    assert (found.cause, found.at_fault) == ("no_compiler", "host")
    assert found.remedy.startswith("Install gcc and g++")


@pytest.mark.parametrize("log", ["api-key-auth", "gpu-startup-ok", "startup-ok", "json-logging"])
def test_an_orderly_stop_is_no_failure_although_it_prints_tracebacks(log: str) -> None:
    assert read(log).cause == "stopped"


@pytest.mark.parametrize("log", ["gpu-startup-ok", "startup-ok", "json-logging"])
def test_nothing_is_found_in_a_healthy_start_before_its_stop(log: str) -> None:
    healthy = [line for line in lines_of(log) if "[shutdown]" not in line]
    ready = next(number for number, line in enumerate(healthy) if "Application startup complete." in line)
    assert diagnose(healthy[: ready + 1])[:2] == ("unknown", "none")


def test_an_unknown_error_is_quoted_from_the_deepest_process_and_may_be_tried_again() -> None:
    found = read("no-tokenizer")
    assert (found.cause, found.confidence, is_deterministic(found)) == ("unknown", "low", False)
    assert "IndexError: list index out of range" in found.message


def test_values_are_computed_from_the_log() -> None:
    assert {(r["option"], r["value"]) for r in read("gpu-kv-too-small").remedies} >= {("max-model-len", 104960)}
    assert read("tp-not-dividing-heads").remedies[0]["value"] == 2
    assert read("bad-tool-parser").remedies[0]["value"] == "minimax_m2"
    assert read("max-model-len-too-large").remedies[0]["value"] == 2048


def test_the_worker_is_believed_before_those_above_it() -> None:
    assert read("missing-shard-with-index").evidence[0].startswith("Worker: FileNotFoundError")


def test_the_sampler_warm_up_names_how_many_sequences_fit_better() -> None:
    text = "CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs`"
    found = diagnose(
        [
            "(APIServer pid=1) INFO 11-29 18:00:00 [a.py:1] non-default args: {'max_num_seqs': 1024, 'gpu_memory_utilization': 0.95}",
            f"(Worker_TP0 pid=3) ERROR 11-29 18:00:09 [multiproc_executor.py:953] RuntimeError: {text}",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ]
    )
    assert (found.cause, found.phase) == ("oom_sampler_warmup", "warming_up_sampler")
    assert found.remedy == "Set max-num-seqs to 256 or set gpu-memory-utilization to 0.92."


def test_a_record_of_a_failure_is_plain_data_with_its_remedy() -> None:
    record = read("unknown-flag").as_dict()
    assert record["message"].endswith("unrecognized arguments: --max-sequences 8")
    assert record["remedy"].startswith("Correct or remove")


def test_the_wait_before_the_engine_is_believed_where_the_engine_never_ran() -> None:
    said = "1 of 4 GPUs did not become free in 180 s: GPU 2 has 36.4 GiB of 95.6 GiB free and needs 90.8 GiB, held by pid 812 python3."
    found = diagnose([said])
    assert (found.cause, found.phase, is_deterministic(found)) == ("gpu_wait_timeout", "waiting_for_gpus", False)


def test_the_helpers_own_error_is_quoted_where_nothing_else_is_known() -> None:
    lines = [
        "Starting vllm-m.service - MiniMax...",
        "The NVIDIA driver does not answer.",
        "vllm-m.service: Failed with result 'exit-code'.",
    ]
    assert diagnose(lines).message == "before the engine wrote anything it was said: The NVIDIA driver does not answer."


# -- what is at fault ----------------------------------------------------------------------------------------------------------

BLOCKS = """release_blocked oom_sampler_warmup no_kv_memory kv_cache_too_small max_model_len_too_large batch_too_small heads_not_divisible
fp8_block_not_divisible quantization_group_split no_kernel weights_missing weights_damaged weights_mismatch bad_config_json access_denied
trust_remote_code architecture_not_supported quantization_mismatch gpu_too_old device_name_not_accepted tool_parser_unknown
reasoning_parser_unknown tool_parser_missing bad_argument unknown_environment no_ray"""
OF_THE_HOST = """gpu_wait_timeout gpu_lost gpu_wedged gpu_memory_held gpu_memory_moved fabric_not_ready nvml_unavailable driver_mismatch
driver_too_old no_gpu too_few_gpus model_not_found port_in_use shm_too_small disk_full no_compiler too_many_files tls_files
host_out_of_memory"""
PASSING = "release_given_up gpu_error nccl_error engine_timeout worker_died engine_died"


def test_each_row_says_what_is_at_fault() -> None:
    stated = {RELEASE: BLOCKS, HOST: OF_THE_HOST, UNCLEAR: PASSING}
    assert {(row.cause, row.at_fault) for row in FAILURES} == {
        (cause, fault) for fault, causes in stated.items() for cause in causes.split()
    }


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("RuntimeError: Insufficient space in /dev/shm for shared memory: 160 MiB required, 64 MiB free", "shm_too_small"),
        ("NVMLError_LibRmVersionMismatch: Driver/library version mismatch", "driver_mismatch"),
        ("RuntimeError: Failed to infer device type, please set the environment variable", "no_gpu"),
        ("RuntimeError: No CUDA GPUs are available", "no_gpu"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "fabric_not_ready"),
        ("OSError: [Errno 98] Address already in use", "port_in_use"),
        ("OSError: [Errno 12] Cannot allocate memory", "host_out_of_memory"),
        ("vllm-m.service: A process of this unit has been killed by the OOM killer.", "host_out_of_memory"),
        ("ValueError: World size (4) is larger than the number of available GPUs (3) in this node.", "too_few_gpus"),
        ("NVML gave no answer within 30 s: it hangs in the NVIDIA driver.", "nvml_unavailable"),
    ],
)
def test_a_fault_of_the_host_does_not_block_the_release(line: str, cause: str) -> None:
    found = diagnose([line])
    assert (found.cause, found.at_fault, found.retryable, is_deterministic(found)) == (cause, "host", True, False)
    assert found.remedy


def test_what_is_unknown_or_was_asked_for_blocks_nothing() -> None:
    for found in (diagnose([]), diagnose(["ValueError: never seen before"]), read("startup-ok")):
        assert (found.at_fault, found.retryable, is_deterministic(found)) == ("unclear", True, False)


@pytest.mark.parametrize("phase", ["", "serving"])
def test_out_of_memory_is_the_releases_at_its_start_and_may_pass_when_it_serves(phase: str) -> None:
    up = ["(APIServer pid=1) INFO:     Application startup complete."] if phase else []
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 95.6 GiB"
    found = diagnose([*up, f"(EngineCore pid=2) ERROR 11-29 18:00:09 [core.py:1] {text}"])
    assert (found.cause == "oom_runtime", found.at_fault) == ((True, "unclear") if phase else (False, "release"))


def test_a_record_says_what_is_at_fault_and_whether_it_may_be_tried_again() -> None:
    record: dict[str, t.Any] = read("port-in-use").as_dict()
    assert (record["at_fault"], record["retryable"]) == ("host", True)
