# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd has to say about a unit file before it is put in place. PRIVATE to the collection.

A line that systemd does not understand is dropped with a warning and the unit starts without it: a sandbox or a limit is then gone and
nobody knows. ``systemd-analyze verify`` warns too, and on its own counts most of that as success.
"""

from __future__ import annotations

import re

from .effects import Runner
from .errors import VllmError

__all__ = ["verify_unit"]

_SINCE_RECURSIVE_ERRORS = 250
_UNIT = re.compile(r"^[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\-]*)?\.service$")
# Whatever is set where this runs: warnings are wanted, on the console, and of the units of this host.
_ENVIRONMENT = ("-u", "SYSTEMD_UNIT_PATH", "SYSTEMD_LOG_LEVEL=info", "SYSTEMD_LOG_TARGET=console", "SYSTEMD_LOG_COLOR=0", "LC_ALL=C")


def verify_unit(runner: Runner, path: str) -> list[str]:
    """The complaints about the unit file ``path``, whose name is the unit's; none where systemd takes every line of it.

    What is wrong with units that this one refers to is not its fault and does not count; its drop-ins are a part of it.
    """
    folder, _slash, unit = path.rpartition("/")
    if not _UNIT.match(unit):
        raise VllmError(
            f"{unit!r} is no name of a service.", code="bad_configuration", remedy="Name it as systemd does, such as a.service."
        )
    options = ["--recursive-errors=no"] if _systemd_version(runner) >= _SINCE_RECURSIVE_ERRORS else []
    done = runner(["env", *_ENVIRONMENT, "systemd-analyze", "verify", "--man=no", *options, path])
    said = [line for line in f"{done.err}\n{done.out}".splitlines() if line.strip()]
    complaints = [line.replace(f"{folder}/{unit}", unit) for line in said if _is_about(line, path, unit)]
    if done.rc and not complaints:
        return said or [f"systemd-analyze verify failed with status {done.rc} and says nothing."]
    return list(dict.fromkeys(complaints))


def _is_about(line: str, path: str, unit: str) -> bool:
    place = line.split(":", 1)[0].strip()
    return place in (path, unit) or any(f"/{folder}/" in place for folder in _drop_in_folders(unit)) or line.startswith(f"Unit {unit} ")


def _drop_in_folders(unit: str) -> list[str]:
    """``vllm-a-b.service.d``, and ``vllm-a-.service.d`` and ``vllm-.service.d``, which hold for all units that begin like that."""
    stem, _dot, kind = unit.rpartition(".")
    parts = stem.split("-")
    return [f"{unit}.d", *(f"{'-'.join(parts[:number])}-.{kind}.d" for number in range(len(parts) - 1, 0, -1))]


def _systemd_version(runner: Runner) -> int:
    """``systemd 252 (252.38-1~deb12u1)``."""
    done = runner(["systemd-analyze", "--version"])
    found = re.match(r"systemd (\d+)", done.out)
    if done.rc or not found:
        raise VllmError(
            f"systemd-analyze --version failed with status {done.rc}: {(done.err or done.out).strip()}.",
            code="systemd_unavailable",
            remedy="Install systemd's own tools on this host.",
        )
    return int(found.group(1))
