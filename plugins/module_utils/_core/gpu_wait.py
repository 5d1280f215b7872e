# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until every target GPU has its memory free and still, and say who holds it meanwhile. PRIVATE to the collection.

A reading is free when it meets the threshold. The wait ends after several such readings in a row between which the memory did
not move, because an engine that starts while memory still moves fails its own start-up measurement.
"""

from __future__ import annotations

import math
import typing as t

from .effects import Clock, Report, Sleep
from .errors import VllmError
from .gpus import Gpu, GpuProcess, fatal_error, select_gpus

__all__ = [
    "DEFAULTS",
    "EXIT_BUSY",
    "EXIT_CONFIGURATION",
    "EXIT_FREE",
    "EXIT_GPU_FAULT",
    "EXIT_NVML_UNAVAILABLE",
    "Threshold",
    "WaitResult",
    "describe",
    "exit_status",
    "make_threshold",
    "read_once",
    "run",
    "unless_free",
    "wait_until_free",
]

EXIT_FREE, EXIT_BUSY, EXIT_NVML_UNAVAILABLE, EXIT_GPU_FAULT, EXIT_CONFIGURATION = 0, 75, 69, 70, 78

Sample = t.Callable[[], t.Sequence[Gpu]]
"""Reads every GPU of the host, in NVML's order; raises :class:`VllmError` where NVML does not answer."""

DEFAULTS: dict[str, t.Any] = {"stable_samples": 4, "interval": 0.05, "timeout": 180.0, "nvml_timeout": 30.0}
"""Of the wait's options: here for the module and for the host helper."""

MIB = 1024**2
GIB = 1024**3
STEADY = 32 * MIB
"""Memory that moves less than this between two readings stands still."""
RECENT = 5.0
"""Seconds in which memory must have fallen for the GPU to count as being released."""
UNKILLABLE_AFTER = 10.0
"""Seconds for which a process may leave a SIGKILL untaken before it counts as one that cannot die."""
FAULTY_READINGS = 3
"""Readings of one GPU that may fail in a row before it counts as lost."""
MENTIONED_HOLDERS = 8
NOTABLE_UNATTRIBUTED = 256 * MIB


class Threshold(t.NamedTuple):
    """When a GPU counts as free: exactly one of the three is set. Bytes, and a share of the total."""

    max_used: t.Optional[int] = None
    min_free: t.Optional[int] = None
    utilization: t.Optional[float] = None

    def needs(self, gpu: Gpu) -> int:
        """The bytes that must be free of this GPU; for ``max_used`` it is what that leaves."""
        total = gpu.memory_total or 0
        if self.utilization is not None:
            return math.ceil(total * self.utilization)
        return self.min_free if self.min_free is not None else total - (gpu.memory_reserved or 0) - (self.max_used or 0)

    def is_met(self, gpu: Gpu) -> bool:
        """Whether the reading is free."""
        if gpu.memory_total is None or gpu.memory_used is None or gpu.memory_free is None:
            return False
        if self.max_used is not None:
            return gpu.memory_used <= self.max_used
        return gpu.memory_free >= self.needs(gpu)


class WaitResult(t.NamedTuple):
    """How the wait ended: ``verdict`` is ``free``, ``releasing``, ``held``, ``wedged`` or ``lost``; the rest is plain data."""

    free: bool
    verdict: str
    waited_seconds: float
    samples: int
    gpus: list[dict[str, t.Any]]
    holders: list[dict[str, t.Any]]
    notes: list[str]

    def facts(self) -> dict[str, t.Any]:
        """What a module returns of it; the notes are warnings of their own."""
        return {name: value for name, value in self._asdict().items() if name != "notes"}


