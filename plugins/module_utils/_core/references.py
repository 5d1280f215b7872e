# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What on a host refers to weights and engines: releases, links and processes. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import os
import re
import typing as t
from pathlib import Path

from .effects import ReadText
from .errors import VllmError
from .listeners import ProcFs
from .release_store import ReleaseStore, read_record

__all__ = ["Reference", "is_local", "process_references", "reason_to_keep", "release_references"]

# File systems that no other host sees. Any other may hold what a release of another host refers to.
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}


class Reference(t.NamedTuple):
    """A path that is in use, with its links followed, and who uses it. A ``wide`` one holds what is below it, too."""

    path: Path
    by: str
    wide: bool = True


def reason_to_keep(folder: Path, references: t.Iterable[Reference]) -> t.Optional[str]:
    """Who uses a folder, something in it, or a folder around it."""
    real = Path(os.path.realpath(folder))
    for reference in references:
        if real == reference.path or real in reference.path.parents or (reference.wide and reference.path in real.parents):
            return reference.by
    return None


def release_references(store: ReleaseStore, removed: t.Container[Path]) -> list[Reference]:
    """What the releases of a deployment refer to, those that are about to be removed left out."""
    found, deployment = [], store.folder.name
    linked = [store.folder / name for name in ("current", "previous", "proven")]
    for folder in [*linked, *sorted(path for path in store.releases.glob("*") if path not in removed)]:
        record = read_record(folder)
        if record is None and folder.name in store.ids():
            raise VllmError(
                f"{folder} holds no release.json that can be read, so what it refers to is not known.",
                code="release_unreadable",
                remedy=f"Deploy {deployment} again where this is its release, or move the folder away.",
            )
        paths = [record["model_path"], record["engine_path"]] if record else []
        paths += [str(folder / name) for name in ("model", "engine") if (folder / name).is_symlink()]
        found += [_reference(path, f"release {folder.name} of {deployment} refers to it") for path in paths]
    return found


def process_references(proc: ProcFs, places: t.Sequence[Path]) -> list[Reference]:
    """What running processes were started with or have mapped, as far as it is below one of the places."""
    opening = tuple(f"{os.path.realpath(place)}{os.sep}" for place in places)
    found: dict[str, Reference] = {}
    for pid in (entry for entry in proc.list_dir("/proc") if entry.isdigit() and int(entry) != os.getpid()):
        for path in _paths_of(pid, proc):
            real = os.path.realpath(path) if path.startswith(tuple(map(str, places))) else path
            if real.startswith(opening) and real not in found:
                found[real] = Reference(Path(real), f"process {pid} uses it", wide=False)
    return list(found.values())


def is_local(folder: Path, read_text: ReadText) -> bool:
    """Whether the folder is on a file system of this host alone."""
    mounts = {}
    for line in read_text("/proc/self/mountinfo").splitlines():
        place, kind = line.split()[4], line.rpartition(" - ")[2].split()[0]
        mounts[re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), place)] = kind
    real = Path(os.path.realpath(folder))
    return next((mounts[str(path)] for path in (real, *real.parents) if str(path) in mounts), "") in _LOCAL


def _paths_of(pid: str, proc: ProcFs) -> t.Iterator[str]:
    """Every path in a process's command line and among its mapped files; nothing of one that is gone or hidden."""
    with contextlib.suppress(OSError):
        for word in proc.read_text(f"/proc/{pid}/cmdline").split("\0"):
            yield word if word.startswith("/") else word.partition("=")[2]
    with contextlib.suppress(OSError):
        yield from {line.split(maxsplit=5)[5] for line in proc.read_text(f"/proc/{pid}/maps").splitlines() if "/" in line}


def _reference(path: str, by: str) -> Reference:
    return Reference(Path(os.path.realpath(path)), by)
