# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes that every module documents."""

from __future__ import annotations


class ModuleDocFragment:
    """Descriptions of the attributes; each module states its own support."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Will return details on what has changed (or possibly needs changing in C(check_mode)), when in diff mode.
  platform:
    description: Target OS/families that can be operated against.
    platforms: linux
    support: full
"""

    READ_ONLY = r"""
attributes:
  diff_mode:
    support: none
    details: Changes nothing.
"""

    PROGRESS = r"""
options:
  progress_path:
    description: Where progress is written as one JSON object, replaced atomically. The action plugin sets it.
    type: path
"""
