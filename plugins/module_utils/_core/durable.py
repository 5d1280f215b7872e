# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are there whole or not at all, also after a loss of power. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

__all__ = ["make_folders", "replace_file", "sync", "write_file"]


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, open to every reader whatever the umask."""
    if not folder.is_dir():
        make_folders(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o755)


def write_file(path: Path, text: str, mode: int) -> None:
    """Write a new file and bring it to the disk; refuses one that is there, a link included."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write beside, then put it into place in one step."""
    staged = path.with_name(f"{path.name}.new")
    staged.unlink(missing_ok=True)
    write_file(staged, text, mode)
    staged.replace(path)


def sync(path: Path) -> None:
    """Bring a file or folder to the disk; a file system that cannot do that for folders is left to itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
