# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the containers see as read-only folders: wheels and the model hub's repositories."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from benchlib.paths import BENCH, ENGINE_WHEELS, HUB, WHEELS, folder_hash, is_current, locked, mark_current, text_hash
from benchlib.say import BenchError, NotOffered, say, step

__all__ = ["make_engine_wheels", "make_hub", "make_wheels"]

HOST_NEEDS = ("nvidia-ml-py==13.615.71", "huggingface_hub==2.4.0", "hf-xet", "uv==0.13.9")
PYTHONS = ("3.11", "3.13")
# Generator of hub content -> the repository that it writes, for what is said.
GENERATORS = {"make_minimax.py": "MiniMaxAI/MiniMax-M2.5, in small", "make_tiny.py": "a tiny real model"}


def run(argv: list[str], what: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BenchError(f"{what} failed ({done.returncode}): {(done.stderr or done.stdout).strip()[-1500:]}")


def download_command(python: str) -> list[str]:
    """``pip download`` for the Python of a container, whichever Python runs here."""
    tag = "cp" + python.replace(".", "")
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in (34, 31, 28, 27, 24, 17, 12, 5)] + [f"manylinux2014_{machine}"]
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", f"--dest={WHEELS}", "--only-binary=:all:"),
        *("--implementation=cp", f"--python-version={python}", f"--abi={tag}", "--abi=abi3", "--abi=none"),
        *(f"--platform={name}" for name in platforms),
        *HOST_NEEDS,
    ]


def make_wheels() -> None:
    """What hosts install, so that they need no package index: the host venv's needs and the fake engine."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    digest = text_hash(*(argument for python in PYTHONS for argument in download_command(python)[1:]))
    with locked("wheels"):
        if not is_current("host-wheels", digest):
            with step(f"downloading the host venv's wheels for Python {' and '.join(PYTHONS)}"):
                for python in PYTHONS:
                    run(download_command(python), f"pip download for Python {python}")
            mark_current("host-wheels", digest)
        build_fake_engine()
    say(f"wheels: {len(list(WHEELS.glob('*.whl')))} in {os.path.relpath(WHEELS)}")


def build_fake_engine() -> None:
    builder = BENCH / "engine" / "build_wheel.py"
    if not builder.is_file():
        say("no tests/bench/engine/build_wheel.py: no fake engine")
        return
    digest = folder_hash(builder, BENCH / "engine" / "fake_vllm", *(BENCH / "nvml").glob("*.py"))
    if not is_current("fake-engine", digest):
        with step("building the fake engine's wheel"):
            run([sys.executable, str(builder), str(WHEELS)], "building the fake engine's wheel")
        mark_current("fake-engine", digest)


def make_engine_wheels() -> None:
    """The real vLLM, CPU build, for hosts whose Python has one. It says itself what it does."""
    argv = [sys.executable, str(BENCH / "engine" / "real_wheels.py"), str(ENGINE_WHEELS)]
    done = subprocess.run(argv, check=False, stderr=subprocess.PIPE, text=True)
    reason = done.stderr.strip().removeprefix("engine wheels: ")
    if done.returncode == NotOffered.status:
        raise NotOffered(f"the real engine is {reason}")
    if done.returncode:
        raise BenchError(f"the wheels of the real engine: {reason}")


def make_hub() -> None:
    """Generate the repositories that the hub serves, each once for each state of its generator."""
    HUB.mkdir(parents=True, exist_ok=True)
    with locked("hub"):
        for name, about in GENERATORS.items():
            generate(BENCH / "hub" / name, about)


def generate(generator: Path, about: str) -> None:
    if not generator.is_file():
        say(f"no {generator.relative_to(BENCH)}: the hub does not serve {about}")
        return
    digest = folder_hash(generator)
    if is_current(generator.stem, digest):
        say(f"hub content: {about} (cached)")
        return
    with step(f"hub content: generating {about}"):
        run([sys.executable, str(generator), str(HUB)], f"generating {about}")
    mark_current(generator.stem, digest)
