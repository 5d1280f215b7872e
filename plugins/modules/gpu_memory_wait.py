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
  - Names who holds the memory meanwhile, by process, systemd unit and user. It never ends a process.
  - Fails at once where waiting is in vain, because library and kernel module are of different versions, a GPU is lost or needs a reset,
    a holder was killed and cannot die, or the threshold is more than the GPU has.
  - The memory of a process that is killed is free within a second, with pinned host memory within half a minute, rarely later.
options:
  gpus:
    description:
      - The GPUs to wait for, each as index, UUID, start of a UUID, or PCI id.
      - All GPUs where it is empty.
    type: list
    elements: str
    default: []
  max_used:
    description:
      - A GPU is free when no more than this is used. A number of bytes or a size such as V(600M) or V(1G).
      - What the driver reserves for itself does not count as used, except on drivers without the newer memory reading.
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
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.read_only
  - gpufleet.vllm.attributes.progress
attributes:
  check_mode:
    support: full
    details: Takes one reading and reports it without waiting, and does not fail where memory is held.
requirements:
  - The NVIDIA driver with C(libnvidia-ml.so.1).
  - nvidia-ml-py >= 12.555 (optional)
notes:
  - A check is not a reservation. Another process can take the memory right after it.
  - Run it as root, so that holders of other users are named.
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
"""

RETURN = r"""
free:
  description: Whether every target GPU is free.
  returned: when NVML could be read
  type: bool
  sample: true
verdict:
  description:
    - V(free); V(releasing) where memory was still falling; V(held); V(wedged) where a holder cannot die or NVML hangs;
      V(lost) where a GPU is lost, needs a reset or cannot be opened.
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
      description: How many bytes have to be free.
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
      description: Bytes used at the last reading that no listed process accounts for.
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
binding:
  description: What calls NVML, V(nvidia-ml-py) and its version, or V(minimal).
  returned: when NVML could be read
  type: str
  sample: nvidia-ml-py 13.615.71
code:
  description:
    - A stable word for the reason of a failure, such as V(gpu_memory_held), V(gpu_memory_releasing), V(gpu_wedged), V(gpu_lost),
      V(gpu_unknown), V(nvml_driver_mismatch), V(nvml_hung) or V(bad_configuration).
  returned: failure
  type: str
  sample: gpu_memory_held
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.gpu_wait import DEFAULTS, WaitResult, make_threshold, read_once, unless_free, wait_until_free
from ..module_utils._nvml import Sampler
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
    "progress_path": {"type": "path"},
}


def watch(sampler: Sampler, params: t.Mapping[str, t.Any], check_mode: bool) -> WaitResult:
    """Wait, or in check mode look once. A GPU that is held fails a wait, not a look; one that is lost fails both."""
    threshold = make_threshold(**{name: params[name] for name in _THRESHOLDS})
    if check_mode:
        seen = read_once(sampler.memory, params["gpus"], threshold, clock=time.monotonic)
        return unless_free(seen) if seen.verdict == "lost" else seen
    pace = {name: params[name] for name in ("stable_samples", "interval", "timeout")}
    report = progress_writer(params["progress_path"])
    return unless_free(
        wait_until_free(sampler.memory, params["gpus"], threshold, clock=time.monotonic, sleep=time.sleep, report=report, **pace)
    )


def main() -> None:
    """Wait, and hand every fact to the caller, on failure too."""
    module = AnsibleModule(
        argument_spec=_ARGUMENTS, supports_check_mode=True, mutually_exclusive=[_THRESHOLDS], required_one_of=[_THRESHOLDS]
    )
    with Sampler(deadline=module.params["nvml_timeout"]) as sampler:
        try:
            result = watch(sampler, module.params, module.check_mode)
        except VllmError as exc:
            module.fail_json(msg=str(exc), code=exc.code, **{"binding": sampler.binding.name, **exc.details})
        for warning in filter(None, [sampler.binding.warning, *result.notes]):
            module.warn(warning)
        module.exit_json(changed=False, binding=sampler.binding.name, **result.facts())


if __name__ == "__main__":
    main()
