#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take a server out of HAProxy and put it back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: haproxy_server
short_description: Take a server behind HAProxy out and put it back, without losing a request
version_added: 0.1.0
description:
  - Reads and sets the administrative state of one server over HAProxy's runtime API, and waits until what follows from it has happened.
  - A server in V(drain) gets no new request and finishes those that it has. Its health checks go on, so that it is known whether it is up
    when it is put back.
  - What is in flight is counted in the workers of before a reload too.
  - Runs on the balancer's host. In a play over the servers, delegate the task to it.
options:
  socket:
    description: The C(stats socket) of HAProxy, of the level admin.
    type: path
    default: /run/haproxy/admin.sock
  master_socket:
    description:
      - The socket of its master process, which reaches the workers of before a reload. Where there is none, their requests are not counted.
    type: path
    default: /run/haproxy-master.sock
  backend:
    description: Name of the backend.
    type: str
    required: true
  server:
    description: Name of the server in it.
    type: str
    required: true
  state:
    description:
      - V(ready) lets requests go to it as far as its health checks allow, V(drain) takes it out, V(maint) takes it out and ends its checks.
      - HAProxy holds a server that leaves V(maint) for up until a check fails; one that leaves V(drain) is what its checks say.
      - Without it the server is only looked at.
    type: str
    choices: [ready, drain, maint]
  wait:
    description:
      - V(drained) waits until nothing is in flight on it, V(up) until HAProxy sends requests to it and no check speaks against it.
    type: str
    choices: [none, drained, up]
    default: none
  timeout:
    description: How many seconds to wait.
    type: float
    default: 300.0
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details: Says whether the state would change, and waits for nothing.
  diff_mode:
    support: full
