# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-test sanity over what the collection ships, without containers and without downloading a pip.

ansible-test wants a git repository at .../ansible_collections/<namespace>/<name>, so it gets a copy. It bootstraps pip with a
script that it downloads unless its cache has one; the cache gets one that installs the pip which comes with the interpreter. It has a home
folder of its own for that, and drops pip's settings from the environment, so these are written to that home's configuration file.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

from gates.report import ROOT
from gates.venv import find_python

__all__ = ["sanity_commands", "sanity_environment"]

SHIPPED = (
    "plugins",
    "roles",
    "playbooks",
    "meta",
    "changelogs",
    "inventories/gpu-hosts",
    "tests/sanity",
    "galaxy.yml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
)
LINK_BACK = "playbooks/collections/"
COPY = ROOT / ".cache" / "sanity" / "ansible_collections" / "gpufleet" / "vllm"
HOME = ROOT / ".cache" / "ansible-test-home"
# The oldest Python of a target, and those of controllers. Each costs ansible-test a venv.
VERSIONS = ("3.9", "3.11", "3.12", "3.13")
BOOTSTRAP = "import ensurepip\n\nensurepip.bootstrap()\n"


def shipped_files() -> list[str]:
    """Tracked and new files of the shipped folders, without what git ignores."""
    argv = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "--", *SHIPPED]
    listed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted({name for name in listed if (ROOT / name).is_file() and not name.startswith(LINK_BACK)})


def copy_tree() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    for name in shipped_files():
        (COPY / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, COPY / name)
    subprocess.run(["git", "init", "--quiet", str(COPY)], check=True)
    subprocess.run(["git", "-C", str(COPY), "add", "--all"], check=True)


def pip_settings() -> str:
    """Pip's settings as they hold here, environment included, as a configuration file."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout
    settings = dict(re.findall(r"^(?:global|user|site|:env:)\.?\.([\w-]+)='(.*)'$", listed, flags=re.MULTILINE))
    settings["quiet"] = "2"
    settings.pop("config-file", None)
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())


def pip_version() -> str:
    """The version of pip that the installed ansible-test bootstraps."""
    spec = importlib.util.find_spec("ansible_test")
    folder = Path(spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else "")
    source = (folder / "_internal" / "python_requirements.py").read_text()
    found = re.search(r"\bpip='([\d.]+)'", source)
    return found.group(1) if found else "unknown"


def prepare_home() -> None:
    cache = HOME / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / f"get_pip_{pip_version().replace('.', '_')}.py").write_text(BOOTSTRAP)
    (HOME / ".config" / "pip").mkdir(parents=True, exist_ok=True)
    (HOME / ".config" / "pip" / "pip.conf").write_text(pip_settings())


def sanity_environment() -> dict[str, str]:
    """Real interpreters on PATH (version managers' shims fail in ansible-test), and the home of its own."""
    found = [python for version in VERSIONS if (python := find_python(version))]
    rest = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if "shims" not in Path(folder).parts]
    folders = [str(Path(sys.executable).parent), *(str(Path(python).parent) for python in reversed(found)), *rest]
    return {"HOME": str(HOME), "PATH": os.pathsep.join(dict.fromkeys(folders))}


def sanity_commands() -> t.Iterator[list[str]]:
    copy_tree()
    prepare_home()
    yield [
        "env",
        f"--chdir={COPY}",
        str(Path(sys.executable).parent / "ansible-test"),
        "sanity",
        "--local",
        "--color",
        "no",
        "--skip-test",
        "pslint",
    ]
