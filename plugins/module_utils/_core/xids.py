# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Xids, the driver's error reports, in the kernel's log, because NVML keeps none of them. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from .pci import normal_pci

__all__ = ["find_xids"]

# A record of /dev/kmsg: priority, sequence, microseconds since boot and flags; a semicolon; the text.
_XID = re.compile(r"^\d+,\d+,(?P<microseconds>\d+),[^;]*;NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d+),? ?(?P<message>.*)$")
_MOST = 50


def find_xids(records: t.Iterable[str]) -> list[dict[str, t.Any]]:
    """The last fifty, oldest first."""
    found = [match for match in map(_XID.match, records) if match]
    return [
        {
            "pci_bus_id": normal_pci(match["pci"]),
            "xid": int(match["xid"]),
            "message": match["message"].strip(),
            "seconds_since_boot": int(match["microseconds"]) / 1_000_000,
        }
        for match in found[-_MOST:]
    ]
