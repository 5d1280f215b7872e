#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a release and make it current."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_release
short_description: Write a release of a vLLM deployment and make it the current one
version_added: 0.1.0
description:
  - A release is one immutable state of a deployment - weights, engine, arguments, environment and GPUs. Its name is a hash of its content.
  - The files are written beside and renamed whole; the links C(current) and C(previous) change in one step. A release that was
    edited by hand is reported, shown as a diff, moved aside and written again. Files that were made readable get their rights back.
  - Tells whether the running unit must be restarted, by comparing with what the unit was started with, so that a play that was
    interrupted is completed by the next one.
options:
  deployment:
    description: Name of the deployment; its unit is C(vllm-NAME.service).
    type: str
    required: true
  root:
    description: Folder that holds the deployments.
    type: path
    default: /etc/gpufleet
  model_path:
    description: Folder of the proven weights, one commit. It is taken as it is - no variable or C(~) in it is expanded.
    type: str
    required: true
  engine_path:
    description: Engine venv, with C(bin/vllm) in it. It is taken as it is - no variable or C(~) in it is expanded.
    type: str
    required: true
  arguments:
    description:
      - Options of C(vllm serve) by their long names, as vLLM spells them without dashes in front.
      - V(true) gives the flag, V(false) its C(no-) form; lists and dictionaries are passed on as they are, those inside a list as JSON.
      - A value that begins with a dash is refused unless it is a number, since the engine would take it for an option.
    type: dict
    default: {}
  api_keys:
    description: Keys that clients must present one of. They are written to the engine's configuration only, which only root reads.
    type: list
    elements: str
    default: []
  environment:
    description:
      - Environment variables of the engine. No secrets belong here, every process of the engine inherits them.
      - Text and numbers arrive as they are; V(null) leaves a variable out. Text that systemd cannot hand over is refused.
    type: dict
    default: {}
  gpus:
    description: UUIDs of the GPUs that the deployment uses; none for an engine that runs on the CPU.
    type: list
    elements: str
    default: []
  gpu_wait:
    description:
      - What the unit's start waits for, as in M(gpufleet.vllm.gpu_memory_wait).
      - With C(reap=none) in it the start leaves processes alone that an earlier run of the unit left behind; it ends them by default.
    type: dict
    default: {}
  origin:
    description: Where model and engine come from, for people and reports.
    type: dict
    default: {}
  replaces:
    description: Units that make room for this deployment. Whether they run or are enabled is returned; nothing is done to them.
    type: list
    elements: str
    default: []
  unit_text:
    description:
      - Text that the unit file is to have, for a plan that is made before the file is written. It is compared and never written here.
    type: str
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Values of O(api_keys) are left out.
seealso:
  - module: gpufleet.vllm.vllm_release_proven
  - module: gpufleet.vllm.vllm_roll_back
  - module: gpufleet.vllm.release_cleanup
  - module: gpufleet.vllm.vllm_health
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Make these arguments the current release
  gpufleet.vllm.vllm_release:
    deployment: minimax-m25
    model_path: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/3f1c0f5c7f0e4d0c8b7e2a9d1c5b6a7f8e9d0c1b
    engine_path: /opt/gpufleet/engines/vllm-0.33.0
    arguments:
      tensor-parallel-size: 4
      max-num-seqs: 256
  register: release
"""

RETURN = r"""
deployment:
  description: Name of the deployment.
  returned: success
  type: str
  sample: minimax-m25
model_path:
  description: Folder of the release's weights.
  returned: success
  type: str
  sample: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/f710177d938eff80b684d42c5aa84b382612f21f
engine_path:
  description: Engine venv of the release.
  returned: success
  type: str
  sample: /opt/gpufleet/engines/vllm-0.33.0
release:
  description: Name of the release.
  returned: success
  type: str
  sample: 5d1f8a0b6c3e
path:
  description: Folder of the release.
  returned: success
  type: str
  sample: /etc/gpufleet/minimax-m25/releases/5d1f8a0b6c3e
previous:
  description: Release that was current before this one, or that C(previous) names.
  returned: success
  type: str
  sample: 0a9b8c7d6e5f
proven:
  description: Release that passed its gate last, as M(gpufleet.vllm.vllm_release_proven) noted. V(null) where none did.
  returned: success
  type: str
  sample: 0a9b8c7d6e5f
converged:
  description:
    - Whether everything was as it should be already, the unit file too where O(unit_text) says how.
    - It is the answer of a question that is asked in check mode, whatever C(changed_when) makes of the question.
  returned: success
  type: bool
  sample: true
differences:
  description:
    - What is different from the release that was current - names of vLLM's options, C(weights), C(engine), C(origin), C(environment),
      C(gpus), C(gpu_wait), C(keys), and C(unit) where the unit file is not O(unit_text). Values are left out.
    - Only C(first release) where there was none.
  returned: success
  type: list
  elements: str
  sample: [max-num-seqs]
drift:
  description: Files of this release that were not as written.
  returned: success
  type: list
  elements: str
  sample: [/etc/gpufleet/minimax-m25/releases/5d1f8a0b6c3e/engine.yaml]
opened:
  description: Files of this release whose rights were changed. They are given back, without a restart.
  returned: success
  type: list
  elements: str
  sample: [/etc/gpufleet/minimax-m25/releases/5d1f8a0b6c3e/engine.yaml]
backup:
  description: Where the drifted release was moved to.
  returned: when a drifted release was written again
  type: str
  sample: /etc/gpufleet/minimax-m25/releases/5d1f8a0b6c3e.drift-20261129T181500
