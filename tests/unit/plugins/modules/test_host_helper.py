# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""host_helper, really run: the program it writes is whole, the same everywhere, and runs without Ansible."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import typing as t
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from support.running import HOST_PROGRAM, ROOT, Answer, environment, run_module

Helper = t.Callable[..., Answer]


@pytest.fixture
def helper(tmp_path: Path) -> Helper:
    def run(check_mode: bool = False, **options: t.Any) -> Answer:
        arguments = {"dest": str(tmp_path / "gpufleet-host"), "python": sys.executable, "main": HOST_PROGRAM.read_text()}
        return run_module("host_helper", tmp_path, **{**arguments, "_ansible_check_mode": check_mode, "_ansible_diff": True, **options})

    return run


def test_checked_and_done_twice_it_changes_once(helper: Helper) -> None:
    answers = [helper(check_mode=True), helper(), helper(check_mode=True), helper()]
    assert [answer["changed"] for answer in answers] == [True, True, False, False]
    assert len({answer["sha256"] for answer in answers}) == 1
    assert answers[0]["diff"]["before"] == "" and answers[0]["diff"]["after"] == f"sha256 {answers[0]['sha256']}\n"


def test_check_mode_writes_nothing(helper: Helper, tmp_path: Path) -> None:
    helper(check_mode=True)
    assert not (tmp_path / "gpufleet-host").exists()


def test_equal_sources_are_equal_bytes_whenever_and_wherever_they_are_packed(helper: Helper, tmp_path: Path) -> None:
    first = helper(dest=str(tmp_path / "a"))
    os.utime(HOST_PROGRAM)
    assert helper(dest=str(tmp_path / "b"))["sha256"] == first["sha256"]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_edited_or_a_blunted_program_is_put_right(helper: Helper, tmp_path: Path) -> None:
    program = tmp_path / "gpufleet-host"
    helper()
    program.chmod(0o644)
    assert helper()["changed"] and program.stat().st_mode & 0o777 == 0o755
    program.write_text("echo mine\n")
    answer = helper()
    assert answer["changed"] and Path(answer["backup"]).read_text() == "echo mine\n"
    assert not helper()["changed"]


def test_an_older_version_is_replaced_without_a_backup_and_a_damaged_one_with_it(helper: Helper, tmp_path: Path) -> None:
    helper(main=HOST_PROGRAM.read_text() + "# older\n")
    assert "backup" not in helper()
    content = bytearray((tmp_path / "gpufleet-host").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "gpufleet-host").write_bytes(content)
    assert "backup" in helper()


def test_the_program_runs_by_itself_where_ansible_cannot_be_imported(helper: Helper, tmp_path: Path) -> None:
    helper()
    shown = subprocess.run([str(tmp_path / "gpufleet-host"), "--help"], capture_output=True, text=True, check=True)
    assert "gpu-wait DEPLOYMENT" in shown.stdout
    code = (
        "import json, runpy, sys\nsys.modules['ansible'] = sys.modules['ansible_collections'] = None\n"
        f"sys.argv = ['gpufleet-host']\nsys.path.insert(0, {str(tmp_path / 'gpufleet-host')!r})\n"
        "import gpufleet_host._nvml, pkgutil, importlib, gpufleet_host._core as core\n"
        "for part in pkgutil.iter_modules(core.__path__): importlib.import_module('gpufleet_host._core.' + part.name)\n"
        "print(json.dumps(sorted(name for name in sys.modules if name.startswith('gpufleet_host'))))"
    )
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "gpufleet_host._core.diagnose" in json.loads(loaded)


def imports_of(name: str, text: str) -> set[str]:
    """The packed files that a packed file imports, relative imports resolved."""
    package = name.rpartition("/")[0].split("/") if "/" in name else []
    found = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        parts = [*base, *(node.module.split(".") if node.module else [])]
        if parts[:1] != ["gpufleet_host"]:
            continue
        inside = parts[-1] in {"gpufleet_host", "_core"}
        found |= {"/".join([*parts, alias.name]) + ".py" for alias in node.names} if inside else {"/".join(parts) + ".py"}
    return found


def test_whatever_a_packed_file_imports_is_packed_and_nothing_else(helper: Helper, tmp_path: Path) -> None:
    helper()
    with zipfile.ZipFile(tmp_path / "gpufleet-host") as packed:
        texts = {name: packed.read(name).decode() for name in packed.namelist()}
    wanted = set().union(*(imports_of(name, text) for name, text in texts.items()))
    packages = {"__main__.py", "gpufleet_host/__init__.py", "gpufleet_host/_core/__init__.py"}
    assert wanted | packages == set(texts)


def test_whatever_is_packed_is_named_for_ansible_to_send(helper: Helper, tmp_path: Path) -> None:
    helper()
    with zipfile.ZipFile(tmp_path / "gpufleet-host") as packed:
        parts = {Path(name).stem for name in packed.namelist()} - {"__main__", "__init__"}
    module = ast.parse((ROOT / "plugins" / "modules" / "host_helper.py").read_text())
    imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.level]
    assert parts <= {alias.name for node in imports for alias in node.names}


def test_a_variable_of_the_host_does_not_reach_into_the_program(helper: Helper, tmp_path: Path) -> None:
    helper()
    (tmp_path / "argparse.py").write_text("raise SystemExit('taken over')\n")
    env = environment(PYTHONPATH=str(tmp_path))
    shown = subprocess.run([str(tmp_path / "gpufleet-host"), "--help"], capture_output=True, text=True, check=False, env=env)
    assert shown.returncode == 0, shown.stderr


def test_libraries_that_are_missing_are_told_in_check_mode_and_refused_otherwise(helper: Helper) -> None:
    held, missing = f"PyYAML=={metadata.version('pyyaml')}", ["nvidia_ml.py==0.0.1", "no-such-library==1"]
    helper()
    assert helper(requirements=[held])["converged"] and helper(requirements=[held.lower()])["missing"] == []
    foretold = helper(check_mode=True, requirements=[held, *missing])
    assert (foretold["missing"], foretold["changed"], foretold["converged"]) == (missing, True, False)
    refused = helper(requirements=[held, *missing])
    assert refused["failed"] and "lacks nvidia_ml.py==0.0.1, no-such-library==1" in refused["msg"]
