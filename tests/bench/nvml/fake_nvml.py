#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the fake NVML library, say what its GPUs are like, and take memory on them. Standard library only.

From Python: ``write_gpus``, ``hold``, ``release``, ``fail``, ``hang``, ``heal``, ``gpus``, ``usage``, ``build``.
From a shell: ``fake_nvml.py show | hold | fail | hang | heal | set | reset | build`` (``--help`` says more).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

DEFAULT_DIR = "/run/fake-nvml"
SONAME = "libnvidia-ml.so.1"
NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
BUSES = ("01", "21", "41", "61", "81", "A1", "C1", "E1")
Timeline = t.Sequence[tuple[float, int]]


class FakeGpu(t.NamedTuple):
    """One GPU of the fake; the defaults of the library are the same (a test holds the two together)."""

    index: int  # type: ignore[assignment] # hides tuple.index, which nobody needs here
    uuid: str
    pci: str
    name: str = NAME
    total: int = 97887
    reserved: int = 637
    numa: int = 0
    timeline: Timeline = ()


class Usage(t.NamedTuple):
    """MiB of one GPU, as memory info v2 has them."""

    total: int
    reserved: int
    used: int
    free: int


def state_dir(folder: t.Optional[str] = None) -> Path:
    """The folder of the state: the one given, else $FAKE_NVML_DIR, else /run/fake-nvml."""
    return Path(folder or os.environ.get("FAKE_NVML_DIR") or DEFAULT_DIR)


def default_gpu(index: int) -> FakeGpu:
    """GPU ``index`` of a box with two sockets and four cards on each."""
    uuid = f"GPU-f00d{index:04x}-6b1c-4e5d-9a77-{0xB1AC0000 + index:012x}"
    pci = f"{index // 8:08X}:{BUSES[index % 8]}:00.0"
    return FakeGpu(index, uuid, pci, numa=0 if index % 8 < 4 else 1)


def default_gpus(count: int = 8) -> list[FakeGpu]:
    """What the library shows when nothing was written."""
    return [default_gpu(index) for index in range(count)]


def h200s(count: int = 2) -> tuple[list[FakeGpu], list[str]]:
    """H200s of one host as drivers show them: NVLink through switches, one host bridge, all access between them allowed.

    The second part are lines for ``write_gpus``.
    """
    cards = [default_gpu(index)._replace(name="NVIDIA H200", total=143771, reserved=615, numa=0) for index in range(count)]
    lines = [f"p2p {one} {other} 0 0 0 0 0" for one in range(count) for other in range(one)]
    for card in cards:
        values = {
            "capability": "9.0",
            "nvlinks": "18 switch 0000:05:00",
            "power": "82 700 700 700 200 700",
            "clocks": "1980 1980 3201 1980 1980 3201",
            "temperature": "38 37 95 89 95 87",
        }
        lines += [f"gpu {card.index} {key} {value}" for key, value in values.items()]
    return cards, lines


# ---- the file `gpus` -----------------------------------------------------------------------------------------------------


def write_gpus(
    folder: t.Optional[str] = None,
    gpus: t.Optional[t.Sequence[FakeGpu]] = None,
    *,
    lines: t.Sequence[str] = (),
) -> None:
    """Describe the GPUs anew; the clock of timelines and rules starts now.

    ``lines`` are further directives of the state file (README.md), such as ``gpu 2 memory v1`` or ``driver 550.90.07``.
    """
    chosen = default_gpus() if gpus is None else list(gpus)
    text = [f"epoch {time.time():.6f}", f"count {len(chosen)}"]
    for gpu in chosen:
        text += [f"gpu {gpu.index} {key} {getattr(gpu, key)}" for key in ("uuid", "pci", "name", "total", "reserved", "numa")]
        if gpu.timeline:
            text.append(_timeline_line(gpu.index, gpu.timeline))
    _replace(state_dir(folder) / "gpus", [*text, *lines])


def add_lines(lines: t.Sequence[str], folder: t.Optional[str] = None) -> None:
    """Append directives to the state without moving its clock (a later line wins over an earlier one)."""
    path = state_dir(folder) / "gpus"
    if not path.exists():
        write_gpus(folder)
    _replace(path, [*path.read_text().splitlines(), *lines])


def set_used(index: int, timeline: Timeline, folder: t.Optional[str] = None) -> None:
    """Memory without a process on one GPU: ``[(seconds from now, MiB), ...]``."""
    shift = elapsed(folder)
    add_lines([_timeline_line(index, [(0.0 if not at else at + shift, mib) for at, mib in timeline])], folder)


def fail(
    function: str, code: int, *, gpu: t.Union[int, str] = "*", start: float = 0.0, seconds: float = math.inf, folder: t.Optional[str] = None
) -> None:
    """From ``start`` seconds on, for ``seconds``, ``function`` (a C symbol; a final ``*`` matches any end) answers ``code``."""
    _add_rule("error", function, code, gpu, start, seconds, folder)


