# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until every target GPU has its memory free and still, and say who holds it meanwhile. PRIVATE to the collection.

A reading is free when it meets the threshold. The wait ends after several such readings in a row between which the memory did
not move, because an engine that starts while memory still moves fails its own start-up measurement.
"""

from __future__ import annotations

import typing as t

from .effects import Clock, Report, Sleep
from .errors import VllmError
from .gpu_arrival import await_gpus
from .gpu_details import NEEDS_RESET
from .gpu_links import fabric_comes_up, fabric_fault
from .gpu_readings import Reading, choose_targets, fabric_of, shares_host_memory
from .gpu_threshold import MIB, Threshold, check_possible, make_threshold, source_note, unattributed
from .gpu_verdict import WaitResult, describe, exit_status, unless_free, who_holds
from .gpus import Gpu, GpuProcess, ReadError, fatal_error
from .reap import Reaper

__all__ = [
    "DEFAULTS",
    "Reader",
    "Sample",
    "Threshold",
    "WaitResult",
    "describe",
    "exit_status",
    "make_threshold",
    "read_once",
    "run",
    "unless_free",
    "wait_until_free",
    "wants_reaping",
]

Sample = t.Callable[[], t.Sequence[Reading]]
"""Reads every GPU of the host, in NVML's order; raises :class:`VllmError` where NVML does not answer."""

DEFAULTS: dict[str, t.Any] = {"stable_samples": 4, "interval": 0.05, "timeout": 180.0, "nvml_timeout": 30.0}
"""Of the wait's options: here for the module and for the host helper."""

STEADY = 32 * MIB
"""Memory that moves less than this between two readings stands still."""
STEADY_SHARED = 512 * MIB
"""The same where the host's own doings move the figure."""
RECENT = 5.0
"""Seconds in which memory must have fallen for the GPU to count as being released."""
UNKILLABLE_AFTER = 10.0
"""Seconds for which a thread may leave a SIGKILL untaken before its process counts as one that cannot die."""
FAULTY_READINGS = 3
"""Readings of one GPU that may fail in a row before it counts as lost."""
_GONE = ReadError("presence", 0, "NVML lists it no longer")


# ---- waiting -------------------------------------------------------------------------------------------------------------


def wait_until_free(
    sample: Sample,
    targets: t.Sequence[str],
    threshold: Threshold,
    *,
    stable_samples: int,
    interval: float,
    timeout: float,
    clock: Clock,
    sleep: Sleep,
    report: Report,
    reaper: t.Optional[Reaper] = None,
) -> WaitResult:
    """Look every ``interval`` seconds until all ``targets`` (all GPUs where empty) are free or ``timeout`` seconds are over.

    Returns for every verdict (:func:`unless_free` turns a bad one into an error). Raises :class:`VllmError` where NVML does not
    answer, a target does not exist, or the threshold asks for more than a GPU has. With a ``reaper`` it also lasts until what the
    reaper ends is gone, whether that holds memory or a port.
    """
    _check_pace(stable_samples, interval, timeout)
    watch = _Watch(threshold, targets, stable_samples, clock(), report)
    while True:
        began = clock()
        if reaper:
            reaper.look(began)
        watch.look(sample(), clock())
        left = watch.started + timeout - clock()
        verdict = watch.verdict(is_over=left <= 0, may_end=reaper is None or reaper.is_settled)
        if verdict:
            return watch.result(verdict, clock(), reaper.records() if reaper else [])
        # From look to look, however long a look takes; yet never without a pause.
        sleep(min(max(began + interval - clock(), interval / 5), left))


class Reader(t.Protocol):
    """A context manager that reads every GPU, the way ``_nvml.Sampler`` does."""

    def __enter__(self) -> Reader: ...
    def __exit__(self, *exception: object) -> None: ...
    def memory(self) -> t.Sequence[Reading]: ...


