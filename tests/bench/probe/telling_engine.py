#!/usr/bin/python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In the place of an engine: writes what reached it, byte for byte, and then stays. A link at ENGINE/bin/vllm makes it the engine.

Goes to $TELL_TO, or to arrived.json in the unit's state folder: argv, environment and the file after --config, each in base64.
"""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def main() -> None:
    # What the kernel was given, not what the interpreter made of it; the first word is the interpreter.
    argv = Path("/proc/self/cmdline").read_bytes().split(b"\0")[1:-1]
    variables = Path("/proc/self/environ").read_bytes().split(b"\0")[:-1]
    config = Path(os.fsdecode(argv[argv.index(b"--config") + 1])).read_bytes() if b"--config" in argv else b""
    told = {"argv": [text(word) for word in argv], "environment": [text(each) for each in variables], "config": text(config)}
    told["invocation"] = os.environ.get("INVOCATION_ID", "")
    target = Path(os.environ.get("TELL_TO") or f"{os.environ['STATE_DIRECTORY']}/arrived.json")
    staged = target.with_name(f"{target.name}.partial")
    staged.write_text(json.dumps(told), encoding="utf-8")
    staged.replace(target)
    if "TELL_TO" not in os.environ:
        signal.pause()


if __name__ == "__main__":
    main()
