# SPDX-License-Identifier: GPL-3.0-or-later
"""Make ``ansible_collections.gpufleet.vllm`` importable from a plain checkout.

pytest-ansible would do the same, but it cannot share a venv with pytest-testinfra: both register ``--ansible-inventory``.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "tree"


def link_checkout() -> None:
    """Point ``build/tree/ansible_collections/gpufleet/vllm`` at the checkout and put the tree on ``sys.path``."""
    link = TREE / "ansible_collections" / "gpufleet" / "vllm"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(ROOT, target_is_directory=True)
    if str(TREE) not in sys.path:
        sys.path.insert(0, str(TREE))


link_checkout()
