#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack the fake engine as a wheel named vllm, so that the engine role installs it like the real one. Standard library only."""

from __future__ import annotations

import argparse
import base64
import hashlib
import typing as t
import zipfile
from pathlib import Path

__all__ = ["build", "main"]

HERE = Path(__file__).resolve().parent
VERSION = "0.33.0"
MOMENT = (1980, 1, 1, 0, 0, 0)  # the same wheel every time


def build(out_dir: t.Union[str, Path], version: str = VERSION) -> Path:
    """Write ``vllm-VERSION-py3-none-any.whl`` into ``out_dir``; answers with its path."""
    info = f"vllm-{version}.dist-info"
    files = {
        **{f"fake_vllm/{path.name}": path.read_bytes() for path in sorted((HERE / "fake_vllm").glob("*.py"))},
        "fake_vllm/_fake_nvml.py": (HERE.parent / "nvml" / "fake_nvml.py").read_bytes(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: A stand-in for vLLM\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: gpufleet.vllm bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nvllm = fake_vllm.cli:main\n",
    }
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = Path(out_dir) / f"vllm-{version}-py3-none-any.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, MOMENT), content)
    return wheel


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", metavar="OUTDIR")
    parser.add_argument("--version", default=VERSION)
    arguments = parser.parse_args()
    print(build(arguments.out, arguments.version))


if __name__ == "__main__":
    main()
