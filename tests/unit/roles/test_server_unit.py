# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit that the role server renders, and the options that it refuses. What systemd makes of the text is shown in the scenario unit."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.restart_pause import LONGEST
from support.plays import role_yaml
from support.role_vars import server_host, template_all
from support.running import ROOT

HALF = server_host({"minimax-m25": [0, 1, 2, 3]})
UNITS: dict[str, dict[str, t.Any]] = {
    "plain": {**HALF, "server_gpus": 4},
    "text-from-the-command-line": {
        **HALF,
        "server_gpus": "4",
        "server_gpu_wait_timeout": "100",
        "server_start_timeout": "1000",
        "server_shutdown_timeout": "70",
        "server_restart_delay": "3",
    },
    "on-two-nodes": {**HALF, "server_gpus": 8},
    "on-a-host-with-one-node": {**HALF, "server_gpus": 4, "server_gpu_info": {**HALF["server_gpu_info"], "numa_nodes": [0]}},
    "on-the-node-that-was-said": {**HALF, "server_gpus": 8, "server_numa_node": 1},
    "on-no-node": {**HALF, "server_gpus": 4, "server_numa_node": "none"},
    "beside-a-stopped-one": {**server_host({}, [], {"kimi-k2": [3], "glm-5": [4]}), "server_gpus": 4},
    "in-place-of-others": {**server_host({"kimi-k2": [0]}), "server_gpus": 1, "server_replaces": ["kimi-k2", "my-vllm.service"]},
    "in-a-sandbox-of-its-own": {
        **HALF,
        "server_gpus": 4,
        "server_sandbox": {
            "SystemCallFilter": None,
            "PrivateIPC": True,
            "RestrictRealtime": False,
            "DeviceAllow": ["char-nvidia", "char-nvidiactl"],
        },
    },
}
REFUSED: dict[str, tuple[dict[str, t.Any], list[str]]] = {
    "devices": ({"server_sandbox": {"PrivateDevices": True}}, ["PrivateDevices, which hides the GPUs", "Leave it out."]),
    "devices-by-word": ({"server_sandbox": {"PrivateDevices": "yes"}}, ["PrivateDevices, which hides the GPUs"]),
    "clock": ({"server_sandbox": {"ProtectClock": True}}, ["ProtectClock, which hides the GPUs on some versions"]),
    "proc": ({"server_sandbox": {"ProcSubset": "pid"}}, ["ProcSubset, which hides /proc/meminfo"]),
    "memory": ({"server_sandbox": {"MemoryDenyWriteExecute": True}}, ["MemoryDenyWriteExecute", "die at its first request"]),
    "network": ({"server_sandbox": {"PrivateNetwork": True}}, ["PrivateNetwork, which leaves no way to the server"]),
    "families": ({"server_sandbox": {"RestrictAddressFamilies": "AF_INET AF_INET6"}}, ["lacks AF_UNIX", "Add both."]),
    "calls": ({"server_sandbox": {"SystemCallFilter": ["@system-service", "~@privileged @resources"]}}, ["takes @resources away"]),
    "addresses": ({"server_sandbox": {"IPAddressDeny": "any"}}, ["denies every address", "Set IPAddressAllow too"]),
    "no-directive": ({"server_sandbox": {"private-ipc": True}}, ["private-ipc, which is no directive"]),
    "switch-as-text": (
        {"server_environment": {"A": "x", "B": True, "C": 1, "D": [1], "E": {}, "F": None, "G": 1.5}},
        ["sets B, D, E to what is no text"],
    ),
    "name": ({"server_deployment": "MiniMax_1"}, ["name MiniMax_1 cannot name a unit and a system user", "Use 1 to 26 lower-case letters"]),
    "port": ({"server_port": 80000}, ["server_port is 80000", "Set it to a port from 1 to 65535."]),
    "everybody": ({"server_host": "0.0.0.0"}, ["server_host is 0.0.0.0", "would answer everybody", "Set server_api_keys"]),
    "empty-key": ({"server_api_keys": ["sk-EXAMPLE", ""]}, ["holds an empty key"]),
    "reserved": ({"server_arguments": {"--api_key": "secret", "max_num_seqs": 8}}, ["holds api-key, which the role sets itself"]),
    "itself": ({"server_replaces": "minimax-m25"}, ["names minimax-m25 itself"]),
    "node": ({"server_numa_node": "left"}, ["server_numa_node is left"]),
}
ALLOWED: dict[str, dict[str, t.Any]] = {
    "switched-off": {
        "server_sandbox": {"PrivateDevices": False, "ProcSubset": "all", "RestrictAddressFamilies": None, "SystemCallFilter": None}
    },
    "without-gpus": {"server_gpus": 0, "server_sandbox": {"PrivateDevices": True, "ProtectClock": True}},
    "a-proxy": {"server_sandbox": {"IPAddressDeny": "any", "IPAddressAllow": "localhost"}},
    "fewer-calls": {"server_sandbox": {"SystemCallFilter": ["@system-service", "~@privileged"]}},
}


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    template = ROOT / "roles" / "server" / "templates" / "vllm.service.j2"
    said = template_all(
        tmp_path_factory.mktemp("unit"), "server", UNITS, "{{ lookup('ansible.builtin.template', '" + str(template) + "') }}"
    )
    return {case: json.loads(text)["msg"].splitlines() for case, text in said.items()}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    hosts = {**{name: options for name, (options, _said) in REFUSED.items()}, **ALLOWED}
    full = {name: {**HALF, "server_gpus": 4, **options} for name, options in hosts.items()}
    said = template_all(tmp_path_factory.mktemp("refusal"), "server", full, "{{ __server_refusal }}")
    return {case: json.loads(text)["msg"] for case, text in said.items()}


