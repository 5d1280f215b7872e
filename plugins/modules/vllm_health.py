#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until a vLLM server answers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_health
short_description: Wait until a vLLM server is ready, or say at once why it will not be
version_added: 0.1.0
description:
  - Climbs a ladder and reports the rung it reached. The unit is alive; its own processes hold the port and listen on nothing else beyond
    loopback; C(/health) says so; the API key is taken and the intended model is served from the intended path; a question with one right
    answer gets it.
  - Goes on waiting while a start is under way, however long that is visible in the journal, and moves its deadline with the shards that
    are read, the phases that pass and the graphs that are captured.
  - Fails at once, with the cause from the journal of exactly that start and the remedy, where the unit failed or was restarted meanwhile,
    where the key is refused, another model is served, or the model answers nonsense.
  - Waits as well until nothing is in flight any more, so that a server can be stopped and no request is lost.
options:
  url:
    description:
      - Root of the server, without C(/v1). A root path belongs to it (V(http://127.0.0.1:8000/vllm)).
      - For an address that means all of the host's, such as V(0.0.0.0), the loopback address is taken.
      - A server that listens on a socket file is V(unix:///run/vllm.sock).
      - Required without O(deployment).
    type: str
  deployment:
    description:
      - Deployment on this host. What is not given of O(url), O(unit), O(api_key), O(served_model_name) and O(model_path) is read from its
        current release, so that no key has to travel.
    type: str
  root:
    description: Folder that holds the deployments.
    type: path
    default: /etc/gpufleet
  unit:
    description:
      - Systemd unit of the server on this host. Its state and its journal are watched, and the port must belong to its processes.
      - Needed for the level V(alive).
    type: str
  api_key:
    description: One of the keys that the server was given.
    type: str
  served_model_name:
    description: Name that the server must list. Any name is right where it is not given.
    type: str
  model_path:
    description: Folder from which the server must have loaded the model, taken as it is. Not compared where it is not given.
    type: str
  level:
    description:
      - The rung to wait for.
      - V(drained) is none of the ladder. It is reached when no request runs or waits, as the server's own C(/metrics) count them, and none
        came in between two looks. A server that does not run, or refuses connections, is drained. Take it out of its balancer first.
      - For V(drained) nothing but O(timeout) limits the wait.
    type: str
    choices: [alive, listening, healthy, serving, answering, drained]
    default: answering
  timeout:
    description:
      - How many seconds to wait for the level.
      - Progress that is seen moves this deadline, see O(stall_timeout).
    type: float
    default: 1800.0
  stall_timeout:
    description:
      - After progress is seen the wait goes on for at least this many seconds, also beyond O(timeout).
      - Where steps are counted (shards, graphs) and none is done for this long, the wait ends, also before O(timeout).
    type: float
    default: 300.0
  answer_timeout:
    description:
      - How many seconds one generation may take. The first one of a server can take long.
      - A generation that takes longer is waited for again while the server's counters say that it produces tokens.
    type: float
    default: 120.0
  answer_check:
    description:
      - V(judged) wants the right answer to one of two simple questions. A reasoning model may still be thinking when its tokens are spent.
      - V(any) is content with any generated text, for models that know nothing. Silence, and logprobs or vectors that are not finite, are
        failures all the same.
    type: str
    choices: [judged, any]
    default: judged
  logprobs:
    description:
      - Whether the numbers behind the words are asked for too, to find those that are not finite.
      - vLLM compiles what computes them at the first such request. On a host without a C++ compiler that ends the engine (seen with its CPU
        build 0.32.0), so it is for hosts that are known to have one.
    type: bool
    default: false
  expected_listeners:
    description:
      - What the unit's processes may listen on beyond loopback besides the port of the server, each entry a port (V(29500)), an address
        (V(10.0.0.5)), a network (V(10.0.0.0/24)), an address with a port (V(10.0.0.5:29500), V([fd00::5]:29500)), or V(*) for anything.
      - Any other listener is a failure where O(unit) is given. The processes of an engine trust whoever reaches their sockets.
    type: list
    elements: str
    default: []
  ca_path:
    description: PEM file with the CA that signed the server's certificate.
    type: path
  use_proxy:
    description:
      - Whether the proxy variables of the environment are heeded.
      - They never are for a loopback address, an address of this host or a socket file, nor where O(unit) is given.
    type: bool
    default: true
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.read_only
  - gpufleet.vllm.attributes.progress
attributes:
  check_mode:
    support: full
    details: Looks once and reports the level, without waiting; a server that is not ready is no failure then.
notes:
  - Run it as root where O(unit) is given. The journal and the owner of the port are not visible otherwise.
  - A vLLM server listens only when its model is loaded. Until then every connection is refused, which says nothing.
  - The key is sent as a header, to the routes below C(/v1) alone, and never to where a server redirects to.
seealso:
  - module: gpufleet.vllm.listener_info
  - module: gpufleet.vllm.gpu_memory_wait
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Wait until the deployment answers
  gpufleet.vllm.vllm_health:
    url: http://127.0.0.1:8000
    unit: vllm-minimax-m25.service
    served_model_name: minimax-m25
    model_path: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/f710177d938eff80b684d42c5aa84b382612f21f
    api_key: "{{ minimax_api_key }}"
    timeout: 3600
  become: true

- name: See that the current release of a deployment answers
  gpufleet.vllm.vllm_health:
    deployment: minimax-m25
  become: true

- name: Wait until a server that its balancer sends nothing to has answered what it was asked
  gpufleet.vllm.vllm_health:
    deployment: minimax-m25
    level: drained
    timeout: 600
  become: true

- name: Wait for a server behind a socket file
  gpufleet.vllm.vllm_health:
    url: unix:///run/vllm-minimax-m25/api.sock
    unit: vllm-minimax-m25.service
  become: true

- name: See how far a server is
  gpufleet.vllm.vllm_health:
    url: http://127.0.0.1:8000
    unit: vllm-minimax-m25.service
  check_mode: true
  register: server
  become: true
"""

RETURN = r"""
level:
  description: Highest rung reached; empty where not even the first one is.
  returned: always
  type: str
  sample: answering
ready:
  description: Whether O(level) is reached.
  returned: always
  type: bool
  sample: true
reason:
  description: What stands before the next rung, or that the level is reached.
  returned: always
  type: str
  sample: vllm-minimax-m25.service is answering
code:
  description:
    - A stable word for a failure. V(unit_failed) (see RV(cause)), V(unit_not_found), V(unit_not_running), V(port_foreign),
      V(unexpected_listener), V(engine_dead), V(key_needed), V(key_refused), V(wrong_model_name), V(wrong_model_path),
      V(generation_timeout), V(empty_answer), V(degenerate_answer), V(broken_numbers), V(wrong_answer), V(request_refused), V(no_metrics),
      V(stalled), V(timeout), V(tls_untrusted), V(name_unknown), V(no_release), V(no_permission), V(bad_url), V(bad_options),
      V(systemd_unavailable).
  returned: failure
  type: str
  sample: unit_failed
cause:
  description: Why the start failed, as the journal tells it, for RV(code=unit_failed); else the same as RV(code).
  returned: always
  type: str
  sample: oom_sampler_warmup
evidence:
  description: The lines that say so.
  returned: always
  type: list
  elements: str
  sample: ["Worker_TP0: RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."]
remedies:
  description: What to change, the first entry first.
  returned: always
  type: list
  elements: dict
  contains:
    option:
      description: Option of the engine; empty where O(ignore:why) says what to do.
      type: str
      sample: max-num-seqs
    value:
      description: Value to set.
      type: raw
      sample: 256
    why:
      description: Why that helps.
      type: str
      sample: fewer sequences need less memory outside the budget
phases:
  description: What the start went through, from the journal where O(unit) is given, else how long each rung took to reach.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the phase.
      type: str
      sample: loading_weights
    seconds:
      description: How long it took.
      type: float
      sample: 42.5
phase:
  description: Phase that the start is in, or was in at its end. V(null) where O(unit) is not given.
  returned: always
  type: str
  sample: serving
answer:
  description: What the model said last.
  returned: always
  type: str
  sample: "42"
question:
  description: What it was asked.
  returned: when it was asked
  type: str
  sample: What is 17 + 25? Answer with the number only.
probe:
  description: Route that took the question, V(chat), V(completions) or V(embeddings).
  returned: always
  type: str
  sample: chat
latency:
  description: Seconds that the answer took.
  returned: always
  type: float
  sample: 0.21
tokens_per_second:
  description: Generated tokens by RV(latency), which counts the time to the first of them too. V(null) where none were generated.
  returned: always
  type: float
  sample: 9.52
tokens:
  description: How many tokens were generated.
  returned: when it was asked
  type: int
  sample: 2
address:
  description: Address that answered, of all that the name in O(url) has; a proxy's where one was used. V(null) for a socket file.
  returned: always
  type: str
  sample: 127.0.0.1
listeners:
  description: Every TCP port that the unit's processes listen on. Empty where O(unit) is not given, and until the server's port is open.
  returned: always
  type: list
  elements: dict
  contains:
    address:
      description: Address, V(0.0.0.0) or V(::) for all of them.
      type: str
      sample: 127.0.0.1
    port:
      description: Port.
      type: int
      sample: 8000
    pid:
      description: Process that holds it.
      type: int
      sample: 4711
    name:
      description: Name of that process.
      type: str
      sample: vllm
    unit:
      description: Systemd unit of that process.
      type: str
      sample: vllm-minimax-m25.service
requests_running:
  description: How many requests are being answered.
  returned: for level V(drained), when the server counts them
  type: int
  sample: 0
requests_waiting:
  description: How many requests wait for their turn.
  returned: for level V(drained), when the server counts them
  type: int
  sample: 0
version:
  description: Version of the server.
  returned: always
  type: str
  sample: 0.33.0
loaded_path:
  description: Folder from which the server loaded the model.
  returned: when the server lists its models
  type: str
  sample: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/f710177d938eff80b684d42c5aa84b382612f21f
restarts:
  description: How often systemd restarted the unit by itself. V(null) where O(unit) is not given.
  returned: always
  type: int
  sample: 0
unit_end:
  description: State and result of the unit, and how its main process ended last, where the level is not reached and O(unit) is known.
  returned: always
  type: str
  sample: failed (failed), result exit-code, exit status 1
waited_seconds:
  description: How long the module waited.
  returned: always
  type: float
  sample: 61.3
notes:
  description: What could not be checked, and why.
  returned: always
  type: list
  elements: str
  sample: []
"""

import os
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.health import DRAINED, LEVELS, Effects, Want, look_once, wait_ready
from ..module_utils._core.health_target import of_release, options_of
from ..module_utils._core.redaction import without_secrets
from ..module_utils._core.server_url import is_loopback, socket_path
from ..module_utils._host import module_runner, proc_fs
from ..module_utils._http import http_transport, is_of_this_host
from ..module_utils._progress import progress_writer


def effects_of(module: AnsibleModule, want: Want) -> Effects:
    """The real host."""
    is_here = want.unit or is_loopback(want.url) or is_of_this_host(want.url)
    transport = http_transport(
        ca_path=module.params["ca_path"],
        use_proxy=module.params["use_proxy"] and not is_here,
        unix_socket=socket_path(want.url),
        follow_redirects="none",
    )
    return Effects(
        transport=transport,
        runner=module_runner(module),
        clock=time.monotonic,
        sleep=time.sleep,
        report=progress_writer(module.params["progress_path"]),
        proc=proc_fs(),
        real_path=os.path.realpath,
    )


def argument_spec() -> dict[str, t.Any]:
    """The module's options."""
    return {
        "url": {"type": "str"},
        "deployment": {"type": "str"},
        "root": {"type": "path", "default": "/etc/gpufleet"},
        "unit": {"type": "str"},
        "api_key": {"type": "str", "no_log": True},
        "served_model_name": {"type": "str"},
        "model_path": {"type": "str"},
        "level": {"type": "str", "choices": [*LEVELS, DRAINED], "default": "answering"},
        "timeout": {"type": "float", "default": 1800.0},
        "stall_timeout": {"type": "float", "default": 300.0},
        "answer_timeout": {"type": "float", "default": 120.0},
        "answer_check": {"type": "str", "choices": ["judged", "any"], "default": "judged"},
        "logprobs": {"type": "bool", "default": False},
        "expected_listeners": {"type": "list", "elements": "str", "default": []},
        "ca_path": {"type": "path"},
        "use_proxy": {"type": "bool", "default": True},
        "progress_path": {"type": "path"},
    }


def main() -> None:
    """Look or wait, and report."""
    module = AnsibleModule(argument_spec=argument_spec(), required_one_of=[("url", "deployment")], supports_check_mode=True)
    given = {name: value for name, value in module.params.items() if value is not None}
    try:
        released = of_release(given["root"], given["deployment"]) if "deployment" in given else {}
        want = options_of({**module.params, **released, **given})
        effects = effects_of(module, want)
        health = look_once(want, effects) if module.check_mode else wait_ready(want, effects)
    except PermissionError as exc:
        module.fail_json(msg=f"{exc.filename} cannot be read. Run this as root (become: true).", code="no_permission")
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    message = f"{health.reason.rstrip('.')}. {health.remedy}".strip()
    result = {"msg": message, "level": health.level, "ready": health.ready, "reason": health.reason, **health.facts}
    result = without_secrets(result, {want.api_key})
    if health.code and not module.check_mode:
        module.fail_json(code=health.code, **result)
    del result["msg"]
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
