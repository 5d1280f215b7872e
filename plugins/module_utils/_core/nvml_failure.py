# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why NVML cannot be opened, and what to do. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from .effects import ReadText
from .errors import VllmError
from .nvml_calls import NO_PERMISSION

__all__ = ["explain_nvml_failure", "kernel_module_version", "library_version"]

_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")
_LIBRARY_FILE = re.compile(r"/libnvidia-ml\.so\.(\d{3,}\.[\d.]*\d)")


def explain_nvml_failure(
    code: int, words: str, *, reason: str = "", kernel_version: t.Optional[str] = None, library_version: t.Optional[str] = None
) -> VllmError:
    """Why NVML could not be opened, and what to do. ``reason`` is the dynamic loader's."""
    details = {"nvml_code": code, "nvml_error": words}
    if code == 18:
        versions = f" (kernel module {kernel_version or 'unknown'}, library {library_version or 'unknown'})"
        return VllmError(
            f"NVML cannot be used: the NVIDIA library and the loaded kernel module are of different versions{versions}.",
            code="nvml_driver_mismatch",
            remedy=(
                "It never heals by itself: reboot the host, or stop all that uses the GPUs and reload the NVIDIA modules; then hold the"
                " driver packages against unattended upgrades."
            ),
            details=details,
        )
    name, message, remedy = _INIT_FAILURES.get(
        code, ("nvml_error", "NVML cannot be opened: {words}.", "Look for NVRM and Xid lines in the kernel log.")
    )
    text = message.format(words=words, reason=reason or words)
    return VllmError(text, code=name, remedy=remedy, details=details)


_INIT_FAILURES = {
    12: (
        "nvml_library_missing",
        "NVML cannot be used: the loader says '{reason}'.",
        "Install the NVIDIA driver's libraries on this host, or give this container its GPUs.",
    ),
    9: (
        "nvml_driver_not_loaded",
        "NVML cannot be used: the NVIDIA kernel module is not loaded or its device nodes cannot be opened.",
        "Load it (modprobe nvidia) and look at /dev/nvidia* and, in a unit, at DeviceAllow=.",
    ),
    NO_PERMISSION: (
        "nvml_no_permission",
        "NVML cannot be used: the driver refuses this user ({words}).",
        "Run this as root (become: true) or allow the user to open /dev/nvidiactl.",
    ),
    999: (
        "nvml_unknown_error",
        "NVML cannot be opened: the driver answers only '{words}'.",
        "In a container restart the container (it loses its GPUs after a daemon-reload); elsewhere look for Xid in the kernel log.",
    ),
}


# ---- versions ------------------------------------------------------------------------------------------------------------


def kernel_module_version(read_text: ReadText) -> t.Optional[str]:
    """Of the module that is loaded; None where none is."""
    for path in ("/sys/module/nvidia/version", "/proc/driver/nvidia/version"):
        found = _VERSION.search(_read(path, read_text))
        if found:
            return found.group(0)
    return None


def library_version(nvml: t.Any, read_text: ReadText) -> t.Optional[str]:
    """NVML tells its own also when it cannot be opened: ``13.580.159.04`` is CUDA's major version and then the driver's.

    Where it does not, the name of the file that is loaded has it.
    """
    try:
        version = str(nvml.nvmlSystemGetNVMLVersion())
    except nvml.NVMLError:
        found = _LIBRARY_FILE.search(_read("/proc/self/maps", read_text))
        return found.group(1) if found else None
    first, _dot, rest = version.partition(".")
    return rest if len(first) < 3 and rest else version


def _read(path: str, read_text: ReadText) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""
