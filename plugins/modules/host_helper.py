#!/usr/bin/python
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the host helper."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_helper
short_description: Install the program that units of vLLM deployments run beside the engine
version_added: 0.1.0
description:
  - Writes C(gpufleet-host), one executable file that holds the same code as the modules of this collection,
    so that a unit waits for GPUs, starts its engine and records failures by the rules that a play uses.
  - The file is a Python zip application; it is replaced in one step and only when its content differs. What is there and was packed by
    nobody here is kept beside it.
options:
  dest:
    description: The file to write.
    type: path
    default: /opt/gpufleet/host/bin/gpufleet-host
  python:
    description: The interpreter that runs it, with C(nvidia-ml-py) installed.
    type: path
    default: /opt/gpufleet/host/bin/python
  requirements:
    description:
      - What must be installed for O(python), as C(name==version); spelling of names does not matter.
      - What is missing is returned. It is not installed here, and without check mode it is a failure.
    type: list
    elements: str
    default: []
  main:
    description: Source text of the program, which imports the collection's own code as C(gpufleet_host).
    type: str
    required: true
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
- name: Install the host helper
  gpufleet.vllm.host_helper:
    main: "{{ lookup('ansible.builtin.file', 'gpufleet_host.py') }}"
"""

RETURN = r"""
dest:
  description: The file that holds the program.
  returned: success
  type: str
  sample: /opt/gpufleet/host/bin/gpufleet-host
backup:
  description: Where the file that somebody else had put there was copied to.
  returned: when there was one and it was replaced
  type: str
  sample: /opt/gpufleet/host/bin/gpufleet-host.4711.2026-11-29@18:15:00~
converged:
  description:
    - Whether everything was as it should be already.
    - It is the answer of a question that is asked in check mode, whatever C(changed_when) makes of the question.
  returned: success
  type: bool
  sample: true
missing:
  description: Entries of O(requirements) that are not installed so.
  returned: success, and when they are missing
  type: list
  elements: str
  sample: [nvidia-ml-py==13.615.71]
sha256:
  description: Hash of the program, equal on every host that runs the same version.
  returned: success
  type: str
  sample: 4f0c9dbb6cbd3a3f7e3b2d6a4b6a7f5ad1a4a2f0f8c1f7d4d0a5b0c6f7e8d9c0
"""

import hashlib
import io
import os
import re
import typing as t
import zipfile
import zlib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._zipapp import zip_application

# Ansible packs for the host what is imported by name, even where that import is never made: the program is these files, not this process.
if t.TYPE_CHECKING:
    from ..module_utils import _nvml, _processes  # noqa: F401
    from ..module_utils._core import (  # noqa: F401
        diagnose,
        durable,
        effects,
        errors,
        failures,
        gpu_arrival,
        gpu_choice,
        gpu_details,
        gpu_links,
        gpu_names,
        gpu_readings,
        gpu_threshold,
        gpu_verdict,
        gpu_wait,
        gpus,
        host_files,
        journal,
        log_lines,
        nvml_calls,
        nvml_failure,
        nvml_minimal,
        pci,
        phases,
        procs,
        reap,
        restart_pause,
        unit,
        unit_check,
    )

_PARTS = (
    "_nvml",
    "_processes",
    "_core/diagnose",
    "_core/durable",
    "_core/effects",
    "_core/errors",
    "_core/failures",
    "_core/gpu_arrival",
    "_core/gpu_choice",
    "_core/gpu_details",
    "_core/gpu_links",
    "_core/gpu_names",
    "_core/gpu_readings",
    "_core/gpu_threshold",
    "_core/gpu_verdict",
    "_core/gpu_wait",
    "_core/gpus",
    "_core/host_files",
    "_core/journal",
    "_core/log_lines",
    "_core/nvml_calls",
    "_core/nvml_failure",
    "_core/nvml_minimal",
    "_core/pci",
    "_core/phases",
    "_core/procs",
    "_core/reap",
    "_core/restart_pause",
    "_core/unit",
    "_core/unit_check",
)


def _source(part: str) -> str:
    """The text of one of the collection's files, from the folder or from the archive that Ansible sent."""
    name = f"{zip_application.__module__.rpartition('.')[0]}.{part.replace('/', '.')}"
    found: t.Any = find_spec(name)
    text = found and found.loader.get_source(name)
    if not text:
        raise ImportError(f"{name} came without its source.")
    return str(text)


def application(python: str, main: str) -> bytes:
    """The whole program: the collection's code as the package gpufleet_host, and the text that starts it."""
    files = {
        "__main__.py": main,
        "gpufleet_host/__init__.py": "",
        "gpufleet_host/_core/__init__.py": "",
        **{f"gpufleet_host/{part}.py": _source(part) for part in _PARTS},
    }
    return zip_application(files, f"{python} -I")


def is_packed(content: bytes) -> bool:
    """Whether it is a program as this module packs it, of whatever version, and none of its parts was changed."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "gpufleet_host/__init__.py" in archive.namelist() and archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error):
        return False


def missing_of(python: Path, requirements: t.Sequence[str]) -> list[str]:
    """The requirements that the venv of this interpreter does not hold."""
    folders = [str(folder) for folder in python.parent.parent.glob("lib/python3*/site-packages")]
    held = {_name(found.metadata["Name"]): found.version for found in metadata.distributions(path=folders)}
    wanted = {line: line.partition("==") for line in requirements}
    return [line for line, (name, _is, version) in wanted.items() if held.get(_name(name)) != version]


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write(module: AnsibleModule, dest: Path, content: bytes, found: bytes) -> dict[str, str]:
    """Write beside, then let Ansible move it into place; keep what somebody else had put there."""
    backup = {"backup": str(module.backup_local(str(dest)))} if found and not is_packed(found) else {}
    staged = Path(module.tmpdir) / "gpufleet-host"
    staged.write_bytes(content)
    module.atomic_move(str(staged), str(dest))
    module.set_mode_if_different(str(dest), "0755", changed=True)
    return backup


def main() -> None:
    """Compare and write."""
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "default": "/opt/gpufleet/host/bin/gpufleet-host"},
            "python": {"type": "path", "default": "/opt/gpufleet/host/bin/python"},
            "requirements": {"type": "list", "elements": "str", "default": []},
            "main": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    dest, python = Path(module.params["dest"]), Path(module.params["python"])
    missing = missing_of(python, module.params["requirements"])
    if missing and not module.check_mode:
        module.fail_json(msg=f"{python} lacks {', '.join(missing)}. Install it there first.", missing=missing)
    content = application(str(python), module.params["main"])
    found = dest.read_bytes() if dest.is_file() else b""
    changed = found != content or not os.access(dest, os.X_OK) or bool(missing)
    before, after = (hashlib.sha256(data).hexdigest() for data in (found, content))
    backup = write(module, dest, content, found) if changed and not module.check_mode else {}
    diff = {
        "before_header": str(dest),
        "after_header": str(dest),
        "before": f"sha256 {before}\n" if found else "",
        "after": f"sha256 {after}\n",
    }
    result = {"changed": changed, "converged": not changed, "missing": missing, "dest": str(dest), "sha256": after, "diff": diff}
    module.exit_json(**result, **backup)


if __name__ == "__main__":
    main()
