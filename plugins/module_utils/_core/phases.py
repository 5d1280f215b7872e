# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a start is, from its log lines: the phase, and the count within it. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from .log_lines import parse_line

__all__ = ["DESCRIPTIONS", "StartTracker"]

DESCRIPTIONS = {
    "starting": "starting",
    "waiting_for_gpus": "waiting for its GPUs",
    "reading_configuration": "reading its configuration",
    "starting_engine": "starting the engine processes",
    "loading_weights": "loading weights",
    "preparing_weights": "preparing the loaded weights",
    "compiling": "compiling",
    "profiling": "measuring memory",
    "allocating_kv_cache": "allocating the KV cache",
    "capturing_graphs": "capturing CUDA graphs",
    "warming_up": "warming up",
    "warming_up_sampler": "warming up the sampler",
    "starting_api": "opening its port",
    "serving": "serving",
}

_COUNT = r"\|?\s*(\d+)/(\d+) \["
_MARKS = [
    ("reading_configuration", re.compile(r"non-default args: \{")),
    ("starting_engine", re.compile(r"Initializing a V1 LLM engine \(v")),
    ("loading_weights", re.compile(r"(?:Starting to load model \S|Loading model from scratch\.\.\.)")),
    ("preparing_weights", re.compile(r"Loading weights took [\d.]+ seconds")),
    ("profiling", re.compile(r"Model loading took [\d.]+ GiB memory")),
    ("compiling", re.compile(r"Using cache directory: .* for vLLM's torch\.compile|Warming up model for the compilation|Dynamo bytecode")),
    ("profiling", re.compile(r"torch\.compile took [\d.]+ s in total|Initial profiling/warmup run took")),
    ("allocating_kv_cache", re.compile(r"Available KV cache memory: |(?:GPU|CPU) KV cache size: ")),
    ("capturing_graphs", re.compile(r"Capturing CUDA graphs")),
    ("warming_up", re.compile(r"Graph capturing finished in|Free memory on device \(.*on startup\. Desired")),
    ("starting_api", re.compile(r"init engine \(profile, create kv cache, warmup model\) took|Starting vLLM server on ")),
    ("serving", re.compile(r"Application startup complete\.")),
]
_COUNTS = [
    ("loading_weights", "shards", re.compile(r"(?:Loading safetensors checkpoint shards|Multi-thread loading shards).*?" + _COUNT)),
    ("capturing_graphs", "graphs", re.compile(r"Capturing CUDA graphs.*" + _COUNT)),
    ("warming_up", "kernels", re.compile(r"DeepGEMM warmup.*" + _COUNT)),
]
_ORDER = list(DESCRIPTIONS)


class StartTracker:
    """Feed it the lines of one start; read the phase, the count, and the seconds each phase took."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.done: t.Optional[int] = None
        self.total: t.Optional[int] = None
        self.unit = ""
        self.last_line = ""
        self.lines_seen = 0
        self._began: list[tuple[str, float]] = []

    def feed(self, time: float, lines: t.Iterable[str]) -> None:
        for line in lines:
            self.lines_seen += 1
            self.last_line = line
            if not self._began:
                self._began.append((self.phase, time))
            self._take(time, parse_line(line).message)

    def _take(self, time: float, message: str) -> None:
        for phase, pattern in _MARKS:
            if pattern.search(message):
                self._enter(phase, time)
        for phase, unit, pattern in _COUNTS:
            found = pattern.search(message)
            if found and self._enter(phase, time):
                self.done, self.total, self.unit = int(found.group(1)), int(found.group(2)), unit

    def _enter(self, phase: str, time: float) -> bool:
        """Phases only go forward: a start has many ranks, and the slowest one must not turn the clock back."""
        if _ORDER.index(phase) > _ORDER.index(self.phase):
            self.phase, self.done, self.total, self.unit = phase, None, None, ""
            self._began.append((phase, time))
        return phase == self.phase

    @property
    def is_counting(self) -> bool:
        """Within a phase whose steps are counted and not all done: silence here means that nothing moves."""
        return self.done is not None and self.total is not None and self.done < self.total

    @property
    def mark(self) -> tuple[t.Any, ...]:
        """Differs from an earlier mark exactly when the start moved on."""
        return (self.phase, self.done, self.total)

    def describe(self) -> str:
        """``loading weights, 41/125 shards``."""
        words = DESCRIPTIONS.get(self.phase, self.phase)
        return f"{words}, {self.done}/{self.total} {self.unit}" if self.done is not None else words

    def phases(self, now: t.Optional[float] = None) -> list[dict[str, t.Any]]:
        """Each phase and its seconds; the last one is open until ``now``, or left out when that is not given."""
        ends = [began for _phase, began in self._began[1:]] + ([now] if now is not None else [])
        return [{"name": phase, "seconds": round(max(0.0, end - began), 3)} for (phase, began), end in zip(self._began, ends)]
