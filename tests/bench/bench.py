#!/usr/bin/env python3
# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers with real systemd that stand for GPU hosts: see README.md in this folder."""

from __future__ import annotations

import argparse
import shutil
import sys
import typing as t
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from benchlib import content, fleet
from benchlib.images import SUITES, build_images
from benchlib.machine import doctor
from benchlib.paths import CACHE
from benchlib.podman import Podman
from benchlib.say import BenchError, say


def show_doctor(options: argparse.Namespace) -> None:
    doctor(may_install=options.install)


def make_images(_options: argparse.Namespace) -> None:
    build_images(Podman(), SUITES)


def make_wheels(options: argparse.Namespace) -> None:
    content.make_wheels()
    if options.engine == "real":
        content.make_engine_wheels()


def make_hub(_options: argparse.Namespace) -> None:
    content.make_hub()


def up(options: argparse.Namespace) -> None:
    wanted = fleet.load_fleet(options.fleet, options.containers)
    podman = Podman()
    if options.fresh and fleet.running_containers(podman):
        fleet.bring_down(podman, wanted)
    fleet.bring_up(podman, wanted)


def down(options: argparse.Namespace) -> None:
    fleet.bring_down(Podman(), fleet.load_fleet(options.fleet))


def restart(options: argparse.Namespace) -> None:
    fleet.power_cycle(Podman(), fleet.container_of(options.container), wait=not options.no_wait)


def execute(options: argparse.Namespace) -> None:
    terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    name = fleet.container_of(options.container).full_name
    Podman().replace_process("podman", "exec", "--interactive", *terminal, name, *(options.command or ["bash", "-l"]))


def enter(options: argparse.Namespace) -> None:
    Podman().replace_process(*(options.command or ["bash"]))


def logs(options: argparse.Namespace) -> None:
    name = fleet.container_of(options.container).full_name
    unit = [f"--unit={options.unit}"] if options.unit else []
    Podman().replace_process("podman", "exec", name, "journalctl", "--no-pager", f"--lines={options.lines}", *unit)


def status(_options: argparse.Namespace) -> None:
    present = fleet.running_containers(Podman())
    for name in fleet.fleet_names():
        for container in fleet.load_fleet(name).containers:
            state = present.get(container.full_name, {}).get("State", "absent")
            ports = ", ".join(f"127.0.0.1:{outside} -> {inside}" for outside, inside in container.publish.items())
            print(f"{container.full_name:16} {state:10} {container.image:9} {container.address:14} {ports}")


def purge(_options: argparse.Namespace) -> None:
    """Take away all that the bench made on this machine."""
    podman = Podman()
    for name in fleet.fleet_names():
        fleet.bring_down(podman, fleet.load_fleet(name))
    if podman.machine.needs_namespace:
        podman.remove_storage()
    else:
        images = podman.run("images", "--quiet", "--filter", "reference=localhost/gpufleet-bench").stdout.split()
        podman.run("rmi", "--force", "--ignore", *images, check=False)
    shutil.rmtree(CACHE, ignore_errors=True)
    say("containers, images and caches of the bench are gone")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: t.Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=about)
        added.set_defaults(run=run)
        return added

    command("doctor", show_doctor, "say what this machine needs").add_argument("--install", action="store_true", help="install it")
    command("images", make_images, "build the images of Debian 12 and 13")
    command("wheels", make_wheels, "fill the wheel folders").add_argument("--engine", choices=["fake", "real"], default="fake")
    command("hub", make_hub, "generate what the model hub serves")
    starting = command("up", up, "bring a fleet up and wait until it has booted")
    starting.add_argument("fleet")
    starting.add_argument("containers", nargs="*", metavar="CONTAINER", help="of the fleet only these")
    starting.add_argument("--fresh", action="store_true", help="remove its containers first")
    command("down", down, "remove a fleet").add_argument("fleet")
    cycling = command("restart", restart, "cut a container's power, and boot it again")
    cycling.add_argument("container")
    cycling.add_argument("--no-wait", action="store_true", help="do not wait until it has booted")
    running = command("exec", execute, "run a command (or a shell) as root in a container")
    running.add_argument("container")
    running.add_argument("command", nargs="*")
    command("enter", enter, "run a command (or a shell) where podman works").add_argument("command", nargs="*")
    reading = command("logs", logs, "show a container's journal")
    reading.add_argument("container")
    reading.add_argument("unit", nargs="?")
    reading.add_argument("--lines", type=int, default=100)
    command("status", status, "list the containers of all fleets")
    command("purge", purge, "remove containers, images and caches")
    return top


def main() -> None:
    options = parser().parse_args()
    try:
        options.run(options)
    except BenchError as error:
        print(f"[bench] ERROR: {error}", file=sys.stderr)
        sys.exit(error.status)


if __name__ == "__main__":
    main()
