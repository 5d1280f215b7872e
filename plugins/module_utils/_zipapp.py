# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python zip applications with the same bytes for the same content. PRIVATE to the collection."""

from __future__ import annotations

import io
import typing as t
import zipfile

__all__ = ["zip_application"]


def zip_application(files: t.Mapping[str, str], interpreter: str) -> bytes:
    """An executable archive of ``files`` (path in the archive to text, with a ``__main__.py``) that runs under ``interpreter``."""
    archive = io.BytesIO()
    archive.write(f"#!{interpreter}\n".encode())
    with zipfile.ZipFile(archive, "a") as packed:
        for name, text in sorted(files.items()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, text, compress_type=zipfile.ZIP_STORED)
    return archive.getvalue()
