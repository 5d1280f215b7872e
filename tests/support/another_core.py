# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which tests another ansible-core or another Python may fail, so that a sample of the suite on it shows what the whole would."""

from __future__ import annotations

import typing as t
from collections import Counter
from pathlib import Path

import pytest

__all__ = ["FIRST_OF_A_FILE", "LEFT_OUT", "WHOLE", "of_another_core"]

TESTS = Path(__file__).resolve().parent.parent
WHOLE = (
    # Ansible's own programs, its plugins' base classes and its HTTP client.
    "casebook/test_roles.py",
    "unit/plugins/filter",
    "unit/plugins/module_utils/test_http.py",
    "unit/plugins/plugin_utils",
    "unit/roles/test_argument_specs.py",
    "unit/roles/test_server_gpus.py",
    "unit/roles/test_server_unit.py",
    # What it makes of a module's secrets, diff and warnings.
    "casebook/test_arguments.py",
    "unit/plugins/modules/test_deployment_info.py",
    "unit/plugins/modules/test_listener_info.py",
    "unit/plugins/modules/test_release_cleanup.py",
    "unit/plugins/modules/test_vllm_release.py",
    "unit/plugins/modules/test_vllm_roll_back.py",
    # Python alone, and quick.
    "unit/plugins/module_utils/_core",
)
# Of other tests that run modules the first few of each file: that a module starts, reads its options and ends is the same in all of them.
FIRST_OF_A_FILE = ("casebook", "unit/plugins/action", "unit/plugins/modules")
_FEW = 2
# Long, and about kills and hubs that fail, which are the same for every Python.
LEFT_OUT = ("unit/plugins/modules/test_model_download_faults.py",)


def of_another_core(items: t.Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests of the sample, in their order."""
    seen: Counter[Path] = Counter()
    kept = []
    for item in items:
        if _is_below(item.path, LEFT_OUT):
            continue
        seen[item.path] += 1
        if _is_below(item.path, WHOLE) or (_is_below(item.path, FIRST_OF_A_FILE) and seen[item.path] <= _FEW):
            kept.append(item)
    return kept


def _is_below(path: Path, places: t.Sequence[str]) -> bool:
    return any(path.is_relative_to(TESTS / place) for place in places)
