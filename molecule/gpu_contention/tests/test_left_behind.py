# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine that outlived its API server, as somebody's KillMode=process lets it: the next start ends it, and nobody else.

The unit's own KillMode=mixed leaves nothing behind; the drop-in stands for whatever else does.
"""

from __future__ import annotations

import typing as t

import pytest
from on_hosts import Unit, wait_for

STRANGER = "beside.service"
HOLD = "/usr/bin/python3 /srv/bench/nvml/fake_nvml.py hold --mib=60000 --gpu=5"


@pytest.fixture
def left_behind(unit: Unit) -> t.Iterator[set[int]]:
    """The engine and its workers without their API server, beside a stranger on another GPU."""
    do, drop_in = unit.host.check_output, f"/run/systemd/system/{unit.name}.d/90-leaves-behind.conf"
    do(f"systemd-run --unit={STRANGER} {HOLD}")
    do(f"mkdir --parents {drop_in.rpartition('/')[0]}")
    do(f"printf '[Service]\\nKillMode=process\\n' > {drop_in}")
    do("systemctl daemon-reload")
    main = unit.main_pid
    engine = set(unit.members()) - {main}
    assert engine
    do(f"kill -9 {main}")
    yield engine
    do(f"rm {drop_in}")
    do("systemctl daemon-reload")
    do(f"systemctl stop {STRANGER} && systemctl reset-failed {unit.name}")


def test_the_next_start_ends_the_engine_that_was_left_behind_and_serves(unit: Unit, left_behind: set[int]) -> None:
    wait_for(unit.answers)
    assert not left_behind & set(unit.members())
    sent = [line for line in unit.journal().splitlines() if f"is left over from an earlier run of {unit.name}: sent SIGTERM" in line]
    assert {int(line.split()[1]) for line in sent} <= left_behind
    assert sent
    assert (unit.shown("NRestarts"), unit.shown("ActiveState", STRANGER)) == ("1", "active")
