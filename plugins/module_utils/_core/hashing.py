# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading files whole, and the hashes of what was read. PRIVATE to the collection.

A model is larger than most of what the page cache holds, and a server may be using that cache. A file is therefore read so that the
cache is afterwards as it was before: pages that had to be read for the hash are given back behind it.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import typing as t
from pathlib import Path

__all__ = ["Digests", "Read", "digest_bytes", "digest_file", "is_cached"]

_BLOCK = 1024 * 1024
"""Large enough that threads seldom meet at the interpreter's lock, small enough for one buffer a core."""

_GIVE_BACK = 8 * 1024 * 1024
"""Pages go back in steps of this size: the kernel keeps them in large folios, and does not give back a part of one."""

_mincore = ctypes.CDLL(None, use_errno=True).mincore

Read = t.Callable[[int], None]
"""Is told the bytes that were read since it was last told; several threads may tell it."""


class Digests(t.NamedTuple):
    """A content's sha256, and the hash git gives it as a blob where that was asked for."""

    sha256: str
    git_sha1: t.Optional[str] = None


def digest_bytes(raw: bytes, *, git: bool) -> Digests:
    """The hashes of bytes in memory."""
    return _digest(iter([memoryview(raw)]), len(raw), git)


def digest_file(path: Path, *, git: bool, keep_cache: bool = False, read: Read = lambda count: None) -> Digests:
    """The hashes of a file's content. With ``keep_cache`` what was read stays in memory for whoever needs it next."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        give_back = not keep_cache and not is_cached(file.fileno(), size)
        return _digest(_blocks(file, give_back, read), size, git)


def is_cached(descriptor: int, size: int) -> bool:
    """Whether most of an open file is in the page cache. Where that cannot be told, for instance for others' files, it counts as cached."""
    if size == 0:
        return True
    pages = -(-size // mmap.PAGESIZE)
    resident = ctypes.create_string_buffer(pages)
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapping:
        view = ctypes.c_char.from_buffer(mapping)
        failed = _mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), resident)
        del view
    return bool(failed) or 2 * resident.raw.count(b"\x01") >= pages


def _blocks(file: t.BinaryIO, give_back: bool, read: Read) -> t.Iterator[memoryview]:
    buffer = memoryview(bytearray(_BLOCK))
    position = returned = 0
    while True:
        count = file.readinto(buffer)  # type: ignore[attr-defined]  # an unbuffered file has it
        if not count:
            break
        yield buffer[:count]
        read(count)
        position += count
        if give_back and position - returned >= _GIVE_BACK:
            os.posix_fadvise(file.fileno(), returned, position - returned, os.POSIX_FADV_DONTNEED)
            returned = position
    if give_back:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _digest(blocks: t.Iterable[memoryview], size: int, git: bool) -> Digests:
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if git else None
    for block in blocks:
        sha256.update(block)
        if blob:
            blob.update(block)
    return Digests(sha256.hexdigest(), blob.hexdigest() if blob else None)
