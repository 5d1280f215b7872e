# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /proc says of a process."""

from __future__ import annotations

import os
import pwd
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.procs import read_process, unit_of_cgroup

STAT = "812 (VLLM::EngineCor) D 1 " + " ".join(["0"] * 17) + " 4242 0 0"
STATUS = "Name:\tx\nUid:\t998\t998\t998\t998\nSigPnd:\t0000000000000000\nShdPnd:\t{pending}\n"


def proc(pending: str = "0" * 16, **files: str) -> t.Callable[[str], str]:
    """A /proc with process 812."""
    texts = {"stat": STAT, "status": STATUS.format(pending=pending), "cmdline": "VLLM::EngineCore\0\0", "cgroup": "0::/", **files}

    def read_text(path: str) -> str:
        folder, name = path.rsplit("/", 1)
        if folder != "/proc/812":
            raise FileNotFoundError(path)
        return texts[name]

    return read_text


def nobody(uid: int) -> str:
    raise KeyError(uid)


def test_a_title_longer_than_the_kernel_keeps_is_told_whole() -> None:
    found = read_process(812, proc(), lambda uid: f"user{uid}")
    assert found is not None
    assert (found.name, found.user, found.state, found.start_time, found.kill_pending) == ("VLLM::EngineCore", "user998", "D", 4242, False)


def test_a_name_may_hold_spaces_and_parentheses_and_a_user_may_have_no_name() -> None:
    found = read_process(812, proc(stat=STAT.replace("VLLM::EngineCor", "a) (b c"), cmdline=""), nobody)
    assert found is not None
    assert (found.name, found.user, found.start_time) == ("a) (b c", "998", 4242)


def test_a_sigkill_not_taken_is_seen() -> None:
    found = read_process(812, proc(pending="0000000000000100"), nobody)
    assert found is not None
    assert found.kill_pending


def test_a_process_that_is_gone_is_none() -> None:
    assert read_process(813, proc(), nobody) is None


def test_this_process() -> None:
    found = read_process(os.getpid(), lambda path: Path(path).read_text(errors="replace"), lambda uid: pwd.getpwuid(uid).pw_name)
    assert found is not None
    assert found.user == pwd.getpwuid(os.getuid()).pw_name
    assert not found.is_dead


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/vllm-a.service\n", "vllm-a.service"),
        ("12:cpu:/\n1:name=systemd:/system.slice/holder.service\n0::/\n", "holder.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/tune.service\n", "tune.service"),
        ("0::/machine.slice/libpod-0123.scope/container\n", "libpod-0123.scope"),
        ("0::/init.scope\n", "init.scope"),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_the_unit_is_the_innermost_service_or_scope(text: str, unit: t.Optional[str]) -> None:
    assert unit_of_cgroup(text) == unit
