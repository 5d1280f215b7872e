# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image holds beyond Debian's packages, as entries appended to its tar file."""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import tarfile
import typing as t
from pathlib import Path

from benchlib.paths import BENCH, CACHE, SSH, folder_hash
from benchlib.say import BenchError, step

__all__ = ["OPS_ID", "Entry", "append_entries", "entries", "prepare_ssh", "ssh_config"]

OPS_ID = 1000
OVERLAY = BENCH / "images" / "overlay"
NVML = BENCH / "nvml"
LIBRARIES = f"usr/lib/{platform.machine()}-linux-gnu"
ENABLED = {"bench-boot.service": "sysinit.target", "bench-hub.service": "multi-user.target"}


class Entry(t.NamedTuple):
    """A file, link or folder of the image."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    owner: int = 0
    link: str = ""
    folder: bool = False


def generate_key(path: Path) -> None:
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpufleet-bench", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def ssh_config() -> str:
    """Everything a client needs: inventories only name this file and the port."""
    return (
        "Host *\n"
        "  User ops\n"
        f'  IdentityFile "{SSH / "ops"}"\n'
        "  IdentitiesOnly yes\n"
        f'  UserKnownHostsFile "{SSH / "known_hosts"}"\n'
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        "  ServerAliveInterval 5\n"
        "  LogLevel ERROR\n"
    )


def prepare_ssh() -> None:
    """A key pair for the user ops and one for the hosts, made once for this checkout."""
    generate_key(SSH / "ops")
    generate_key(SSH / "host")
    kind, key = (SSH / "host.pub").read_text().split()[:2]
    (SSH / "known_hosts").write_text(f"[127.0.0.1]:* {kind} {key}\n")
    (SSH / "config").write_text(ssh_config())


def nvml_library() -> Path:
    """The fake NVML library, compiled once for each state of its sources."""
    folder = CACHE / "nvml" / folder_hash(NVML)
    if not list(folder.glob("libnvidia-ml.so*")):
        with step("compiling the fake NVML library"):
            folder.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                [sys.executable, str(NVML / "fake_nvml.py"), "build", str(folder)], check=False, capture_output=True, text=True
            )
            if done.returncode:
                raise BenchError(f"The fake NVML library does not compile: {done.stderr.strip()}")
    return next(f.resolve() for f in sorted(folder.glob("libnvidia-ml.so*")))


def files() -> t.Iterator[Entry]:
    for file in sorted(f for f in OVERLAY.rglob("*") if f.is_file()):
        path = str(file.relative_to(OVERLAY))
        yield Entry(path, file.read_bytes(), 0o440 if path.startswith("etc/sudoers.d") else 0o644)


def links() -> t.Iterator[Entry]:
    for unit, target in ENABLED.items():
        yield Entry(f"etc/systemd/system/{target}.wants/{unit}", link=f"/etc/systemd/system/{unit}")


def keys() -> t.Iterator[Entry]:
    yield Entry("etc/ssh/bench_host_ed25519", (SSH / "host").read_bytes(), 0o600)
    yield Entry("home/ops/.ssh", mode=0o700, owner=OPS_ID, folder=True)
    yield Entry("home/ops/.ssh/authorized_keys", (SSH / "ops.pub").read_bytes(), 0o600, OPS_ID)


def nvml() -> t.Iterator[Entry]:
    library = nvml_library()
    if library:
        yield Entry(f"{LIBRARIES}/libnvidia-ml.so.1", library.read_bytes(), 0o755)


def entries() -> list[Entry]:
    prepare_ssh()
    return [*files(), *links(), *keys(), *nvml()]


def tar_info(entry: Entry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"./{entry.path}")
    info.mode, info.uid, info.gid, info.size = entry.mode, entry.owner, entry.owner, len(entry.content)
    if entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    if entry.folder:
        info.type = tarfile.DIRTYPE
    return info


def append_entries(archive: Path, wanted: t.Sequence[Entry]) -> None:
    """Add files that the archive does not have yet: podman refuses a path that comes twice."""
    with tarfile.open(archive, "a") as tar:
        for entry in wanted:
            tar.addfile(tar_info(entry), io.BytesIO(entry.content))
