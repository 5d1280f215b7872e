#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a folder hold a model repository's snapshot and prove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_download
short_description: Fetch a model from a Hugging Face Hub and prove that it is whole
version_added: 0.1.0
description:
  - Makes O(dest) hold the files of O(repo_id) at one commit, and proves it before anything counts.
  - The C(weight_map) of the repository's index decides which shards exist, never a count or the numbers in file names.
  - Every file that is fetched is proven by its published hash. It is fetched into a hidden folder beside O(dest) and moved into place
    when everything is proven, so a run that fails or is killed leaves nothing that could be taken for a whole model.
  - Only files that are missing or bad are fetched again, and files an interrupted run had finished are kept.
  - A receipt in the folder binds the proof to each file's identity (size, times, inode), so a second run reads no file.
    With a full commit as O(revision) it sends no request either, with a branch or tag just one.
  - A new commit gets a folder of its own where O(dest) says so with C({commit}). What another commit's folder holds already is shared
    with it by hard links, so only what changed is fetched. A folder that holds one commit is never turned into another.
  - A hub that cannot be reached is a failure, whatever lies in the folder.
  - Run as a task, it shows its progress on the controller.
  - "In check mode only metadata is requested and nothing is written. The same errors come up: access denied, disk too small, revision
    unknown. With O(verify=receipt), files whose proof has lapsed are not hashed in check mode; they count as a change and are named in
    RV(unproven)."
requirements:
  - huggingface_hub on the Python that runs the module, where something is to be fetched from a hub
options:
  repo_id:
    description: The repository, as C(organisation/name).
    type: str
    required: true
  revision:
    description: A branch, a tag or a full commit. Only a full commit is the same for ever.
    type: str
    default: main
  dest:
    description: The folder for the snapshot. The literal C({commit}) in it is replaced by the commit.
    type: path
    required: true
  endpoint:
    description:
      - The address of the Hub or of a mirror of it.
      - The Xet protocol is used with the public Hub only, since it would go past a mirror.
    type: str
    default: https://huggingface.co
  source:
    description:
      - A folder on the host to copy from, instead of a Hub. The copy is proven like a download.
      - It may be another host's model folder with its receipt, the Hub client's cache or a folder that C(hf download --local-dir) made, or
        any folder with a file C(SHA256SUMS). The last needs a full commit as O(revision).
      - A folder that knows no hashes is accepted with O(verify=structure) only.
    type: path
  token:
    description: An access token. It appears in no argument list, log or result, and goes to the endpoint's own host only.
    type: str
  token_file:
    description: A file on the host that holds the token.
    type: path
  include:
    description:
      - Shell patterns of the files that are wanted. Given, they alone decide, and weights outside the index come along where they match.
      - By default everything, except weights that the index or C(model.safetensors) holds already and further copies in C(original/).
    type: list
    elements: str
    default: []
  exclude:
    description: Shell patterns of files that are not wanted. They never drop a shard that the index names.
    type: list
    elements: str
    default: []
  load_format:
    description:
      - The C(--load-format) that vLLM is going to use. With V(mistral) the C(consolidated) weights are the wanted ones, else those of
        C(model.safetensors.index.json). Never both.
    type: str
    default: auto
  verify:
    description:
      - How files that are there already are proven.
      - V(receipt) trusts the record of an earlier proof for each file that is still the same one, and hashes the others.
      - V(structure) reads the safetensors headers. It finds what is truncated, foreign or missing, but no changed byte in the data.
      - V(sha256) hashes everything, on all cores. The page cache is left as it was, for those who serve from it.
    type: str
    choices: [receipt, structure, sha256]
    default: receipt
  max_workers:
    description: How many files are fetched at the same time.
    type: int
    default: 8
  bandwidth_limit:
    description:
      - The most bytes a second that this run fetches or copies, for instance V(200MB). By default there is no limit.
      - With a limit the Xet protocol is not used.
    type: bytes
  remove_unexpected:
    description:
      - Remove weights and partial files in the folder that are no part of the snapshot, and what interrupted downloads of other commits
        left.
      - What a process has open stays. Without this they are reported and left alone.
    type: bool
    default: false
  offline:
    description: Prove what is there without a network, by the receipt or else by the index and the headers.
    type: bool
    default: false
  retry_timeout:
    description: How many seconds to go on trying, with growing pauses, while no further file comes in.
    type: int
    default: 300
  stall_timeout:
    description:
      - After how many seconds without a single byte all transfers are broken off and tried again.
      - A single connection that is silent for half as long is taken up again by itself.
    type: int
    default: 120
  lock_timeout:
    description: How many seconds to wait for another process that writes the same folder.
    type: int
    default: 3600
  ca_path:
    description: A PEM file with the authority that signed the endpoint's certificate.
    type: path
  owner:
    description: The user that owns the files and folders.
    type: str
  group:
    description: The group of the files and folders.
    type: str
  mode:
    description: The mode of files. Folders get the same, and whoever may read may enter them.
    type: str
    default: u=rwX,go=rX
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.progress
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
seealso:
  - module: gpufleet.vllm.model_verify
  - module: gpufleet.vllm.model_info
