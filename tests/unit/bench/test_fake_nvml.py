# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fake NVML library claims, held against what real drivers were seen to do."""

from __future__ import annotations

import os
import time
import typing as t
from pathlib import Path

import pytest

MIB = 1024**2
OPEN = "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"


def error_of(machine: t.Any, call: str, before: str = OPEN) -> int:
    """The NVML code that the call fails with; 0 where it does not."""
    return t.cast(int, machine.python(f"{before}try:\n  {call}\n  print(0)\nexcept n.NVMLError as exc:\n  print(exc.value)"))


def test_without_any_state_there_are_eight_idle_cards(gpu_machine: t.Any) -> None:
    (gpu_machine.nvml.state_dir(gpu_machine.dir) / "gpus").unlink()
    seen = gpu_machine.python(
        "n.nvmlInit()\nhs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]\n"
        "print(json.dumps([[n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetPciInfo(h).busId, n.nvmlDeviceGetName(h),"
        " n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).total >> 20,"
        " n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).reserved >> 20,"
        " list(n.nvmlDeviceGetMemoryAffinity(h, 1, 0))[0].bit_length() - 1] for h in hs]))"
    )
    assert seen == [[gpu.uuid, gpu.pci, gpu.name, gpu.total, gpu.reserved, gpu.numa] for gpu in gpu_machine.nvml.default_gpus()]


def test_v1_counts_the_drivers_reserve_as_used_and_v2_shows_it_apart(gpu_machine: t.Any) -> None:
    # An idle H200 under driver 580 reads 615 MiB used by v1; 0 used and 615 reserved by v2.
    gpu_machine.nvml.add_lines(["gpu 0 total 143771", "gpu 0 reserved 615"], gpu_machine.dir)
    first, second = gpu_machine.python(
        OPEN + "a = n.nvmlDeviceGetMemoryInfo(h); b = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)\n"
        "print(json.dumps([[a.total, a.used, a.free], [b.total, b.used, b.free, b.reserved]]))"
    )
    assert first == [143771 * MIB, 615 * MIB, (143771 - 615) * MIB]
    assert second == [143771 * MIB, 0, (143771 - 615) * MIB, 615 * MIB]


def test_two_h200s_answer_as_the_real_ones_did(gpu_machine: t.Any) -> None:
    # Two H200s of one host under driver 580.159.04, NV18: host bridge 30, every access status 0, memory of node 0, no NUMA nodes.
    cards, lines = gpu_machine.nvml.h200s(2)
    gpu_machine.nvml.write_gpus(gpu_machine.dir, cards, lines=lines)
    seen = gpu_machine.python(
        OPEN + "o = n.nvmlDeviceGetHandleByIndex(1); m = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)\n"
        "print(json.dumps([m.total >> 20, m.used, m.reserved >> 20, n.nvmlDeviceGetMemoryInfo(h).used >> 20,"
        " n.nvmlDeviceGetTopologyCommonAncestor(h, o), [n.nvmlDeviceGetP2PStatus(h, o, i) for i in range(4)],"
        " list(n.nvmlDeviceGetMemoryAffinity(h, 1, 0)), n.nvmlDeviceGetPersistenceMode(h), n.nvmlDeviceGetMigMode(h),"
        " [n.nvmlDeviceGetNvLinkState(h, link) for link in range(18)]]))"
    )
    assert seen == [143771, 0, 615, 615, 30, [0, 0, 0, 0], [1], 1, [0, 0], [1] * 18]
    assert error_of(gpu_machine, "n.nvmlDeviceGetNumaNodeId(h)") == 3
    assert error_of(gpu_machine, "n.nvmlDeviceGetNvLinkState(h, 18)") == 2


def test_what_a_part_lacks_is_not_supported(gpu_machine: t.Any) -> None:
    for call in ("NvLinkState(h, 0)", "RetiredPages(h, 0)", "RetiredPagesPendingStatus(h)", "MigDeviceHandleByIndex(h, 0)"):
        assert error_of(gpu_machine, f"n.nvmlDeviceGet{call}") == 3, call


