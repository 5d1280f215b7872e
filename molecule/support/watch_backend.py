# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run on a balancer's host: write down which servers of a backend take requests, whenever that changes.

Arguments: the backend and the file. What HAProxy says is read here anew and not by the collection's own code, which is under test.
"""

from __future__ import annotations

import contextlib
import csv
import json
import socket
import sys
import time
from pathlib import Path


def serving(backend: str) -> list[str]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("/run/haproxy/admin.sock")
        connection.sendall(f"show stat {backend} 4 -1\n".encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answer:
            rows = csv.DictReader(answer.read().lstrip("# ").splitlines())
    return [row["svname"] for row in rows if row["status"].startswith("UP")]


def main() -> None:
    before = None
    with Path(sys.argv[2]).open("a", buffering=1) as record:
        while True:
            with contextlib.suppress(OSError):  # a reload replaces the socket
                now = serving(sys.argv[1])
                if now != before:
                    record.write(json.dumps({"time": time.time(), "serving": now}) + "\n")
                before = now
            time.sleep(0.1)


main()
