# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets: the containers of one file under ``fleets/``, brought up and down together."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import json
import socket
import subprocess
import typing as t
from pathlib import Path

from benchlib.images import build_images
from benchlib.machine import container_capabilities
from benchlib.paths import BENCH, ENGINE_WHEELS, HUB, WHEELS, text_hash
from benchlib.podman import Podman, exists
from benchlib.say import BenchError, say, step, wait_until

__all__ = ["Container", "Fleet", "bring_down", "bring_up", "container_of", "fleet_names", "load_fleet", "power_cycle", "running_containers"]

FLEETS = BENCH / "fleets"
BOOT_TIMEOUT = 90
AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
MOUNTS: dict[str, dict[Path, str]] = {
    "gpu_host": {BENCH: "/srv/bench", WHEELS: "/srv/wheels", ENGINE_WHEELS: "/srv/engine-wheels"},
    "hub": {BENCH: "/srv/bench", HUB: "/srv/hub"},
    "balancer": {},
}


class Container(t.NamedTuple):
    name: str
    full_name: str
    image: str
    address: str
    publish: dict[int, int]
    role: str


class Fleet(t.NamedTuple):
    name: str
    network: str
    subnet: str
    containers: list[Container]


def fleet_names() -> list[str]:
    return sorted(f.stem for f in FLEETS.glob("*.yml"))


def load_fleet(name: str, only: t.Sequence[str] = ()) -> Fleet:
    """A fleet, or a part of it."""
    import yaml

    path = FLEETS / f"{name}.yml"
    if not path.is_file():
        raise BenchError(f"there is no fleet '{name}'; there are: {', '.join(fleet_names())}.")
    data = yaml.safe_load(path.read_text())
    containers = [
        Container(key, f"{name}-{key}", c["image"], c["address"], c.get("publish", {}), c.get("role", "gpu_host"))
        for key, c in data["containers"].items()
        if not only or key in only
    ]
    return Fleet(name, data["network"]["name"], data["network"]["subnet"], containers)


def container_of(name: str) -> Container:
    """Find a container by its own name (in every fleet, if that is clear) or by FLEET-NAME."""
    every = [c for fleet in fleet_names() for c in load_fleet(fleet).containers]
    found = [c for c in every if name == c.full_name] or [c for c in every if name == c.name]
    if len(found) != 1:
        raise BenchError(f"'{name}' is {'not clear' if found else 'no container'}; there are: {', '.join(c.full_name for c in every)}.")
    return found[0]


def mounts(container: Container) -> list[str]:
    """Folders of this machine that the container sees, read-only, and the authorities that this machine trusts."""
    folders = MOUNTS[container.role]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    authorities = [place for place in AUTHORITIES if Path(place).exists()][:1]
    pairs = [*((str(source), target) for source, target in folders.items()), *((place, AUTHORITIES[0]) for place in authorities)]
    return [f"--volume={Path(source).resolve()}:{target}:ro" for source, target in pairs]


def card_address(container: Container) -> str:
    """Of its network card: made from the address, so that it is the same after a reboot and neighbours need not learn a new one."""
    return ":".join(f"{octet:02x}" for octet in (2, 0, *ipaddress.ip_address(container.address).packed))


def run_arguments(podman: Podman, fleet: Fleet, container: Container, image: str) -> list[str]:
    """What makes a container behave like a machine: systemd as its first process and nothing hidden from units' sandboxes."""
    return [
        f"--name={container.full_name}",
        f"--hostname={container.name}",
        f"--network={fleet.network}",
        f"--ip={container.address}",
        f"--mac-address={card_address(container)}",
        f"--network-alias={container.name}",
        "--systemd=always",
        *(f"--cap-add={name}" for name in container_capabilities(podman.machine)),
        "--security-opt=seccomp=unconfined",
        "--security-opt=unmask=ALL",
        "--shm-size=2g",
        f"--label=gpufleet.fleet={fleet.name}",
        *(f"--publish=127.0.0.1:{outside}:{inside}" for outside, inside in container.publish.items()),
        *mounts(container),
        image,
    ]


def running_containers(podman: Podman) -> dict[str, dict[str, t.Any]]:
    """Every container of the bench, up or not, by its full name."""
    found = json.loads(podman.run("ps", "--all", "--filter", "label=gpufleet.fleet", "--format", "json").stdout or "[]")
    return {entry["Names"][0]: entry for entry in found}


