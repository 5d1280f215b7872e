# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For every scenario's testinfra tests: a failed test shows what the host's model servers wrote to the journal."""

from __future__ import annotations

import typing as t

import pytest

JOURNAL = "journalctl --no-pager --output=short-precise --lines=60 --unit='vllm-*.service'"
UNITS = "systemctl --no-pager --no-legend --plain --all list-units 'vllm-*.service'"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> t.Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    host = getattr(item, "funcargs", {}).get("host")
    if report.when == "call" and report.failed and host:
        for title, command in (("units", UNITS), ("journal", JOURNAL)):
            report.sections.append((f"{title} of {host.backend.get_pytest_id()}", host.run(command).stdout))
    return report