def run(
    release: t.Mapping[str, t.Any],
    open_reader: t.Callable[[float], Reader],
    *,
    clock: Clock,
    sleep: Sleep,
    say: t.Callable[[str], None],
    reaper: t.Optional[Reaper] = None,
) -> int:
    """Wait for the GPUs of a release, say each change in a line, and answer with the host helper's exit status.

    ``release["gpus"]`` names the GPUs; ``release["gpu_wait"]`` has the options of ``gpu_memory_wait`` that differ from its defaults.
    Other than the module it also waits for the driver and for GPUs that are not listed yet: a unit starts while its host boots.
    """
    tools: dict[str, t.Any] = {"clock": clock, "sleep": sleep, "report": lambda record: say(record["what"]), "reaper": reaper}
    try:
        threshold, pace, nvml_timeout = _settings(release["gpu_wait"])
        _check_pace(**pace)
        with open_reader(nvml_timeout) as reader:
            left = await_gpus(reader.memory, release["gpus"], timeout=pace["timeout"], clock=clock, sleep=sleep, say=say)
            pace["timeout"] = max(left, _shortest(pace["stable_samples"], pace["interval"]))
            result = wait_until_free(reader.memory, release["gpus"], threshold, **pace, **tools)
    except VllmError as exc:
        say(str(exc))
        return exit_status(exc)
    for line in (*result.notes, describe(result)):
        say(line)
    return exit_status(result)


def wants_reaping(options: t.Mapping[str, t.Any], default: str) -> bool:
    """Whether what the unit left behind is to be ended, by the option ``reap``."""
    reap = options.get("reap") or default
    if reap not in ("none", "own"):
        raise VllmError(f"reap is {reap!r}.", code="bad_configuration", remedy="Set none or own.")
    return bool(reap == "own")


def _settings(options: t.Mapping[str, t.Any]) -> tuple[Threshold, dict[str, t.Any], float]:
    known = {*Threshold._fields, *DEFAULTS}
    unknown = sorted(set(options) - known - {"reap"})
    if unknown:
        raise VllmError(
            f"gpu_wait has no option {', '.join(unknown)}.", code="bad_configuration", remedy=f"It knows {', '.join(sorted(known))}, reap."
        )
    given = {name: value for name, value in options.items() if name in known}
    chosen = {name: _number(name, value) for name, value in {**DEFAULTS, **given}.items()}
    threshold = make_threshold(**{name: chosen.get(name) for name in Threshold._fields})
    return threshold, {name: chosen[name] for name in ("stable_samples", "interval", "timeout")}, float(chosen["nvml_timeout"])


def _number(name: str, value: t.Any) -> t.Any:
    """A number of a release: one that came from the command line (``-e``) is text."""
    if value is None or isinstance(value, (int, float)):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError) as exc:
        raise VllmError(f"gpu_wait: {name} is {value!r}.", code="bad_configuration", remedy="Set a number.") from exc
    return int(number) if number.is_integer() else number


def read_once(sample: Sample, targets: t.Sequence[str], threshold: Threshold, *, clock: Clock) -> WaitResult:
    """What one reading says, without waiting: the state of things in check mode."""
    watch = _Watch(threshold, targets, 1, clock(), lambda _record: None)
    watch.look(sample(), clock())
    return watch.result(watch.verdict(is_over=True), clock())


def _check_pace(stable_samples: int, interval: float, timeout: float) -> None:
    for name, value, least in (("stable_samples", stable_samples, 1), ("interval", interval, 0.01), ("timeout", timeout, 0)):
        if value < least:
            raise VllmError(f"{name} is {value}.", code="bad_configuration", remedy=f"Set {least} or more.")
    shortest = _shortest(stable_samples, interval)
    if timeout < shortest:
        raise VllmError(
            f"timeout is {timeout:g} s, and {stable_samples} readings {interval:g} s apart take {shortest:g} s.",
            code="bad_configuration",
            remedy="Raise timeout, or lower stable_samples or interval.",
        )


def _shortest(stable_samples: int, interval: float) -> float:
    return (stable_samples - 1) * interval


