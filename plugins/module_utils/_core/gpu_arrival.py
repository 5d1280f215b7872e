# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for what a boot brings late: the driver, and the GPUs that a release names. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .effects import Clock, Sleep
from .errors import VllmError
from .gpu_readings import Reading, choose_targets

__all__ = ["await_gpus"]

LOOK_EVERY = 0.5
"""Seconds from one look for driver and GPUs to the next: each opens NVML anew as long as the driver is not there."""
_DRIVER, _NONE, _UNKNOWN = "nvml_driver_not_loaded", "gpu_none", "gpu_unknown"
_DRIVER_REMEDY = "Look at nvidia-persistenced.service, at what loads the module at boot (modprobe nvidia), and at /dev/nvidia*."


def await_gpus(
    sample: t.Callable[[], t.Sequence[Reading]],
    wanted: t.Sequence[str],
    *,
    timeout: float,
    clock: Clock,
    sleep: Sleep,
    say: t.Callable[[str], None],
) -> float:
    """Until NVML answers and lists all ``wanted`` GPUs. Answers with how many of the ``timeout`` seconds are left.

    Whatever else is wrong, such as a library that is missing or of another version, does not come right by itself and is raised at once.
    """
    began, said = clock(), ""
    while True:
        lack = _lack(sample, wanted)
        waited = clock() - began
        if lack is None:
            if said:
                say(f"the driver answers and lists {len(wanted) or 'all'} of {len(wanted) or 'all'} GPUs after {waited:.1f} s")
            return timeout - waited
        if waited >= timeout:
            raise _too_late(lack, waited)
        if lack.message != said:
            said = lack.message
            say(f"waiting for up to {timeout - waited:.0f} s, as this may come late at boot: {lack}")
        sleep(min(LOOK_EVERY, timeout - waited))


def _lack(sample: t.Callable[[], t.Sequence[Reading]], wanted: t.Sequence[str]) -> t.Optional[VllmError]:
    """What is not there yet; None where all is."""
    try:
        readings = sample()
    except VllmError as exc:
        if exc.code != _DRIVER:
            raise
        return VllmError(exc.message, code=_DRIVER, remedy=_DRIVER_REMEDY, details=exc.details)
    missing = [word for word in wanted if not _is_listed(readings, word)]
    if missing:
        return _missing(missing, len(wanted), len([one for one in readings if not one.is_mig_device]))
    return None if readings else VllmError("NVML shows no GPU on this host.", code=_NONE, remedy="Check lspci and nvidia-smi -L.")


def _is_listed(readings: t.Sequence[Reading], word: str) -> bool:
    try:
        choose_targets(readings, [word])
    except VllmError as exc:
        if exc.code != _UNKNOWN:
            raise
        return False
    return True


def _missing(missing: t.Sequence[str], wanted: int, shown: int) -> VllmError:
    return VllmError(
        f"{len(missing)} of {wanted} GPUs of the release are not listed by NVML: {', '.join(missing)} (it lists {shown} on this host).",
        code="gpu_missing",
        remedy="Look for NVRM and Xid lines in the kernel log and at lspci; where a card was exchanged, deploy again.",
    )


def _too_late(lack: VllmError, waited: float) -> VllmError:
    message = f"{lack.message.rstrip('.')}, {waited:.0f} s after the start."
    return VllmError(message, code=lack.code, remedy=lack.remedy, details=lack.details)
