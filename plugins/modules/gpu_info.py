#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the GPUs of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read GPUs, how they are joined, their health and limits, and who holds their memory
version_added: 0.1.0
description:
  - Reads the NVIDIA GPUs of a host through NVML, the driver's own library.
  - Each reading can fail for itself. It is then null and its error stands in RV(gpus[].errors) under the reading's name, such as
    C(power.limit), so that one lost GPU, or one call that is not permitted, does not hide the rest.
  - What a part does not have at all, such as NVLink on a card without it, is null or an empty list without an error, and is named in
    RV(gpus[].not_supported).
  - NVML is read in a child process with a deadline, because NVML itself can hang in the driver.
  - Uses C(nvidia-ml-py) where the interpreter has it, and a few calls of its own where not, so it works on a host that has
    nothing but the driver. Those few read identity, memory, processes, NUMA node, MIG mode and the health of the memory; what they
    cannot tell is named in RV(binding_lacks).
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
  - plugin: gpufleet.vllm.choose_gpus
    plugin_type: filter
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

- name: Refuse a host with a GPU that no engine can use
  ansible.builtin.assert:
    that: host_gpus.gpus | selectattr('unusable') | length == 0
    fail_msg: "{{ host_gpus.gpus | selectattr('unusable') | map(attribute='unusable') | join('; ') }}"

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
binding_lacks:
  description:
    - Readings that RV(binding) has no call for, which are null or empty for every GPU.
    - Empty with nvidia-ml-py 13.615.71, long with V(minimal).
  returned: success
  type: list
  elements: str
  sample: []
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
numa_nodes:
  description: The host's NUMA nodes that have CPUs; empty where the kernel does not say.
  returned: success
  type: list
  elements: int
  sample: [0, 1]
xids:
  description:
    - The driver's error reports about any GPU of the host, also about one that is lost, oldest first, at most fifty.
    - Read from the kernel's log, because NVML tells only those that happen while it is listened to. The log forgets them at a reboot.
    - Null where the log cannot be read; RV(xids_error) says why.
  returned: success
  type: list
  elements: dict
  sample: []
  contains:
    pci_bus_id:
      description: The PCI address of the GPU.
      type: str
      returned: always
      sample: "0000:c1:00.0"
    xid:
      description: Its number in NVIDIA's list, such as V(79) for a GPU that fell off the bus.
      type: int
      returned: always
      sample: 79
    message:
      description: What the driver says of it.
      type: str
      returned: always
      sample: GPU has fallen off the bus.
    seconds_since_boot:
      description: When it happened.
      type: float
      returned: always
      sample: 86472.113