class _Target:
    """What is remembered of one GPU or MIG device over the wait."""

    def __init__(self, reading: Reading, threshold: Threshold) -> None:
        self.reading = reading
        self.first = self.last = reading.gpu
        self._threshold = threshold
        self.is_steady = True
        self._still_at = reading.gpu.memory_used
        self.fell_at: t.Optional[float] = None
        self.bad_readings = 0
        self.kill_pending_since: dict[tuple[int, t.Optional[int]], float] = {}

    def see(self, reading: t.Optional[Reading], now: float) -> None:
        gpu = reading.gpu if reading else self.last._replace(memory_used=None, errors=(_GONE,))
        if reading is None or gpu.memory_used is None:
            self.bad_readings += 1
            self.last = self.last._replace(errors=gpu.errors or (_GONE,), recovery_action=gpu.recovery_action)
            self.is_steady = False
            return
        self._see_movement(gpu, now)
        self.bad_readings = 0
        pending = {(one.pid, one.start_time) for one in gpu.processes if one.kill_pending}
        self.kill_pending_since = {key: self.kill_pending_since.get(key, now) for key in pending}
        if self.first.memory_used is None:
            self.first = gpu._replace(processes=self.first.processes)
        self.last, self.reading = gpu, reading

    def _see_movement(self, gpu: Gpu, now: float) -> None:
        """Against the figure at which memory last stood still, so that slow movement is movement and a flicker is none."""
        used, before = gpu.memory_used or 0, self._still_at
        self.is_steady = before is not None and abs(used - before) <= (STEADY_SHARED if shares_host_memory(gpu) else STEADY)
        if self.is_steady:
            return
        self._still_at = used
        if before is not None and used < before:
            self.fell_at = now

    @property
    def is_free(self) -> bool:
        return self.bad_readings == 0 and self.fabric_fault is None and self._threshold.is_met(self.last)

    @property
    def fabric_fault(self) -> t.Optional[str]:
        return fabric_fault(fabric_of(self.last))

    @property
    def is_lost(self) -> bool:
        if self.fabric_fault and not fabric_comes_up(fabric_of(self.last)):
            return True
        return fatal_error(self.last) is not None or self.last.recovery_action in NEEDS_RESET or self.bad_readings >= FAULTY_READINGS

    @property
    def holders(self) -> list[GpuProcess]:
        return sorted(self.last.processes, key=lambda one: (-(one.bytes or 0), one.pid))

    def unkillable(self, now: float) -> list[GpuProcess]:
        stuck = {key for key, since in self.kill_pending_since.items() if now - since >= UNKILLABLE_AFTER}
        return [one for one in self.last.processes if (one.pid, one.start_time) in stuck]

    def is_ending(self, process: GpuProcess) -> bool:
        """The kernel takes it apart, and what it holds comes back in time."""
        info = self.reading.known.get(process.pid)
        return process.state in ("Z", "X") or bool(info and info.exiting)

    def is_releasing(self, now: float) -> bool:
        leaving = [one.kill_pending or self.is_ending(one) for one in self.last.processes]
        return (bool(leaving) and all(leaving)) or (self.fell_at is not None and now - self.fell_at <= RECENT)

    def record(self, now: float) -> dict[str, t.Any]:
        first, last = self.first, self.last
        return {
            "index": last.index,
            "uuid": last.uuid,
            "pci_bus_id": last.pci_bus_id,
            "name": last.name,
            "mig_device": self.reading.is_mig_device,
            "free": self.is_free,
            "memory_total": last.memory_total,
            "memory_source": last.memory_source,
            "needed_free": None if last.memory_total is None else self._threshold.needs(last),
            "used_first": first.memory_used,
            "used_last": last.memory_used,
            "free_first": first.memory_free,
            "free_last": last.memory_free,
            "unattributed": unattributed(last),
            "releasing": self.is_releasing(now),
            "unkillable_pids": [one.pid for one in self.unkillable(now)],
            "recovery_action": last.recovery_action,
            "fabric": {name: fabric_of(last).get(name) for name in ("state", "status", "health")},
            "errors": [error._asdict() for error in last.errors],
        }

    def holder_records(self) -> list[dict[str, t.Any]]:
        return [self._holder_record(one) for one in self.holders]

    def _holder_record(self, process: GpuProcess) -> dict[str, t.Any]:
        info = self.reading.known.get(process.pid)
        shown = {name: getattr(process, name) for name in ("pid", "name", "unit", "user", "bytes", "type", "state", "start_time")}
        return {
            **shown,
            "container": info.container if info else None,
            "ending": self.is_ending(process),
            "gpu": self.last.index,
            "gpu_uuid": self.last.uuid,
        }


