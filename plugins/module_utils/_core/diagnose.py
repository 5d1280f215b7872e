# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a start failed, or a run ended, from its own log lines. PRIVATE to the collection.

vLLM's last line never names the cause: every process above the one that failed adds a traceback of its own. So the deepest
process that said something known is believed, worker before engine core before API server.
"""

from __future__ import annotations

import re
import typing as t

from .failures import FAILURES, RELEASE, UNCLEAR, Advice, Facts, Failure
from .log_lines import LogLine, engine_arguments, parse_line
from .phases import DESCRIPTIONS, StartTracker

__all__ = ["Diagnosis", "diagnose", "is_deterministic"]

_EVIDENCE_LINES = 6
_STOP = re.compile(r"\[shutdown\] API server: shutdown triggered")
_OUT_OF_MEMORY = re.compile(r"torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate ([\d.]+ [KMG]iB)")
_BARE_ASSERTION = re.compile(r"^AssertionError$|AssertionError: \d+ is not divisible by \d+")
_GENERIC = re.compile(r"^[\w.]*(?:Error|Exception): .+")
_SYSTEMD = re.compile(r"^\S+\.service: |^(?:Starting|Started|Stopping|Stopped|Failed to start) ")
_WRAPPERS = re.compile(r"Engine core initialization failed|WorkerProc initialization failed|Worker failed with error|cancelled$")


class Diagnosis(t.NamedTuple):
    """The cause (a stable word), how sure, one sentence, what to do, and the lines that say so.

    ``at_fault`` is ``release``, ``host`` or ``unclear``, as :mod:`failures` has it. ``retryable``: the same release, started again, may
    succeed, at once or when the host is healed; so it is true wherever the release itself is not at fault.
    """

    cause: str
    confidence: str
    message: str
    remedies: list[dict[str, t.Any]]
    evidence: list[str]
    at_fault: str
    phase: str

    @property
    def retryable(self) -> bool:
        """Whether the same release may succeed when it is started again."""
        return self.at_fault != RELEASE

    @property
    def remedy(self) -> str:
        """The first remedies as one sentence."""
        chosen = self.remedies[:2] if all(remedy["option"] for remedy in self.remedies[:2]) else self.remedies[:1]
        text = " or ".join(_sentence(remedy) for remedy in chosen)
        return f"{text[0].upper()}{text[1:]}." if text else ""

    def as_dict(self) -> dict[str, t.Any]:
        """Plain data, for a file or a module's result."""
        return {**self._asdict(), "retryable": self.retryable, "remedy": self.remedy}


def diagnose(lines: t.Sequence[str]) -> Diagnosis:
    """Read the lines of one start, oldest first."""
    tracker = StartTracker()
    tracker.feed(0.0, lines)
    parsed = [parse_line(line) for line in lines]
    stop = next((number for number, line in enumerate(parsed) if _STOP.search(line.message)), len(parsed))
    believed = [line for line in parsed[:stop] if line.may_tell_a_failure]
    arguments = engine_arguments(lines)
    found = _out_of_memory(believed, arguments, tracker.phase) or _known(believed, arguments, tracker.phase)
    if found:
        return found
    if stop < len(parsed):
        return Diagnosis("stopped", "high", "the engine was stopped in an orderly way", [], [parsed[stop].message], UNCLEAR, tracker.phase)
    return _unknown(believed, tracker.phase)


def is_deterministic(diagnosis: Diagnosis) -> bool:
    """Whether the release itself makes it fail, the same way again each time, so that it is to be started only once it changed."""
    return diagnosis.at_fault == RELEASE


def _known(lines: t.Sequence[LogLine], arguments: t.Mapping[str, t.Any], phase: str) -> t.Optional[Diagnosis]:
    best: t.Optional[tuple[tuple[int, int, int], Failure, t.Match[str]]] = None
    for number, failure in enumerate(FAILURES):
        for line in lines:
            match = failure.pattern.search(line.message)
            if match and (best is None or _rank(failure, line, number) > best[0]):
                best = (_rank(failure, line, number), failure, match)
    if best is None:
        return None
    _rank_of_it, failure, match = best
    message = failure.message.format(*(group or "" for group in match.groups()))
    advice = failure.advise(Facts(match, arguments))
    return Diagnosis(
        failure.cause, "high", message, _plain(advice), _evidence(lines, failure.pattern), failure.at_fault, failure.phase or phase
    )


def _rank(failure: Failure, line: LogLine, number: int) -> tuple[int, int, int]:
    """How telling a match is. That a process died is what the others say about a cause: it counts where nothing better is said.

    A line of source code in a traceback quotes the message with its holes unfilled, so it comes after the message itself.
    """
    is_consequence = failure.cause in ("engine_died", "worker_died", "engine_timeout")
    return (-1 if is_consequence else line.depth, -number, 0 if line.message.startswith("    ") else 1)


def _plain(advice: t.Sequence[Advice]) -> list[dict[str, t.Any]]:
    return [one._asdict() for one in advice]


