#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which deployments a host has."""

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment_info
short_description: Say which vLLM deployments a host has, what each runs and on which GPUs
version_added: 0.1.0
description:
  - Reads the current release of each deployment and the state of its unit. Keys are not among what is returned.
options:
  root:
    description: Folder that holds the deployments.
    type: path
    default: /etc/gpufleet
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.read_only
attributes:
  check_mode:
    support: full
    details: Changes nothing.
notes:
  - Run it as root. The configuration of an engine may hold keys, so nobody else reads it.
seealso:
  - module: gpufleet.vllm.vllm_release
  - module: gpufleet.vllm.gpu_info
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: See what the host serves
  gpufleet.vllm.deployment_info:
  register: served
  become: true

- name: Show where
  ansible.builtin.debug:
    msg: "{{ served.deployments | selectattr('active_state', 'equalto', 'active') | map(attribute='url') | list }}"
"""

RETURN = r"""
deployments:
  description: One entry for each deployment with a current release, by name.
  returned: success
  type: list
  elements: dict
  contains:
    deployment:
      description: Its name.
      type: str
      returned: always
      sample: minimax-m25
    unit:
      description: Its systemd unit.
      type: str
      returned: always
      sample: vllm-minimax-m25.service
    release:
      description: Its current release. What runs may be older, until the unit is restarted.
      type: str
      returned: always
      sample: 5d1f8a0b6c3e
    model_path:
      description: Folder of the weights.
      type: str
      returned: always
      sample: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/f710177d938eff80b684d42c5aa84b382612f21f
    engine_path:
      description: Engine venv.
      type: str
      returned: always
      sample: /opt/gpufleet/engines/vllm-0.33.0
    gpus:
      description: UUIDs of its GPUs; empty for an engine that runs on the CPU.
      type: list
      elements: str
      returned: always
      sample: [GPU-7fbd2a3c-1d0e-4a55-9d7b-2f6f0c8e41aa]
    url:
      description: Root of its server. V(0.0.0.0) and V([::]) stand for every address of the host.
      type: str
      returned: always
      sample: http://127.0.0.1:8000
    served_model_names:
      description: Names that clients ask for.
      type: list
      elements: str
      returned: always
      sample: [MiniMax-M2.5]
    active_state:
      description: State of the unit, as systemd calls it.
      type: str
      returned: always
      sample: active
    enabled:
      description: Whether it is started at boot.
      type: bool
      returned: always
      sample: true
    keeps_gpus:
      description: Whether it runs or is enabled, so that its GPUs are not to be had.
      type: bool
      returned: always
      sample: true
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.deployments import read_deployments
from ..module_utils._core.errors import VllmError
from ..module_utils._host import module_runner


def main() -> None:
    """List them."""
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/etc/gpufleet"}}, supports_check_mode=True)
    try:
        found = read_deployments(Path(module.params["root"]), module_runner(module))
    except PermissionError as exc:
        module.fail_json(msg=f"{exc.filename} cannot be read. Run this as root (become: true).", code="no_permission")
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    module.exit_json(changed=False, deployments=[one._asdict() for one in found])


if __name__ == "__main__":
    main()