author: The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Fetch MiniMax-M2.5
  gpufleet.vllm.model_download:
    repo_id: MiniMaxAI/MiniMax-M2.5
    revision: main
    dest: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/{commit}
    token_file: /etc/gpufleet/hub-token
    group: models
    mode: u=rwX,g=rX,o=
  register: weights

- name: Say what would be fetched, and whether it may be and fits
  gpufleet.vllm.model_download:
    repo_id: MiniMaxAI/MiniMax-M2.5
    dest: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/{commit}
  check_mode: true

- name: Hash every file of a model in use, without a network
  gpufleet.vllm.model_download:
    repo_id: MiniMaxAI/MiniMax-M2.5
    dest: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/{commit}
    verify: sha256
    offline: true
"""

RETURN = r"""
commit:
  description: The commit that O(revision) stands for.
  type: str
  returned: success
  sample: 4c1b2d0f6a7e8b9c0d1e2f3a4b5c6d7e8f901234
path:
  description: The folder with the snapshot.
  type: str
  returned: success
  sample: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/4c1b2d0f6a7e8b9c0d1e2f3a4b5c6d7e8f901234
bytes_downloaded:
  description: The bytes of the files that were fetched, or in check mode would be.
  type: int
  returned: success
  sample: 230130000000
bytes_total:
  description: The bytes of all wanted files.
  type: int
  returned: success
  sample: 230130000000
files:
  description: How many files are wanted.
  type: int
  returned: success
  sample: 134
fetched:
  description: The files that were fetched, or in check mode would be.
  type: list
  elements: str
  returned: success
  sample: [model-00073-of-00126.safetensors]
repaired:
  description: Those among them that were missing or bad in a folder that existed already.
  type: list
  elements: str
  returned: success
  sample: [model-00073-of-00126.safetensors]
linked:
  description: The files that another commit's folder held already and that are shared with it now, or in check mode would be.
  type: list
  elements: str
  returned: success
  sample: [model-00001-of-00126.safetensors]
converged:
  description:
    - Whether everything was as it should be already.
    - It is the answer of a question that is asked in check mode, whatever C(changed_when) makes of the question.
  returned: success
  type: bool
  sample: true
unproven:
  description: With O(verify=receipt) the files whose content is not proven. In check mode a run would hash them and fetch those that fail.
  type: list
  elements: str
  returned: success
  sample: []
left_out:
  description: Files of the repository that hold the same weights once more and are therefore not wanted.
  type: list
  elements: str
  returned: success
  sample: [consolidated.safetensors]
