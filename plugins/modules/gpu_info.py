#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the GPUs of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read GPUs, their memory and the processes that hold it
version_added: 0.1.0
description:
  - Reads the NVIDIA GPUs of a host through NVML, the driver's own library.
  - Each reading can fail for itself. It is then null and its error stands in RV(gpus[].errors), so that one lost GPU does not hide
    the others.
  - NVML is read in a child process with a deadline, because NVML itself can hang in the driver.
  - Uses C(nvidia-ml-py) where the interpreter has it, and a few calls of its own where not, so it works on a host that has
    nothing but the driver.
options:
  gpus:
    description:
      - The GPUs to return, each as index, UUID, start of a UUID, or PCI id, in the order to return them.
      - All GPUs where it is empty.
    type: list
    elements: str
    default: []
  required:
    description:
      - Whether a host without usable NVML is a failure.
      - With V(false) the module then succeeds with RV(available) V(false) and says why in RV(reason).
    type: bool
    default: true
  nvml_timeout:
    description: How many seconds NVML may take for one answer.
    type: float
    default: 30.0
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.read_only
attributes:
  check_mode:
    support: full
    details: Reads only.
requirements:
  - The NVIDIA driver with C(libnvidia-ml.so.1).
  - nvidia-ml-py >= 12.555 (optional)
seealso:
  - module: gpufleet.vllm.gpu_memory_wait
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Read all GPUs
  gpufleet.vllm.gpu_info:
  register: host_gpus

- name: Choose four GPUs, of one NUMA node where possible
  ansible.builtin.debug:
    msg: "{{ host_gpus.gpus | gpufleet.vllm.choose_gpus(4) | map(attribute='uuid') }}"

- name: Ask whether there is a usable driver, without failing
  gpufleet.vllm.gpu_info:
    required: false
  register: host_gpus
"""

RETURN = r"""
available:
  description: Whether NVML could be used.
  returned: always
  type: bool
  sample: true
reason:
  description: Why NVML could not be used and what to do; empty where it could.
  returned: success
  type: str
  sample: ""
code:
  description:
    - A stable word for RV(reason), such as V(nvml_library_missing), V(nvml_driver_not_loaded), V(nvml_driver_mismatch),
      V(nvml_no_permission) or V(nvml_hung); empty where NVML could be used.
  returned: always
  type: str
  sample: ""
binding:
  description: What calls NVML, V(nvidia-ml-py) and its version, or V(minimal).
  returned: success
  type: str
  sample: nvidia-ml-py 13.615.71
driver_version:
  description: Version of the NVIDIA driver.
  returned: success
  type: str
  sample: 580.159.04
cuda_version:
  description: Newest CUDA version that the driver serves.
  returned: success
  type: str
  sample: "13.0"
nvml_version:
  description: Version of the NVML library.
  returned: success
  type: str
  sample: 13.580.159.04
count:
  description: How many GPUs the host has, whichever were asked for.
  returned: success
  type: int
  sample: 8
errors:
  description: Readings of the host that NVML refused.
  returned: success
  type: list
  elements: dict
  sample: []
  contains:
    reading:
      description: Which reading.
      type: str
      returned: always
      sample: cuda_version
    code:
      description: NVML's code.
      type: int
      returned: always
      sample: 13
    error:
      description: NVML's words.
      type: str
      returned: always
      sample: Function Not Found