def hang(
    function: str,
    duration: float,
    *,
    gpu: t.Union[int, str] = "*",
    start: float = 0.0,
    seconds: float = math.inf,
    folder: t.Optional[str] = None,
) -> None:
    """From ``start`` seconds on, for ``seconds``, ``function`` takes ``duration`` seconds longer."""
    _add_rule("hang", function, duration, gpu, start, seconds, folder)


def heal(folder: t.Optional[str] = None) -> None:
    """Drop every error and hang."""
    path = state_dir(folder) / "gpus"
    if path.exists():
        _replace(path, [line for line in path.read_text().splitlines() if line.split(" ")[0] not in ("error", "hang")])


def elapsed(folder: t.Optional[str] = None) -> float:
    """Seconds on the clock of the state."""
    directives = [words for words in _directives(folder) if words[0] == "epoch"]
    return time.time() - float(directives[-1][1]) if directives else 0.0


def gpus(folder: t.Optional[str] = None) -> list[FakeGpu]:
    """The GPUs as the library shows them."""
    count, changes = 8, t.cast("dict[int, dict[str, t.Any]]", {})
    for words in _directives(folder):
        if words[0] == "count":
            count = int(words[1])
        elif words[0] == "gpu":
            index, key, value = f"{words[1]}  ".split(" ", 2)
            changes.setdefault(int(index), {})[key] = value.strip()
    return [_changed(default_gpu(index), changes.get(index, {})) for index in range(count)]


def _changed(gpu: FakeGpu, changes: t.Mapping[str, str]) -> FakeGpu:
    known: dict[str, t.Any] = {key: value for key, value in changes.items() if key in gpu._fields}
    for key in ("total", "reserved", "numa"):
        if key in known:
            known[key] = int(known[key])
    if "timeline" in known:
        pairs = (step.split(":") for step in known["timeline"].split())
        known["timeline"] = tuple((float(at), int(mib)) for at, mib in pairs)
    return gpu._replace(**known)


def _directives(folder: t.Optional[str]) -> t.Iterator[list[str]]:
    try:
        text = (state_dir(folder) / "gpus").read_text()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word and not word.startswith("#"):
            yield [word, rest.strip()]


def _timeline_line(index: int, timeline: Timeline) -> str:
    return f"gpu {index} timeline " + " ".join(f"{at:g}:{mib}" for at, mib in timeline)


def _add_rule(word: str, function: str, what: float, gpu: t.Union[int, str], start: float, seconds: float, folder: t.Optional[str]) -> None:
    begin = elapsed(folder) + start if start else 0.0
    end = "inf" if math.isinf(seconds) else f"{(begin or elapsed(folder)) + seconds:.6f}"
    add_lines([f"{word} {function} {gpu} {what:g} {begin:.6f} {end}"], folder)


def _replace(path: Path, lines: t.Sequence[str]) -> None:
    """Readers see the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text("\n".join(lines) + "\n")
    fresh.chmod(0o644)
    fresh.replace(path)


# ---- memory held by processes --------------------------------------------------------------------------------------------


def hold(
    folder: t.Optional[str],
    name: str,
    mib: t.Mapping[int, int],
    pid: t.Optional[int] = None,
    *,
    linger: float = 0.0,
    kind: str = "C",
) -> None:
    """Take ``{gpu index: MiB}`` for a live process (this one unless said otherwise); the same name again replaces it.

    The memory counts while that very process lives and is no zombie, then for ``linger`` seconds more.
    """
    holder = os.getpid() if pid is None else pid
    started = _start_time(holder)
    lines = [f"{index} {amount} {holder} {kind} {linger:g} {started or 0}" for index, amount in mib.items()]
    holders = state_dir(folder) / "holders"
    _make_world_writable(holders)
    _replace(holders / name, lines)


def release(folder: t.Optional[str], name: str) -> None:
    """Give back what ``hold`` took under that name, at once."""
    (state_dir(folder) / "holders" / name).unlink(missing_ok=True)


def usage(index: int, folder: t.Optional[str] = None) -> Usage:
    """The memory of one GPU at this moment, by the library's own rules."""
    gpu = gpus(folder)[index]
    now = elapsed(folder)
    used = sum(mib for held, mib in _held(folder) if held == index) + _scripted(index, now, folder)
    used += ([mib for at, mib in gpu.timeline if at <= now] or [0])[-1]
    used = min(used, gpu.total - gpu.reserved)
    return Usage(gpu.total, gpu.reserved, used, gpu.total - gpu.reserved - used)


def _held(folder: t.Optional[str]) -> t.Iterator[tuple[int, int]]:
    holders = state_dir(folder) / "holders"
    for path in sorted(holders.glob("[!.]*")) if holders.is_dir() else []:
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text().splitlines():
                index, mib, pid, _kind, linger, started = line.split()
                if mib != "NA" and _counts(holders, int(pid), int(started), float(linger)):
                    yield int(index), int(mib)


def _scripted(index: int, now: float, folder: t.Optional[str]) -> int:
    total = 0
    for word, rest in _directives(folder):
        if word == "process":
            gpu, _pid, mib, _kind, begin, end = (*rest.split(), "0", "inf")[:6]
            total += int(mib) if int(gpu) == index and mib != "NA" and float(begin) <= now < float(end) else 0
    return total