_OOM_PLACES = [
    ("oom_sampler_warmup", r"_dummy_sampler_run|sampler", "while the sampler was warmed up", "warming_up_sampler"),
    ("oom_graphs", r"capture_model|capture_graph|_capture", "while CUDA graphs were captured", "capturing_graphs"),
    ("oom_kv_cache", r"_allocate_kv_cache|initialize_kv_cache|init_kv_cache", "while the KV cache was allocated", "allocating_kv_cache"),
    ("oom_activation", r"profile_run|_dummy_run|determine_available_memory", "in the trial run of a full batch", "profiling"),
    (
        "oom_weights",
        r"load_model|load_weights|create_weights|process_weights_after_loading",
        "while weights were loaded",
        "loading_weights",
    ),
]


def _out_of_memory(lines: t.Sequence[LogLine], arguments: t.Mapping[str, t.Any], phase: str) -> t.Optional[Diagnosis]:
    """A bare out-of-memory error says nothing; the stack above it says where."""
    found = [(number, line, match) for number, line in enumerate(lines) if (match := _OUT_OF_MEMORY.search(line.message))]
    if not found:
        return None
    number, line, match = max(found, key=lambda hit: (hit[1].depth, -hit[0]))
    stack = "\n".join(above.message for above in lines[max(0, number - 80) : number] if above.process == line.process)
    cause, where, at = _place(stack, phase)
    message = f"the GPU ran out of memory {where} ({match.group(1)} more were wanted)"
    at_fault = UNCLEAR if cause == "oom_runtime" else RELEASE
    return Diagnosis(cause, "high", message, _plain(_oom_advice(cause, arguments)), _evidence(lines, _OUT_OF_MEMORY), at_fault, at)


def _place(stack: str, phase: str) -> tuple[str, str, str]:
    if phase == "serving":
        return "oom_runtime", "while it was serving", phase
    frames = "\n".join(line for line in stack.splitlines() if line.lstrip().startswith("File "))
    for cause, pattern, where, at in _OOM_PLACES:
        if re.search(rf", in (?:\w*(?:{pattern})\w*)", frames):
            return cause, where, at
    return "oom", f"while {DESCRIPTIONS.get(phase, phase)}", phase


def _oom_advice(cause: str, arguments: t.Mapping[str, t.Any]) -> list[Advice]:
    sequences = int(arguments.get("max_num_seqs") or 1024)
    used = float(arguments.get("gpu_memory_utilization", 0.92))
    parallel = int(arguments.get("tensor_parallel_size", 1))
    fewer = Advice(
        "max-num-seqs", 256 if sequences > 256 else max(1, sequences // 2), "fewer sequences need less memory outside the budget"
    )
    smaller = Advice("gpu-memory-utilization", round(used - 0.03, 3), "a smaller budget leaves memory for what lies outside it")
    return {
        "oom_weights": [Advice("tensor-parallel-size", parallel * 2, "more GPUs share the weights")],
        "oom_activation": [Advice("max-num-batched-tokens", None, "smaller batches need less memory")],
        "oom_graphs": [smaller, Advice("enforce-eager", True, "captures no graphs, at the price of speed")],
    }.get(cause, [fewer, smaller])


def _unknown(lines: t.Sequence[LogLine], phase: str) -> Diagnosis:
    assertion = [line for line in lines if _BARE_ASSERTION.search(line.message) and line.depth >= 2]
    if assertion:
        advice = [Advice("tensor-parallel-size", None, "choose one that divides the heads, KV heads and intermediate size of the model")]
        message = f"a size of the model cannot be split as asked ({assertion[0].message})"
        return Diagnosis("not_divisible", "medium", message, _plain(advice), _evidence(lines, _BARE_ASSERTION), RELEASE, phase)
    telling = [line for line in lines if _GENERIC.search(line.message) and not _WRAPPERS.search(line.message)]
    if telling:
        deepest = max(telling, key=lambda line: line.depth)
        evidence = [line.message for line in telling[:_EVIDENCE_LINES]]
        return Diagnosis("unknown", "low", f"the engine said: {deepest.message[:300]}", [], evidence, UNCLEAR, phase)
    said = [line.message for line in lines if phase == "starting" and not _SYSTEMD.search(line.message)]
    if said:
        return Diagnosis("unknown", "low", f"before the engine wrote anything it was said: {said[-1][:300]}", [], said[-3:], UNCLEAR, phase)
    last = [line.message for line in lines[-_EVIDENCE_LINES:]]
    return Diagnosis("unknown", "none", "the engine left no known error", [], last, UNCLEAR, phase)


def _evidence(lines: t.Sequence[LogLine], pattern: t.Pattern[str]) -> list[str]:
    """The lines that match, deepest process first, each text once."""
    matching = sorted((line for line in lines if pattern.search(line.message)), key=lambda line: -line.depth)
    texts = [f"{line.process}: {line.message}" if line.process else line.message for line in matching]
    return list(dict.fromkeys(texts))[:_EVIDENCE_LINES]


def _sentence(remedy: t.Mapping[str, t.Any]) -> str:
    if not remedy["option"]:
        return str(remedy["why"]).rstrip(".")
    if remedy["value"] is None:
        return f"change {remedy['option']}: {remedy['why']}"
    return f"set {remedy['option']} to {str(remedy['value']).lower() if isinstance(remedy['value'], bool) else remedy['value']}"