def test_mig_devices_have_handles_of_their_own_with_holes_between(gpu_machine: t.Any) -> None:
    lines = [
        "gpu 0 mig 1",
        "gpu 0 mig_device 0 1 0 48000 500 MIG-a NVIDIA MIG 2g.48gb",
        "gpu 0 mig_device 2 2 0 48000 0 MIG-c NVIDIA MIG 2g.48gb",
    ]
    gpu_machine.nvml.add_lines(lines, gpu_machine.dir)
    assert error_of(gpu_machine, "n.nvmlDeviceGetMigDeviceHandleByIndex(h, 1)") == 6
    seen = gpu_machine.python(
        OPEN + "d = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0); m = n.nvmlDeviceGetMemoryInfo(d, version=n.nvmlMemory_v2)\n"
        "print(json.dumps([n.nvmlDeviceGetMaxMigDeviceCount(h), n.nvmlDeviceGetUUID(d), n.nvmlDeviceGetName(d),"
        " m.used >> 20, m.free >> 20]))"
    )
    assert seen == [7, "MIG-a", "NVIDIA MIG 2g.48gb", 500, 47500]


def test_a_wrong_struct_version_is_refused(gpu_machine: t.Any) -> None:
    assert error_of(gpu_machine, "n.nvmlDeviceGetMemoryInfo(h, version=2)") == 25


def test_ordinary_cards_are_no_numa_nodes(gpu_machine: t.Any) -> None:
    assert error_of(gpu_machine, "n.nvmlDeviceGetNumaNodeId(h)") == 3
    gpu_machine.nvml.add_lines(["gpu 0 memory_numa 2"], gpu_machine.dir)
    assert error_of(gpu_machine, "n.nvmlDeviceGetNumaNodeId(h)") == 0


@pytest.mark.parametrize("code", [4, 9, 12, 18, 999])
def test_init_fails_with_the_scripted_code(gpu_machine: t.Any, code: int) -> None:
    gpu_machine.nvml.fail("nvmlInit*", code, folder=gpu_machine.dir)
    assert error_of(gpu_machine, "n.nvmlInit()", "") == code


def test_calls_before_init_and_after_shutdown_are_refused(gpu_machine: t.Any) -> None:
    assert error_of(gpu_machine, "n.nvmlDeviceGetCount()", "n.nvmlInit(); n.nvmlShutdown()\n") == 1


