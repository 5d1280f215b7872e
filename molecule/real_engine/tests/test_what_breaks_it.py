# SPDX-License-Identifier: GPL-3.0-or-later
"""Directives that the unit leaves out on purpose: each, added back, breaks the real engine in its own way."""

from __future__ import annotations

import re
import typing as t

import pytest

if t.TYPE_CHECKING:
    from molecule.conftest import Operator

pytestmark = pytest.mark.long

UNIT = "vllm-tiny-qwen3.service"
FAILURE = "/var/lib/gpufleet/tiny-qwen3/last-failure.json"
CURRENT = "/etc/gpufleet/tiny-qwen3/current"
URL = "http://127.0.0.1:8000"
# Half a minute on a machine of its own.
PATIENCE = 300
DropIn = t.Callable[..., None]


def until(host: t.Any, condition: str) -> None:
    """Until a command succeeds on the host."""
    host.check_output(f"timeout {PATIENCE} sh -c %s", f"until {condition}; do sleep 0.3; done")


def start(host: t.Any) -> str:
    """The invocation of a new start, which is not waited for; earlier failures are forgotten."""
    host.check_output(f"rm -f {FAILURE}; systemctl reset-failed {UNIT} || true; systemctl restart {UNIT}")
    return str(host.check_output(f"systemctl show -P InvocationID {UNIT}"))


def journal(host: t.Any, invocation: str) -> str:
    host.check_output("journalctl --sync")
    return str(host.check_output(f"journalctl --no-pager --all --output=cat _SYSTEMD_INVOCATION_ID={invocation}"))


@pytest.fixture(scope="module", autouse=True)
def _serving_afterwards(host: t.Any) -> t.Iterator[None]:
    yield
    start(host)
    until(host, f"curl --silent --fail {URL}/health")


def gate(operator: Operator, **options: t.Any) -> dict[str, t.Any]:
    """The answer of the gate that a deployment ends with."""
    named = {"url": URL, "unit": UNIT, "served_model_name": "tiny-qwen3", "timeout": PATIENCE}
    return operator.ask("gpu1", "vllm_health", **{**named, **options})


@pytest.mark.parametrize(
    ("directives", "evidence"),
    [
        # The engine reads how much memory the host has.
        (["ProcSubset=pid"], "No such file or directory: '/proc/meminfo'"),
        # Its processes talk over sockets in /tmp.
        (["RestrictAddressFamilies=", "RestrictAddressFamilies=AF_INET AF_INET6"], "Address family not supported by protocol"),
        # ZeroMQ sets the scheduling of its threads, and aborts where it may not.
        (["SystemCallFilter=~@resources"], "Operation not permitted (src/thread.cpp"),
    ],
    ids=["ProcSubset", "RestrictAddressFamilies", "SystemCallFilter"],
)
def test_it_dies_at_the_start(host: t.Any, drop_in: DropIn, directives: list[str], evidence: str) -> None:
    drop_in(host, UNIT, "Restart=no", *directives)
    invocation = start(host)
    until(host, f"systemctl show -P ActiveState {UNIT} | grep -qE 'inactive|failed'")
    assert evidence in journal(host, invocation)


def test_without_executable_memory_code_cannot_be_compiled_and_the_gate_tells_whether_it_answers(
    host: t.Any, operator: Operator, drop_in: DropIn
) -> None:
    """It depends on processor and model what follows: a slower way that answers, or the death of the engine at its first question.

    With float32, since oneDNN compiles code for it on every processor.
    """
    host.check_output(f"sed 's/^dtype: .*/dtype: \"float32\"/' {CURRENT}/engine.yaml > /run/float32.yaml")
    drop_in(host, UNIT, "Restart=no", "LoadCredential=engine.yaml:/run/float32.yaml", "MemoryDenyWriteExecute=yes")
    invocation = start(host)
    assert gate(operator, level="healthy")["ready"]
    ready = gate(operator)["ready"]
    assert re.search("could not create a primitive(?! descriptor)", journal(host, invocation))
    if not ready:
        until(host, f"systemctl show -P ActiveState {UNIT} | grep -qE 'inactive|failed'")
    assert host.service(UNIT).is_running == ready


def test_without_addresses_it_starts_and_nobody_reaches_it(host: t.Any, operator: Operator, drop_in: DropIn) -> None:
    drop_in(host, UNIT, "Restart=no", "IPAddressDeny=any")
    invocation = start(host)
    until(host, f"journalctl --output=cat _SYSTEMD_INVOCATION_ID={invocation} | grep -q 'Application startup complete'")
    assert host.run(f"curl --silent --max-time 5 {URL}/health").rc == 28  # out of time: what is filtered gets no answer
    answer = gate(operator, timeout=10, stall_timeout=10)
    assert not answer["ready"], answer
