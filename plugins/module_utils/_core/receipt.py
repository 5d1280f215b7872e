# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The receipt: what was proven about a model folder, bound to each file's identity. PRIVATE to the collection.

A receipt lies in the folder it speaks about and is written last, in one step. It is believed for a file only while size, times,
inode and device are those of the moment of proof, so a second run costs one stat a file.
"""

from __future__ import annotations

import contextlib
import json
import typing as t
from pathlib import Path

from .durable import replace_file
from .hub import FileSpec

__all__ = ["RECEIPT_NAME", "Entry", "Receipt", "identify", "read_receipt", "write_receipt"]

RECEIPT_NAME = ".gpufleet-receipt.json"
_FORMAT = 1


class Entry(t.NamedTuple):
    """A file at the moment of its proof. ``sha256`` is None where only its structure was proven."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    sha256: t.Optional[str] = None

    def is_same_file(self, now: Entry) -> bool:
        """Whether nothing but the number of its device is another one."""
        return self[:4] == now[:4]


class Receipt(t.NamedTuple):
    """All that is known about a folder. ``complete`` is false while a repair is under way."""

    repo_id: str
    commit: str
    revision: str
    level: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    manifest: dict[str, FileSpec]
    shards: tuple[str, ...]
    files: dict[str, Entry]
    complete: bool = True
    load_format: str = "auto"

    def holding(self, folder: Path) -> set[str]:
        """The files that still are the very ones that were proven.

        A reboot may give a disk another number, and each host of a shared disk has its own for it. Where all files agree on such a change
        while size, times and inodes are as they were, it says nothing about them.
        """
        now: dict[str, Entry] = {}
        for name in self.files:
            with contextlib.suppress(OSError):
                now[name] = identify(folder / name)
        renumbered = len({(self.files[name].device, entry.device) for name, entry in now.items()}) == 1
        return {
            name
            for name, entry in now.items()
            if self.files[name].is_same_file(entry) and (renumbered or self.files[name].device == entry.device)
        }


def identify(path: Path, sha256: t.Optional[str] = None) -> Entry:
    """The identity of a file now."""
    stat = path.stat()
    return Entry(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev, sha256)


def read_receipt(folder: Path) -> t.Optional[Receipt]:
    """The folder's receipt; None where there is none or it cannot be understood, which proves nothing."""
    try:
        record = json.loads((folder / RECEIPT_NAME).read_text(encoding="utf-8"))
        return _decode(record) if record["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_receipt(folder: Path, receipt: Receipt) -> Path:
    """Put the receipt into the folder in one step, safe against a loss of power."""
    target = folder / RECEIPT_NAME
    replace_file(target, json.dumps(_encode(receipt), separators=(",", ":")))
    return target


def _encode(receipt: Receipt) -> dict[str, t.Any]:
    record = receipt._asdict()
    record["format"] = _FORMAT
    record["manifest"] = {spec.path: spec[1:] for spec in receipt.manifest.values()}
    return record


def _decode(record: dict[str, t.Any]) -> Receipt:
    del record["format"]
    record["manifest"] = {path: FileSpec(path, *rest) for path, rest in record["manifest"].items()}
    record["files"] = {path: Entry(*values) for path, values in record["files"].items()}
    for name in ("include", "exclude", "shards"):
        record[name] = tuple(record[name])
    return Receipt(**record)
