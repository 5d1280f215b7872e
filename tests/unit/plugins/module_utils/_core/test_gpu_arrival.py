# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a boot brings late, with readings and a clock made up for the purpose."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_arrival import await_gpus
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_readings import Reading
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpu_verdict import exit_status
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.gpus import Gpu, ReadError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.nvml_failure import explain_nvml_failure

GPUS = [Reading(Gpu(index, f"GPU-f00d000{index}-aa", f"0000:0{index}:00.0")) for index in range(4)]
NO_DRIVER = explain_nvml_failure(9, "Driver Not Loaded")
Look = t.Union[t.Sequence[Reading], VllmError]


class Boot:
    """Plays looks one after the other, the last one for ever, against a clock that only sleep moves."""

    def __init__(self, *looks: Look) -> None:
        self.looks = list(looks)
        self.now = 100.0
        self.said: list[str] = []

    def sample(self) -> t.Sequence[Reading]:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, VllmError):
            raise look
        return look

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, wanted: t.Sequence[str], timeout: float = 180.0) -> float:
        return await_gpus(self.sample, wanted, timeout=timeout, clock=lambda: self.now, sleep=self.sleep, say=self.said.append)

    def refusal(self, wanted: t.Sequence[str]) -> VllmError:
        with pytest.raises(VllmError) as caught:
            self.wait(wanted)
        return caught.value


def test_where_all_is_there_nothing_is_said_and_no_time_is_lost() -> None:
    boot = Boot(GPUS)
    assert (boot.wait(["GPU-f00d0001", "3"]), boot.said) == (180.0, [])


def test_the_driver_and_then_the_gpus_come_one_after_the_other_with_a_line_for_each_change() -> None:
    boot = Boot(NO_DRIVER, NO_DRIVER, [], GPUS[:2], GPUS[:2], GPUS[:3], GPUS)
    left = boot.wait([str(one.gpu.uuid) for one in GPUS])
    assert left == 177.0
    assert [line.split(": ", 1)[-1].split(". ")[0] for line in boot.said] == [
        "NVML cannot be used: the NVIDIA kernel module is not loaded or its device nodes cannot be opened",
        "4 of 4 GPUs of the release are not listed by NVML: GPU-f00d0000-aa, GPU-f00d0001-aa, GPU-f00d0002-aa, GPU-f00d0003-aa"
        " (it lists 0 on this host)",
        "2 of 4 GPUs of the release are not listed by NVML: GPU-f00d0002-aa, GPU-f00d0003-aa (it lists 2 on this host)",
        "1 of 4 GPUs of the release are not listed by NVML: GPU-f00d0003-aa (it lists 3 on this host)",
        "the driver answers and lists 4 of 4 GPUs after 3.0 s",
    ]
    assert "nvidia-persistenced.service" in boot.said[0]


@pytest.mark.parametrize(
    ("look", "code", "status", "words"),
    [
        (NO_DRIVER, "nvml_driver_not_loaded", 69, "device nodes cannot be opened, 180 s after the start. Look at nvidia-persistenced"),
        (GPUS[:1], "gpu_missing", 70, "1 of 2 GPUs of the release are not listed by NVML: 1 (it lists 1 on this host), 180 s after"),
    ],
)
def test_what_does_not_come_is_told_with_its_cause_and_its_remedy(look: Look, code: str, status: int, words: str) -> None:
    boot = Boot(look)
    error = boot.refusal(["0", "1"])
    assert (error.code, exit_status(error), boot.now) == (code, status, 280.0)
    assert words in str(error)
    assert len(boot.said) == 1


def test_a_host_without_gpus_is_69() -> None:
    error = Boot([]).refusal([])
    assert (error.code, exit_status(error)) == ("gpu_none", 69)


@pytest.mark.parametrize("code", [4, 12, 18, 999])
def test_what_does_not_come_right_by_itself_ends_it_at_once(code: int) -> None:
    boot = Boot(explain_nvml_failure(code, "refused", reason="cannot open shared object file"))
    assert exit_status(boot.refusal(["0"])) == 69
    assert (boot.now, boot.said) == (100.0, [])


@pytest.mark.parametrize(
    ("readings", "wanted", "code"),
    [
        (GPUS, "GPU-f00d", "gpu_ambiguous"),
        ([*GPUS[:2], Reading(Gpu(2, errors=(ReadError("handle", 15, "GPU is lost"),)))], "GPU-f00d0002", "gpu_lost"),
    ],
)
def test_a_name_of_several_or_of_a_lost_gpu_is_not_waited_for(readings: t.Sequence[Reading], wanted: str, code: str) -> None:
    boot = Boot(readings)
    assert boot.refusal([wanted]).code == code
    assert boot.now == 100.0
