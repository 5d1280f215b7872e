# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls of NVML, each of which may fail for itself. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

__all__ = [
    "FATAL",
    "FUNCTION_NOT_FOUND",
    "INSUFFICIENT_SIZE",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "RESET_REQUIRED",
    "VERSION_MISMATCH",
    "ReadError",
    "Readings",
    "text_of",
]

INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 25
# Lost, to be reset, without its external power, without its interrupt: no wait and no other call helps.
FATAL = (GPU_IS_LOST, RESET_REQUIRED, 8, 11)
_BAD_TEXT = -1


class ReadError(t.NamedTuple):
    """A reading that NVML refused: which one, NVML's code and NVML's words."""

    reading: str
    code: int
    error: str


class Readings:
    """Makes NVML calls and keeps the error of each that fails.

    A reading has the name of what is returned, such as ``power.limit``. ``absent`` are those the part does not have, ``unknown``
    those for which the Python binding has no function.
    """

    def __init__(self, nvml: t.Any) -> None:
        self.nvml = nvml
        self.errors: list[ReadError] = []
        self.absent: list[str] = []
        self.unknown: list[str] = []

    def read(self, reading: str, function: str, *arguments: t.Any, expected: t.Sequence[int] = (), **options: t.Any) -> t.Any:
        """The call's result, or :data:`None`. Codes in ``expected`` are an ordinary "there is none" and no error."""
        if not hasattr(self.nvml, function):
            self.unknown.append(reading)
            return None
        try:
            return getattr(self.nvml, function)(*arguments, **options)
        except self.nvml.NVMLError as exc:
            if exc.value not in expected:
                self.errors.append(ReadError(reading, int(exc.value), str(exc)))
        except UnicodeDecodeError as exc:
            self.errors.append(ReadError(reading, _BAD_TEXT, f"not UTF-8: {exc}"))
        return None

    def read_feature(self, reading: str, function: str, *arguments: t.Any, **options: t.Any) -> t.Any:
        """The same for what a part may lack: "not supported" is then no error, and the reading is noted as absent."""
        before = len(self.errors)
        found = self.read(reading, function, *arguments, **options)
        if len(self.errors) > before and self.errors[-1].code == NOT_SUPPORTED:
            self.errors.pop()
            self.absent.append(reading)
        return found

    def read_field(self, reading: str, handle: t.Any, field: int) -> t.Optional[int]:
        """One numbered field. Its refusal stands in the field, beside a call that succeeds."""
        values = self.read_feature(reading, "nvmlDeviceGetFieldValues", handle, [field])
        if values is None:
            return None
        code = int(values[0].nvmlReturn)
        if code == NOT_SUPPORTED:
            self.absent.append(reading)
        elif code:
            self.errors.append(ReadError(reading, code, str(self.nvml.NVMLError(code))))
        return None if code else int(values[0].value.uiVal)

    def failed(self, reading: str) -> bool:
        """Whether that reading was refused."""
        return any(error.reading == reading for error in self.errors)

    def failed_with(self, reading: str, codes: t.Sequence[int]) -> bool:
        """Whether that reading was refused with one of the codes."""
        return any(error.reading == reading and error.code in codes for error in self.errors)


def text_of(value: t.Any) -> t.Optional[str]:
    """Text, which older bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
