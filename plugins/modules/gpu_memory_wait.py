#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until the memory of GPUs is free."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory_wait
short_description: Wait until the memory of every target GPU is free
version_added: 0.1.0
description:
  - Waits until B(every) target GPU has the memory that is needed, in several readings in a row between which it did not move.
  - Names who holds the memory meanwhile, by process, systemd unit, container and user.
  - Ends no process, except with O(reap=own) what an earlier run of O(unit) left behind.
  - Fails at once where waiting is in vain, because library and kernel module are of different versions, a GPU is lost or needs a reset,
    its NVLink fabric failed, a holder was killed and cannot die, or the threshold is more than the GPU has.
  - On an NVSwitch machine it also waits while the fabric of a target is in progress, because CUDA does not start before it is completed.
  - The memory of a process that is killed is free within a second, with pinned host memory within half a minute, rarely later.
  - An engine whose API server was killed goes on without it and keeps its memory for ever.
options:
  gpus:
    description:
      - The GPUs to wait for, each as index, UUID, start of a UUID, or PCI id; a MIG device by its UUID or the start of it.
      - All GPUs where it is empty. A GPU that is divided by MIG and whose own memory may not be read stands for its MIG devices.
    type: list
    elements: str
    default: []
  max_used:
    description:
      - A GPU is free when no more than this is used. A number of bytes or a size such as V(600M) or V(1G).
      - What the driver reserves for itself does not count as used. Drivers without the newer memory reading cannot tell it apart,
        so for them 1 GiB more is allowed.
      - Where GPU and host share one memory, what is used says nothing about GPU work, and the memory of the listed processes is
        held against it.
      - Exactly one of O(max_used), O(min_free) and O(utilization) is needed.
    type: bytes
  min_free:
    description: A GPU is free when at least this is free. A number of bytes or a size such as V(80G).
    type: bytes
  utilization:
    description:
      - A GPU is free when at least this share of its memory is, rounded up. It is the rule by which vLLM refuses to start.
      - Set it to the engine's C(gpu-memory-utilization).
    type: float
  stable_samples:
    description: How many readings in a row must be free and unmoved.
    type: int
    default: 4
  interval:
    description: Seconds from one reading to the next.
    type: float
    default: 0.05
  timeout:
    description:
      - How many seconds to wait.
      - Where engines pin host memory (CPU offload, swap space) their memory can take minutes to be released.
    type: float
    default: 180.0
  nvml_timeout:
    description: How many seconds NVML may take for one answer before it counts as hung.
    type: float
    default: 30.0
  reap:
    description:
      - V(own) ends what an earlier run of O(unit) left behind, with SIGTERM and after 10 seconds with SIGKILL, and waits until it is gone.
      - Such a process is in the control group that systemd gave O(unit), and began before the oldest process of the unit's present run,
        or the unit does not run. Its name, user and command line do not matter.
      - Processes of other units, of containers and of user sessions are never touched.
    type: str
    choices: [none, own]
    default: none
  unit:
    description: The service whose left-overs are ended, by its full name. Needed with O(reap=own).
    type: str
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.progress
attributes:
  check_mode:
    support: full
    details:
      - Takes one reading and reports it without waiting, and does not fail where memory is held.
      - With O(reap=own) it lists in RV(reaped) what it would end.
  diff_mode:
    support: none
    details: Writes nothing.
requirements:
  - The NVIDIA driver with C(libnvidia-ml.so.1).
  - nvidia-ml-py >= 12.555 (optional)
notes:
  - A check is not a reservation. Another process can take the memory right after it.
  - Run it as root, so that holders of other users are named, and left-overs can be ended.
  - RV(ignore:changed) is true only where a process was ended.
seealso:
  - module: gpufleet.vllm.gpu_info
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Wait until four GPUs have what the engine will ask for
  gpufleet.vllm.gpu_memory_wait:
    gpus: ["0", "1", "2", "3"]
    utilization: 0.92

- name: Wait until all GPUs are as good as empty
  gpufleet.vllm.gpu_memory_wait:
    max_used: 1G
    timeout: 300

- name: End what the stopped deployment left behind, and wait until its GPUs are free
  gpufleet.vllm.gpu_memory_wait:
    gpus: ["0", "1", "2", "3"]
    max_used: 1G
    reap: own
    unit: vllm-minimax-m25.service
"""

RETURN = r"""
free:
  description: Whether every target GPU is free.
  returned: when NVML could be read
  type: bool
  sample: true
verdict:
  description:
    - V(free); V(releasing) where memory was still falling or its holders were ending; V(held), also where the fabric was still in
      progress; V(wedged) where a holder was killed and cannot die, or NVML hangs; V(lost) where a GPU is lost, needs a reset or cannot be
      opened, or its fabric failed.
  returned: when NVML could be read
  type: str
  sample: free
waited_seconds:
  description: How long the wait took.
  returned: when NVML could be read
  type: float
  sample: 4.6
