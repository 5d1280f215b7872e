# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print what HAProxy on this host says of each server, as JSON: it runs on the hosts."""

from __future__ import annotations

import csv
import json
import socket

ADMIN = "/run/haproxy/admin.sock"


def ask(command: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(ADMIN)
        connection.sendall(f"{command}\n".encode())
        with connection.makefile(encoding="utf-8") as answer:
            return answer.read()


def servers() -> dict[str, str]:
    """Every server by its name; UP, DRAIN, MAINT, DOWN ..."""
    rows = csv.DictReader(ask("show stat").lstrip("# ").splitlines())
    return {row["svname"]: row["status"] for row in rows if row["svname"] not in ("FRONTEND", "BACKEND")}


if __name__ == "__main__":
    print(json.dumps(servers()))
