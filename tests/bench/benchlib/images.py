# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of Debian 12 and 13 with real systemd.

No image registry is needed: mmdebstrap makes a base from the distribution's packages (kept as a tar file for each list of
packages), the overlay is appended to a copy of it, and podman imports that. Names carry a hash of all that went in.
"""

from __future__ import annotations

import concurrent.futures
import platform
import shutil
import subprocess
import typing as t
from pathlib import Path

from benchlib.overlay import OPS_ID, Entry, append_entries, entries
from benchlib.paths import BENCH, CACHE, locked, text_hash
from benchlib.podman import Podman, exists
from benchlib.say import BenchError, say, step

__all__ = ["SUITES", "build_images", "image_name"]

SUITES = {"debian12": "bookworm", "debian13": "trixie"}
REPOSITORY = "localhost/gpufleet-bench"
# Runs in the new root, outside of any container.
HOOKS = (
    f'chroot "$1" useradd --create-home --shell /bin/bash --uid {OPS_ID} ops',
    'cd "$1/etc" && rm -f ssh/ssh_host_* resolv.conf hostname && : > machine-id',
)
TRIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def packages() -> list[str]:
    lines = (BENCH / "images" / "packages.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def mmdebstrap(suite: str, target: Path) -> list[str]:
    hooks = [f"--customize-hook={hook}" for hook in HOOKS]
    trim = [f"--dpkgopt=path-exclude={pattern}" for pattern in TRIM]
    quick = ["--aptopt=Acquire::Languages none", "--dpkgopt=force-unsafe-io"]
    return ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages())}", *quick, *trim, *hooks, suite, str(target)]


def base_path(suite: str) -> Path:
    return CACHE / "images" / f"{suite}-{text_hash(platform.machine(), *mmdebstrap(suite, Path('TARGET')))}.tar"


def build_base(suite: str) -> Path:
    """Debian with systemd, from packages."""
    target = base_path(suite)
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part.tar")
    with step(f"building Debian {suite} from packages (mmdebstrap)"):
        done = subprocess.run(mmdebstrap(suite, part), check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise BenchError(f"mmdebstrap of {suite} failed: {done.stderr.strip()[-1500:]}")
    part.rename(target)
    return target


def image_name(image: str, overlay: t.Sequence[Entry]) -> str:
    """The image's name for the present state of packages, overlay, keys and library."""
    return f"{REPOSITORY}:{image}-{text_hash(base_path(SUITES[image]).name, *map(repr, overlay))}"


def import_image(podman: Podman, image: str, name: str, overlay: t.Sequence[Entry]) -> None:
    base = build_base(SUITES[image])
    whole = base.with_suffix(".whole.tar")
    with step(f"importing {name}"):
        shutil.copyfile(base, whole)
        append_entries(whole, overlay)
        podman.run("import", "--change", 'CMD ["/sbin/init"]', "--change", "STOPSIGNAL SIGRTMIN+3", str(whole), name)
        whole.unlink()


def build_images(podman: Podman, wanted: t.Iterable[str]) -> dict[str, str]:
    """Make sure of the images and return their names; both Debians are built at once."""
    overlay = entries()
    names = {image: image_name(image, overlay) for image in sorted(set(wanted))}
    podman.enter()
    with locked("images"), concurrent.futures.ThreadPoolExecutor() as pool:
        absent = {image: name for image, name in names.items() if not exists(podman, "image", name)}
        for job in [pool.submit(import_image, podman, image, name, overlay) for image, name in absent.items()]:
            job.result()
    say("images: " + ", ".join(f"{name.rpartition(':')[2]} ({'new' if image in absent else 'cached'})" for image, name in names.items()))
    return names
