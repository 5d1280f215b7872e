# SPDX-License-Identifier: GPL-3.0-or-later
"""Make ``ansible_collections.gpufleet.vllm`` importable from a plain checkout.

pytest-ansible would do the same, but it cannot share a venv with pytest-testinfra: both register ``--ansible-inventory``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

# A link there leads back to the checkout; and the helpers of the tests are the package ``support``.
sys.path[:0] = [str(TESTS.parent / "playbooks" / "collections"), str(TESTS)]

from support.another_core import of_another_core  # noqa: E402

pytest_plugins = ["support.download_bench", "support.gpu_machine", "support.served_unit"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--oldest-python", help="the oldest Python of a host, with its Hub client; the tests for it are skipped without")
    parser.addoption("--of-another-core", action="store_true", help="only tests that another ansible-core or Python may fail")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--of-another-core"):
        kept = of_another_core(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
