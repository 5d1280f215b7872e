# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine that outlived its API server, as somebody's KillMode=process lets it: the next start ends it, and nobody else.

The unit's own KillMode=mixed leaves nothing behind; the drop-in stands for whatever else does.
"""

from __future__ import annotations

import time
import typing as t

import pytest

UNIT = "vllm-minimax-m25.service"
STRANGER = "beside.service"
DROP_IN = f"/run/systemd/system/{UNIT}.d/90-leaves-behind.conf"
HOLD = "/usr/bin/python3 /srv/bench/nvml/fake_nvml.py hold --mib=60000 --gpu=5"
HEALTH = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/health', timeout=5).status)"


def shown(host: t.Any, name: str, unit: str = UNIT) -> str:
    return str(host.check_output(f"systemctl show --value --property={name} {unit}"))


def members(host: t.Any, unit: str = UNIT) -> set[int]:
    """Who is in the unit's control group."""
    files = host.run(f"grep --files-with-matches --no-messages '/{unit}$' /proc/[0-9]*/cgroup").stdout.split()
    return {int(file.split("/")[2]) for file in files}


def wait_for(condition: t.Callable[[], t.Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so after {seconds:g} s"
        time.sleep(0.2)


@pytest.fixture
def left_behind(host: t.Any) -> t.Iterator[set[int]]:
    """The engine and its workers without their API server, beside a stranger on another GPU."""
    with host.sudo():
        host.check_output(f"systemd-run --unit={STRANGER} {HOLD}")
        host.check_output(f"mkdir --parents {DROP_IN.rpartition('/')[0]}")
        host.check_output(f"printf '[Service]\\nKillMode=process\\n' > {DROP_IN}")
        host.check_output("systemctl daemon-reload")
        main = int(shown(host, "MainPID"))
        engine = members(host) - {main}
        assert engine
        host.check_output(f"kill -9 {main}")
        yield engine
        host.check_output(f"rm {DROP_IN}")
        host.check_output("systemctl daemon-reload")
        host.check_output(f"systemctl stop {STRANGER} && systemctl reset-failed {UNIT}")


def test_the_next_start_ends_the_engine_that_was_left_behind_and_serves(host: t.Any, left_behind: set[int]) -> None:
    wait_for(lambda: shown(host, "MainPID") != "0" and host.run(f'python3 -c "{HEALTH}"').stdout.strip() == "200")
    assert not left_behind & members(host)
    text = host.check_output(f"journalctl --no-pager --output=cat --unit={UNIT}")
    sent = [line for line in text.splitlines() if f"is left over from an earlier run of {UNIT}: sent SIGTERM" in line]
    assert {int(line.split()[1]) for line in sent} <= left_behind
    assert sent
    assert (shown(host, "NRestarts"), shown(host, "ActiveState", STRANGER)) == ("1", "active")
