#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install one version of an engine into its own venv."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_install
short_description: Install one version of vLLM into its own venv
version_added: 0.1.0
description:
  - Makes O(dest) a venv that holds exactly O(package) at O(version) with what it needs, installed by C(uv).
  - Versions live side by side, so that a new engine is installed while the old one serves, and going back is a matter of a link.
  - A venv is complete only when its marker file C(.gpufleet-complete.json) is written, which happens last and in one step.
    What a run that was killed leaves behind has no marker and is removed by the next run.
  - A complete venv is never changed. Asking for anything else under the same O(dest) fails, because a running engine or a release
    to go back to may depend on it. Where packages come from (O(index_url), O(extra_index_urls), O(find_links), O(no_index)) does not count.
  - C(uv) keeps its cache in C(.uv-cache) beside O(dest), so that what versions have in common takes space once.
    It may be removed at any time. The environment variable E(UV_CACHE_DIR) names another place.
  - When the venv is complete, the module starts no process and needs neither C(uv) nor a network.
options:
  dest:
    description: The folder of the venv, for example C(/opt/gpufleet/engines/vllm-0.33.0).
    type: path
    required: true
  package:
    description: The distribution that holds the engine.
    type: str
    default: vllm
  version:
    description: Its exact version.
    type: str
    required: true
  extra_packages:
    description: Further requirements to install with the engine in one resolution.
    type: list
    elements: str
    default: []
  overrides:
    description:
      - Requirement lines that replace what the packages ask for.
      - A marker that is never true takes a package out, for example V(torchaudio ; sys_platform == 'never').
    type: list
    elements: str
    default: []
  python:
    description:
      - The interpreter, as a path or a version such as V(3.12).
      - It must not lie in a home directory, which the unit of an engine cannot see.
      - A version that the host lacks is downloaded by C(uv) into O(python_dir), unless O(no_index=true).
    type: str
    default: /usr/bin/python3
  python_dir:
    description: Where C(uv) keeps interpreters that it downloads.
    type: path
    default: /opt/gpufleet/python
  command:
    description: The command that the venv must have in its C(bin) folder at the end.
    type: str
    default: vllm
  index_url:
    description: The package index to use instead of the default one. Credentials in it are kept secret.
    type: str
  extra_index_urls:
    description: Further package indexes, asked before the default one. Credentials in them are kept secret.
    type: list
    elements: str
    default: []
  find_links:
    description: Folders or pages with wheels. An address with credentials is refused here.
    type: list
    elements: str
    default: []
  no_index:
    description: Use nothing but O(find_links), for hosts without a way to an index.
    type: bool
    default: false
  uv:
    description: The C(uv) program.
    type: path
    default: /opt/gpufleet/host/bin/uv
  lock_timeout:
    description: How many seconds to wait for another run that works on the same O(dest).
    type: int
    default: 900
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - The gpufleet.vllm contributors (@gpufleet)
"""

EXAMPLES = r"""
- name: Install vLLM beside the versions that are there
  gpufleet.vllm.engine_install:
    dest: /opt/gpufleet/engines/vllm-0.33.0
    version: 0.33.0

- name: Install from a folder of wheels, without a network
  gpufleet.vllm.engine_install:
    dest: /opt/gpufleet/engines/vllm-0.33.0
    version: 0.33.0
    python: /usr/bin/python3.12
    find_links:
      - /srv/wheels
    no_index: true
"""

RETURN = r"""
dest:
  description: The folder of the venv.
  returned: success
  type: str
  sample: /opt/gpufleet/engines/vllm-0.33.0
command:
  description: Path of the engine's command.
  returned: success
  type: str
  sample: /opt/gpufleet/engines/vllm-0.33.0/bin/vllm
requirement:
  description: The engine as it was asked for.
  returned: success
  type: str
  sample: vllm==0.33.0
marker:
  description: The file whose presence says that the venv is complete.
  returned: success
  type: str
  sample: /opt/gpufleet/engines/vllm-0.33.0/.gpufleet-complete.json
converged:
  description:
    - Whether everything was as it should be already.
    - It is the answer of a question that is asked in check mode, whatever C(changed_when) makes of the question.
  returned: success
  type: bool
  sample: true
python_version:
  description: Version of the interpreter that the venv uses.
  returned: when the venv is complete
  type: str
  sample: 3.12.3
packages:
  description: Every installed package and its version.
  returned: when the venv is complete
  type: dict
  sample: {"torch": "2.13.0", "vllm": "0.33.0"}
