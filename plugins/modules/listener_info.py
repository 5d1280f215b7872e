#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say who listens on the TCP ports of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: listener_info
short_description: Say which processes and units listen on TCP ports
version_added: 0.1.0
description:
  - Lists the listening TCP sockets of a host, IPv4 and IPv6, with the processes that hold them and their systemd units.
  - Reads C(/proc) and needs no further tools.
options:
  port:
    description:
      - Only sockets on this port.
      - All listening sockets where it is not given.
    type: int
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.read_only
attributes:
  check_mode:
    support: full
    details: Changes nothing.
notes:
  - Run it as root. The holder of a socket of another user is not visible otherwise.
  - A port that is bound but does not listen yet is not listed. vLLM binds its port long before it listens.
seealso:
  - module: gpufleet.vllm.vllm_health
  - module: community.general.listen_ports_facts
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: See who holds port 8000
  gpufleet.vllm.listener_info:
    port: 8000
  register: holders
  become: true

- name: Refuse a port that something else holds
  ansible.builtin.assert:
    that: holders.listeners | map(attribute='unit') | difference(['vllm-minimax-m25.service']) | length == 0
"""

RETURN = r"""
listeners:
  description: One entry for each listening socket and process that holds it.
  returned: success
  type: list
  elements: dict
  sample:
    - address: 127.0.0.1
      port: 8000
      pid: 4711
      name: vllm
      unit: vllm-minimax-m25.service
  contains:
    address:
      description: Address that is listened on; V(0.0.0.0) and V(::) mean all of them.
      type: str
      sample: 127.0.0.1
    port:
      description: TCP port.
      type: int
      sample: 8000
    pid:
      description: Process that holds the socket; V(null) where it is not visible.
      type: int
      sample: 4711
    name:
      description: The kernel's name of that process.
      type: str
      sample: vllm
    unit:
      description: Its systemd unit.
      type: str
      sample: vllm-minimax-m25.service
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.listeners import find_listeners
from ..module_utils._host import proc_fs


def main() -> None:
    """List them."""
    module = AnsibleModule(argument_spec={"port": {"type": "int"}}, supports_check_mode=True)
    listeners = find_listeners(proc_fs(), module.params["port"])
    module.exit_json(changed=False, listeners=[listener._asdict() for listener in listeners])


if __name__ == "__main__":
    main()
