#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of deploy-minimax.yml costs that changes nothing, on 1, 2, 4 and 8 hosts; beside a bare play with as many tasks.

The hosts are containers of tests/bench/fleets/bench.yml: each has its own systemd, its own engine and its own ssh connection. They share
the cores with the controller, so what is done on a host costs here what it does not cost a fleet; all plays have that in common. A bare
play gathers the same facts and then asks as often as the run asks a host for something: with one module of ansible-core for each question,
as the run has, or with ping alone, which is packed once for the whole play. Runs take turns, so that a busy machine is the same for all:
believe the ratios.

Memory is that of more hosts than there are: many names for each container, in a connection that they share. Of the processes' memory only
what they do not share is counted twice (the kernel's PSS).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import typing as t
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench"
FLEET = os.environ.get("GPUFLEET_BENCH_FLEET", "bench")
PLAYBOOK = ROOT / "playbooks" / "deploy-minimax.yml"
# Modules that ask for next to nothing and change nothing.
LEAST: tuple[dict[str, t.Any], ...] = (
    {"ansible.builtin.ping": {}},
    {"ansible.builtin.stat": {"path": "/"}},
    {"ansible.builtin.slurp": {"src": "/etc/hostname"}},
    {"ansible.builtin.getent": {"database": "passwd", "key": "root"}},
    {"ansible.builtin.find": {"paths": "/etc", "patterns": "hostname"}},
    {"ansible.builtin.file": {"path": "/etc/hostname"}},
    {"ansible.builtin.command": {"argv": ["true"]}, "changed_when": False},
    {"ansible.builtin.systemd_service": {"name": "ssh"}},
)
TARGET_TASKS, TARGET_RATIO = 15, 2.0
SAMPLING = 0.25


class Run(t.NamedTuple):
    """One run of ansible-playbook."""

    seconds: float
    tasks: int
    asked: int


class Memory(t.NamedTuple):
    """The most that was in use at once, in bytes."""

    controller: int
    workers: int
    processes: int


# -- the hosts -------------------------------------------------------------------------------------------------------------------


def bench(*words: str) -> None:
    subprocess.run([sys.executable, str(BENCH / "bench.py"), *words], check=True, stdout=subprocess.DEVNULL)


def ports() -> list[int]:
    """Where each GPU host of the fleet answers ssh."""
    containers = yaml.safe_load((BENCH / "fleets" / f"{FLEET}.yml").read_text())["containers"]
    return [int(outside) for name, one in containers.items() if name.startswith("gpu") for outside in one["publish"]]


def write_inventory(path: Path, count: int, containers: int) -> None:
    """So many names, in turns for each of the first containers."""
    every, given = (
        ports()[:containers],
        yaml.safe_load((ROOT / "molecule" / "inventory" / "group_vars" / "gpu_hosts" / "bench.yml").read_text()),
    )
    connection = {
        "ansible_host": "127.0.0.1",
        "ansible_user": "ops",
        "ansible_become": True,
        "ansible_ssh_common_args": f"-F {ROOT / '.cache' / 'bench' / 'ssh' / 'config'}",
    }
    hosts = {f"gpu{number + 1}": {"ansible_port": every[number % len(every)]} for number in range(count)}
    path.write_text(json.dumps({"gpu_hosts": {"hosts": hosts, "vars": {**given, **connection}}}))


def write_bare_play(path: Path, questions: t.Sequence[t.Mapping[str, t.Any]]) -> None:
    """The facts that the playbook gathers, and then these."""
    planned = yaml.safe_load((ROOT / "playbooks" / "deploy.yml").read_text())[0]
    tasks = [{**question, "become": True} for question in questions]
    path.write_text(json.dumps([{"hosts": "gpu_hosts", "gather_facts": True, "gather_subset": planned["gather_subset"], "tasks": tasks}]))


# -- a run -----------------------------------------------------------------------------------------------------------------------


def command(inventory: Path, playbook: Path) -> list[str]:
    return [str(Path(sys.executable).with_name("ansible-playbook")), f"--inventory={inventory}", str(playbook)]


def settings(counts: Path) -> dict[str, str]:
    """The checkout's configuration, but for the callback that counts."""
    return {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).parent / "callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "counted_tasks",
        "COUNTED_TASKS": str(counts),
    }