samples:
  description: How many readings were taken.
  returned: when NVML could be read
  type: int
  sample: 22
gpus:
  description: The target GPUs, in the order they were asked for.
  returned: when NVML could be read
  type: list
  elements: dict
  contains:
    index:
      description: NVML's number of the GPU.
      type: int
      returned: always
      sample: 2
    uuid:
      description: Its UUID.
      type: str
      returned: always
      sample: GPU-f00d0002-6b1c-4e5d-9a77-0000b1ac0002
    pci_bus_id:
      description: Its PCI address in the form that sysfs uses.
      type: str
      returned: always
      sample: "0000:41:00.0"
    name:
      description: Its product name.
      type: str
      returned: always
      sample: NVIDIA RTX PRO 6000 Blackwell Server Edition
    mig_device:
      description: Whether it is a MIG device; its index and PCI address are those of its GPU.
      type: bool
      returned: always
      sample: false
    free:
      description: Whether it was free at the last reading.
      type: bool
      returned: always
      sample: true
    memory_total:
      description: Its memory in bytes.
      type: int
      returned: always
      sample: 102641958912
    memory_source:
      description: As RV(gpufleet.vllm.gpu_info#module:gpus[].memory.source).
      type: str
      returned: always
      sample: nvml_v2
    needed_free:
      description: How many bytes have to be free; null where O(max_used) is held against the memory of processes.
      type: int
      returned: always
      sample: 94430602199
    used_first:
      description: Bytes used at the first reading.
      type: int
      returned: always
      sample: 62914560000
    used_last:
      description: Bytes used at the last reading.
      type: int
      returned: always
      sample: 0
    free_first:
      description: Bytes free at the first reading.
      type: int
      returned: always
      sample: 39059456000
    free_last:
      description: Bytes free at the last reading.
      type: int
      returned: always
      sample: 101974016000
    unattributed:
      description:
        - Bytes used at the last reading that no listed process accounts for.
        - Null where that cannot be told, as GPU and host share one memory or the driver does not say how much a process uses.
      type: int
      returned: always
      sample: 0
    releasing:
      description: Whether the memory was falling, or all its holders were ending, at the last reading.
      type: bool
      returned: always
      sample: false
    unkillable_pids:
      description: Processes that were killed some time ago and are still there.
      type: list
      elements: int
      returned: always
      sample: []
    recovery_action:
      description: What the driver says would heal the GPU, as RV(gpufleet.vllm.gpu_info#module:gpus[].recovery_action).
      type: str
      returned: always
      sample: none
    fabric:
      description: Its NVLink fabric, as RV(gpufleet.vllm.gpu_info#module:gpus[].fabric).
      type: dict
      returned: always
      sample: {state: completed, status: ok, health: healthy}
    errors:
      description: Readings of this GPU that NVML refused, as RV(gpufleet.vllm.gpu_info#module:gpus[].errors).
      type: list
      elements: dict
      returned: always
      sample: []
holders:
  description: Processes on target GPUs that are not free.
  returned: when NVML could be read
  type: list
  elements: dict
  contains:
    pid:
      description: Process id.
      type: int
      returned: always
      sample: 812
    name:
      description: Its name; null where it is gone or in another PID namespace.
      type: str
      returned: always
      sample: python3
    unit:
      description: The systemd unit it belongs to.
      type: str
      returned: always
      sample: holder.service
    container:
      description: The container it runs in, as runtime and id or name; null outside of containers.
      type: str
      returned: always
      sample: docker://0123456789ab
    user:
      description: The user it runs as.
      type: str
      returned: always
      sample: root
    gpu:
      description: NVML's number of the GPU.
      type: int
      returned: always
      sample: 2
    gpu_uuid:
      description: UUID of that GPU or MIG device.
      type: str
      returned: always
      sample: GPU-f00d0002-6b1c-4e5d-9a77-0000b1ac0002
    bytes:
      description: Memory it uses; null where the driver does not say.
      type: int
      returned: always
      sample: 62914560000
    type:
      description: V(C) for compute, V(G) for graphics, V(M) for an MPS client.
      type: str
      returned: always
      sample: C
    state:
      description: Its state as in C(ps).
      type: str
      returned: always
      sample: S
    start_time:
      description: When it started, in clock ticks since the host booted; it tells the process from a later one with the same id.
      type: int
      returned: always
      sample: 8812345
    ending:
      description: Whether it ends, which can last for minutes where it has pinned much host memory.
      type: bool
      returned: always
      sample: false
reaped:
  description: Processes that an earlier run of O(unit) left behind and that were ended, or in check mode would be.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: Process id.
      type: int
      returned: always
      sample: 4711
    name:
      description: Its name.
      type: str
      returned: always
      sample: VLLM::EngineCore
    user:
      description: The user it ran as.
      type: str
      returned: always
      sample: vllm-minimax-m25
    unit:
      description: The unit that left it behind.
      type: str
      returned: always
      sample: vllm-minimax-m25.service
    start_time:
      description: As RV(holders[].start_time).
      type: int
      returned: always
      sample: 8812345
    signal:
      description: The last signal it was sent, V(TERM) or V(KILL); null in check mode.
      type: str
      returned: always
      sample: TERM
    gone:
      description: Whether it was seen to be gone.
      type: bool
      returned: always
      sample: true
binding:
  description: What calls NVML, V(nvidia-ml-py) and its version, or V(minimal).
  returned: when NVML could be read
  type: str
  sample: nvidia-ml-py 13.615.71
code:
  description:
    - A stable word for the reason of a failure, such as V(gpu_memory_held), V(gpu_memory_releasing), V(gpu_wedged), V(gpu_lost),
      V(gpu_fabric_not_up), V(gpu_unknown), V(nvml_driver_mismatch), V(nvml_hung), V(reap_denied) or V(bad_configuration).
  returned: failure
  type: str
  sample: gpu_memory_held
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.gpu_wait import DEFAULTS, WaitResult, make_threshold, read_once, unless_free, wait_until_free
from ..module_utils._core.reap import Reaper, check_unit, run_of_unit
from ..module_utils._core.unit import show_unit
from ..module_utils._host import module_runner
from ..module_utils._nvml import Sampler
from ..module_utils._processes import UnitProcesses, start_time
from ..module_utils._progress import progress_writer

_THRESHOLDS = ("max_used", "min_free", "utilization")
_ARGUMENTS: dict[str, t.Any] = {
    "gpus": {"type": "list", "elements": "str", "default": []},
    "max_used": {"type": "bytes"},
    "min_free": {"type": "bytes"},
    "utilization": {"type": "float"},
    "stable_samples": {"type": "int", "default": DEFAULTS["stable_samples"]},
    "interval": {"type": "float", "default": DEFAULTS["interval"]},
    "timeout": {"type": "float", "default": DEFAULTS["timeout"]},
    "nvml_timeout": {"type": "float", "default": DEFAULTS["nvml_timeout"]},
    "reap": {"type": "str", "choices": ["none", "own"], "default": "none"},
    "unit": {"type": "str"},
    "progress_path": {"type": "path"},
}


def make_reaper(module: AnsibleModule) -> t.Optional[Reaper]:
    """What ends the left-overs of the unit, by systemd's word of what runs of it."""
    if module.params["reap"] == "none":
        return None
    unit = check_unit(module.params["unit"])
    report, runner = progress_writer(module.params["progress_path"]), module_runner(module)
    processes = UnitProcesses(unit, lambda: run_of_unit(show_unit(runner, unit), start_time))
    return Reaper(unit, processes, lambda line: report({"what": line}))


def watch(sampler: Sampler, params: t.Mapping[str, t.Any], reaper: t.Optional[Reaper]) -> WaitResult:
    """Wait until all is free, or fail with who is in the way."""
    threshold = make_threshold(**{name: params[name] for name in _THRESHOLDS})
    pace = {name: params[name] for name in ("stable_samples", "interval", "timeout")}
    report = progress_writer(params["progress_path"])
    tools: dict[str, t.Any] = {"clock": time.monotonic, "sleep": time.sleep, "report": report, "reaper": reaper}
    return unless_free(wait_until_free(sampler.memory, params["gpus"], threshold, **pace, **tools))


def look(sampler: Sampler, params: t.Mapping[str, t.Any], reaper: t.Optional[Reaper]) -> WaitResult:
    """Look once. A GPU that is held fails a wait, not a look; one that is lost fails both."""
    threshold = make_threshold(**{name: params[name] for name in _THRESHOLDS})
    seen = read_once(sampler.memory, params["gpus"], threshold, clock=time.monotonic)
    seen = seen._replace(reaped=reaper.preview() if reaper else [])
    return unless_free(seen) if seen.verdict == "lost" else seen


def main() -> None:
    """Wait, and hand every fact to the caller, on failure too."""
    module = AnsibleModule(
        argument_spec=_ARGUMENTS, supports_check_mode=True, mutually_exclusive=[_THRESHOLDS], required_one_of=[_THRESHOLDS]
    )
    reaper = None
    with Sampler(deadline=module.params["nvml_timeout"]) as sampler:
        try:
            reaper = make_reaper(module)
            result = (look if module.check_mode else watch)(sampler, module.params, reaper)
        except VllmError as exc:
            reaped = reaper.records() if reaper else []
            facts = {"binding": sampler.binding.name, "reaped": reaped, "changed": bool(reaped), **exc.details}
            module.fail_json(msg=str(exc), code=exc.code, **facts)
        for warning in filter(None, [sampler.binding.warning, *result.notes]):
            module.warn(warning)
        module.exit_json(changed=bool(result.reaped), binding=sampler.binding.name, **result.facts())


if __name__ == "__main__":
    main()
