#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remember that a release passed its gate."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_release_proven
short_description: Remember that the current release of a vLLM deployment passed its gate
version_added: 0.1.0
description:
  - Makes the link C(proven) of a deployment name its current release, in one step. It is what a rollout returns to when a later release
    fails its gate, and M(gpufleet.vllm.release_cleanup) keeps it.
  - Asks nothing of the server. Call it after M(gpufleet.vllm.vllm_health) said that the server is ready.
options:
  deployment:
    description: Name of the deployment; its unit is C(vllm-NAME.service).
    type: str
    required: true
  release:
    description: The release that passed. If it is not the current one any more, the module fails with the code V(not_current).
    type: str
    required: true
  root:
    description: Folder that holds the deployments.
    type: path
    default: /etc/gpufleet
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details: Whether the release is current is not looked at then, since what makes it so wrote nothing.
  diff_mode:
    support: full
seealso:
  - module: gpufleet.vllm.vllm_health
  - module: gpufleet.vllm.vllm_roll_back
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Remember that it answers
  gpufleet.vllm.vllm_release_proven:
    deployment: minimax-m25
    release: "{{ release.release }}"
  become: true
"""

RETURN = r"""
release:
  description: The release that is proven now.
  returned: success
  type: str
  sample: 5d1f8a0b6c3e
before:
  description: The one that was proven before. V(null) where none was.
  returned: success
  type: str
  sample: 0a9b8c7d6e5f
code:
  description: Why it was refused. One of V(bad_deployment), V(bad_layout), V(not_current).
  returned: failure
  type: str
  sample: not_current
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.release import deployment_name
from ..module_utils._core.release_store import ReleaseStore
from ..module_utils._releases import locked


def prove(module: AnsibleModule) -> dict[str, t.Any]:
    """Switch the link, unless somebody made another release current meanwhile."""
    deployment, release = deployment_name(module.params["deployment"]), module.params["release"]
    store = ReleaseStore(Path(module.params["root"]), deployment)
    with locked(store.folder.parent):
        current, before = store.linked("current"), store.linked("proven")
        if current != release and not module.check_mode:
            raise VllmError(
                f"Release {release} of {deployment} is not current, {current or 'none'} is.",
                code="not_current",
                remedy="Somebody else deployed meanwhile: look at what runs, and deploy again.",
            )
        if not module.check_mode:
            store.prove(release)
    headers = dict.fromkeys(("before_header", "after_header"), str(store.folder / "proven"))
    diff = {**headers, "before": f"releases/{before}\n" if before else "", "after": f"releases/{release}\n"}
    return {"changed": before != release, "release": release, "before": before, "diff": diff}


def main() -> None:
    """Remember and report."""
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "release": {"type": "str", "required": True},
            "root": {"type": "path", "default": "/etc/gpufleet"},
        },
        supports_check_mode=True,
    )
    try:
        result = prove(module)
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