def values(lines: list[str], directive: str) -> list[str]:
    return [line.partition("=")[2] for line in lines if line.startswith(f"{directive}=")]


def test_every_line_is_a_comment_a_section_or_a_directive(units: dict[str, list[str]]) -> None:
    for lines in units.values():
        strange = [line for line in lines if line and line[0] not in "#[" and not line.split("=")[0].isalnum()]
        assert strange == []


def test_the_start_limit_covers_five_starts_with_their_waits_loads_ends_and_pauses(units: dict[str, list[str]]) -> None:
    lines = units["text-from-the-command-line"]
    assert values(lines, "StartLimitIntervalSec") == [str(5 * (100 + 1000 + 100 + 300))]
    assert values(lines, "TimeoutStartSec") == [str(100 + 300 + 60)]
    assert (values(lines, "StartLimitBurst"), values(lines, "RestartSec")) == (["20"], ["3"])


def test_role_and_host_helper_agree_on_the_longest_pause() -> None:
    assert role_yaml("server", "vars")["__server_longest_pause"] == LONGEST


def test_a_stop_is_given_longer_than_the_engine_takes_to_drain_and_ends_every_process(units: dict[str, list[str]]) -> None:
    assert values(units["text-from-the-command-line"], "TimeoutStopSec") == ["100"]
    assert values(units["plain"], "KillMode") == ["mixed"]
    assert values(units["plain"], "Restart") == ["always"]


@pytest.mark.parametrize(
    ("case", "node"),
    [
        ("plain", ["0"]),
        ("on-two-nodes", []),
        ("on-a-host-with-one-node", []),
        ("on-the-node-that-was-said", ["1"]),
        ("on-no-node", []),
    ],
)
def test_the_processes_stay_on_the_node_of_their_gpus_where_there_is_one(units: dict[str, list[str]], case: str, node: list[str]) -> None:
    assert values(units[case], "NUMAMask") == node
    assert values(units[case], "NUMAPolicy") == ["preferred"] * len(node)
    assert values(units[case], "CPUAffinity") == ["numa"] * len(node)


@pytest.mark.parametrize(
    ("case", "others"),
    [
        ("plain", []),
        ("beside-a-stopped-one", ["vllm-kimi-k2.service"]),
        ("in-place-of-others", ["my-vllm.service vllm-kimi-k2.service"]),
    ],
)
def test_units_that_share_gpus_stop_each_other_in_order(units: dict[str, list[str]], case: str, others: list[str]) -> None:
    assert values(units[case], "Conflicts") == others
    assert values(units[case], "After")[1:] == others


def test_each_directive_of_the_sandbox_has_its_switch(units: dict[str, list[str]]) -> None:
    plain, own = units["plain"], units["in-a-sandbox-of-its-own"]
    assert set(plain) - set(own) == {"SystemCallFilter=@system-service", "RestrictRealtime=yes"}
    assert set(own) - set(plain) == {"PrivateIPC=yes", "RestrictRealtime=no", "DeviceAllow=char-nvidia", "DeviceAllow=char-nvidiactl"}


@pytest.mark.parametrize("case", REFUSED)
def test_what_breaks_the_engine_is_refused_with_the_reason(refusals: dict[str, str], case: str) -> None:
    for words in REFUSED[case][1]:
        assert words in refusals[case]


@pytest.mark.parametrize("case", ALLOWED)
def test_what_does_not_break_it_is_not_refused(refusals: dict[str, str], case: str) -> None:
    assert refusals[case] == ""
