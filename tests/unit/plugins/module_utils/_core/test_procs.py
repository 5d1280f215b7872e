# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /proc says of a process."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.procs import (
    container_of_cgroup,
    read_process,
    unit_of_cgroup,
)
from support.running import wait_for

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


# As kernel 6.18 shows the first thread of a process that was sent SIGKILL: (state, flags, SigPnd, ShdPnd).
FROZEN = ("D", 0x400000, "0000000000000100", "0000000000000100")
TAKEN_APART = ("R", 0x40040C, "0000000000000000", "0000000000000100")
UNCOLLECTED = ("Z", 0x40840C, "0000000000000000", "0000000000000100")
UNHARMED = ("S", 0x400000, "0000000000000000", "0000000000000000")


def of_threads(*threads: tuple[str, int, str, str]) -> tuple[t.Callable[[str], str], t.Callable[[str], t.Sequence[str]]]:
    """A /proc with process 812 and its threads, the first of which tells for the process."""
    texts = {"/proc/812/cmdline": "", "/proc/812/cgroup": "0::/"}
    for place, (state, flags, own, shared) in enumerate(threads):
        before, after = f"{812 + place} (x) {state} 1 0 0 0 -1 {flags}", " ".join(["0"] * 12)
        stat = f"{before} {after} 4242 0 0"
        status = f"Uid:\t998\t998\t998\t998\nSigPnd:\t{own}\nShdPnd:\t{shared}\n"
        for folder in [f"/proc/812/task/{812 + place}", *(["/proc/812"] if place == 0 else [])]:
            texts[f"{folder}/stat"], texts[f"{folder}/status"] = stat, status
    names = {"/proc/812/task": [str(812 + place) for place in range(len(threads))]}
    return texts.__getitem__, names.__getitem__


@pytest.mark.parametrize(
    ("threads", "state", "kill_pending", "exiting"),
    [
        ([UNHARMED], "S", False, False),
        ([FROZEN], "D", True, False),
        ([TAKEN_APART], "R", False, True),
        ([UNCOLLECTED], "Z", False, True),
        # The first thread has ended and another one sits in the driver: the process is no zombie and cannot die.
        ([UNCOLLECTED, FROZEN], "D", True, False),
        ([TAKEN_APART, FROZEN], "R", True, False),
        ([UNCOLLECTED, TAKEN_APART], "Z", False, True),
        # A first thread that ended while the others work on.
        ([("Z", 0x40840C, "0" * 16, "0" * 16), UNHARMED], "S", False, False),
    ],
)
def test_a_process_that_cannot_die_is_told_from_one_that_the_kernel_takes_apart(
    threads: t.Sequence[tuple[str, int, str, str]], state: str, kill_pending: bool, exiting: bool
) -> None:
    read_text, list_folder = of_threads(*threads)
    found = read_process(812, read_text, nobody, list_folder)
    assert found is not None
    assert (found.state, found.kill_pending, found.exiting) == (state, kill_pending, exiting)
    assert found.is_dead == (state == "Z")


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/freezer/cgroup.procs", os.W_OK), reason="needs the older freezer, whose groups hold SIGKILL up"
)
def test_a_real_process_that_sigkill_does_not_reach(tmp_path: Path) -> None:
    freezer = Path("/sys/fs/cgroup/freezer") / f"gpufleet-{os.getpid()}"
    freezer.mkdir()
    child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    try:
        assert child.stdout and child.stdout.readline()
        (freezer / "cgroup.procs").write_text(str(child.pid))
        (freezer / "freezer.state").write_text("FROZEN")
        wait_for(lambda: (freezer / "freezer.state").read_text().strip() == "FROZEN")
        child.kill()
        found = read_process(child.pid, lambda path: Path(path).read_text(errors="replace"), nobody, os.listdir)
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        child.kill()
        child.communicate()
        wait_for(lambda: not (freezer / "cgroup.procs").read_text())
        freezer.rmdir()
    assert found is not None
    assert (found.state, found.kill_pending, found.exiting) == ("D", True, False)


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


ID = "3f2a9c0d1e2f" + "ab" * 26


@pytest.mark.parametrize(
    ("path", "container"),
    [
        (f"/system.slice/docker-{ID}.scope", "docker://3f2a9c0d1e2f"),
        (f"/docker/{ID}", "docker://3f2a9c0d1e2f"),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman://3f2a9c0d1e2f"),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "podman://3f2a9c0d1e2f"),
        (f"/libpod_parent/libpod-{ID}", "podman://3f2a9c0d1e2f"),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-{ID}.scope", "containerd://3f2a9c0d1e2f"),
        (f"/kubepods.slice/kubepods-pod1.slice:cri-containerd:{ID}", "containerd://3f2a9c0d1e2f"),
        (f"/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope", "cri-o://3f2a9c0d1e2f"),
        (f"/kubepods/besteffort/pod1/{ID}", "kubernetes://3f2a9c0d1e2f"),
        ("/lxc.payload.web/system.slice/vllm-a.service", "lxc://web"),
        ("/machine.slice/machine-build.scope/payload/system.slice/vllm-a.service", "machine://build"),
        ("/machine.slice/systemd-nspawn@build.service/payload", "machine://build"),
        ("/system.slice/docker.service", None),
        ("/system.slice/vllm-a.service", None),
        ("/", None),
    ],
)
def test_the_container_is_told_by_runtime_and_short_id(path: str, container: t.Optional[str]) -> None:
    assert container_of_cgroup(f"3:cpu:/\n0::{path}\n") == container
