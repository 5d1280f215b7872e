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
  - Climbs a ladder and reports the rung it reached. The unit is alive; its own processes hold the port; C(/health) says so; the API key
    is taken and the intended model is served from the intended path; a question with one right answer gets it.
  - Goes on waiting while a start is under way, however long that is visible in the journal, and moves its deadline with the shards that
    are read, the phases that pass and the graphs that are captured.
  - Fails at once, with the cause from the journal of exactly that start and the remedy, where the unit failed or was restarted meanwhile,
    where the key is refused, another model is served, or the model answers nonsense.
options:
  url:
    description:
      - Root of the server, without C(/v1). For an address that means all of the host's, such as V(0.0.0.0), the loopback address is taken.
      - Proxy settings of the environment are ignored for a loopback address, and wherever O(unit) is given.
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
    description: The rung to wait for.
    type: str
    choices: [alive, listening, healthy, serving, answering]
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
    description: How many seconds one generation may take. The first one of a server can take long.
    type: float
    default: 120.0
  answer_check:
    description:
      - V(judged) wants the right answer to one of two simple questions. A reasoning model may still be thinking when its tokens are spent.
      - V(any) is content with any generated text, for models that know nothing.
    type: str
    choices: [judged, any]
    default: judged
  ca_path:
    description: PEM file with the CA that signed the server's certificate.
    type: path
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
    - A stable word for a failure. V(unit_failed) (see RV(cause)), V(unit_not_found), V(unit_not_running), V(port_foreign), V(engine_dead),
      V(key_needed), V(key_refused), V(wrong_model_name), V(wrong_model_path), V(generation_timeout), V(empty_answer), V(degenerate_answer),
      V(wrong_answer), V(request_refused), V(stalled), V(timeout), V(tls_untrusted), V(name_unknown), V(no_release),
      V(no_permission).
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
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.engine_config import address, names_of, read_engine_yaml
from ..module_utils._core.errors import VllmError
from ..module_utils._core.health import LEVELS, Effects, Want, look_once, wait_ready
from ..module_utils._core.host_files import read_json, unit_name
from ..module_utils._core.release import deployment_name
from ..module_utils._host import module_runner, proc_fs
from ..module_utils._http import http_transport
from ..module_utils._progress import progress_writer

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def server_root(url: str) -> str:
    """The address to ask: no slash at the end, and a host in place of the word for all of them."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise VllmError(
            f"url is {url!r}, which is no http or https address.", code="bad_url", remedy="Set it to one like http://127.0.0.1:8000."
        )
    host = LOOPBACK.get(parts.hostname)
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{host}{port}" if host else parts.netloc, path=parts.path.rstrip("/"), query="", fragment=""))


def is_loopback(url: str) -> bool:
    """An address of this host that no proxy can reach."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def of_release(root: str, deployment: str) -> dict[str, t.Any]:
    """What the current release of a deployment says of its server."""
    current = Path(root) / deployment_name(deployment) / "current"
    record = read_json(current / "release.json")
    if record is None:
        raise VllmError(f"{current} holds no release.", code="no_release", remedy=f"Deploy {deployment}, or give url and unit.")
    options = read_engine_yaml((current / "engine.yaml").read_text(encoding="utf-8"))
    names, keys = names_of(options, "served-model-name"), names_of(options, "api-key")
    target = {"url": address(options), "unit": unit_name(deployment), "model_path": record["model_path"]}
    return {**target, "served_model_name": next(iter(names), None), "api_key": next(iter(keys), None)}


def options_of(params: t.Mapping[str, t.Any]) -> Want:
    """The module's options as the core takes them."""
    if params["level"] == "alive" and not params["unit"]:
        raise VllmError("level is alive and unit is not given.", code="bad_options", remedy="Set unit: only systemd knows what is alive.")
    known = {name: params[name] for name in Want._fields if params[name] is not None}
    return Want(**{**known, "url": server_root(params["url"])})


def effects_of(module: AnsibleModule, want: Want) -> Effects:
    """The real host."""
    use_proxy = not (want.unit or is_loopback(want.url))
    return Effects(
        transport=http_transport(ca_path=module.params["ca_path"], use_proxy=use_proxy),
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
        "level": {"type": "str", "choices": list(LEVELS), "default": "answering"},
        "timeout": {"type": "float", "default": 1800.0},
        "stall_timeout": {"type": "float", "default": 300.0},
        "answer_timeout": {"type": "float", "default": 120.0},
        "answer_check": {"type": "str", "choices": ["judged", "any"], "default": "judged"},
        "ca_path": {"type": "path"},
        "progress_path": {"type": "path"},
    }


def main() -> None:
    """Look or wait, and report."""
    module = AnsibleModule(argument_spec=argument_spec(), required_one_of=[("url", "deployment")], supports_check_mode=True)
    given = {name: value for name, value in module.params.items() if value is not None}
    try:
        released = of_release(given["root"], given["deployment"]) if "deployment" in given else {}
        want = options_of({**module.params, **released, **given})
        module.no_log_values |= {want.api_key} - {""}
        effects = effects_of(module, want)
        health = look_once(want, effects) if module.check_mode else wait_ready(want, effects)
    except PermissionError as exc:
        module.fail_json(msg=f"{exc.filename} cannot be read. Run this as root (become: true).", code="no_permission")
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    result = {"level": health.level, "ready": health.ready, "reason": health.reason, **health.facts}
    if health.code and not module.check_mode:
        message = f"{health.reason.rstrip('.')}. {health.remedy}".strip()
        module.fail_json(msg=message, code=health.code, **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