def make_threshold(
    *, max_used: t.Optional[int] = None, min_free: t.Optional[int] = None, utilization: t.Optional[float] = None
) -> Threshold:
    """Exactly one of the three, and one that makes sense."""
    given = {"max_used": max_used, "min_free": min_free, "utilization": utilization}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise VllmError(
            f"Exactly one of max_used, min_free and utilization says when a GPU is free; given: {', '.join(named) or 'none'}.",
            code="bad_configuration",
            remedy="Set utilization to the engine's gpu-memory-utilization, or one of the others.",
        )
    if utilization is not None and not 0 < utilization <= 1:
        raise VllmError(
            f"utilization is {utilization}: it is a share of the GPU's memory.", code="bad_configuration", remedy="Set 0.01 to 1.0."
        )
    if (max_used or 0) < 0 or (min_free or 0) < 0:
        raise VllmError(f"{named[0]} is {given[named[0]]}: memory cannot be negative.", code="bad_configuration", remedy="Set 0 or more.")
    return Threshold(max_used, min_free, utilization)


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
) -> WaitResult:
    """Look every ``interval`` seconds until all ``targets`` (all GPUs where empty) are free or ``timeout`` seconds are over.

    Returns for every verdict (:func:`unless_free` turns a bad one into an error). Raises :class:`VllmError` where NVML does not
    answer, a target does not exist, or the threshold asks for more than a GPU has.
    """
    _check_pace(stable_samples, interval, timeout)
    watch = _Watch(threshold, targets, stable_samples, clock(), report)
    while True:
        watch.look(sample(), clock())
        left = watch.started + timeout - clock()
        verdict = watch.verdict(is_over=left <= 0)
        if verdict:
            return watch.result(verdict, clock())
        sleep(min(interval, left))


class Reader(t.Protocol):
    """A context manager that reads every GPU, the way ``_nvml.Sampler`` does."""

    def __enter__(self) -> Reader: ...
    def __exit__(self, *exception: object) -> None: ...
    def memory(self) -> t.Sequence[Gpu]: ...


def run(
    release: t.Mapping[str, t.Any], open_reader: t.Callable[[float], Reader], *, clock: Clock, sleep: Sleep, say: t.Callable[[str], None]
) -> int:
    """Wait for the GPUs of a release, say each change in a line, and answer with the host helper's exit status.

    ``release["gpus"]`` names the GPUs; ``release["gpu_wait"]`` has the options of ``gpu_memory_wait`` that differ from its defaults.
    """
    try:
        threshold, pace, nvml_timeout = _settings(release["gpu_wait"])
        with open_reader(nvml_timeout) as reader:
            result = wait_until_free(
                reader.memory, release["gpus"], threshold, clock=clock, sleep=sleep, report=lambda record: say(record["what"]), **pace
            )
    except VllmError as exc:
        say(str(exc))
        return exit_status(exc)
    for line in (*result.notes, describe(result)):
        say(line)
    return exit_status(result)


def _settings(options: t.Mapping[str, t.Any]) -> tuple[Threshold, dict[str, t.Any], float]:
    known = {*Threshold._fields, *DEFAULTS}
    unknown = sorted(set(options) - known)
    if unknown:
        raise VllmError(
            f"gpu_wait has no option {', '.join(unknown)}.", code="bad_configuration", remedy=f"It knows {', '.join(sorted(known))}."
        )
    chosen = {name: _number(name, value) for name, value in {**DEFAULTS, **options}.items()}
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
    shortest = (stable_samples - 1) * interval
    if timeout < shortest:
        raise VllmError(
            f"timeout is {timeout:g} s, and {stable_samples} readings {interval:g} s apart take {shortest:g} s.",
            code="bad_configuration",
            remedy="Raise timeout, or lower stable_samples or interval.",
        )


class _Target:
    """What is remembered of one GPU over the wait."""

    def __init__(self, gpu: Gpu, threshold: Threshold) -> None:
        self.first = self.last = gpu
        self._threshold = threshold
        self.is_steady = True
        self._still_at = gpu.memory_used
        self.fell_at: t.Optional[float] = None
        self.bad_readings = 0
        self.kill_pending_since: dict[tuple[int, t.Optional[int]], float] = {}

    def see(self, gpu: Gpu, now: float) -> None:
        before = self.last.memory_used
        if gpu.memory_used is None:
            self.bad_readings += 1
            self.last = self.last._replace(errors=gpu.errors)
            self.is_steady = False
            return
        self.is_steady = self._still_at is not None and abs(gpu.memory_used - self._still_at) <= STEADY
        if not self.is_steady:
            self._still_at = gpu.memory_used
        if before is not None and gpu.memory_used < before:
            self.fell_at = now
        self.bad_readings = 0
        pending = {(one.pid, one.start_time) for one in gpu.processes if one.kill_pending}
        self.kill_pending_since = {key: self.kill_pending_since.get(key, now) for key in pending}
        if self.first.memory_used is None:
            self.first = gpu._replace(processes=self.first.processes)
        self.last = gpu

    @property
    def is_free(self) -> bool:
        return self.bad_readings == 0 and self._threshold.is_met(self.last)

    @property
    def needs(self) -> int:
        return self._threshold.needs(self.last)

    @property
    def is_lost(self) -> bool:
        return fatal_error(self.last) is not None or self.bad_readings >= FAULTY_READINGS

    @property
    def holders(self) -> list[GpuProcess]:
        return sorted(self.last.processes, key=lambda one: (-(one.bytes or 0), one.pid))

    @property
    def unattributed(self) -> int:
        known = sum(one.bytes or 0 for one in self.last.processes)
        return max(0, (self.last.memory_used or 0) - known)

    def unkillable(self, now: float) -> list[GpuProcess]:
        stuck = {key for key, since in self.kill_pending_since.items() if now - since >= UNKILLABLE_AFTER}
        return [one for one in self.last.processes if (one.pid, one.start_time) in stuck]

    def is_releasing(self, now: float) -> bool:
        ending = bool(self.last.processes) and all(one.kill_pending or one.state in ("Z", "X") for one in self.last.processes)
        return ending or (self.fell_at is not None and now - self.fell_at <= RECENT)