restart_required:
  description: Whether the unit runs and must be restarted to run this release.
  returned: success
  type: bool
  sample: true
restart_reason:
  description: Why.
  returned: when RV(restart_required=true)
  type: str
  sample: the unit runs release 0a9b8c7d6e5f, current is 5d1f8a0b6c3e
reload_required:
  description: Whether systemd has yet to read the unit file again.
  returned: success
  type: bool
  sample: false
unit_loaded:
  description: Whether systemd knows the unit.
  returned: success
  type: bool
  sample: true
replaced:
  description: Units of O(replaces) that run or are enabled, and so have yet to make room.
  returned: success
  type: list
  elements: str
  sample: [vllm-kimi-k25.service]
reset:
  description: Whether an earlier failure of the unit was cleared, so that it may be started again.
  returned: success
  type: bool
  sample: false
"""

import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.durable import make_folders
from ..module_utils._core.engine_config import engine_yaml
from ..module_utils._core.errors import VllmError
from ..module_utils._core.host_files import HostFiles
from ..module_utils._core.release import Release, absolute_path, deployment_name, engine_folder, without_keys
from ..module_utils._core.release_store import ReleaseStore
from ..module_utils._core.unit import show_unit
from ..module_utils._host import module_runner
from ..module_utils._releases import locked, unit_facts


def release_of(params: t.Mapping[str, t.Any]) -> Release:
    """The release that the options describe."""
    keys = {"api-key": params["api_keys"]} if params["api_keys"] else {}
    return Release(
        deployment=deployment_name(params["deployment"]),
        model_path=absolute_path(params["model_path"], "model"),
        engine_path=engine_folder(params["engine_path"]),
        arguments={**params["arguments"], **keys},
        environment=params["environment"],
        gpus=params["gpus"],
        gpu_wait=params["gpu_wait"],
        origin=params["origin"],
    )


def diff_of(store: ReleaseStore, release: Release) -> list[dict[str, str]]:
    """What changes: the drifted files, or the configuration of the release before and of this one."""
    drift = [*store.drift(release), *store.opened(release)]
    if drift:
        return [
            {
                "before_header": f"{d.path} (edited)",
                "after_header": d.path,
                "before": without_keys(d.found),
                "after": without_keys(d.wanted),
            }
            for d in drift
        ]
    before = store.linked("current")
    before_path = store.path(before or "none") / "engine.yaml"
    before_text = before_path.read_text(encoding="utf-8", errors="replace") if before_path.is_file() else ""
    after_path = store.path(release.id) / "engine.yaml"
    headers = {"before_header": str(before_path) if before else "", "after_header": str(after_path)}
    return [{**headers, "before": without_keys(before_text), "after": without_keys(engine_yaml(release.arguments))}]


def apply(module: AnsibleModule, store: ReleaseStore, release: Release) -> dict[str, t.Any]:
    """Write what is missing or drifted, switch the link; in check mode only say so."""
    drift, opened = ([entry.path for entry in found] for found in (store.drift(release), store.opened(release)))
    write = bool(drift) or not store.path(release.id).is_dir()
    current = store.linked("current")
    result: dict[str, t.Any] = {"changed": write or bool(opened) or current != release.id, "drift": drift, "opened": opened}
    if result["changed"]:
        result["diff"] = diff_of(store, release)
    if not module.check_mode:
        make_folders(store.folder.parent)
        with locked(store.folder.parent):
            backup = store.write(release, time.strftime("%Y%m%dT%H%M%S")) if write else None
            store.close(release)
            store.switch(release.id)
        if backup:
            result["backup"] = backup
    result["previous"] = current if current != release.id else store.linked("previous")
    result["proven"] = store.linked("proven")
    return result


def differences_of_unit(module: AnsibleModule, deployment: str) -> list[str]:
    """Whether the unit file is another one than is wanted."""
    wanted, found = module.params["unit_text"], HostFiles(deployment).unit_text()
    return ["unit"] if wanted is not None and (found is None or found.rstrip() != wanted.rstrip()) else []


def yet_to_make_room(module: AnsibleModule, units: t.Sequence[str]) -> list[str]:
    """The units that run, or would after a boot."""
    states = [show_unit(module_runner(module), unit) for unit in units]
    return [state.name for state in states if state.is_alive or state.is_enabled]


def main() -> None:
    """Write, switch, report."""
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "root": {"type": "path", "default": "/etc/gpufleet"},
            "model_path": {"type": "str", "required": True},
            "engine_path": {"type": "str", "required": True},
            "arguments": {"type": "dict", "default": {}},
            "api_keys": {"type": "list", "elements": "str", "default": [], "no_log": True},
            "environment": {"type": "dict", "default": {}},
            "gpus": {"type": "list", "elements": "str", "default": []},
            "gpu_wait": {"type": "dict", "default": {}},
            "origin": {"type": "dict", "default": {}},
            "replaces": {"type": "list", "elements": "str", "default": []},
            "unit_text": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        release = release_of(module.params)
        store = ReleaseStore(Path(module.params["root"]), release.deployment)
        differences = [*store.differences(release), *differences_of_unit(module, release.deployment)]
        result = apply(module, store, release)
        result.update(differences=differences, converged=not (result["changed"] or differences))
        unit_text, drifted = module.params["unit_text"], bool(result["drift"])
        result.update(unit_facts(module, release.deployment, release.id, drifted=drifted, unit_text=unit_text))
        result.update(replaced=yet_to_make_room(module, module.params["replaces"]))
        paths = {"path": str(store.path(release.id)), "model_path": release.model_path, "engine_path": release.engine_path}
        result.update(deployment=release.deployment, release=release.id, **paths)
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