leftover_removed:
  description: Whether an incomplete venv was (or in check mode would be) removed first.
  returned: success
  type: bool
  sample: false
seconds:
  description: How long the installation took.
  returned: when something was installed
  type: float
  sample: 61.3
code:
  description:
    - A stable word for the reason of a failure, such as V(no_matching_wheel), V(index_unreachable), V(hash_mismatch), V(disk_full)
      or V(other_engine).
  returned: failure
  type: str
  sample: no_matching_wheel
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._core.errors import VllmError
from ..module_utils._core.redaction import without_secrets
from ..module_utils._core.venv import (
    Marker,
    Source,
    Spec,
    check_spec,
    refuse_other_spec,
    secrets_of,
)
from ..module_utils._venv import Venv

_ARGUMENTS: dict[str, t.Any] = {
    "dest": {"type": "path", "required": True},
    "package": {"type": "str", "default": "vllm"},
    "version": {"type": "str", "required": True},
    "extra_packages": {"type": "list", "elements": "str", "default": []},
    "overrides": {"type": "list", "elements": "str", "default": []},
    "python": {"type": "str", "default": "/usr/bin/python3"},
    "python_dir": {"type": "path", "default": "/opt/gpufleet/python"},
    "command": {"type": "str", "default": "vllm"},
    "index_url": {"type": "str", "no_log": True},
    "extra_index_urls": {"type": "list", "elements": "str", "default": [], "no_log": True},
    "find_links": {"type": "list", "elements": "str", "default": []},
    "no_index": {"type": "bool", "default": False},
    "uv": {"type": "path", "default": "/opt/gpufleet/host/bin/uv"},
    "lock_timeout": {"type": "int", "default": 900},
}


def ensure(module: AnsibleModule, venv: Venv) -> dict[str, t.Any]:
    """Find the venv complete, or make it so; in check mode say what would happen."""
    marker = _accepted(venv)
    if marker or module.check_mode:
        return _result(venv, marker, changed=marker is None, leftover=venv.has_leftover())
    with venv.locked(module.params["lock_timeout"]):
        marker = _accepted(venv)
        if marker:
            return _result(venv, marker, changed=False, leftover=False)
        leftover = venv.has_leftover()
        started = time.monotonic()
        marker = venv.build()
        seconds = round(time.monotonic() - started, 1)
        return {**_result(venv, marker, changed=True, leftover=leftover), "seconds": seconds}


def _accepted(venv: Venv) -> t.Optional[Marker]:
    marker = venv.marker()
    if marker:
        refuse_other_spec(str(venv.dest), marker, venv.spec)
    return marker


def _result(venv: Venv, marker: t.Optional[Marker], *, changed: bool, leftover: bool) -> dict[str, t.Any]:
    leftover = leftover and changed
    before = "absent" if not leftover else "incomplete"
    wanted = "".join(f"{line}\n" for line in (venv.spec.requirement, *venv.spec.extra_packages))
    header = str(venv.dest)
    found: dict[str, t.Any] = {"python_version": marker.python_version, "packages": marker.packages} if marker else {}
    return {
        "changed": changed,
        "converged": not changed,
        "dest": str(venv.dest),
        "command": str(venv.command),
        "requirement": venv.spec.requirement,
        "marker": str(venv.marker_path),
        "leftover_removed": leftover,
        "diff": {"before_header": header, "after_header": header, "before": f"{before}\n" if changed else wanted, "after": wanted},
        **found,
    }


def _asked(params: t.Mapping[str, t.Any]) -> tuple[Spec, Source]:
    spec = Spec(
        package=params["package"],
        version=params["version"],
        extra_packages=tuple(params["extra_packages"]),
        overrides=tuple(params["overrides"]),
        python=params["python"],
        command=params["command"],
    )
    return spec, Source(params["index_url"], tuple(params["extra_index_urls"]), tuple(params["find_links"]), params["no_index"])


def main() -> None:
    """Read the options and answer."""
    module = AnsibleModule(argument_spec=_ARGUMENTS, supports_check_mode=True)
    spec, source = _asked(module.params)
    secrets = secrets_of((*source.find_links, *spec.extra_packages, *spec.overrides))
    module.no_log_values.update(secrets)
    try:
        check_spec(spec, source)
        result = ensure(module, Venv(module, spec, source))
    except VllmError as exc:
        module.fail_json(**without_secrets({"msg": str(exc), "code": exc.code, **exc.details}, secrets))
    module.exit_json(**without_secrets(result, secrets))


if __name__ == "__main__":
    main()
