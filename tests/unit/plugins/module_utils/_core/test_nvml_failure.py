# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why NVML cannot be opened, and of which versions driver and library are."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.effects import ReadText
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_verdict import exit_status
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.nvml_failure import (
    explain_nvml_failure,
    kernel_module_version,
    library_version,
)

PROC = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build  (builder@)
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
MAPS = """7f1c0a000000-7f1c0a021000 rw-p 00000000 00:00 0
7f1c10000000-7f1c10200000 r-xp 00000000 fe:01 1234 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.107.02
"""


def files(**texts: str) -> ReadText:
    """The files of a host; their paths with _ for /."""

    def read(path: str) -> str:
        try:
            return texts[path.strip("/").replace("/", "_")]
        except KeyError:
            raise FileNotFoundError(path) from None

    return read


class NVMLError(Exception):
    value = 1


class Nvml:
    """A binding whose library tells its version, or refuses to."""

    NVMLError = NVMLError

    def __init__(self, version: t.Optional[str] = None) -> None:
        self._version = version

    def nvmlSystemGetNVMLVersion(self) -> str:
        if self._version is None:
            raise NVMLError
        return self._version


def test_a_driver_mismatch_names_both_versions_and_the_reboot() -> None:
    error = explain_nvml_failure(18, "mismatch", kernel_version="550.90.07", library_version="550.107.02")
    assert (error.code, exit_status(error)) == ("nvml_driver_mismatch", 69)
    assert all(word in str(error) for word in ("kernel module 550.90.07", "library 550.107.02", "reboot", "never heals by itself"))


def test_a_version_that_cannot_be_found_is_called_unknown() -> None:
    assert "(kernel module unknown, library 550.107.02)" in str(explain_nvml_failure(18, "mismatch", library_version="550.107.02"))


@pytest.mark.parametrize(
    ("texts", "version"),
    [
        ({"sys_module_nvidia_version": "550.90.07\n"}, "550.90.07"),
        ({"proc_driver_nvidia_version": PROC}, "550.90.07"),
        ({"sys_module_nvidia_version": "580.159.04\n", "proc_driver_nvidia_version": PROC}, "580.159.04"),
        ({}, None),
    ],
)
def test_the_kernel_modules_version(texts: dict[str, str], version: t.Optional[str]) -> None:
    assert kernel_module_version(files(**texts)) == version


@pytest.mark.parametrize(
    ("told", "maps", "version"),
    [
        ("12.550.107.02", "", "550.107.02"),
        ("13.580.159.04", MAPS, "580.159.04"),
        ("550.107.02", "", "550.107.02"),
        (None, MAPS, "550.107.02"),
        (None, "7f1c-7f1d r-xp 0 fe:01 1 /usr/lib/libnvidia-ml.so.1\n", None),
    ],
)
def test_the_librarys_version(told: t.Optional[str], maps: str, version: t.Optional[str]) -> None:
    assert library_version(Nvml(told), files(proc_self_maps=maps)) == version


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        (4, "nvml_no_permission", "refuses this user"),
        (9, "nvml_driver_not_loaded", "not loaded or its device nodes cannot be opened"),
        (12, "nvml_library_missing", "the loader says 'cannot open shared object file'"),
        (999, "nvml_unknown_error", "restart the container"),
        (2, "nvml_error", "the words"),
    ],
)
def test_each_refusal_has_its_reason_its_remedy_and_status_69(code: int, name: str, words: str) -> None:
    error = explain_nvml_failure(code, "the words", reason="cannot open shared object file")
    assert (error.code, exit_status(error)) == (name, 69)
    assert words in str(error) and error.remedy
