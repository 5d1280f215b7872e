# SPDX-License-Identifier: GPL-3.0-or-later
"""How a unit ends: a stop under an open request, within its time and beyond it, and a crash that says a lot."""

from __future__ import annotations

import json
import re
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor

import pytest

if t.TYPE_CHECKING:
    from molecule.conftest import Operator

UNIT = "vllm-minimax-m25.service"
CURRENT = "/etc/gpufleet/minimax-m25/current"
FAILURE = "/var/lib/gpufleet/minimax-m25/last-failure.json"
# As converge.yml says.
SHUTDOWN_TIMEOUT = 6
ENDLESS = "Environment=FAKE_VLLM_SCRIPT=load-seconds=0.2,answer=endless,token-seconds=0.1"
DropIn = t.Callable[..., None]
T = t.TypeVar("T")


def on_each(operator: Operator, check: t.Callable[[t.Any], T]) -> list[T]:
    """Both hosts at the same time, since what is tried here is mostly waiting."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(check, operator.hosts.values()))


def shown(host: t.Any, *names: str) -> list[str]:
    lines = host.check_output(f"systemctl show --property={','.join(names)} {UNIT}").splitlines()
    found = dict(line.split("=", 1) for line in lines)
    return [found[name] for name in names]


def until(host: t.Any, condition: str, seconds: int = 60) -> None:
    """Until a command succeeds on the host."""
    host.check_output(f"timeout {seconds} sh -c %s", f"until {condition}; do sleep 0.1; done")


def start(host: t.Any) -> None:
    host.check_output(f"rm -f {FAILURE}; systemctl reset-failed {UNIT} || true; systemctl restart {UNIT}")
    until(host, "curl --silent --fail http://127.0.0.1:8000/health")


def open_stream(host: t.Any, max_tokens: int) -> None:
    """A client that is being answered, on the host itself."""
    body = json.dumps({"prompt": "go on", "stream": True, "max_tokens": max_tokens})
    command = "systemd-run --quiet --collect --unit=client --property=StandardOutput=truncate:/run/client"
    host.check_output(f"{command} curl --silent --no-buffer --data %s http://127.0.0.1:8000/v1/completions", body)
    until(host, "grep -qs text /run/client")


def stop(host: t.Any) -> float:
    """The seconds that a stop takes."""
    began = time.monotonic()
    host.check_output(f"systemctl stop {UNIT}")
    return time.monotonic() - began


def left(host: t.Any) -> list[str]:
    """What a stopped unit must not leave: processes, memory of GPUs, a recorded failure."""
    processes = host.run("pgrep --list-full --uid vllm-minimax-m25").stdout.splitlines()
    gpus = [line for line in host.check_output("python3 /srv/bench/nvml/fake_nvml.py show").splitlines() if " 0 MiB used" not in line]
    return [*processes, *gpus, *host.run(f"cat {FAILURE}").stdout.splitlines()]


def serves_again(host: t.Any) -> bool:
    start(host)
    return shown(host, "ActiveState") == ["active"]


def test_the_unit_leaves_the_engine_more_time_to_stop_than_it_takes_to_drain(host: t.Any) -> None:
    unit = host.check_output(f"systemctl cat {UNIT}")
    config = host.check_output(f"cat {CURRENT}/engine.yaml")
    assert f"shutdown-timeout: {SHUTDOWN_TIMEOUT}\n" in f"{config}\n"
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]) >= SHUTDOWN_TIMEOUT + 15
    assert shown(host, "KillMode", "SendSIGKILL") == ["mixed", "yes"]


def test_a_stop_under_an_open_stream_lets_it_come_to_its_end(operator: Operator, drop_in: DropIn) -> None:
    def check(host: t.Any) -> None:
        drop_in(host, UNIT, ENDLESS)
        start(host)
        open_stream(host, max_tokens=30)
        assert 1 < stop(host) < SHUTDOWN_TIMEOUT + 10
        answer = host.check_output("cat /run/client").splitlines()
        assert answer[-1] == "data: [DONE]", answer[-3:]
        assert len([line for line in answer if '"text"' in line]) == 30
        assert shown(host, "ActiveState", "Result", "ExecMainStatus") == ["inactive", "success", "0"]
        assert left(host) == []

    on_each(operator, check)


@pytest.mark.long
def test_a_stop_under_a_stream_without_end_is_over_in_its_time_and_no_failure(operator: Operator, drop_in: DropIn) -> None:
    limit = SHUTDOWN_TIMEOUT + 3

    def check(host: t.Any) -> None:
        drop_in(host, UNIT, ENDLESS, f"TimeoutStopSec={limit}")
        start(host)
        open_stream(host, max_tokens=1_000_000)
        # The engine is killed when its time to drain is over, its server waits for the client until systemd has waited enough.
        assert SHUTDOWN_TIMEOUT < stop(host) < limit + 4
        assert shown(host, "Result") == ["timeout"]
        assert left(host) == []
        assert serves_again(host)

    on_each(operator, check)


def crash(host: t.Any) -> int:
    """How many last words of a dying engine are in the journal."""
    host.check_output(f"rm -f {FAILURE}; systemctl reset-failed {UNIT} || true; systemctl restart {UNIT}")
    invocation = shown(host, "InvocationID")[0]
    until(host, f"systemctl show --property=ActiveState {UNIT} | grep -qE 'inactive|failed'")
    host.check_output("journalctl --sync")
    return int(host.run(f"journalctl --output=cat _SYSTEMD_INVOCATION_ID={invocation} | grep -c 'last word '").stdout)


LAST_WORDS = "Environment=FAKE_VLLM_SCRIPT=load-seconds=0.2,engine-dies-after=0.2,last-words=30000"


@pytest.mark.long
def test_the_journal_keeps_all_that_a_dying_engine_says(operator: Operator, drop_in: DropIn) -> None:
    def check(host: t.Any) -> None:
        drop_in(host, UNIT, LAST_WORDS, "Restart=no")
        assert crash(host) == 30000
        assert json.loads(host.check_output(f"cat {FAILURE}"))["cause"] == "engine_died"

    on_each(operator, check)


@pytest.mark.long
def test_with_a_limit_the_journal_leaves_some_out(operator: Operator, drop_in: DropIn) -> None:
    """So that the test above is known to print enough. A limit is raised up to sixfold where the disk has room."""

    def check(host: t.Any) -> None:
        drop_in(host, UNIT, LAST_WORDS, "Restart=no", "LogRateLimitIntervalSec=30s", "LogRateLimitBurst=1000")
        assert crash(host) < 30000

    on_each(operator, check)


def test_it_serves_again_after_all_this(operator: Operator) -> None:
    assert all(on_each(operator, serves_again))