def test_the_librarys_version_is_told_even_when_it_does_not_match_the_driver(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlInit*", 18, folder=gpu_machine.dir)
    assert (
        gpu_machine.python("try:\n  n.nvmlInit()\nexcept n.NVMLError:\n  pass\nprint(json.dumps(n.nvmlSystemGetNVMLVersion()))")
        == "13.580.159.04"
    )


def test_unknown_devices_and_calls(gpu_machine: t.Any) -> None:
    assert error_of(gpu_machine, "n.nvmlDeviceGetHandleByIndex(8)") == 2
    assert error_of(gpu_machine, "n.nvmlDeviceGetHandleByUUID('GPU-f00d0000')") == 6
    assert error_of(gpu_machine, "n.nvmlDeviceGetHandleByPciBusId('0000:01:00.0')") == 0
    assert error_of(gpu_machine, "n.nvmlDeviceGetFanSpeed(h)") == 13


def test_processes_come_by_the_two_call_protocol(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines([f"process 0 {pid} {mib} C" for pid, mib in ((4001, 500), (4002, 600), (4003, "NA"))], gpu_machine.dir)
    listed, probe = gpu_machine.python(
        OPEN + "import ctypes\nl = [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)]\n"
        "c = ctypes.c_uint(0); r = n._nvmlGetFunctionPointer('nvmlDeviceGetComputeRunningProcesses_v3')(h, ctypes.byref(c), None)\n"
        "print(json.dumps([l, [r, c.value]]))"
    )
    assert listed == [[4001, 500 * MIB], [4002, 600 * MIB], [4003, None]]
    assert probe == [7, 3]


def test_compute_graphics_and_mps_are_separate_lists(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["process 0 4001 20 G", "process 0 4002 30 M"], gpu_machine.dir)
    calls = ("Compute", "Graphics", "MPSCompute")
    lists = ", ".join(f"[p.pid for p in n.nvmlDeviceGet{name}RunningProcesses(h)]" for name in calls)
    assert gpu_machine.python(f"{OPEN}print(json.dumps([{lists}]))") == [[], [4001], [4002]]


READ = "[n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used >> 20, [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]]"


def test_memory_and_process_go_in_the_same_instant_also_while_the_dead_is_a_zombie(gpu_machine: t.Any) -> None:
    holder = gpu_machine.holder("--gpu", "0", "--mib", "60000")
    assert gpu_machine.python(f"{OPEN}print(json.dumps({READ}))") == [60000, [holder.pid]]
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert gpu_machine.python(f"{OPEN}print(json.dumps({READ}))") == [0, []]


def test_memory_lingers_without_a_process_where_asked(gpu_machine: t.Any) -> None:
    holder = gpu_machine.holder("--gpu", "0", "--mib", "60000", "--linger", "0.6")
    holder.kill()
    holder.wait()
    seen = gpu_machine.python(
        f"{OPEN}first = {READ}\nend = time.time() + 5\nwhile {READ}[0] and time.time() < end: time.sleep(0.02)\n"
        f"print(json.dumps([first, {READ}]))"
    )
    assert seen == [[60000, []], [0, []]]


def test_a_reused_pid_does_not_hold_what_its_predecessor_held(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.hold(gpu_machine.dir, "me", {0: 1000})
    record = gpu_machine.nvml.state_dir(gpu_machine.dir) / "holders" / "me"
    assert gpu_machine.nvml.usage(0, gpu_machine.dir).used == 1000
    record.write_text(record.read_text().rsplit(" ", 1)[0] + " 1\n")
    assert gpu_machine.nvml.usage(0, gpu_machine.dir).used == 0
    assert gpu_machine.python(f"{OPEN}print(json.dumps({READ}))") == [0, []]


def test_the_helper_and_the_library_agree_on_memory(gpu_machine: t.Any) -> None:
    nvml, folder = gpu_machine.nvml, gpu_machine.dir
    nvml.add_lines(["gpu 1 timeline 0:100 3600:0", "process 1 4001 50 C"], folder)
    nvml.hold(folder, "me", {1: 7000, 2: 97250})
    seen = gpu_machine.python(
        "n.nvmlInit()\nms = [n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(i), version=n.nvmlMemory_v2) for i in range(3)]\n"
        "print(json.dumps([[m.total >> 20, m.reserved >> 20, m.used >> 20, m.free >> 20] for m in ms]))"
    )
    assert seen == [list(nvml.usage(index, folder)) for index in range(3)]
    assert [row[2] for row in seen] == [0, 7150, 97250]
    nvml.release(folder, "me")
    assert nvml.usage(2, folder).used == 0


def test_memory_follows_its_timeline(gpu_machine: t.Any) -> None:
    timeline = [(0, 60000), (0.4, 20000), (0.8, 0)]
    begin = (
        f"import sys\nsys.path.insert(0, {str(Path(gpu_machine.nvml.__file__).parent)!r})\nimport fake_nvml\n"
        f"{OPEN}fake_nvml.set_used(0, {timeline}, {gpu_machine.dir!r})\n"
    )
    seen = gpu_machine.python(
        f"{begin}seen = []\nend = time.time() + 5\nwhile (not seen or seen[-1]) and time.time() < end:\n"
        f"  used = {READ}[0]\n  seen += [used] if not seen or seen[-1] != used else []\n  time.sleep(0.02)\nprint(json.dumps(seen))"
    )
    assert seen == [60000, 20000, 0]


def test_an_error_lasts_as_long_as_its_window_and_only_on_its_gpu(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.fail("nvmlDevice*", 15, gpu=2, seconds=0.5, folder=gpu_machine.dir)
    assert error_of(gpu_machine, "n.nvmlDeviceGetHandleByIndex(0)") == 0
    assert error_of(gpu_machine, "n.nvmlDeviceGetHandleByIndex(2)") in (15, 0)
    time.sleep(0.5)
    assert error_of(gpu_machine, "n.nvmlDeviceGetHandleByIndex(2)") == 0


def test_a_call_hangs_as_long_as_told(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.hang("nvmlDeviceGetMemoryInfo_v2", 0.4, gpu=0, folder=gpu_machine.dir)
    took = gpu_machine.python(OPEN + "t0 = time.time(); n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2); print(time.time() - t0)")
    assert 0.4 <= took < 2


def test_unified_parts_answer_neither_memory_call(gpu_machine: t.Any) -> None:
    gpu_machine.nvml.add_lines(["gpu 0 memory none"], gpu_machine.dir)
    assert error_of(gpu_machine, "n.nvmlDeviceGetMemoryInfo(h)") == 3
    assert error_of(gpu_machine, "n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)") == 3
