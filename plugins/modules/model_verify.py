#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove the models that lie on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_verify
short_description: Prove that the models on a host are whole
version_added: 0.1.0
description:
  - Proves the snapshots that M(gpufleet.vllm.model_download) has brought, while servers run from them, and writes nothing.
  - The answer is the verdict, so damaged weights are no failure of the task. It fails where there is nothing it could judge.
  - The published hashes are those in a snapshot's receipt. A folder without one may be a cache of the Hub client, a folder that
    C(hf download --local-dir) made, or one with a file C(SHA256SUMS).
  - Run as a task, it shows its progress on the controller.
options:
  path:
    description:
      - A snapshot, or a store below which every snapshot is proven, as C(<store>/<organisation>--<name>/<commit>/).
    type: path
    required: true
  level:
    description:
      - V(receipt) believes the receipt for each file whose size, times and inode are those of the moment of proof. It reads no file.
      - V(structure) reads the safetensors headers. It finds what is truncated, foreign or missing, but no changed byte in the data.
      - V(sha256) hashes every file, whatever the receipt says, on all cores at the lowest priority. The page cache is left as it was.
    type: str
    choices: [receipt, structure, sha256]
    default: sha256
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.read_only
  - gpufleet.vllm.attributes.progress
attributes:
  check_mode:
    support: full
    details: Changes nothing.
notes:
  - What it finds damaged or missing, M(gpufleet.vllm.model_download) fetches again, and nothing else.
seealso:
  - module: gpufleet.vllm.model_download
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Prove every model of the store
  gpufleet.vllm.model_verify:
    path: /var/lib/gpufleet/models
  register: weights
  become: true

- name: Refuse to go on with damaged ones
  ansible.builtin.assert:
    that: weights.proven
    fail_msg: "{{ weights.msg }}"

- name: Look at one snapshot quickly
  gpufleet.vllm.model_verify:
    path: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/4c1b2d0f6a7e8b9c0d1e2f3a4b5c6d7e8f901234
    level: structure
  become: true
"""

RETURN = r"""
proven:
  description: Whether every snapshot is proven at O(level).
  type: bool
  returned: success
  sample: false
snapshots:
  description: The verdict on each snapshot.
  type: list
  elements: dict
  returned: success
  contains:
    path:
      description: Its folder.
      type: str
      sample: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/4c1b2d0f6a7e8b9c0d1e2f3a4b5c6d7e8f901234
    repo_id:
      description: The repository; empty where the folder does not tell.
      type: str
      sample: MiniMaxAI/MiniMax-M2.5
    commit:
      description: The commit; empty where the folder does not tell.
      type: str
      sample: 4c1b2d0f6a7e8b9c0d1e2f3a4b5c6d7e8f901234
    revision:
      description: The branch or tag it was fetched for; empty where the folder does not tell.
      type: str
      sample: main
    state:
      description:
        - V(proven), or V(damaged) where files are missing or bad.
        - V(incomplete) where a download or repair is under way or was interrupted.
        - V(unproven) where nothing tells what the files have to be.
      type: str
      sample: damaged
    proven:
      description: Whether RV(snapshots[].state) is V(proven).
      type: bool
      sample: false
    level:
      description: The level that all its files passed; empty where they did not.
      type: str
      sample: ""
    files:
      description: How many files belong to it.
      type: int
      sample: 134
    bytes:
      description: Their bytes.
      type: int
      sample: 230130000000
    missing:
      description: The files that are not there.
      type: list
      elements: str
      sample: [model-00101-of-00126.safetensors]
    damaged:
      description: The files that are not what is published.
      type: list
      elements: dict
      contains:
        name:
          description: Path below the folder.
          type: str
          sample: model-00073-of-00126.safetensors
        why:
          description: What is wrong with it.
          type: str
          sample: has 1841000111 bytes instead of 1841000112
    unexpected:
      description: Other weights and partial files in the folder.
      type: list
      elements: str
      sample: []
    message:
      description: The verdict in words, with the remedy where there is one.
      type: str
      sample: >-
        /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/4c1b2d0f6a7e8b9c0d1e2f3a4b5c6d7e8f901234 is not whole:
        model-00073-of-00126.safetensors has 1841000111 bytes instead of 1841000112; missing: model-00101-of-00126.safetensors.
        Deploy the model again: that fetches exactly these files.
seconds:
  description: How long the module worked.
  type: float
  returned: always
  sample: 97.3
code:
  description:
    - Why it failed, as a stable word.
    - One of V(path_missing), V(nothing_to_prove), V(source_inconsistent), V(source_missing), V(source_unreadable).
  type: str
  returned: failure
  sample: nothing_to_prove
msg:
  description: What is not proven and why, in sentences; or why the module failed and what to do.
  type: str
  returned: always
  sample: 2 snapshots proven below /var/lib/gpufleet/models.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.download_job import lock_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.model_verify import verify
from ansible_collections.gpufleet.vllm.plugins.module_utils._progress import progress_writer
from ansible_collections.gpufleet.vllm.plugins.module_utils._writer_lock import STALE

ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "level": {"type": "str", "choices": ["receipt", "structure", "sha256"], "default": "sha256"},
    "progress_path": {"type": "path"},
}
LOWEST = 19


def is_held(folder: Path) -> bool:
    """Whether a writer on this host has the lock, or one on another host showed a sign of life lately. Takes and writes nothing."""
    lock = lock_of(folder)
    with contextlib.suppress(OSError), lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    with contextlib.suppress(OSError):
        return any(abs(time.time() - record.stat().st_mtime) < STALE for record in lock.parent.glob(f"{lock.name}.*"))
    return False


def main() -> None:
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    started = time.monotonic()
    os.nice(LOWEST)
    try:
        path = Path(os.path.abspath(module.params["path"]))
        result = verify(path, module.params["level"], progress_writer(module.params["progress_path"]), is_held)
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, seconds=round(time.monotonic() - started, 3), **exc.details)
    module.exit_json(changed=False, **result, seconds=round(time.monotonic() - started, 3))


if __name__ == "__main__":
    main()
