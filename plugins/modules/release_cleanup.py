#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove releases, engines and weights that nothing refers to."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_cleanup
short_description: List, and on demand remove, releases, engines and weights that nothing refers to
version_added: 0.1.0
description:
  - Looks through all deployments of the host. Nothing is removed unless O(remove) says so; by default what is unused is only listed, with
    its bytes.
  - A release is unused when it is neither current, nor the one before, nor what its unit runs, nor among the latest O(keep).
  - An engine or a snapshot of weights is unused when no remaining release of any deployment, no link beside it, no running process and
    nothing in O(keep_paths) refers to it, and it is older than O(min_age).
  - Only what is this collection's own and whole is ever removed. Releases that were edited, engines without their marker, folders without a
    receipt, and folders that hold anybody else's files are kept, and RV(kept) says so.
  - What is removed is first put aside in one step. The next run finishes what a killed one left.
  - Weights on a file system that other hosts may see (NFS, Lustre and so on) are kept, since releases of other hosts may refer to them.
options:
  remove:
    description: What to remove. Without, all three are looked for and nothing is removed.
    type: list
    elements: str
    choices: [releases, engines, weights]
    default: []
  keep:
    description: Number of releases of each deployment to keep. The current one, the one before and the one that runs count and always stay.
    type: int
    default: 5
  min_age:
    description:
      - Seconds for which engines and weights stay in any case after they came. A deployment brings them before its release refers to them.
      - Do not lower it while a deployment is under way.
    type: int
    default: 86400
  keep_paths:
    description: Further folders that are in use. What is one of them, below one or around one is kept.
    type: list
    elements: path
    default: []
  root:
    description: Folder that holds the deployments.
    type: path
    default: /etc/gpufleet
  engines:
    description: Folder that holds the engines.
    type: path
    default: /opt/gpufleet/engines
  weights:
    description: Stores of weights, with a folder for each model and in it one for each commit.
    type: list
    elements: path
    default: [/var/lib/gpufleet/models]
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details: Whether another program is at work on an engine or on weights is not tried; it keeps them when it is so.
  diff_mode:
    support: full
    details: Shows the folders that go.
notes:
  - Run it as root. Other users see neither all releases nor what processes use.
  - Files that two snapshots share by hard links stay whole in the other one, whose receipt is told.
  - A host without any release keeps all engines and weights, since nothing is known of what is in use there.
seealso:
  - module: gpufleet.vllm.vllm_release
  - module: gpufleet.vllm.model_verify
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: See what nothing refers to
  gpufleet.vllm.release_cleanup:
  register: cleanup
  become: true

- name: Remove it
  gpufleet.vllm.release_cleanup:
    remove: [releases, engines, weights]
    keep: 3
  become: true
"""

RETURN = r"""
unused:
  description: What nothing refers to; of the kinds in O(remove), or of all.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description: One of V(releases), V(engines) and V(weights).
      type: str
      returned: always
      sample: weights
    path:
      description: Its folder.
      type: str
      returned: always
      sample: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/f710177d938eff80b684d42c5aa84b382612f21f
    why:
      description: Why it is unused.
      type: str
      returned: always
      sample: no release refers to it
    bytes:
      description: Bytes of its files, those that it shares with others included.
      type: int
      returned: always
      sample: 230000000000
bytes:
  description: Bytes that are free when all of RV(unused) is gone. Files with further hard links do not count.
  returned: success
  type: int
  sample: 230000000000
removed:
  description: Folders that were removed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/opt/gpufleet/engines/vllm-0.31.0]
kept:
  description: What stays, and why.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description: One of V(releases), V(engines) and V(weights).
      type: str
      returned: always
      sample: engines
    path:
      description: Its folder.
      type: str
      returned: always
      sample: /opt/gpufleet/engines/vllm-0.33.0
    why:
      description: Why it stays.
      type: str
      returned: always
      sample: release 5d1f8a0b6c3e of minimax-m25 refers to it
code:
  description: One of V(bad_layout), V(bad_state_file), V(no_permission), V(not_removed), V(release_unreadable).
  returned: failure
  type: str
  sample: release_unreadable
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.cleanup import KINDS, Finding, Places, Survey, survey
from ..module_utils._core.cleanup_removal import measure, put_aside, remove
from ..module_utils._core.errors import VllmError
from ..module_utils._host import proc_fs
from ..module_utils._releases import locked, try_lock_of


def look(params: t.Mapping[str, t.Any]) -> Survey:
    """What is unused now."""
    places = Places(Path(params["root"]), Path(params["engines"]), tuple(map(Path, params["weights"])))
    keep_paths = [Path(path) for path in params["keep_paths"]]
    kinds = params["remove"] or KINDS
    return survey(places, proc_fs(), kinds=kinds, keep=params["keep"], min_age=params["min_age"], keep_paths=keep_paths)


def clean_up(module: AnsibleModule) -> dict[str, t.Any]:
    """Look and put aside while no release changes; then delete, which takes its time."""
    removes = bool(module.params["remove"])
    aside: dict[Path, Path] = {}
    with locked(Path(module.params["root"])):
        found = look(module.params)
        if removes and not module.check_mode:
            moved = {finding.path: put_aside(finding, try_lock_of(finding.kind)) for finding in found.unused}
            aside = {path: place for path, place in moved.items() if place}
            found = with_busy(found, moved)
    places = {finding.path: aside.get(finding.path, finding.path) for finding in found.unused}
    sizes = measure(places.values())
    for finding in found.unused if aside else ():
        remove(finding.kind, places[finding.path], try_lock_of(finding.kind))
    paths = [str(path) for path in places] if removes else []
    return {
        "changed": bool(paths),
        "unused": [{**told(finding), "bytes": sizes.each[places[finding.path]]} for finding in found.unused],
        "bytes": sizes.freed,
        "kept": [told(finding) for finding in found.kept],
        "removed": paths,
        "diff": {"before_header": "unused", "after_header": "unused", "before": "".join(f"{path}\n" for path in paths), "after": ""},
    }


def with_busy(found: Survey, moved: t.Mapping[Path, t.Optional[Path]]) -> Survey:
    """What somebody is at work on is kept."""
    busy = [finding._replace(why="somebody is at work on it") for finding in found.unused if moved[finding.path] is None]
    return Survey([finding for finding in found.unused if moved[finding.path]], found.kept + busy)


def told(finding: Finding) -> dict[str, str]:
    """A finding as it is returned."""
    return {"kind": finding.kind, "path": str(finding.path), "why": finding.why}


def main() -> None:
    """Look, remove if asked, report."""
    module = AnsibleModule(
        argument_spec={
            "remove": {"type": "list", "elements": "str", "choices": list(KINDS), "default": []},
            "keep": {"type": "int", "default": 5},
            "min_age": {"type": "int", "default": 86400},
            "keep_paths": {"type": "list", "elements": "path", "default": []},
            "root": {"type": "path", "default": "/etc/gpufleet"},
            "engines": {"type": "path", "default": "/opt/gpufleet/engines"},
            "weights": {"type": "list", "elements": "path", "default": ["/var/lib/gpufleet/models"]},
        },
        supports_check_mode=True,
    )
    try:
        result = clean_up(module)
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, **exc.details)
    except PermissionError as exc:
        module.fail_json(msg=f"{exc.filename} cannot be read or removed. Run this as root (become: true).", code="no_permission")
    except OSError as exc:
        module.fail_json(msg=f"{exc.filename} could not be removed ({exc.strerror}). Run this again; it goes on there.", code="not_removed")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
