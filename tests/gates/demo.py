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
    hosts: str
    unit: str
    model: str
    port: int
    failure: tuple[str, str]


DEMOS = {
    "fake": Demo(
        playbook="playbooks/deploy-minimax.yml",
        arguments=(),
        hosts="demo1 and demo2",
        unit="vllm-minimax-m25",
        model="MiniMax-M2.5",
        port=8000,
        failure=("a request too large for the GPUs", '{"server_arguments": {"max-num-seqs": 1024}}'),
    ),
    "real": Demo(
        playbook="playbooks/deploy.yml",
        # The CPU build of vLLM has wheels for Debian 12's Python only; on this port it serves beside the other demo.
        arguments=("--limit", "demo1", "-e", "vllm_recipe=tiny-qwen3", "-e", "server_port=8001"),
        hosts="demo1",
        unit="vllm-tiny-qwen3",
        model="tiny-qwen3",
        port=8001,
        failure=("more context than the model has", '{"server_arguments": {"max-model-len": 100000}}'),
    ),
}
NEXT = """
The model answers on {hosts}. What to try next (PATH={bin}:$PATH, or activate .venv):

  the same again, nothing changes     {deploy}
  the unit                            tests/bench/bench.py exec demo1 -- systemctl status {unit}
  its journal                         tests/bench/bench.py logs demo1 {unit}
  ask it                              tests/bench/bench.py exec demo1 -- curl -s localhost:{port}/v1/chat/completions \\
                                        --json '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is 17+25?"}}]}}'
  a shell on the host                 ssh -F .cache/bench/ssh/config -p 22021 127.0.0.1
  {title:35} {deploy} -e '{values}'
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
    title, values = chosen.failure
    say(NEXT.format(**chosen._asdict(), bin=os.path.relpath(BIN), deploy=" ".join(deploy), title=title, values=values))
    say(f"make demo took {time.monotonic() - start:.0f} s after the tools were there")
    return 0
