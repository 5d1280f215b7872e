# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's error reports in the kernel's log."""

from __future__ import annotations

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.xids import find_xids

LOST = "3,1201,86472113000,-;NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
NOISE = ["6,1200,86472000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module", " SUBSYSTEM=pci", "", "4,7,1,-;Xid 79 of somebody else"]


def test_an_xid_is_told_with_its_gpu_and_time() -> None:
    (xid,) = find_xids([*NOISE, LOST])
    assert xid == {
        "pci_bus_id": "0000:c1:00.0",
        "xid": 79,
        "message": "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "seconds_since_boot": 86472.113,
    }


def test_an_older_drivers_line_is_read_too() -> None:
    (xid,) = find_xids(["3,9,5000000,c;NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception: ESR 0x504648=0x102000e"])
    assert (xid["pci_bus_id"], xid["xid"], xid["message"]) == ("0000:3b:00.0", 13, "Graphics Exception: ESR 0x504648=0x102000e")


def test_a_flood_is_cut_to_the_last_fifty() -> None:
    flood = [f"3,{number},{number}000000,-;NVRM: Xid (PCI:0000:c1:00): 31, Ch {number}" for number in range(80)]
    assert [xid["seconds_since_boot"] for xid in find_xids(flood)] == list(range(30, 80))
