# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the bench keeps things, and what tells it that they are up to date."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import typing as t
from pathlib import Path

__all__ = [
    "BENCH",
    "CACHE",
    "ENGINE_WHEELS",
    "HUB",
    "ROOT",
    "SSH",
    "WHEELS",
    "folder_hash",
    "is_current",
    "locked",
    "mark_current",
    "text_hash",
]

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent.parent
CACHE = ROOT / ".cache" / "bench"
SSH = CACHE / "ssh"
HUB = CACHE / "hub"
WHEELS = CACHE / "wheels"
ENGINE_WHEELS = CACHE / "engine-wheels"


def text_hash(*parts: t.Union[str, bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()[:16]


def folder_hash(*roots: Path) -> str:
    """One hash over names and contents of source files; caches of the interpreter do not count."""
    files = sorted(f for root in roots for f in ([root] if root.is_file() else root.rglob("*")) if f.is_file())
    sources = [f for f in files if "__pycache__" not in f.parts]
    return text_hash(*(part for f in sources for part in (str(f.relative_to(ROOT)), f.read_bytes())))


def stamp(name: str) -> Path:
    return CACHE / "stamps" / name


def is_current(name: str, digest: str) -> bool:
    return stamp(name).is_file() and stamp(name).read_text() == digest


def mark_current(name: str, digest: str) -> None:
    stamp(name).parent.mkdir(parents=True, exist_ok=True)
    stamp(name).write_text(digest)


@contextlib.contextmanager
def locked(name: str) -> t.Iterator[None]:
    """Let one process at a time prepare the thing called ``name``."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