shards:
  description: The weights at the end of the run, or in check mode as they are.
  type: dict
  returned: success
  contains:
    expected:
      description: The shards that the index names.
      type: list
      elements: str
      sample: [model-00000-of-00126.safetensors]
    present:
      description: Those that are there and not bad.
      type: list
      elements: str
      sample: [model-00000-of-00126.safetensors]
    missing:
      description: Those that are not there.
      type: list
      elements: str
      sample: []
    damaged:
      description: Those that are there and are not what is published.
      type: list
      elements: str
      sample: []
    unexpected:
      description: Other weights and partial files in the folder that were left alone.
      type: list
      elements: str
      sample: []
tensors_unindexed:
  description: How many tensors a shard holds and the index does not name, among the shards whose headers were read in this run.
  type: int
  returned: success
  sample: 0
tensors_unindexed_names:
  description: The first ten of them.
  type: list
  elements: str
  returned: success
  sample: []
leftovers:
  description: What interrupted downloads of other commits left beside the folder.
  type: list
  elements: str
  returned: success
  sample: []
removed:
  description: What O(remove_unexpected) removed, or in check mode would remove.
  type: list
  elements: str
  returned: success
  sample: []
msg:
  description: All of it in one sentence, or why it failed and what to do.
  type: str
  returned: always
  sample: "134 files, 230.1 GB, proven by sha256."
verified:
  description: The level that the wanted files were proven at in this run.
  type: str
  returned: success
  sample: sha256
receipt:
  description: The path of the receipt.
  type: str
  returned: success
  sample: /var/lib/gpufleet/models/MiniMaxAI--MiniMax-M2.5/4c1b2d0f6a7e8b9c0d1e2f3a4b5c6d7e8f901234/.gpufleet-receipt.json
renamed_to:
  description: The present name of the repository.
  type: str
  returned: when the hub knows the repository under another name
  sample: MiniMaxAI/MiniMax-M2.5-FP8
seconds:
  description: How long the module worked.
  type: float
  returned: always
  sample: 612.4
code:
  description:
    - Why it failed, as a stable word.
    - One of V(access_denied), V(client_missing), V(damaged), V(disk_full), V(hashes_unknown), V(hub_unreachable), V(incomplete), V(locked),
      V(nothing_selected), V(other_commit), V(other_repository), V(repository_inconsistent), V(repository_not_found),
      V(revision_not_found), V(source_dangling), V(source_incomplete), V(source_inconsistent), V(source_missing), V(source_unreadable),
      V(token_unreadable).
  type: str
  returned: failure
  sample: hub_unreachable
missing:
  description: The files that are missing.
  type: list
  elements: str
  returned: failure, where it is about files
  sample: [model-00101-of-00126.safetensors]
damaged:
  description: The files that are bad.
  type: list
  elements: str
  returned: failure, where it is about files
  sample: [model-00012-of-00126.safetensors]
