# SPDX-License-Identifier: GPL-3.0-or-later
"""A start that met a GPU in use."""

from __future__ import annotations

import typing as t

UNIT = "vllm-minimax-m25.service"


def journal(host: t.Any) -> str:
    with host.sudo():
        return str(host.check_output(f"journalctl --no-pager --output=cat --unit={UNIT}"))


def test_it_serves_in_the_end(host: t.Any) -> None:
    assert host.service(UNIT).is_running


def test_it_waited_for_the_one_gpu_that_was_held_and_named_the_holder(host: t.Any) -> None:
    text = journal(host)
    if host.backend.get_hostname() != "gpu2":
        assert "waiting for" not in text
        return
    waiting = next(line for line in text.splitlines() if "waiting for" in line)
    assert "waiting for 1 of 4 GPUs: GPU 2" in waiting
    assert "stranger.service" in waiting
    assert "58.6 GiB" in waiting


def test_one_start_was_enough_and_the_holder_was_not_killed_by_us(host: t.Any) -> None:
    assert host.check_output(f"systemctl show -P NRestarts {UNIT}") == "0"
    if host.backend.get_hostname() == "gpu2":
        assert host.check_output("systemctl show -P ActiveState stranger.service") == "inactive"


def test_nobody_but_the_engine_holds_memory_now(host: t.Any) -> None:
    assert not host.service("stranger.service").is_running