class _Watch:
    """Follows the target GPUs from reading to reading."""

    def __init__(self, threshold: Threshold, wanted: t.Sequence[str], stable_samples: int, started: float, report: Report) -> None:
        self.started = self.now = started
        self._threshold = threshold
        self._wanted = wanted
        self._stable_samples = stable_samples
        self._report = report
        self._targets: dict[int, _Target] = {}
        self._others: list[str] = []
        self._samples = self._in_a_row = 0
        self._said: t.Any = None

    def look(self, gpus: t.Sequence[Gpu], now: float) -> None:
        self.now = now
        self._samples += 1
        if not self._targets:
            self._choose(gpus)
        by_index = {gpu.index: gpu for gpu in gpus}
        for index, target in self._targets.items():
            target.see(by_index.get(index, Gpu(index)), now)
        free = all(target.is_free for target in self._targets.values())
        steady = all(target.is_steady for target in self._targets.values())
        self._in_a_row = 0 if not free else self._in_a_row + 1 if steady else 1
        self._say_changes()

    def verdict(self, *, is_over: bool) -> str:
        """The verdict, or an empty word while there is reason to wait on."""
        targets = self._targets.values()
        if any(target.is_lost for target in targets):
            return "lost"
        if self._in_a_row >= self._stable_samples:
            return "free"
        if any(target.unkillable(self.now) for target in self._busy):
            return "wedged"
        if not is_over:
            return ""
        return "releasing" if all(target.is_releasing(self.now) for target in self._busy) else "held"

    def result(self, verdict: str, now: float) -> WaitResult:
        return WaitResult(
            free=verdict == "free",
            verdict=verdict,
            waited_seconds=round(now - self.started, 3),
            samples=self._samples,
            gpus=[self._gpu_record(target) for target in self._targets.values()],
            holders=[_holder_record(target.last.index, one) for target in self._busy for one in target.holders],
            notes=self._notes(),
        )

    @property
    def _busy(self) -> list[_Target]:
        return [target for target in self._targets.values() if not target.is_free]

    def _choose(self, gpus: t.Sequence[Gpu]) -> None:
        chosen = select_gpus(gpus, self._wanted)
        if not chosen:
            raise VllmError("NVML shows no GPU on this host.", code="gpu_none", remedy="Check lspci and the driver (nvidia-smi -L).")
        for gpu in chosen:
            self._targets[gpu.index] = _Target(gpu, self._threshold)
            _check_possible(gpu, self._threshold)
        others = [gpu for gpu in gpus if gpu.index not in self._targets]
        found = [(gpu, fatal_error(gpu)) for gpu in others]
        self._others = [f"GPU {gpu.index}, which is not among the targets, cannot be used: {error.error}." for gpu, error in found if error]

    def _say_changes(self) -> None:
        """Report when another GPU became free or another process holds one, not each time a figure moves."""
        state = [(target.last.index, [one.pid for one in target.holders], target.bad_readings > 0) for target in self._busy]
        if state == self._said or (not state and self._said is None):
            return
        self._said = state
        total = len(self._targets)
        self._report({"what": self._sentence(), "done": total - len(self._busy), "total": total, "unit": "GPUs"})

    def _sentence(self) -> str:
        total = len(self._targets)
        if not self._busy:
            return f"memory of {total} of {total} GPUs is free after {self.now - self.started:.1f} s; seeing whether it stays still"
        waiting = "; ".join(_who(self._gpu_record(target), target.holders) for target in self._busy)
        return f"waiting for {len(self._busy)} of {total} GPUs: {waiting}"

    def _gpu_record(self, target: _Target) -> dict[str, t.Any]:
        first, last = target.first, target.last
        return {
            "index": last.index,
            "uuid": last.uuid,
            "pci_bus_id": last.pci_bus_id,
            "name": last.name,
            "free": target.is_free,
            "memory_total": last.memory_total,
            "memory_source": last.memory_source,
            "needed_free": None if last.memory_total is None else target.needs,
            "used_first": first.memory_used,
            "used_last": last.memory_used,
            "free_first": first.memory_free,
            "free_last": last.memory_free,
            "unattributed": target.unattributed,
            "releasing": target.is_releasing(self.now),
            "unkillable_pids": [one.pid for one in target.unkillable(self.now)],
            "errors": [error._asdict() for error in last.errors],
        }

    def _notes(self) -> list[str]:
        sources = {
            "nvml_v1": "the driver knows only the older memory reading, whose used figure counts the driver's reserve",
            "system": "GPU and host share one memory, so the host's figures are used",
        }
        kinds = [(target.last.index, sources.get(target.last.memory_source)) for target in self._targets.values()]
        return [*self._others, *(f"GPU {index}: {text}." for index, text in kinds if text)]