def remove_stale_bridge(fleet: Fleet) -> None:
    """A fleet that was killed rather than brought down leaves its bridge, and podman then refuses the subnet."""
    subnet = ipaddress.ip_network(fleet.subnet)
    shown = subprocess.run(["ip", "-json", "-4", "address"], check=True, capture_output=True, text=True).stdout
    for link in json.loads(shown):
        if any(ipaddress.ip_address(address["local"]) in subnet for address in link["addr_info"]):
            ports = Path(f"/sys/class/net/{link['ifname']}/brif")
            if not ports.is_dir() or any(ports.iterdir()):
                raise BenchError(
                    f"{fleet.subnet} is in use on {link['ifname']}: is fleet {fleet.name} of another checkout up? Bring it down there."
                )
            subprocess.run(["ip", "link", "delete", link["ifname"]], check=True)


def make_network(podman: Podman, fleet: Fleet) -> None:
    if not exists(podman, "network", fleet.network):
        if podman.machine.root:
            remove_stale_bridge(fleet)
        podman.run("network", "create", f"--subnet={fleet.subnet}", fleet.network)


def require_free_ports(container: Container) -> None:
    for port in container.publish:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                raise BenchError(f"port {port} on 127.0.0.1, which {container.full_name} needs, is taken by another program.") from None


def start(podman: Podman, fleet: Fleet, container: Container, image: str, present: t.Optional[dict[str, t.Any]]) -> bool:
    """Make the container run as described; True if anything had to be done."""
    arguments = run_arguments(podman, fleet, container, image)
    digest = text_hash(*arguments)
    if present and present["Labels"].get("gpufleet.spec") == digest:
        if present["State"] == "running":
            return False
        podman.run("start", container.full_name)
        wait_for_boot(podman, container, accepted=("running", "degraded"))
    else:
        podman.run("rm", "--force", "--time=0", "--ignore", container.full_name)
        require_free_ports(container)
        podman.run("run", "--detach", f"--label=gpufleet.spec={digest}", *arguments)
        wait_for_boot(podman, container, accepted=("running",))
    return True


def answers_ssh(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_for_boot(podman: Podman, container: Container, accepted: t.Sequence[str]) -> None:
    """Wait until systemd has booted, and sshd answers on the published port."""

    def is_booted() -> bool:
        state = podman.run("exec", container.full_name, "systemctl", "is-system-running", check=False).stdout.strip()
        if state == "degraded" and state not in accepted:
            failed = podman.run("exec", container.full_name, "systemctl", "--failed", "--no-legend", "--plain", check=False).stdout
            raise BenchError(f"{container.full_name} booted with failed units: {failed.strip()}")
        return state in accepted

    def all_answer() -> bool:
        return all(answers_ssh(outside) for outside, inside in container.publish.items() if inside == 22)

    wait_until(is_booted, f"systemd of {container.full_name} has booted", BOOT_TIMEOUT, poll=0.3)
    wait_until(all_answer, f"sshd of {container.full_name} answers on 127.0.0.1", BOOT_TIMEOUT)


def power_cycle(podman: Podman, container: Container, wait: bool) -> None:
    """Take a machine's power away, with no chance for anything on it to end well, and boot it."""
    podman.run("restart", "--time=0", container.full_name)
    if wait:
        wait_for_boot(podman, container, accepted=("running", "degraded"))


def bring_up(podman: Podman, fleet: Fleet) -> bool:
    """Bring the fleet up; True if anything had to be done."""
    names = build_images(podman, [c.image for c in fleet.containers])
    present = running_containers(podman)
    make_network(podman, fleet)
    with (
        step(f"starting fleet {fleet.name}: {', '.join(c.name for c in fleet.containers)}"),
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        jobs = [pool.submit(start, podman, fleet, c, names[c.image], present.get(c.full_name)) for c in fleet.containers]
        changed = [job.result() for job in jobs]
    say(f"fleet {fleet.name}: {sum(changed)} of {len(changed)} containers started, the others were up")
    return any(changed)


def close_sessions(podman: Podman, names: t.Sequence[str]) -> None:
    """End ssh sessions while the network still is there: a client would wait for a host that vanished until its keep-alive gives up."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: podman.run("exec", name, "pkill", "-f", "sshd", check=False), names))


def bring_down(podman: Podman, fleet: Fleet) -> bool:
    """Remove the fleet's containers and network; True if there were any. The last one out ends the namespace."""
    present = running_containers(podman)
    ours = [name for name, entry in present.items() if entry["Labels"]["gpufleet.fleet"] == fleet.name]
    with step(f"removing fleet {fleet.name} ({len(ours)} containers)"):
        if ours:
            close_sessions(podman, ours)
            podman.run("rm", "--force", "--time=0", *ours)
        podman.run("network", "rm", "--force", fleet.network, check=False)
    if len(ours) == len(present):
        podman.stop_holder()
    return bool(ours)
