# SPDX-License-Identifier: GPL-3.0-or-later
"""What the sandbox does, as seen from a program inside the unit, and what systemd says of it."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml

if t.TYPE_CHECKING:
    from molecule.conftest import Operator

UNIT = "vllm-echo.service"
DEPLOYED = "vllm-minimax-m25.service"
PROBE = "/srv/bench/probe/sandbox_probe.py"
STATE = "/var/lib/gpufleet/echo"
EXPECTED = {
    name: outcome for outcome, names in yaml.safe_load(Path(__file__).with_name("sandbox.yml").read_text()).items() for name in names
}
# Refused by nothing but the sandbox: the same user may do these without it.
BY_THE_SANDBOX = {
    "list /home", "see processes of others", "new user namespace", "trace", "take a descriptor of a process", "personality", "core dumps",
    "gain privileges by a program", "have a capability", "set the SUID bit", "set the SGID bit",
}  # fmt: skip
# A device of a GPU, with the numbers of a network tunnel: of those that systemd does not always allow, containers may open that one.
GPU = "/dev/nvidia0"
DEVICES = f"rm -f {GPU} /dev/kmsg; mknod -m 666 {GPU} c 10 200 && mknod -m 666 /dev/kmsg c 1 11"
DropIn = t.Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def _devices(operator: Operator) -> t.Iterator[None]:
    """For all hosts: by the host, it would have tests of the whole fleet run once for each."""
    for host in operator.hosts.values():
        host.check_output(DEVICES)
    yield
    operator.on_all(f"rm {GPU} /dev/kmsg; systemctl stop {UNIT}")


def probe(host: t.Any, drop_in: DropIn, *directives: str) -> dict[str, str]:
    """What each attempt of the probe ended with, as a command of the unit before its engine."""
    drop_in(host, UNIT, f"ExecStartPre={PROBE} {STATE}/probed.json nvidia0", *directives)
    host.check_output(
        f"rm -f {STATE}/probed.json; systemctl restart {UNIT} && systemctl stop {UNIT}; systemctl reset-failed {UNIT} || true"
    )
    return dict(json.loads(host.check_output(f"cat {STATE}/probed.json")))


def test_the_sandbox_refuses_and_leaves_what_is_recorded(host: t.Any, drop_in: DropIn) -> None:
    inside = probe(host, drop_in)
    gpu = inside.pop("open /dev/nvidia0")
    assert inside == EXPECTED
    assert gpu in ("allowed", "ENODEV"), "the sandbox hides GPUs"

    options = (
        "-p User=vllm-echo -p SupplementaryGroups=gpufleet-models -p LoadCredential=engine.yaml:/etc/gpufleet/echo/current/engine.yaml"
    )
    host.check_output(f"systemd-run --quiet --wait --collect {options} {PROBE} {STATE}/probed.json")
    outside = json.loads(host.check_output(f"cat {STATE}/probed.json"))
    assert {name: outside[name] for name in BY_THE_SANDBOX} == dict.fromkeys(BY_THE_SANDBOX, "allowed")


@pytest.mark.long
@pytest.mark.parametrize(
    ("directives", "opened"),
    [
        (["PrivateDevices=yes"], "ENOENT"),
        (["DevicePolicy=closed"], "EPERM"),
        (["DevicePolicy=closed", f"DeviceAllow={GPU} rw"], "allowed"),
        # It brought a list of allowed devices once, which no GPU was on; neither 252.39 nor 257.13 does.
        (["ProtectClock=yes"], "allowed"),
    ],
    ids=lambda value: value[-1].partition("=")[0] if isinstance(value, list) else "",
)
def test_what_a_directive_about_devices_does_to_a_gpu(host: t.Any, drop_in: DropIn, directives: list[str], opened: str) -> None:
    found = probe(host, drop_in, *directives)["open /dev/nvidia0"]
    assert found == opened or (opened, found) == ("allowed", "ENODEV")


def test_systemd_finds_the_unit_no_more_exposed_than_recorded(host: t.Any) -> None:
    exposure = host.check_output(f"systemd-analyze security --no-pager {DEPLOYED} | tail -n 1")
    assert float(exposure.split(":")[1].split()[0]) <= 2.2, "2.0 was recorded on 252 and 257"


def test_systemd_has_no_complaint_about_the_unit(host: t.Any) -> None:
    verified = host.run(f"systemd-analyze verify --recursive-errors=no /etc/systemd/system/{DEPLOYED}")
    assert verified.rc == 0, verified.stderr
    assert DEPLOYED not in verified.stderr


def test_the_engine_prefers_the_memory_of_the_node_that_was_chosen_and_runs_on_its_cpus(host: t.Any) -> None:
    host.check_output(f"systemctl reset-failed {UNIT} || true; systemctl restart {UNIT}")
    pid = host.check_output(f"systemctl show -P MainPID {UNIT}")
    assert "prefer:0" in host.check_output(f"head -n 1 /proc/{pid}/numa_maps")
    allowed = host.check_output(f"sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/{pid}/status")
    assert allowed == host.check_output("cat /sys/devices/system/node/node0/cpulist")


@pytest.mark.long
def test_a_line_that_systemd_would_drop_with_a_warning_fails_the_deployment_and_leaves_the_unit_alone(operator: Operator) -> None:
    unit_file = f"/etc/systemd/system/{DEPLOYED}"
    look = f"sha256sum {unit_file}; systemctl show --property=MainPID --property=NeedDaemonReload {DEPLOYED}"
    before = operator.on_all(look)
    play = operator.play("deploy-minimax", variables={"server_sandbox": {"ProtectHomes": True}})
    assert play.status != 0
    assert re.search("failed to validate .*(which answers|and it serves)", play.failures["gpu1"])
    assert re.search(r"Unknown key(?: name)? 'ProtectHomes' in section '?\[?Service", play.output)
    assert operator.on_all(look) == before