xids_error:
  description: Why the kernel's log could not be read; empty where it could.
  returned: success
  type: str
  sample: ""
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
      sample: GPU-8c5f2f0e-5ef5-0b5e-7b7b-1d4a3c2f9e61
    pci_bus_id:
      description: Its PCI address in the form that sysfs uses.
      type: str
      returned: always
      sample: "0000:01:00.0"
    name:
      description: Its product name.
      type: str
      returned: always
      sample: NVIDIA H200
    memory:
      description: Its memory, in bytes.
      type: dict
      returned: always
      contains:
        total:
          description: All of it.
          type: int
          returned: always
          sample: 150754820096
        used:
          description: What processes use; with RV(gpus[].memory.source=nvml_v1) also what the driver reserves.
          type: int
          returned: always
          sample: 0
        free:
          description: What can be allocated.
          type: int
          returned: always
          sample: 150109945856
        reserved:
          description: What the driver keeps for itself; null where it does not say.
          type: int
          returned: always
          sample: 644874240
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
    serial:
      description: Its serial number.
      type: str
      returned: always
      sample: "1654923003712"
    compute_capability:
      description: Which instructions it has, as CUDA counts them.
      type: str
      returned: always
      sample: "9.0"
    compute_mode:
      description:
        - Which processes may use it, V(default) for all, V(exclusive_process) for one at a time, V(prohibited) for none.
      type: str
      returned: always
      sample: default
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
    cpu_affinity:
      description: The CPUs near it, as systemd's C(CPUAffinity=) takes them.
      type: str
      returned: always
      sample: 0-47,96-143
    pcie:
      description: Its PCIe link. An idle GPU lowers the generation, so only the widths tell a bad slot at any time.
      type: dict
      returned: always
      contains:
        generation:
          description: The generation now.
          type: int
          returned: always
          sample: 5
        generation_max:
          description: The generation that GPU and slot can reach.
          type: int
          returned: always
          sample: 5
        width:
          description: How many lanes are in use.
          type: int
          returned: always
          sample: 16
        width_max:
          description: How many lanes GPU and slot have.
          type: int
          returned: always
          sample: 16
        replays:
          description: How many packets were sent again, since the driver was loaded.
          type: int
          returned: always
          sample: 0
    nvlinks:
      description: Its NVLinks; empty where it has none.
      type: list
      elements: dict
      returned: always
      contains:
        link:
          description: The number of the link.
          type: int
          returned: always
          sample: 0
        active:
          description: Whether it is up.
          type: bool
          returned: always
          sample: true
        version:
          description: Its NVLink version as NVML numbers it; null where it is down, like the next two.
          type: int
          returned: always
          sample: 7
        remote_type:
          description: What is at the other end, V(gpu), V(switch), V(npu) or V(unknown).
          type: str
          returned: always
          sample: switch
        remote_pci_bus_id:
          description: The PCI address of that.
          type: str
          returned: always
          sample: "0000:05:00.0"
    links:
      description: The ways to the other GPUs of the host, whichever were asked for.
      type: list
      elements: dict
      returned: always
      contains:
        index:
          description: The index of the other GPU.
          type: int
          returned: always
          sample: 1
        uuid:
          description: The UUID of the other GPU.
          type: str
          returned: always
          sample: GPU-2f6d0b1c-9c39-7c9a-3f0e-6a1be2d7c004
        pci_bus_id:
          description: The PCI address of the other GPU.
          type: str
          returned: always
          sample: "0000:02:00.0"
        path:
          description:
            - How far it is over PCIe, in the words of C(nvidia-smi topo), nearest first. V(PIX) is one PCIe switch, V(PXB) several,
              V(PHB) the host bridge, V(NODE) several host bridges of one NUMA node, V(SYS) another node.
          type: str
          returned: always
          sample: PHB
        nvlinks:
          description: How many NVLinks join the two, directly or through switches.
          type: int
          returned: always
          sample: 18
        p2p:
          description:
            - Whether the driver allows each kind of access between the two, V(ok), V(not_supported), V(chipset_not_supported),
              V(gpu_not_supported), V(ioh_topology_not_supported), V(disabled_by_regkey) or V(unknown).
            - V(ok) is no proof that the access works; IOMMU and ACS can still break it.
          type: dict
          returned: always
          contains:
            read:
              description: Reading.
              type: str
              returned: always
              sample: ok
            write:
              description: Writing.
              type: str
              returned: always
              sample: ok
            nvlink:
              description: NVLink.
              type: str
              returned: always
              sample: ok
            atomics:
              description: Atomic operations.
              type: str
              returned: always
              sample: ok
            pci:
              description: PCIe.
              type: str
              returned: always
              sample: ok
    fabric:
      description: The fabric of an NVSwitch machine, without which CUDA does not start there.
      type: dict
      returned: always
      contains:
        state:
          description: V(completed), V(in_progress), V(not_started), or V(not_supported) where there is none.
          type: str
          returned: always
          sample: completed
        status:
          description: V(ok) or NVML's words of what went wrong; null unless RV(gpus[].fabric.state=completed).
          type: str
          returned: always
          sample: ok
        health:
          description: V(healthy), V(unhealthy), V(limited_capacity) or V(not_supported); null unless RV(gpus[].fabric.state=completed).
          type: str
          returned: always
          sample: healthy
    mig:
      description: Whether the GPU is split into MIG devices; null where it cannot be.
      type: bool
      returned: always
      sample: false
    mig_pending:
      description: Whether it will be after its next reset.
      type: bool
      returned: always
      sample: false
    mig_devices:
      description: Its MIG devices.
      type: list
      elements: dict
      returned: always
      sample: []
      contains:
        index:
          description: The number of the device; there may be gaps.
          type: int
          returned: always
          sample: 0
        uuid:
          description: Its UUID.
          type: str
          returned: always
          sample: MIG-5d3c1a2e-7f64-5d0b-9b3e-0c5a4f1e2d7b
        name:
          description: Its name.
          type: str
          returned: always
          sample: NVIDIA H200 MIG 3g.71gb
        gpu_instance:
          description: Its GPU instance.
          type: int
          returned: always
          sample: 1
        compute_instance:
          description: Its compute instance.
          type: int
          returned: always
          sample: 0
        memory:
          description: Its memory, in bytes.
          type: dict
          returned: always
          contains:
            total:
              description: All of it.
              type: int
              returned: always
              sample: 75161927680
            used:
              description: What is used.
              type: int
              returned: always
              sample: 0
            free:
              description: What is free.
              type: int
              returned: always
              sample: 75161927680
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
    ecc_pending:
      description: Whether it will be after the next reboot.
      type: bool
      returned: always
      sample: true
    ecc_errors:
      description: Errors of its memory and caches.
      type: dict
      returned: always
      contains:
        volatile:
          description: Since the driver was loaded.
          type: dict
          returned: always
          contains:
            corrected:
              description: Corrected ones.
              type: int
              returned: always
              sample: 0
            uncorrected:
              description: Those that could not be corrected.
              type: int
              returned: always
              sample: 0
        aggregate:
          description: In the life of the GPU.
          type: dict
          returned: always
          contains:
            corrected:
              description: Corrected ones.
              type: int
              returned: always
              sample: 0
            uncorrected:
              description: Those that could not be corrected.
              type: int
              returned: always
              sample: 0
    remapped_rows:
      description: Bad rows of memory that were replaced by spare ones, on Ampere and later; null while the GPU is in MIG mode.
      type: dict
      returned: always
      contains:
        correctable:
          description: For errors that could be corrected.
          type: int
          returned: always
          sample: 0
        uncorrectable:
          description: For errors that could not be corrected.
          type: int
          returned: always
          sample: 0
        pending:
          description: Whether one waits for a reset.
          type: bool
          returned: always
          sample: false
        failed:
          description: Whether one could not be replaced.
          type: bool
          returned: always
          sample: false
    retired_pages:
      description: Pages of memory that are no longer used, on parts older than Ampere; null on later ones.
      type: dict
      returned: always
      contains:
        single_bit:
          description: How many for repeated single-bit errors.
          type: int
          returned: always
          sample: null
        double_bit:
          description: How many for double-bit errors.
          type: int
          returned: always
          sample: null
        pending:
          description: Whether one waits for a reset.
          type: bool
          returned: always
          sample: null
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
    reset_required:
      description: Whether the driver says that the GPU, or the host, has to be reset; null where it does not say.
      type: bool
      returned: always
      sample: false
    power:
      description: Power and its limits, in watts.
      type: dict
      returned: always
      contains:
        usage:
          description: What it draws now.
          type: float
          returned: always
          sample: 82.0
        limit:
          description: The limit that is set.
          type: float
          returned: always
          sample: 700.0
        limit_enforced:
          description: The limit that holds, the lowest of all that apply.
          type: float
          returned: always
          sample: 700.0
        limit_default:
          description: The limit after a reset.
          type: float
          returned: always
          sample: 700.0
        limit_min:
          description: The lowest limit that can be set.
          type: float
          returned: always
          sample: 200.0
        limit_max:
          description: The highest limit that can be set.
          type: float
          returned: always
          sample: 700.0
    temperature:
      description: Temperatures and their limits, in degrees Celsius.
      type: dict
      returned: always
      contains:
        gpu:
          description: The GPU now.
          type: int
          returned: always
          sample: 38
        memory:
          description: Its memory now.
          type: int
          returned: always
          sample: 37
        slowdown:
          description: Where the GPU slows down.
          type: int
          returned: always
          sample: 89
        shutdown:
          description: Where the GPU shuts down.
          type: int
          returned: always
          sample: 95
        gpu_max:
          description: The highest temperature for lasting work.
          type: int
          returned: always
          sample: 87
        memory_max:
          description: The same for its memory.
          type: int
          returned: always
          sample: 95
    clocks:
      description: Clocks in MHz, and what holds them down.
      type: dict
      returned: always
      contains:
        graphics:
          description: The graphics clock now.
          type: int
          returned: always
          sample: 1980
        sm:
          description: The clock of the multiprocessors now.
          type: int
          returned: always
          sample: 1980
        memory:
          description: The memory clock now.
          type: int
          returned: always
          sample: 3201
        graphics_max:
          description: The highest graphics clock.
          type: int
          returned: always
          sample: 1980
        sm_max:
          description: The highest clock of the multiprocessors.
          type: int
          returned: always
          sample: 1980
        memory_max:
          description: The highest memory clock.
          type: int
          returned: always
          sample: 3201
        throttle_reasons:
          description:
            - Why the clocks are not higher, in NVML's words, such as V(gpu_idle), V(sw_power_cap), V(hw_slowdown),
              V(sw_thermal_slowdown), V(hw_thermal_slowdown) or V(hw_power_brake_slowdown).
          type: list
          elements: str
          returned: always
          sample: [gpu_idle]
    unusable:
      description:
        - Why no engine can be started on this GPU as a whole; null where one can.
        - The reasons are a GPU that is lost or cannot be opened, a recovery that the driver asks for, a failed remapping of a row,
          MIG mode, a compute mode that prohibits processes, and a fabric that is not up.
        - One that the driver wants drained works until it is. P(gpufleet.vllm.choose_gpus#filter) leaves it to the deployment that has it.
      type: str
      returned: always
      sample: null
    not_supported:
      description: Readings that this part does not have, under the names they have here.
      type: list
      elements: str
      returned: always
      sample: [memory_numa_node, retired_pages.single_bit, retired_pages.double_bit, retired_pages.pending]
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
          description: Which reading, under the name it has here.
          type: str
          returned: always
          sample: power.limit
        code:
          description:
            - NVML's code, such as V(3) not supported, V(4) no permission, V(6) not found, V(13) a driver older than the call, V(15) GPU
              is lost, V(16) GPU requires a reset; V(-1) for an answer that is not UTF-8.
          type: int
          returned: always
          sample: 4
        error:
          description: NVML's words.
          type: str
          returned: always
          sample: Insufficient Permissions
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.gpus import Host, gpu_facts, read_numa_nodes, select_gpus, unread_by_binding
from ..module_utils._core.xids import find_xids
from ..module_utils._kernel_log import kernel_log
from ..module_utils._nvml import Sampler
from ..module_utils._processes import read_text

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
    found = {"available": True, "reason": "", "code": "", "count": len(gpus), "gpus": chosen}
    return {**found, "binding_lacks": unread_by_binding(gpus), **host_facts(host)}


def host_facts(host: Host) -> dict[str, t.Any]:
    """The host's versions as plain data."""
    return {**host._asdict(), "errors": [error._asdict() for error in host.errors]}


def nothing(exc: VllmError) -> dict[str, t.Any]:
    """The result on a host without usable NVML."""
    found = {"available": False, "reason": str(exc), "code": exc.code, "count": 0, "gpus": [], "binding_lacks": []}
    return {**found, **host_facts(Host(None, None, None))}


def read_xids() -> dict[str, t.Any]:
    """The driver's error reports, whether or not NVML can be used."""
    try:
        return {"xids": find_xids(kernel_log()), "xids_error": ""}
    except OSError as exc:
        return {"xids": None, "xids_error": f"/dev/kmsg: {exc.strerror}"}


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
        host = {"numa_nodes": read_numa_nodes(read_text), **read_xids()}
        module.exit_json(changed=False, binding=sampler.binding.name, **host, **result)


if __name__ == "__main__":
    main()
