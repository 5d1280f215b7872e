# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What interrupted downloads left behind. PRIVATE to the collection.

Partial files are never resumed by today's Hub clients and never removed by them either; some of 1.7 GB each are lost with every kill.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import typing as t
from pathlib import Path

from .download_job import PLACEHOLDER, Request, staging_of

__all__ = ["Leftover", "TryLock", "leftovers_beside", "leftovers_in_store", "remove", "size_of"]

TryLock = t.Callable[[Path], t.ContextManager[bool]]

_SUFFIX = ".incomplete"
_CLIENT = ".cache/huggingface/download/**/*.incomplete"
_IN_STORE = (".*.incomplete", "*/.*.incomplete", f"*/{_CLIENT}", f"*/*/{_CLIENT}", "*/blobs/*.incomplete")
"""Staging folders, partial files the Hub client left in folders of models, and those in its own cache."""


class Leftover(t.NamedTuple):
    """A partial file or a folder of such, and its bytes."""

    path: Path
    size: int


def leftovers_beside(request: Request, folder: Path) -> list[Leftover]:
    """The staging folders of other commits of the same model."""
    template = Path(request.dest).name
    if PLACEHOLDER not in template:
        return []
    stagings = folder.parent.glob(staging_of(Path(template.replace(PLACEHOLDER, "*"))).name)
    return [_leftover(path) for path in sorted(stagings) if path != staging_of(folder)]


def leftovers_in_store(store: Path) -> list[Leftover]:
    """Everything that interrupted downloads left in a store of models."""
    return [_leftover(path) for path in sorted({path for pattern in _IN_STORE for path in store.glob(pattern)})]


def remove(paths: t.Iterable[Path], try_lock: TryLock, *, check: bool = False) -> list[Path]:
    """Remove files and staging folders that nobody works on; answers with those that were, or with ``check`` would be removed."""
    gone = []
    for path in paths:
        with _free(path, try_lock, check) as free:
            if free:
                gone.append(path)
            if free and not check:
                _remove(path)
    return gone


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder that may be changing."""
    total = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(root) / name).lstat().st_size
    return total


@contextlib.contextmanager
def _free(path: Path, try_lock: TryLock, check: bool) -> t.Iterator[bool]:
    """Whether nobody works on it, and nobody of ours begins to."""
    if check or not path.is_dir():
        yield not _is_open(path)
        return
    with try_lock(path.with_name(path.name[1:].removesuffix(_SUFFIX))) as free:
        yield free and not _is_open(path)


def _is_open(path: Path) -> bool:
    """Whether a process that we may look at has it, or a file below it, open."""
    inside = f"{path}{os.sep}"
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target == str(path) or target.startswith(inside):
                return True
    return False


def _leftover(path: Path) -> Leftover:
    return Leftover(path, size_of(path) if path.is_dir() else path.lstat().st_size)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
