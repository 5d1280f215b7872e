# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The containers are what the scenarios take them for: hosts with real systemd, reached by ssh."""

from __future__ import annotations

import pytest
from testinfra.host import Host

SANDBOX = "-p ProtectSystem=strict -p PrivateTmp=yes -p CapabilityBoundingSet= -p NoNewPrivileges=yes -p User=ops"


def test_systemd_runs_without_failed_units(host: Host) -> None:
    assert host.check_output("systemctl is-system-running") == "running"
    assert host.check_output("systemctl --failed --no-legend") == ""


def test_a_unit_s_sandbox_has_an_effect(host: Host) -> None:
    refused = host.run(f"systemd-run --quiet --collect --wait --pipe {SANDBOX} touch /etc/probe")
    assert refused.rc != 0
    assert "Read-only file system" in refused.stderr


def test_a_unit_reads_its_credential(host: Host) -> None:
    command = f"systemd-run --quiet --collect --wait --pipe {SANDBOX} -p SetCredential=word:hello systemd-creds cat word"
    assert host.check_output(command) == "hello"


def test_other_containers_are_found_by_name(host: Host) -> None:
    assert host.run("getent hosts hub").rc == 0


@pytest.mark.parametrize("folder", ["/srv/wheels", "/srv/bench", "/srv/engine-wheels"])
def test_folders_of_the_controller_are_there_read_only(host: Host, folder: str) -> None:
    assert host.file(folder).is_directory
    assert "ro" in host.check_output("findmnt --noheadings --output OPTIONS %s", folder).split(",")


def test_every_user_can_write_the_state_of_the_fake_gpus(host: Host) -> None:
    assert host.file("/run/fake-nvml").mode == 0o1777
