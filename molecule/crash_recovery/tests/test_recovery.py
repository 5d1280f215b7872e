# SPDX-License-Identifier: GPL-3.0-or-later
"""After the crash: what the second attempt left."""

from __future__ import annotations

from on_hosts import Unit


def test_the_corrected_deployment_serves_on_every_host(unit: Unit) -> None:
    assert unit.answers()
    assert unit.shown("UnitFileState") == "enabled"
    assert "max-num-seqs: 256\n" in unit.host.check_output(f"cat {unit.files}/current/engine.yaml")


def test_the_release_that_crashed_is_kept_as_the_previous_one(unit: Unit) -> None:
    if unit.host.backend.get_hostname() != "gpu1":
        assert unit.host.run(f"test -e {unit.files}/previous").rc == 1
        return
    assert "max-num-seqs: 1024\n" in unit.host.check_output(f"cat {unit.files}/previous/engine.yaml")


def test_the_engine_died_once_and_was_then_refused(unit: Unit) -> None:
    deaths = unit.journal().count("raise RuntimeError(")
    refusals = unit.journal().count("refusing release ")
    crashed = unit.host.backend.get_hostname() == "gpu1"
    assert refusals == (1 if crashed else 0)
    assert (deaths > 0) == crashed


def test_the_second_start_waited_for_the_gpus_that_were_held(unit: Unit) -> None:
    if unit.host.backend.get_hostname() != "gpu1":
        return
    text = unit.journal()
    assert "waiting for 2 of 4 GPUs: GPU 1" in text
    assert "GPU 3" in text.split("waiting for 2 of 4 GPUs", 1)[1].splitlines()[0]
    assert "memory of 4 of 4 GPUs is free" in text


def test_the_failure_is_forgotten_once_another_release_serves(unit: Unit) -> None:
    assert unit.last_failure() == {}
    assert unit.running()["release"] == unit.release()["id"]