def _check_possible(gpu: Gpu, threshold: Threshold) -> None:
    """A threshold that even an idle GPU cannot meet would be waited for in vain."""
    if gpu.memory_total is None:
        return
    most = gpu.memory_total - (gpu.memory_reserved or 0)
    needed = threshold.needs(gpu)
    if threshold.max_used is None and needed > most:
        option = "min_free" if threshold.utilization is None else f"utilization {threshold.utilization:g}"
        raise VllmError(
            f"{option} asks for {_gib(needed)} free on GPU {gpu.index}, which has {_gib(most)} when idle.",
            code="bad_configuration",
            remedy="Lower it.",
        )


def _holder_record(index: int, process: GpuProcess) -> dict[str, t.Any]:
    return {
        "pid": process.pid,
        "name": process.name,
        "unit": process.unit,
        "user": process.user,
        "gpu": index,
        "bytes": process.bytes,
        "type": process.type,
        "state": process.state,
        "start_time": process.start_time,
    }


# ---- telling -------------------------------------------------------------------------------------------------------------


def exit_status(outcome: t.Union[WaitResult, VllmError]) -> int:
    """The host helper's exit status for a finished wait, or for the error that ended it."""
    if isinstance(outcome, WaitResult):
        by_verdict = {"free": EXIT_FREE, "lost": EXIT_GPU_FAULT, "wedged": EXIT_GPU_FAULT}
        return by_verdict.get(outcome.verdict, EXIT_BUSY)
    if outcome.code.startswith("nvml_") or outcome.code == "gpu_none":
        return EXIT_NVML_UNAVAILABLE
    by_code = {"gpu_memory_held": EXIT_BUSY, "gpu_memory_releasing": EXIT_BUSY, "gpu_wedged": EXIT_GPU_FAULT, "gpu_lost": EXIT_GPU_FAULT}
    return by_code.get(outcome.code, EXIT_CONFIGURATION)


def describe(result: WaitResult) -> str:
    """The result in a line or two: what is free, or what is wrong and what to do."""
    if not result.free:
        return str(_failure(result))
    return f"memory of {len(result.gpus)} of {len(result.gpus)} GPUs is free (waited {result.waited_seconds:.1f} s)"


def unless_free(result: WaitResult) -> WaitResult:
    """The result itself where all is free; raises what :func:`describe` says where not."""
    if not result.free:
        raise _failure(result)
    return result


def _failure(result: WaitResult) -> VllmError:
    explain = {"lost": _lost, "wedged": _wedged}.get(result.verdict, _busy)
    code = {"lost": "gpu_lost", "wedged": "gpu_wedged"}.get(result.verdict, f"gpu_memory_{result.verdict}")
    message, remedy = explain(result)
    return VllmError(message, code=code, remedy=remedy, details=result.facts())


def _lost(result: WaitResult) -> tuple[str, str]:
    broken = [gpu for gpu in result.gpus if gpu["errors"]]
    named = "; ".join(f"{_name(gpu)}: {gpu['errors'][0]['error']}" for gpu in broken)
    if any(error["code"] == 4 for gpu in broken for error in gpu["errors"]):
        return (
            f"A target GPU cannot be opened ({named}).",
            "Run this as root (become: true), and read MIG devices through their parent as root.",
        )
    if any(error["code"] == 16 for gpu in broken for error in gpu["errors"]):
        return f"A target GPU needs a reset ({named}).", "Stop everything that uses it and run nvidia-smi --gpu-reset, or reboot the host."
    return (
        f"A target GPU is lost to the driver ({named}).",
        "Look for Xid lines in the kernel log; reboot the host, and if it comes back, reseat or replace the card.",
    )


