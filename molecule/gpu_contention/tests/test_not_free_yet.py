# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory that stays taken, that comes back late, and that comes and goes."""

from __future__ import annotations

import contextlib
import re
import typing as t

from on_hosts import Unit, wait_for

if t.TYPE_CHECKING:
    from molecule.conftest import Operator

NVML = "/usr/bin/python3 /srv/bench/nvml/fake_nvml.py"


@contextlib.contextmanager
def held(unit: Unit, name: str, options: str, *gpu_options: str) -> t.Iterator[int]:
    """Somebody's unit with memory; its pid."""
    command = f"{NVML} hold {' '.join(gpu_options)}"
    unit.host.check_output(f"systemd-run --unit={name} {options} {command}")
    try:
        yield int(unit.shown("MainPID", f"{name}.service"))
    finally:
        unit.host.run(f"systemctl stop {name}")


def said_since(unit: Unit, before: str) -> list[str]:
    return unit.journal()[len(before) :].splitlines()


def test_two_that_never_leave_fail_the_start_and_the_play_and_are_left_alone(operator: Operator, units: dict[str, Unit]) -> None:
    """The release that is proven does not get the GPUs either, until they are free."""
    unit, patience = units["gpu2"], {"server_gpu_wait_timeout": 3}
    assert operator.play("deploy-minimax", "--limit=gpu2", variables=patience).status == 0
    with (
        held(unit, "training", "--uid=nobody", "--mib=60000", "--gpu=1") as first,
        held(unit, "notebook", "", "--mib=30000", "--gpu=3") as second,
    ):
        before = unit.journal()
        play = operator.play("deploy-minimax", "--limit=gpu2", variables={**patience, "server_environment": {"NOTE": "new"}})
        wait_for(unit.last_failure)
        said = next(line for line in said_since(unit, before) if "did not become free" in line)
        assert re.search("2 of 4 GPUs did not become free in 3 s", said)
        for words in (
            rf"pid {first} python3 \(training\.service, user nobody\) 58\.6 GiB",
            rf"pid {second} python3 \(notebook\.service, user root\) 29\.3 GiB",
            r"GPU 1 .*has 36\.\d GiB of 95\.6 GiB free and needs 90\.8 GiB",
            "GPU 3 .*has 65",
        ):
            assert re.search(words, said), (words, said)
            assert re.search(words, re.sub(r"\s+", " ", play.failures["gpu2"])), words
        assert "status=75" in unit.journal()
        assert (unit.last_failure()["cause"], unit.last_failure()["blocks"]) == ("gpu_wait_timeout", False)
        assert unit.shown("ActiveState", "training.service") == unit.shown("ActiveState", "notebook.service") == "active"
    wait_for(unit.answers)


def test_memory_that_outlives_its_process_is_waited_for(units: dict[str, Unit]) -> None:
    unit = units["gpu1"]
    with held(unit, "lingers", "", "--mib=60000", "--gpu=2", "--linger=3") as pid:
        before = unit.journal()
        unit.host.check_output(f"systemctl restart --no-block {unit.name}")
        wait_for(lambda: any("waiting for" in line and f"pid {pid} " in line for line in said_since(unit, before)))
        unit.host.check_output("systemctl kill --signal=KILL lingers")
        wait_for(unit.answers)
    found = [re.search(r"GPUs is free \(waited ([\d.]+) s\)", line) for line in said_since(unit, before)]
    assert [float(match[1]) > 3 for match in found if match] == [True]
    assert unit.shown("NRestarts") == "0"


def test_memory_that_comes_and_goes_is_not_free(units: dict[str, Unit]) -> None:
    unit = units["gpu1"]
    before = unit.journal()
    flaps = " ".join(f"{start / 10:g}:30000 {start / 10 + 0.15:g}:0" for start in range(0, 60, 3))
    unit.host.check_output(f"{NVML} set --gpu=0 --used='{flaps}' && systemctl restart {unit.name}")
    wait_for(unit.answers)
    waited = [re.search(r"GPUs is free \(waited ([\d.]+) s\)", line) for line in said_since(unit, before)]
    assert [float(match[1]) > 3 for match in waited if match] == [True]
    assert unit.shown("NRestarts") == "0", "the engine was started once, when the memory stood still"
