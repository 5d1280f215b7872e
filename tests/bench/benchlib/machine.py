# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine can do, and what the bench must do about it.

Found out, never assumed: on a machine with cgroup v2 and full capabilities, or with rootless podman, nothing here is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t
from pathlib import Path

from benchlib.say import BenchError, say

__all__ = ["CAPABILITIES", "Machine", "container_capabilities", "doctor", "read_machine"]

# Bits of /proc/self/status for what a systemd container is given on top of podman's own set.
CAPABILITIES = {"DAC_READ_SEARCH": 2, "NET_ADMIN": 12, "IPC_LOCK": 14, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_NICE": 23}
CAP_SYS_RESOURCE = 24

# Command -> Debian package.
COMMANDS = {
    "git": "git",
    "podman": "podman",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "gcc": "gcc",
    "ip": "iproute2",
    "iptables": "iptables",
}
# File that shows the package is there (any of the places) -> Debian package.
FILES = {
    ("/usr/lib/podman/netavark", "/usr/libexec/podman/netavark"): "netavark",
    ("/usr/lib/podman/aardvark-dns", "/usr/libexec/podman/aardvark-dns"): "aardvark-dns",
    ("/usr/share/keyrings/debian-archive-keyring.gpg",): "debian-archive-keyring",
    ("/usr/include/stdio.h",): "libc6-dev",
}


class Machine(t.NamedTuple):
    root: bool
    unified_cgroup: bool
    capabilities: int

    @property
    def needs_namespace(self) -> bool:
        """The cgroup tree is not a pure v2 one: podman gets a mount namespace of its own in which it is."""
        return self.root and not self.unified_cgroup

    @property
    def needs_limits(self) -> bool:
        """Without CAP_SYS_RESOURCE no process may raise its limits, which podman does by default."""
        return self.root and not self.capabilities >> CAP_SYS_RESOURCE & 1


def is_unified_cgroup() -> bool:
    """Whether /sys/fs/cgroup itself is a cgroup2 mount."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [fields[2] for fields in mounts if fields[1] == "/sys/fs/cgroup"][-1:] == ["cgroup2"]


def effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def read_machine() -> Machine:
    return Machine(os.geteuid() == 0, is_unified_cgroup(), effective_capabilities())


def container_capabilities(machine: Machine) -> list[str]:
    """Root can only hand on what it has; rootless podman has all of them in its user namespace."""
    return [name for name, bit in CAPABILITIES.items() if not machine.root or machine.capabilities >> bit & 1]


def missing_packages() -> list[str]:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    commands = {package for command, package in COMMANDS.items() if not shutil.which(command, path=path)}
    files = {package for places, package in FILES.items() if not any(Path(place).exists() for place in places)}
    return sorted(commands | files)


def describe(machine: Machine) -> None:
    say(f"podman runs as {'root' if machine.root else 'an ordinary user (rootless)'}")
    say("cgroup tree: " + ("version 2" if machine.unified_cgroup else "not a pure version 2 tree"))
    if machine.needs_namespace:
        say("so everything that touches podman runs in one private mount namespace with its own cgroup2 mount")
    if machine.needs_limits:
        say("no CAP_SYS_RESOURCE: containers get limits that need no raising, and the runtime is runc")
    if not machine.needs_namespace and not machine.needs_limits:
        say("nothing to work around here")


def install(packages: list[str]) -> None:
    say(f"installing {' '.join(packages)}")
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for argv in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]):
        done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"{' '.join(argv)} failed: {(done.stderr or done.stdout).strip()[-800:]}")


def doctor(may_install: bool) -> None:
    """Say what the machine is and has; install what is missing where that is possible and wanted."""
    machine = read_machine()
    describe(machine)
    missing = missing_packages()
    if missing and may_install and machine.root and shutil.which("apt-get"):
        install(missing)
        missing = missing_packages()
    if missing:
        raise BenchError(
            f"missing here, by Debian package name: {' '.join(missing)}. As root on Debian or Ubuntu: apt-get install {' '.join(missing)}; "
            "elsewhere install what provides the same."
        )
    say("every tool that the bench needs is here")