def _wedged(result: WaitResult) -> tuple[str, str]:
    stuck = [pid for gpu in result.gpus for pid in gpu["unkillable_pids"]]
    holders = [_holder_text(one) for one in result.holders if one["pid"] in stuck]
    places = ", ".join(_name(gpu) for gpu in result.gpus if gpu["unkillable_pids"])
    return (
        f"{places} stays taken by a process that was killed and cannot die: {'; '.join(dict.fromkeys(holders))}.",
        "It hangs in the driver and only a reboot of the host frees the memory.",
    )


def _busy(result: WaitResult) -> tuple[str, str]:
    busy = [gpu for gpu in result.gpus if not gpu["free"]]
    total = len(result.gpus)
    if not busy:
        return f"The memory of {total} of {total} GPUs is free but did not stay still in {result.waited_seconds:.0f} s.", "Raise timeout."
    shortages = "; ".join(_shortage(gpu, result.holders) for gpu in busy)
    message = f"{len(busy)} of {total} GPUs did not become free in {result.waited_seconds:.0f} s: {shortages}."
    return message, _remedy(result, busy)


def _shortage(gpu: t.Mapping[str, t.Any], holders: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """What one GPU lacks, and because of whom."""
    room = f"{_name(gpu)} has {_gib(gpu['free_last'])} of {_gib(gpu['memory_total'])} free and needs {_gib(gpu['needed_free'])}"
    return f"{room}, {_by(gpu, [one for one in holders if one['gpu'] == gpu['index']])}"


def _remedy(result: WaitResult, busy: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    if result.verdict == "releasing":
        return "The memory was still being released: raise timeout."
    units = list(dict.fromkeys(one["unit"] for one in result.holders if one["unit"]))
    services = [unit for unit in units if unit.endswith(".service")]
    if services:
        return f"Stop what holds it (systemctl stop {' '.join(services)}) or choose other GPUs."
    pids = list(dict.fromkeys(str(one["pid"]) for one in result.holders if one["name"]))
    if pids:
        return f"End what holds it (pid {', '.join(pids)}) or choose other GPUs."
    return (
        "Look for the holder in other containers (PID namespaces); if there is none, the driver leaks the memory and the GPU needs a reset."
    )


def _who(gpu: t.Mapping[str, t.Any], processes: t.Sequence[GpuProcess]) -> str:
    if gpu["errors"] and gpu["used_last"] is None:
        return f"GPU {gpu['index']} cannot be read ({gpu['errors'][0]['error']})"
    holders = [_holder_record(gpu["index"], one) for one in processes]
    return f"GPU {gpu['index']} {_by(gpu, holders)}"


def _by(gpu: t.Mapping[str, t.Any], holders: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """Who holds the memory: ``held by pid 812 python3 (holder.service, user root) 58.6 GiB``."""
    if not holders:
        return f"{_gib(gpu['unattributed'])} held by no process that NVML lists" + (" and being released" if gpu["releasing"] else "")
    named = [_holder_text(one) for one in holders[:MENTIONED_HOLDERS]]
    if len(holders) > MENTIONED_HOLDERS:
        named.append(f"{len(holders) - MENTIONED_HOLDERS} more")
    if gpu["unattributed"] >= NOTABLE_UNATTRIBUTED:
        named.append(f"{_gib(gpu['unattributed'])} of no listed process")
    return "held by " + ", ".join(named)


def _holder_text(holder: t.Mapping[str, t.Any]) -> str:
    size = "an unknown amount" if holder["bytes"] is None else _gib(holder["bytes"])
    if holder["name"] is None:
        return f"pid {holder['pid']} (not visible here: ended, or of another PID namespace) {size}"
    return f"pid {holder['pid']} {holder['name']} ({holder['unit'] or 'no unit'}, user {holder['user'] or 'unknown'}) {size}"


def _name(gpu: t.Mapping[str, t.Any]) -> str:
    return f"GPU {gpu['index']}" + (f" ({gpu['pci_bus_id']})" if gpu["pci_bus_id"] else "")


def _gib(size: t.Optional[int]) -> str:
    return "an unknown amount" if size is None else f"{size / GIB:.2f} GiB" if size < 10 * GIB else f"{size / GIB:.1f} GiB"
