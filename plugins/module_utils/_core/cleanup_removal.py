# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removing what is unused: put aside in one step, then deleted. PRIVATE to the collection.

A removal that is killed leaves a folder that nothing takes for a release, an engine or weights, and that the next one deletes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import typing as t
from pathlib import Path

from .cleanup import REMOVED, Finding
from .durable import sync
from .leftovers import TryLock
from .receipt import RECEIPT_NAME, Entry, Receipt, identify, read_receipt, write_receipt

__all__ = ["Sizes", "measure", "put_aside", "remove"]


class Sizes(t.NamedTuple):
    """The bytes of each folder's files, and those that are free when all folders are gone: not of files that have links elsewhere."""

    each: dict[Path, int]
    freed: int


def measure(folders: t.Iterable[Path]) -> Sizes:
    """What the folders hold."""
    each: dict[Path, int] = {}
    links: dict[tuple[int, int], list[int]] = {}
    for folder in folders:
        each[folder] = 0
        for path in _files(folder):
            found = path.lstat()
            each[folder] += found.st_size
            links.setdefault((found.st_dev, found.st_ino), [found.st_size, found.st_nlink, 0])[2] += 1
    return Sizes(each, sum(size for size, names, seen in links.values() if seen >= names))


def put_aside(finding: Finding, try_lock: TryLock) -> t.Optional[Path]:
    """Take the folder's name away; None where somebody is at work on it. What a killed removal left has none to lose."""
    if finding.path.name.endswith(REMOVED):
        return finding.path
    aside = finding.path.with_name(f".{finding.path.name}.{secrets.token_hex(4)}{REMOVED}")
    with try_lock(finding.path) as free:
        if not free:
            return None
        finding.path.rename(aside)
        sync(aside.parent)
    return aside


def remove(kind: str, aside: Path, try_lock: TryLock) -> None:
    """Delete what was put aside."""
    if kind == "weights":
        for other in sorted(path.parent for path in aside.parent.glob(f"*/{RECEIPT_NAME}")):
            if not other.name.startswith("."):
                _part(aside, other, try_lock)
    shutil.rmtree(aside)


def _part(aside: Path, other: Path, try_lock: TryLock) -> None:
    """Unlink the files that another snapshot shares, and tell its receipt: each loses a link, which moves its ctime.

    Killed in between, or where somebody writes that snapshot, its receipt no longer speaks for these files, and they are read once more.
    """
    with try_lock(other) as free:
        receipt = read_receipt(other) if free else None
        shared = _shared(aside, other, receipt) if receipt else {}
        if receipt is None or not shared:
            return
        for twin in {twin for twins in shared.values() for twin in twins}:
            twin.unlink()
        told = {name: _without_a_link(other / name, receipt.files[name]) for name in shared}
        owner = (other / RECEIPT_NAME).stat()
        written = write_receipt(other, receipt._replace(files={**receipt.files, **told}))
        os.chown(written, owner.st_uid, owner.st_gid)
        written.chmod(owner.st_mode & 0o7777)


def _shared(aside: Path, other: Path, receipt: Receipt) -> dict[str, list[Path]]:
    """The proven files of the other snapshot that have links in the folder, with those."""
    links: dict[int, list[Path]] = {}
    for path in _files(aside):
        links.setdefault(path.lstat().st_ino, []).append(path)
    names = [name for name in sorted(receipt.holding(other)) if receipt.files[name].inode in links]
    found = {name: links[receipt.files[name].inode] for name in names}
    return {name: twins for name, twins in found.items() if twins[0].samefile(other / name)}


def _without_a_link(path: Path, proven: Entry) -> Entry:
    """What was proven, with the time of now where only that is another one; else the file is not to be believed."""
    moved = proven._replace(ctime_ns=identify(path).ctime_ns)
    return moved if moved.is_same_file(identify(path)) else proven


def _files(folder: Path) -> t.Iterator[Path]:
    """Every file but links, which hold nothing."""
    for parent, _folders, names in os.walk(folder):
        yield from (Path(parent) / name for name in names if not (Path(parent) / name).is_symlink())
