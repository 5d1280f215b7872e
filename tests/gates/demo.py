# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo`: a fleet of two containers, one command that deploys a model on it, and what to try next."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from gates.report import ROOT, say

__all__ = ["demo"]

BIN = Path(sys.executable).parent
BENCH = str(ROOT / "tests" / "bench" / "bench.py")


class Demo(t.NamedTuple):
    playbook: str
    arguments: tuple[str, ...]
    unit: str
    question: str


DEMOS = {
    "fake": Demo("playbooks/deploy-minimax.yml", (), "vllm-minimax-m25", "What is the capital of France?"),
    # The CPU build of vLLM has wheels for Debian 12's Python only.
    "real": Demo("playbooks/deploy.yml", ("--limit", "demo1", "-e", "vllm_recipe=tiny-qwen3"), "vllm-tiny-qwen3", "Hello"),
}
NEXT = """
The model answers on {host}. What to try next (PATH={bin}:$PATH, or activate .venv):

  the same again, nothing changes     {deploy}
  the unit                            tests/bench/bench.py exec demo1 -- systemctl status {unit}
  its journal                         tests/bench/bench.py logs demo1 {unit}
  ask it                              tests/bench/bench.py exec demo1 -- curl -s localhost:8000/v1/models
  a shell on the host                 ssh -F .cache/bench/ssh/config -p 22021 127.0.0.1
  a request too large for the GPUs    {deploy} -e '{{"server_arguments": {{"max-num-seqs": 1024}}}}'
  the end                             make demo-down
"""


def run(*argv: str) -> None:
    say("\n$ " + " ".join(os.path.relpath(a, ROOT) if a.startswith(str(ROOT)) else a for a in argv))
    subprocess.run(argv, cwd=ROOT, check=True, env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"})


def demo(engine: str) -> int:
    """Prepare, deploy, say what comes next; the exit status is the failed command's."""
    chosen = DEMOS[engine]
    start = time.monotonic()
    deploy = ["ansible-playbook", "-i", "inventories/demo", chosen.playbook, *chosen.arguments]
    try:
        run(sys.executable, BENCH, "wheels", f"--engine={engine}")
        run(sys.executable, BENCH, "hub")
        run(sys.executable, BENCH, "up", "demo")
        run(*deploy)
    except subprocess.CalledProcessError as error:
        say(f"\nmake demo: the last command ended with status {error.returncode}; the lines above say why.")
        return error.returncode
    hosts = "demo1" if "--limit" in deploy else "demo1 and demo2"
    say(NEXT.format(host=hosts, bin=os.path.relpath(BIN), deploy=" ".join(deploy), unit=chosen.unit))
    say(f"make demo took {time.monotonic() - start:.0f} s after the tools were there")
    return 0