gpus:
  description: The GPUs.
  returned: success
  type: list
  elements: dict
  contains:
    index:
      description: NVML's number of the GPU, which may change over a reboot.
      type: int
      returned: always
      sample: 0
    uuid:
      description: Its UUID.
      type: str
      returned: always
      sample: GPU-f00d0000-6b1c-4e5d-9a77-0000b1ac0000
    pci_bus_id:
      description: Its PCI address in the form that sysfs uses.
      type: str
      returned: always
      sample: "0000:01:00.0"
    name:
      description: Its product name.
      type: str
      returned: always
      sample: NVIDIA RTX PRO 6000 Blackwell Server Edition
    memory:
      description: Its memory, in bytes.
      type: dict
      returned: always
      contains:
        total:
          description: All of it.
          type: int
          returned: always
          sample: 102641958912
        used:
          description: What processes use; with RV(gpus[].memory.source=nvml_v1) also what the driver reserves.
          type: int
          returned: always
          sample: 0
        free:
          description: What can be allocated.
          type: int
          returned: always
          sample: 101974016000
        reserved:
          description: What the driver keeps for itself; null where it does not say.
          type: int
          returned: always
          sample: 667942912
        source:
          description:
            - V(nvml_v2), or V(nvml_v1) on older drivers, or V(system) where GPU and host share one memory, or V(none).
          type: str
          returned: always
          sample: nvml_v2
        unified:
          description: Whether the figures are those of the host's memory, which the GPU shares.
          type: bool
          returned: always
          sample: false
    numa_node:
      description: The host's NUMA node that the GPU is attached to.
      type: int
      returned: always
      sample: 0
    memory_numa_node:
      description: The NUMA node that the GPU's own memory is, on parts where the operating system manages it; else null.
      type: int
      returned: always
      sample: null
    mig:
      description: Whether the GPU is split into MIG devices; null where it cannot be.
      type: bool
      returned: always
      sample: false
    persistence:
      description: Whether the driver keeps the GPU initialised without a client.
      type: bool
      returned: always
      sample: true
    ecc:
      description: Whether error correction is on; null where there is none.
      type: bool
      returned: always
      sample: true
    remap_pending:
      description: Whether a memory row waits for a reset to be remapped.
      type: bool
      returned: always
      sample: false
    remap_failed:
      description: Whether remapping a memory row failed.
      type: bool
      returned: always
      sample: false
    recovery_action:
      description: What the driver says would heal the GPU, such as V(none), V(gpu_reset) or V(node_reboot); null where it does not say.
      type: str
      returned: always
      sample: none
    processes:
      description: Processes with memory on the GPU.
      type: list
      elements: dict
      returned: always
      contains:
        pid:
          description: Process id.
          type: int
          returned: always
          sample: 812
        type:
          description: V(C) for compute, V(G) for graphics, V(M) for an MPS client.
          type: str
          returned: always
          sample: C
        bytes:
          description: Memory it uses; null where the driver does not say.
          type: int
          returned: always
          sample: 62921900032
        name:
          description: Its name; null where it is gone or in another PID namespace.
          type: str
          returned: always
          sample: python3
        user:
          description: The user it runs as.
          type: str
          returned: always
          sample: root
        unit:
          description: The systemd unit it belongs to.
          type: str
          returned: always
          sample: holder.service
        state:
          description: Its state as in C(ps), such as V(S), V(D) or V(Z).
          type: str
          returned: always
          sample: S
    errors:
      description: Readings of this GPU that NVML refused.
      type: list
      elements: dict
      returned: always
      contains:
        reading:
          description: Which reading.
          type: str
          returned: always
          sample: memory
        code:
          description: NVML's code.
          type: int
          returned: always
          sample: 15
        error:
          description: NVML's words.
          type: str
          returned: always
          sample: GPU is lost
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.gpus import Host, gpu_facts, select_gpus
from ..module_utils._nvml import Sampler

_ARGUMENTS: dict[str, t.Any] = {
    "gpus": {"type": "list", "elements": "str", "default": []},
    "required": {"type": "bool", "default": True},
    "nvml_timeout": {"type": "float", "default": 30.0},
}


def read(sampler: Sampler, wanted: t.Sequence[str]) -> dict[str, t.Any]:
    """Everything there is to know of the wanted GPUs."""
    host = sampler.host()
    gpus = sampler.everything()
    chosen = [gpu_facts(gpu) for gpu in select_gpus(gpus, wanted)]
    return {"available": True, "reason": "", "code": "", "count": len(gpus), "gpus": chosen, **host_facts(host)}


def host_facts(host: Host) -> dict[str, t.Any]:
    """The host's versions as plain data."""
    return {**host._asdict(), "errors": [error._asdict() for error in host.errors]}


def nothing(exc: VllmError) -> dict[str, t.Any]:
    """The result on a host without usable NVML."""
    return {"available": False, "reason": str(exc), "code": exc.code, "count": 0, "gpus": [], **host_facts(Host(None, None, None))}


def main() -> None:
    """Read, and fail only where something that was asked for is not there."""
    module = AnsibleModule(argument_spec=_ARGUMENTS, supports_check_mode=True)
    with Sampler(deadline=module.params["nvml_timeout"]) as sampler:
        if sampler.binding.warning:
            module.warn(sampler.binding.warning)
        try:
            result = read(sampler, module.params["gpus"])
        except VllmError as exc:
            if module.params["required"] or not exc.code.startswith("nvml_"):
                module.fail_json(msg=str(exc), code=exc.code, available=not exc.code.startswith("nvml_"), **exc.details)
            result = nothing(exc)
        module.exit_json(changed=False, binding=sampler.binding.name, **result)


if __name__ == "__main__":
    main()
