# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI addresses: one way to write them, one order. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

__all__ = ["is_pci", "normal_pci", "pci_key"]

_PCI = re.compile(r"^(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?$")
_LAST = (2**32,)


def is_pci(text: str) -> bool:
    """Whether the text has the form of a PCI address."""
    return bool(_PCI.match(text))


def normal_pci(text: str) -> str:
    """The form sysfs uses: ``0000:c1:00.0`` for ``00000000:C1:00.0``, ``c1:00.0`` or ``0:c1:0``; other text unchanged."""
    found = _PCI.match(text)
    if not found:
        return text
    domain, bus, slot, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{function or 0}"


def pci_key(text: t.Optional[str]) -> tuple[int, ...]:
    """Sorts addresses as numbers; what is none comes last."""
    found = _PCI.match(text or "")
    return tuple(int(part or "0", 16) for part in found.groups()) if found else _LAST
