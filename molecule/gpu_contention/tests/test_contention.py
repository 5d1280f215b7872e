# SPDX-License-Identifier: GPL-3.0-or-later
"""A start that met a GPU in use."""

from __future__ import annotations

from on_hosts import Unit


def test_it_serves_in_the_end(unit: Unit) -> None:
    assert unit.answers()


def test_it_waited_for_the_one_gpu_that_was_held_and_named_the_holder(unit: Unit) -> None:
    text = unit.journal()
    if unit.host.backend.get_hostname() != "gpu2":
        assert "waiting for" not in text
        return
    waiting = next(line for line in text.splitlines() if "waiting for" in line)
    assert "waiting for 1 of 4 GPUs: GPU 2" in waiting
    assert "stranger.service" in waiting
    assert "58.6 GiB" in waiting


def test_one_start_was_enough_and_the_holder_was_not_killed_by_us(unit: Unit) -> None:
    assert unit.shown("NRestarts") == "0"
    if unit.host.backend.get_hostname() == "gpu2":
        assert unit.shown("ActiveState", "stranger.service") == "inactive"


def test_nobody_but_the_engine_holds_memory_now(unit: Unit) -> None:
    assert unit.shown("ActiveState", "stranger.service") == "inactive"
    assert unit.used_gpus() == [0, 1, 2, 3]