notes:
  - A state that was set at run time is lost when HAProxy restarts, and on a reload unless the state is saved for it, as the role
    P(gpufleet.vllm.balancer#role) does.
seealso:
  - module: gpufleet.vllm.vllm_health
    description: Level V(drained) asks the server itself.
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Take the host out and wait until it has answered everything
  gpufleet.vllm.haproxy_server:
    backend: vllm-minimax-m25
    server: "{{ inventory_hostname }}"
    state: drain
    wait: drained
    timeout: 600
  delegate_to: balancer1
  become: true

- name: Put it back and wait until HAProxy sends requests to it
  gpufleet.vllm.haproxy_server:
    backend: vllm-minimax-m25
    server: "{{ inventory_hostname }}"
    state: ready
    wait: up
  delegate_to: balancer1
  become: true
"""

RETURN = r"""
state:
  description: The administrative state, V(ready), V(drain) or V(maint).
  returned: when HAProxy knows the server
  type: str
  sample: drain
was:
  description: The state before.
  returned: when HAProxy knows the server
  type: str
  sample: ready
operational:
  description:
    - What its health checks say - V(up), V(failing) where it is up and the last check failed, V(down), V(recovering) where it is down and
      the last check passed, V(unchecked), or V(unknown), as in the state V(maint).
  returned: when HAProxy knows the server
  type: str
  sample: up
check:
  description: What the last health check said, in HAProxy's words.
  returned: when HAProxy knows the server
  type: str
  sample: "L7OK: Layer7 check passed, status 200"
in_flight:
  description: How many requests it has now, or has waiting for it.
  returned: when HAProxy knows the server
  type: int
  sample: 0
waited_seconds:
  description: How long the wait took.
  returned: when HAProxy knows the server
  type: float
  sample: 4.2
serving:
  description: The servers of the backend to which requests go now.
  returned: when HAProxy knows the server
  type: list
  elements: str
  sample: [gpu2, gpu3]
code:
  description:
    - A stable word for the reason of a failure, V(no_socket), V(no_permission), V(unknown_backend), V(unknown_server), V(refused),
      V(not_drained) or V(not_up).
  returned: failure
  type: str
  sample: not_drained
"""

import os
import socket
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.haproxy import STATES, Exchange, Server, patient, read_servers, set_state, the_server, wait_for

ANSWER_TIMEOUT = 10.0


def exchange(path: str) -> Exchange:
    """One connection a command, as HAProxy closes it after the answer; the master only answers where the command's end is seen.

    Either of them may be away for a moment: a reload replaces the worker, and the master executes itself again.
    """

    def ask(command: str) -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_TIMEOUT)
            connection.connect(path)
            connection.sendall(f"{command}\n".encode())
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("r", encoding="utf-8", errors="replace") as answer:
                return answer.read()

    def ask_by_name(command: str) -> str:
        try:
            return ask(command)
        except OSError as exc:
            # Of one that only has a text, such as that of a timeout, it would be lost beside a path.
            raise type(exc)(exc.errno, exc.strerror or str(exc), path) from exc

    return patient(ask_by_name, time.monotonic, time.sleep)


class Balancer:
    """The backend of one balancer, over its sockets."""

    def __init__(self, params: t.Mapping[str, t.Any]) -> None:
        self.backend, self.name = params["backend"], params["server"]
        self._ask = exchange(params["socket"])
        self._ask_master = exchange(params["master_socket"]) if os.path.exists(params["master_socket"]) else None

    def servers(self) -> dict[str, Server]:
        return read_servers(self._ask, self.backend, self._ask_master)

    def server(self) -> Server:
        return the_server(self.servers(), self.backend, self.name)

    def bring(self, state: str) -> None:
        set_state(self._ask, self.backend, self.name, state)


def apply(module: AnsibleModule, balancer: Balancer) -> dict[str, t.Any]:
    """Set the state if it is another one, wait, and tell."""
    before = balancer.server()
    wanted = module.params["state"] or before.state
    changed, waited = wanted != before.state, 0.0
    if changed and not module.check_mode:
        balancer.bring(wanted)
    if module.params["wait"] != "none" and not module.check_mode:
        pace: dict[str, t.Any] = {"timeout": module.params["timeout"], "clock": time.monotonic, "sleep": time.sleep}
        try:
            _server, waited = wait_for(module.params["wait"], balancer.server, balancer.backend, **pace)
        except VllmError as exc:
            exc.details.update(changed=changed, was=before.state)
            raise
    servers = balancer.servers()
    now = the_server(servers, balancer.backend, balancer.name)
    facts = {**now._asdict(), "state": wanted if module.check_mode else now.state, "was": before.state}
    facts.pop("name")
    diff = {"before": f"{balancer.name}: {before.state}\n", "after": f"{balancer.name}: {wanted}\n"} if changed else {}
    serving = [server.name for server in servers.values() if server.serves]
    return {"changed": changed, **facts, "waited_seconds": round(waited, 2), "serving": serving, "diff": diff}


def main() -> None:
    """Set, wait and report."""
    module = AnsibleModule(
        argument_spec={
            "socket": {"type": "path", "default": "/run/haproxy/admin.sock"},
            "master_socket": {"type": "path", "default": "/run/haproxy-master.sock"},
            "backend": {"type": "str", "required": True},
            "server": {"type": "str", "required": True},
            "state": {"type": "str", "choices": list(STATES)},
            "wait": {"type": "str", "choices": ["none", "drained", "up"], "default": "none"},
            "timeout": {"type": "float", "default": 300.0},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(module, Balancer(module.params))
    except VllmError as exc:
        exc.details.pop("name", None)
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    except PermissionError as exc:
        module.fail_json(msg=f"HAProxy's socket may not be used ({exc.strerror}). Run this as root (become: true).", code="no_permission")
    except OSError as exc:
        remedy = "Start haproxy.service, or set socket and master_socket to the stats socket of its configuration and to its master's."
        module.fail_json(msg=f"HAProxy does not answer on {exc.filename} ({exc.strerror}). {remedy}", code="no_socket")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