def _counts(holders: Path, pid: int, started: int, linger: float) -> bool:
    return _lives(pid, started) or (linger > 0 and time.time() < _death_of(holders, pid, started) + linger)


def _lives(pid: int, started: int) -> bool:
    """``kill`` tells the truth also where /proc hides other users' processes: what is hidden counts as alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    fields = _stat_fields(pid)
    return fields is None or (fields[0] not in ("Z", "X") and started in (0, int(fields[19])))


def _death_of(holders: Path, pid: int, started: int) -> float:
    stamp = holders / f".dead-{pid}-{started}"
    with contextlib.suppress(OSError):
        stamp.touch(mode=0o644, exist_ok=False)
    try:
        return stamp.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _start_time(pid: int) -> t.Optional[int]:
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[19])


def _stat_fields(pid: int) -> t.Optional[list[str]]:
    """The fields of /proc/PID/stat after the name: state first, start time twentieth."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _make_world_writable(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):
            folder.chmod(0o1777)


# ---- the library ---------------------------------------------------------------------------------------------------------


def build(out_dir: t.Union[str, Path], cc: str = "gcc") -> Path:
    """Compile the library into ``out_dir``; answers with its path."""
    source = Path(__file__).resolve().with_name("fake_nvml.c")
    target = Path(out_dir) / SONAME
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run([cc, *flags, f"-Wl,-soname,{SONAME}", "-o", str(target), str(source)], check=True)
    return target


# ---- the command ---------------------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace) -> None:
    for gpu in gpus(args.dir):
        now = usage(gpu.index, args.dir)
        print(f"{gpu.index}  {gpu.uuid}  {gpu.pci}  node {gpu.numa}  {now.used:6} MiB used  {now.free:6} MiB free  {gpu.name}")


def _hold(args: argparse.Namespace) -> None:
    hold(args.dir, f"hold-{os.getpid()}", dict.fromkeys(args.gpu, args.mib), linger=args.linger, kind=args.type)
    print(f"pid {os.getpid()} holds {args.mib} MiB on GPU {', '.join(map(str, args.gpu))}", flush=True)
    while True:
        signal.pause()


def _fail(args: argparse.Namespace) -> None:
    fail(args.function, args.code, gpu=args.gpu, start=args.start, seconds=args.seconds, folder=args.dir)


def _hang(args: argparse.Namespace) -> None:
    hang(args.function, args.duration, gpu=args.gpu, start=args.start, seconds=args.seconds, folder=args.dir)


def _set(args: argparse.Namespace) -> None:
    steps = [step.split(":") for step in args.used.split()]
    set_used(args.gpu, [(float(at), int(mib)) for at, mib in steps], args.dir)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="fake_nvml.py", description=__doc__)
    top.add_argument("--dir", help=f"folder of the state (default: $FAKE_NVML_DIR or {DEFAULT_DIR})")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("show", help="the GPUs and their memory now").set_defaults(run=_show)
    holder = commands.add_parser("hold", help="take memory until killed")
    holder.add_argument("--gpu", type=int, action="append", required=True)
    holder.add_argument("--mib", type=int, required=True)
    holder.add_argument("--linger", type=float, default=0.0, metavar="S", help="keep the memory that long after death")
    holder.add_argument("--type", choices=("C", "G", "M"), default="C")
    holder.set_defaults(run=_hold)
    failing = commands.add_parser("fail", help="let a call answer an error code")
    failing.add_argument("function", help="C symbol, e.g. nvmlInitWithFlags; a final * matches any end")
    failing.add_argument("code", type=int)
    failing.set_defaults(run=_fail)
    hanging = commands.add_parser("hang", help="let a call take long")
    hanging.add_argument("function")
    hanging.add_argument("duration", type=float, metavar="SECONDS")
    hanging.set_defaults(run=_hang)
    for rule in (failing, hanging):
        rule.add_argument("--gpu", default="*")
        rule.add_argument("--from", dest="start", type=float, default=0.0, metavar="S", help="seconds from now")
        rule.add_argument("--for", dest="seconds", type=float, default=math.inf, metavar="S")
    commands.add_parser("heal", help="drop all errors and hangs").set_defaults(run=lambda args: heal(args.dir))
    change = commands.add_parser("set", help="memory without a process, over time")
    change.add_argument("--gpu", type=int, required=True)
    change.add_argument("--used", required=True, metavar="T:MIB ...", help="e.g. '0:60000 5:0'")
    change.set_defaults(run=_set)
    commands.add_parser("reset", help="eight idle GPUs").set_defaults(run=lambda args: write_gpus(args.dir))
    builder = commands.add_parser("build", help="compile the library")
    builder.add_argument("out", metavar="DIR")
    builder.set_defaults(run=lambda args: print(build(args.out)))
    return top


def main(argv: t.Optional[t.Sequence[str]] = None) -> int:
    """Run one command."""
    args = parser().parse_args(argv)
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
