#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make an earlier release current again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_roll_back
short_description: Make an earlier release of a vLLM deployment the current one again
version_added: 0.1.0
description:
  - Returns to the release before the current one, or to one that is named. The links C(current) and C(previous) change in one step each;
    a run that is killed is completed by the next one.
  - The release that is left is noted (C(rolled-back)). A second run without O(release) does not return to it and changes nothing, so a play
    may be run again at any time. A deployment of that release, or O(release), lifts the note.
  - Refuses a release that is blocked by its own failure, that was edited since it was written, or whose weights or engine are gone.
  - Tells whether the running unit must be restarted, as M(gpufleet.vllm.vllm_release) does. It restarts nothing itself.
options:
  deployment:
    description: Name of the deployment; its unit is C(vllm-NAME.service).
    type: str
    required: true
  release:
    description:
      - Name of the release to return to. Default is the one before the current one.
      - Names are hashes of content, GPUs included, so the same deployment has other names on other hosts.
    type: str
  root:
    description: Folder that holds the deployments.
    type: path
    default: /etc/gpufleet
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details: What would be refused is refused then, too.
  diff_mode:
    support: full
    details: Keys are left out.
notes:
  - The unit file stays as the last deployment wrote it. It is the same for every release on GPUs of one NUMA node.
  - A recorded failure of another release than the one that is returned to is kept.
seealso:
  - module: gpufleet.vllm.vllm_release
  - module: gpufleet.vllm.vllm_health
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Return to the release before
  gpufleet.vllm.vllm_roll_back:
    deployment: minimax-m25
  register: release
  become: true

- name: Return to a certain one
  gpufleet.vllm.vllm_roll_back:
    deployment: minimax-m25
    release: 0a9b8c7d6e5f
  become: true
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
  description: The release that is current now.
  returned: success
  type: str
  sample: 0a9b8c7d6e5f
path:
  description: Its folder.
  returned: success
  type: str
  sample: /etc/gpufleet/minimax-m25/releases/0a9b8c7d6e5f
left:
  description: The release that the last roll-back left, this one or one before it.
  returned: success
  type: str
  sample: 5d1f8a0b6c3e
releases:
  description: All releases of the deployment on this host, the one that was written last first.
  returned: success, and when O(release) names none of them
  type: list
  elements: str
  sample: [5d1f8a0b6c3e, 0a9b8c7d6e5f]
proven:
  description: Release that passed its gate last. V(null) where none did.
  returned: success
  type: str
  sample: 0a9b8c7d6e5f
drift:
  description: Files of the release that are not as they were written. One hash covers three of them, so they are named together.
  returned: when the release is refused for that
  type: list
  elements: str
  sample: [/etc/gpufleet/minimax-m25/releases/0a9b8c7d6e5f/engine]
restart_required:
  description: Whether the unit runs and must be restarted to run this release.
  returned: success
  type: bool
  sample: true
restart_reason:
  description: Why.
  returned: when RV(restart_required=true)
  type: str
  sample: the unit runs release 5d1f8a0b6c3e, current is 0a9b8c7d6e5f
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
reset:
  description: Whether an earlier failure of the unit was cleared, so that it may be started again.
  returned: success
  type: bool
  sample: true
code:
  description:
    - Why it was refused.
    - One of V(bad_deployment), V(bad_layout), V(engine_gone), V(no_previous), V(no_release), V(no_such_release), V(release_blocked),
      V(release_drifted), V(weights_gone).
  returned: failure
  type: str
  sample: release_blocked
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.host_files import HostFiles
from ..module_utils._core.release import deployment_name, without_keys
from ..module_utils._core.release_store import ReleaseStore, read_record
from ..module_utils._core.roll_back import choose_release, refuse_unfit
from ..module_utils._releases import locked, unit_facts


def diff_of(store: ReleaseStore, before: str, after: str) -> list[dict[str, str]]:
    """Which release is current, and what is different in it."""
    current = str(store.folder / "current")
    switch = {"before_header": current, "after_header": current, "before": f"releases/{before}\n", "after": f"releases/{after}\n"}
    return [switch, *(_diff_of_file(store.path(before) / name, store.path(after) / name) for name in ("release.json", "engine.yaml"))]


def _diff_of_file(before: Path, after: Path) -> dict[str, str]:
    texts = [path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "" for path in (before, after)]
    shown = dict(zip(("before", "after"), map(without_keys, texts)))
    return {"before_header": str(before), "after_header": str(after), **shown}


def apply(module: AnsibleModule, store: ReleaseStore, release: str) -> dict[str, t.Any]:
    """Switch the links; in check mode only say so."""
    now = store.links()
    then = now.after_return(release)
    result: dict[str, t.Any] = {"changed": now != then, "left": then.rolled_back, "releases": store.ids()}
    if now.current != release:
        result["diff"] = diff_of(store, str(now.current), release)
    if not module.check_mode:
        store.return_to(release)
    return result


def roll_back(module: AnsibleModule) -> dict[str, t.Any]:
    """Choose, refuse, switch; nobody deploys or cleans up meanwhile."""
    deployment = deployment_name(module.params["deployment"])
    store = ReleaseStore(Path(module.params["root"]), deployment)
    with locked(store.folder.parent):
        release = choose_release(store.links(), store.ids(), deployment, module.params["release"])
        refuse_unfit(store, HostFiles(deployment), release)
        result = apply(module, store, release)
    result.update(unit_facts(module, deployment, release, forget_others=False))
    record = read_record(store.path(release)) or {}
    result.update({name: record.get(name) for name in ("deployment", "model_path", "engine_path")})
    result.update(release=release, path=str(store.path(release)), proven=store.linked("proven"))
    return result


def main() -> None:
    """Return to it and report."""
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "release": {"type": "str"},
            "root": {"type": "path", "default": "/etc/gpufleet"},
        },
        supports_check_mode=True,
    )
    try:
        result = roll_back(module)
    except PermissionError as exc:
        module.fail_json(msg=f"{exc.filename} cannot be read. Run this as root (become: true).", code="no_permission")
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