"""

import os
import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._attributes import settler
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.download import download
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.download_job import Effects, Fetch, Request, Source, lock_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.download_verdicts import remarks
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.folder_source import FolderCopier, FolderSource
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import DEFAULT_ENDPOINT, Hub
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.throttle import Throttle
from ansible_collections.gpufleet.vllm.plugins.module_utils._http import http_transport
from ansible_collections.gpufleet.vllm.plugins.module_utils._hub_client import HubClient
from ansible_collections.gpufleet.vllm.plugins.module_utils._progress import progress_writer
from ansible_collections.gpufleet.vllm.plugins.module_utils._writer_lock import try_writer_lock, writer_lock

ARGUMENTS = {
    "repo_id": {"type": "str", "required": True},
    "revision": {"type": "str", "default": "main"},
    "dest": {"type": "path", "required": True},
    "endpoint": {"type": "str", "default": DEFAULT_ENDPOINT},
    "source": {"type": "path"},
    "token": {"type": "str", "no_log": True},
    "token_file": {"type": "path", "no_log": False},
    "include": {"type": "list", "elements": "str", "default": []},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "load_format": {"type": "str", "default": "auto"},
    "verify": {"type": "str", "choices": ["receipt", "structure", "sha256"], "default": "receipt"},
    "max_workers": {"type": "int", "default": 8},
    "bandwidth_limit": {"type": "bytes"},
    "remove_unexpected": {"type": "bool", "default": False},
    "offline": {"type": "bool", "default": False},
    "retry_timeout": {"type": "int", "default": 300},
    "stall_timeout": {"type": "int", "default": 120},
    "lock_timeout": {"type": "int", "default": 3600},
    "ca_path": {"type": "path"},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "mode": {"type": "str", "default": "u=rwX,go=rX"},
    "progress_path": {"type": "path"},
}
AS_THEY_ARE = ("repo_id", "revision", "verify", "retry_timeout", "remove_unexpected")


def request_of(params: t.Mapping[str, t.Any], check: bool) -> Request:
    return Request(
        **{name: params[name] for name in AS_THEY_ARE},
        include=tuple(params["include"]),
        exclude=tuple(params["exclude"]),
        dest=os.path.abspath(params["dest"]),
        load_format="mistral" if params["load_format"] == "mistral" else "auto",
        offline=params["offline"] and not params["source"],  # a folder is no network
        check=check,
    )


def token_of(params: t.Mapping[str, t.Any]) -> t.Optional[str]:
    if not params["token_file"]:
        return params["token"] or None
    try:
        return Path(params["token_file"]).read_text(encoding="utf-8").strip() or None
    except OSError as exc:
        message = f"The token file {params['token_file']} cannot be read ({exc.strerror})."
        raise VllmError(message, code="token_unreadable", remedy="Check the path in token_file.") from exc


def source_of(module: AnsibleModule) -> tuple[Source, Fetch]:
    """Where the repository is read, and how its files are brought from there."""
    params, limit = module.params, module.params["bandwidth_limit"]
    if params["source"]:
        folder, throttle = FolderSource(Path(params["source"]), params["repo_id"]), Throttle(limit, time.monotonic, time.sleep)
        return folder, FolderCopier(folder, throttle=throttle, max_workers=params["max_workers"]).fetch
    token = token_of(params)
    module.no_log_values.update([token] if token else [])
    transport = http_transport(ca_path=params["ca_path"], follow_redirects="none")
    hub = Hub(params["endpoint"], params["repo_id"], transport, time.sleep, token, patience=params["retry_timeout"])
    limits = params["max_workers"], params["stall_timeout"]
    return hub, HubClient(params["repo_id"], hub.endpoint, token, *limits, bundle=params["ca_path"], bandwidth_limit=limit).fetch


def effects_of(module: AnsibleModule) -> Effects:
    source, fetch = source_of(module)
    report, patience = progress_writer(module.params["progress_path"]), module.params["lock_timeout"]
    return Effects(
        source=source,
        fetch=fetch,
        lock=lambda folder: writer_lock(lock_of(folder), timeout=patience, report=report),
        try_lock=lambda folder: try_writer_lock(lock_of(folder)),
        settle=settler(module),
        clock=time.monotonic,
        sleep=time.sleep,
        report=report,
    )


def diff_of(result: t.Mapping[str, t.Any]) -> dict[str, str]:
    lines = {verb: "".join(f"{name}\n" for name in result[verb]) for verb in ("fetched", "linked", "removed")}
    headers = {"before_header": f"{result['path']} (removed)", "after_header": f"{result['path']} (new)"}
    return {"before": lines["removed"], "after": lines["fetched"] + lines["linked"], **headers}


def main() -> None:
    exclusive = [("token", "token_file"), ("source", "token"), ("source", "token_file")]
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True, mutually_exclusive=exclusive)
    started = time.monotonic()
    try:
        result = download(request_of(module.params, module.check_mode), effects_of(module))
    except VllmError as exc:
        module.fail_json(msg=str(exc), code=exc.code, seconds=round(time.monotonic() - started, 3), **exc.details)
    for remark in remarks(module.params["repo_id"], result):
        module.warn(remark)
    if module._diff:
        result["diff"] = diff_of(result)
    module.exit_json(**result, seconds=round(time.monotonic() - started, 3))


if __name__ == "__main__":
    main()
