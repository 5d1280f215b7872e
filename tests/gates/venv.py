#!/usr/bin/env python3
# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a venv with the project's tools, once for each state of the requirements:   venv.py FOLDER [PYTHON [REQUIREMENTS]]

Runs with the machine's own Python, before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = ROOT / ".config" / "requirements.txt"
OLDEST = (3, 11)


def pyenv_versions() -> list[Path]:
    """Interpreters that pyenv keeps beside the one in use."""
    command = shutil.which("pyenv")
    root = subprocess.run([command, "root"], check=False, capture_output=True, text=True).stdout.strip() if command else ""
    return sorted(Path(root).glob("versions/3.*/bin/python")) if root else []


def find_python(version: str) -> str | None:
    """A real interpreter of a version such as 3.12: one of pyenv's, or one on PATH that is no pyenv shim."""
    for path in pyenv_versions():
        if path.parts[-3].startswith(f"{version}."):
            return str(path)
    found = shutil.which(f"python{version}")
    return found if found and "shims" not in Path(found).parts else None


def require_version() -> None:
    if sys.version_info < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        sys.exit(f"The tools need Python {wanted} or newer, this is {sys.version.split()[0]}: run make with PYTHON=python{wanted}.")


def require_venv_module(python: str) -> None:
    """Debian keeps ensurepip in a package of its own."""
    if subprocess.run([python, "-c", "import ensurepip"], check=False, capture_output=True).returncode == 0:
        return
    apt_get = shutil.which("apt-get")
    if not apt_get or os.geteuid():
        sys.exit(f"{python} cannot make venvs: install its venv module (python3-venv on Debian and Ubuntu).")
    print("installing python3-venv", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", "python3-venv"]):
        subprocess.run([apt_get, *arguments], check=True, env=env, stdout=subprocess.DEVNULL)


def install_tools(folder: Path, requirements: Path) -> None:
    """With uv, which is many times as quick; with pip where there is no uv, or where only pip is set up for the network."""
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv", path=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv:
        argv = [uv, "pip", "install", "--quiet", "--python", python, "--requirement", str(requirements)]
        if subprocess.run(argv, check=False).returncode == 0:
            return
        print(f"{folder.name}: uv could not, so pip does", flush=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", str(requirements)], check=True)


def make_venv(folder: Path, python: str, requirements: Path = REQUIREMENTS) -> None:
    """Create or complete the venv; nothing happens if its stamp says that the requirements are in it."""
    stamp = folder / ".ready"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    start = time.monotonic()
    print(f"{folder.name}: installing what {requirements.relative_to(ROOT)} names ...", flush=True)
    if not (folder / "bin" / "python").exists():
        require_venv_module(python)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    install_tools(folder, requirements)
    stamp.write_text(digest)
    print(f"{folder.name}: ready after {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    require_version()
    folder = Path(sys.argv[1]).absolute()
    try:
        requirements = Path(sys.argv[3]).absolute() if len(sys.argv) > 3 else REQUIREMENTS
        make_venv(folder, sys.argv[2] if len(sys.argv) > 2 else os.path.realpath(sys.executable), requirements)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{folder.name}: '{' '.join(map(str, error.cmd))}' failed with status {error.returncode}.")


if __name__ == "__main__":
    main()
