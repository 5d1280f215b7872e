# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the collection, install the artefact somewhere else, and run a playbook of it from there."""

from __future__ import annotations

import shutil
import sys
import typing as t
from pathlib import Path

from gates.report import ROOT

__all__ = ["artefact_commands"]

DIST = ROOT / "dist"
INSTALLED = ROOT / ".cache" / "installed"
BIN = Path(sys.executable).parent


def elsewhere(tool: str, *arguments: str) -> list[str]:
    """A command line that runs where neither the checkout's ansible.cfg nor its collections are seen."""
    away = ["env", "--unset=ANSIBLE_CONFIG", f"--chdir={INSTALLED}", f"ANSIBLE_COLLECTIONS_PATH={INSTALLED}"]
    return [*away, str(BIN / tool), *arguments]


def artefact_commands() -> t.Iterator[list[str]]:
    for folder in (DIST, INSTALLED):
        shutil.rmtree(folder, ignore_errors=True)
    INSTALLED.mkdir(parents=True)
    yield [str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(DIST), str(ROOT)]
    artefact = str(next(DIST.glob("*.tar.gz")))
    yield elsewhere("ansible-galaxy", "collection", "install", artefact, "--offline", "--collections-path", str(INSTALLED))
    inventory = str(ROOT / "inventories" / "gpu-hosts")
    recipe = ["-e", "vllm_recipe=minimax-m2.5"]
    yield elsewhere("ansible-playbook", "gpufleet.vllm.deploy", "-i", inventory, "--syntax-check", *recipe)
    yield elsewhere("ansible-doc", "--type", "module", "--list", "gpufleet.vllm")
