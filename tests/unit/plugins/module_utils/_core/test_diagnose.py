# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cause of a failed start, from logs that the real vLLM wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.diagnose import Diagnosis, diagnose, is_deterministic

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