def play(inventory: Path, playbook: Path) -> Run:
    counts = inventory.with_suffix(".counts")
    started = time.perf_counter()
    done = subprocess.run(command(inventory, playbook), cwd=ROOT, env=settings(counts), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = json.loads(counts.read_text()).values()
    return Run(seconds, max(host["tasks"] for host in hosts), max(host["asked"] for host in hosts))


# -- memory ----------------------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid for child in children for pid in (child, *descendants_of_live(child))]


def descendants_of_live(pid: int) -> list[int]:
    try:
        return descendants(pid)
    except OSError:
        return []


def memory_of(pid: int, kind: str) -> int:
    """Bytes of one process; none of one that has ended meanwhile."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in rollup.splitlines() if line.startswith(f"{kind}:"))


def watch(pid: int, ended: threading.Event, samples: list[Memory]) -> None:
    while not ended.wait(SAMPLING):
        workers = descendants_of_live(pid)
        samples.append(Memory(memory_of(pid, "Rss"), sum(memory_of(worker, "Pss") for worker in workers), len(workers)))


def most_memory(inventory: Path, playbook: Path) -> Memory:
    """Of the controller's own process, and of all that it has started at one time."""
    samples: list[Memory] = []
    ended = threading.Event()
    environment = settings(inventory.with_suffix(".counts"))
    with subprocess.Popen(
        command(inventory, playbook), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as controller:
        watcher = threading.Thread(target=watch, args=(controller.pid, ended, samples))
        watcher.start()
        status = controller.wait()
        ended.set()
        watcher.join()
    assert status == 0
    return Memory(*(max(values) for values in zip(*samples)))


# -- the table -------------------------------------------------------------------------------------------------------------------


def say(name: str, value: str, remark: str = "") -> None:
    print(f"  {name:50} {value:>19}   {remark}".rstrip(), flush=True)


def hosts(count: int) -> str:
    return f"{count} host{'s' * (count > 1)}"


def slope(seconds: t.Mapping[int, float]) -> float:
    """Seconds for each further host: the line of least squares."""
    return statistics.linear_regression(list(seconds), list(seconds.values())).slope if len(seconds) > 1 else 0.0


def take_turns(inventories: t.Mapping[int, Path], playbooks: t.Sequence[Path], repetitions: int) -> list[dict[int, list[float]]]:
    """Seconds of each playbook for each number of hosts."""
    seconds: list[dict[int, list[float]]] = [{count: [] for count in inventories} for _playbook in playbooks]
    for _repetition in range(repetitions):
        for count, inventory in inventories.items():
            for playbook, taken in zip(playbooks, seconds):
                taken[count].append(play(inventory, playbook).seconds)
    return seconds


def measure(place: Path, counts: t.Sequence[int], repetitions: int) -> None:
    print(f"{PLAYBOOK.name} changing nothing, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, median of {repetitions}:")
    inventories = {count: place / f"hosts-{count}.json" for count in counts}
    for count, inventory in inventories.items():
        write_inventory(inventory, count, count)
    run = play(inventories[counts[0]], PLAYBOOK)
    say("tasks of a host after its facts, that ask it", str(run.asked), f"target {TARGET_TASKS}; {run.tasks} with the controller's own")
    bare = {"a bare play": tuple(itertools.islice(itertools.cycle(LEAST), run.asked)), "pings": LEAST[:1] * run.asked}
    paths = [place / f"{name.replace(' ', '-')}.yml" for name in bare]
    for path, questions in zip(paths, bare.values()):
        write_bare_play(path, questions)
    ours, *theirs = take_turns(inventories, [PLAYBOOK, *paths], repetitions)
    for name, others in zip(bare, theirs):
        compare(name, ours, others)


def compare(name: str, ours: t.Mapping[int, list[float]], others: t.Mapping[int, list[float]]) -> None:
    """The run beside another play, by the number of hosts."""
    for count in ours:
        times = statistics.median(one / other for one, other in zip(ours[count], others[count]))
        figures = f"{statistics.median(ours[count]):.1f} / {statistics.median(others[count]):.1f} s"
        say(f"{hosts(count)}: the run / {name}", figures, f"{times:.2f} times, target {TARGET_RATIO:g}")
    own, other = (slope({count: statistics.median(values) for count, values in seconds.items()}) for seconds in (ours, others))
    say(f"each further host: the run / {name}", f"{own:.2f} / {other:.2f} s", f"{own / other:.2f} times" if other else "")


def measure_memory(place: Path, containers: int, names: int) -> None:
    print(f"Memory of such a run, {containers} containers under {names} names:")
    for count in (1, names):
        inventory = place / f"names-{count}.json"
        write_inventory(inventory, count, containers)
        most = most_memory(inventory, PLAYBOOK)
        say(f"{hosts(count)}: the controller's own process", f"{most.controller / 1e6:.0f} MB")
        say(f"{hosts(count)}: what it has started, all at once", f"{most.workers / 1e6:.0f} MB", f"{most.processes} processes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--names", type=int, default=64, help="hosts of the memory figures; 0: none of them")
    parser.add_argument("--keep", action="store_true", help="leave the containers up")
    options = parser.parse_args()
    containers = max(options.hosts)
    for words in (["wheels"], ["hub"], ["up", FLEET, "hub", *(f"gpu{number + 1}" for number in range(containers))]):
        bench(*words)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-no-change-") as folder:
            place = Path(folder)
            write_inventory(place / "all.json", containers, containers)
            play(place / "all.json", PLAYBOOK)
            measure(place, options.hosts, options.repetitions)
            if options.names:
                measure_memory(place, containers, options.names)
    finally:
        if not options.keep:
            bench("down", FLEET)


if __name__ == "__main__":
    main()
