# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Owner, group and mode of many files from one set of options. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

__all__ = ["settler"]


def settler(module: AnsibleModule) -> t.Callable[[Path, bool], bool]:
    """A function that gives a path the module's ``owner``, ``group`` and ``mode`` and says whether that changes anything.

    With ``ask`` it only says so, as it always does in check mode.
    """
    owner, group, mode = (module.params[name] for name in ("owner", "group", "mode"))

    def settle(path: Path, ask: bool) -> bool:
        asked, module.check_mode = module.check_mode, module.check_mode or ask
        try:
            changed = module.set_owner_if_different(str(path), owner, False)
            changed = module.set_group_if_different(str(path), group, changed)
            return bool(module.set_mode_if_different(str(path), _folder_mode(mode) if path.is_dir() else mode, changed))
        finally:
            module.check_mode = asked

    return settle


def _folder_mode(mode: str) -> str:
    """The same rights for a folder: who may read may also enter. Symbolic modes say so themselves, with ``X``."""
    try:
        bits = int(mode, 8)
    except ValueError:
        return mode
    return f"{bits | (bits & 0o444) >> 2:04o}"
