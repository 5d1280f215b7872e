# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit files before they are put in place: what systemd 249, 252 and 257 print, and what the systemd of this machine says."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.effects import CommandResult
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unit_check import verify_unit

PATH = "/tmp/gpufleet-unit-1/vllm-minimax-m25.service"
UNKNOWN = f"{PATH}:40: Unknown key 'RestartSteps' in section [Service], ignoring."
OTHERS = """/lib/systemd/system/dbus.socket:9: ListenStream= references a path below legacy directory /var/run/, updating.
/etc/systemd/system/broken.service:3: Unknown key name 'Foo' in section 'Service', ignoring.
Failed to prepare filename /opt/none: No such file or directory
broken.service: Command /opt/none is not executable: No such file or directory
/etc/systemd/system/vllm-minimax.service.d/10-a.conf:2: Unknown key 'Foo' in section [Service], ignoring.
"""


class Systemd:
    """A systemd-analyze of that version, and what it prints about the unit."""

    def __init__(self, version: str, err: str = "", rc: int = 0) -> None:
        self.verified: list[str] = []
        self._version, self._result = version, CommandResult(rc, "", err)

    def __call__(self, argv: t.Sequence[str]) -> CommandResult:
        if argv[-1] == "--version":
            return CommandResult(0, f"systemd {self._version}\n+PAM +AUDIT\n", "")
        self.verified = list(argv)
        return self._result


@pytest.mark.parametrize(("version", "has_option"), [("249 (249.11)", False), ("252 (252.38-1~deb12u1)", True), ("257.9-1", True)])
def test_the_newer_option_is_used_where_there_is_one(version: str, has_option: bool) -> None:
    systemd = Systemd(version)
    assert verify_unit(systemd, PATH) == []
    assert ("--recursive-errors=no" in systemd.verified, systemd.verified[-1]) == (has_option, PATH)


@pytest.mark.parametrize(
    "line",
    [
        UNKNOWN,
        f"{PATH}:9: Unknown key name 'RestartSteps' in section 'Service', ignoring.",
        f"{PATH}:11: Failed to parse resource value, ignoring: abc",
        f"{PATH}:12: Missing '='.",
        f"{PATH}: Unit configured to use KillMode=none. This is unsafe.",
        "vllm-minimax-m25.service: Command /opt/none is not executable: No such file or directory",
        "vllm-minimax-m25.service: Service has no ExecStart=, ExecStop=, or SuccessAction=. Refusing.",
        "Unit vllm-minimax-m25.service has a bad unit file setting.",
        "/etc/systemd/system/vllm-minimax-m25.service.d/override.conf:2: Unknown key 'Foo' in section [Service], ignoring.",
        "/etc/systemd/system/vllm-.service.d/10-a.conf:2: Unknown key 'Foo' in section [Service], ignoring.",
    ],
)
def test_whatever_is_said_of_the_unit_counts_although_the_status_is_0(line: str) -> None:
    found = verify_unit(Systemd("249", f"{OTHERS}{line}\n"), PATH)
    assert found == [line.replace(PATH, "vllm-minimax-m25.service")]


@pytest.mark.parametrize("version", ["249", "252 (252.38)", "257.9"])
def test_what_is_said_of_other_units_does_not(version: str) -> None:
    assert verify_unit(Systemd(version, OTHERS), PATH) == []


def test_a_status_without_a_reason_of_its_own_is_passed_on() -> None:
    assert verify_unit(Systemd("252", "Failed to initialize manager: Permission denied\n", 1), PATH) == [
        "Failed to initialize manager: Permission denied"
    ]
    assert "failed with status 1" in verify_unit(Systemd("252", "", 1), PATH)[0]


@pytest.mark.parametrize("name", ["a b.service", "minimax", "x.socket", "../x y.service", ""])
def test_only_services_have_units_here(name: str) -> None:
    with pytest.raises(VllmError, match="is no name of a service"):
        verify_unit(Systemd("252"), f"/tmp/x/{name}")


def test_a_host_without_the_tool_is_told_so() -> None:
    with pytest.raises(VllmError, match="systemd-analyze --version failed with status 127: env: not found"):
        verify_unit(lambda _argv: CommandResult(127, "", "env: not found"), PATH)