class _Watch:
    """Follows the targets from reading to reading."""

    def __init__(self, threshold: Threshold, wanted: t.Sequence[str], stable_samples: int, started: float, report: Report) -> None:
        self.started = self.now = started
        self._threshold = threshold
        self._wanted = wanted
        self._stable_samples = stable_samples
        self._report = report
        self._targets: dict[str, _Target] = {}
        self._others: list[str] = []
        self._samples = self._in_a_row = 0
        self._said: t.Any = None

    def look(self, readings: t.Sequence[Reading], now: float) -> None:
        self.now = now
        self._samples += 1
        if not self._targets:
            self._choose(readings)
        by_key = {reading.key: reading for reading in readings}
        for key, target in self._targets.items():
            target.see(by_key.get(key), now)
        free = all(target.is_free for target in self._targets.values())
        steady = all(target.is_steady for target in self._targets.values())
        self._in_a_row = 0 if not free else self._in_a_row + 1 if steady else 1
        self._say_changes()

    def verdict(self, *, is_over: bool, may_end: bool = True) -> str:
        """The verdict, or an empty word while there is reason to wait on."""
        if any(target.is_lost for target in self._targets.values()):
            return "lost"
        if self._in_a_row >= self._stable_samples and (may_end or is_over):
            return "free"
        if any(target.unkillable(self.now) for target in self._busy):
            return "wedged"
        if not is_over:
            return ""
        return "releasing" if all(target.is_releasing(self.now) for target in self._busy) else "held"

    def result(self, verdict: str, now: float, reaped: t.Sequence[dict[str, t.Any]] = ()) -> WaitResult:
        return WaitResult(
            free=verdict == "free",
            verdict=verdict,
            waited_seconds=round(now - self.started, 3),
            samples=self._samples,
            gpus=[target.record(self.now) for target in self._targets.values()],
            holders=[record for target in self._busy for record in target.holder_records()],
            notes=self._notes(),
            reaped=list(reaped),
        )

    @property
    def _busy(self) -> list[_Target]:
        return [target for target in self._targets.values() if not target.is_free]

    def _choose(self, readings: t.Sequence[Reading]) -> None:
        chosen = choose_targets(readings, self._wanted)
        if not chosen:
            raise VllmError("NVML shows no GPU on this host.", code="gpu_none", remedy="Check lspci and the driver (nvidia-smi -L).")
        for reading in chosen:
            self._targets[reading.key] = _Target(reading, self._threshold)
            check_possible(reading.gpu, self._threshold)
        mentioned = {reading.gpu.index for reading in chosen}
        others = [reading.gpu for reading in readings if reading.gpu.index not in mentioned]
        found = [(gpu, fatal_error(gpu)) for gpu in others]
        self._others = [f"GPU {gpu.index}, which is not among the targets, cannot be used: {error.error}." for gpu, error in found if error]

    def _say_changes(self) -> None:
        """Report when another GPU became free or another process holds one, not each time a figure moves."""
        state = [
            (key, [(one.pid, target.is_ending(one)) for one in target.holders], target.bad_readings > 0, target.fabric_fault)
            for key, target in self._targets.items()
            if not target.is_free
        ]
        if state == self._said or (not state and self._said is None):
            return
        self._said = state
        total = len(self._targets)
        self._report({"what": self._sentence(), "done": total - len(self._busy), "total": total, "unit": "GPUs"})

    def _sentence(self) -> str:
        total = len(self._targets)
        if not self._busy:
            return f"memory of {total} of {total} GPUs is free after {self.now - self.started:.1f} s; seeing whether it stays still"
        waiting = "; ".join(who_holds(target.record(self.now), target.holder_records()) for target in self._busy)
        return f"waiting for {len(self._busy)} of {total} GPUs: {waiting}"

    def _notes(self) -> list[str]:
        notes = [(target.last, source_note(target.last, self._threshold)) for target in self._targets.values()]
        asked = [target.last for target in self._targets.values() if target.last.recovery_action not in (None, "none", *NEEDS_RESET)]
        return [
            *self._others,
            *(f"GPU {gpu.index}: {note}." for gpu, note in notes if note),
            *(f"GPU {gpu.index}: the driver asks for {gpu.recovery_action} when it is drained." for gpu in asked),
        ]
