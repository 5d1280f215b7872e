# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module with the real uv, which installs a wheel of a few bytes from a folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.venv import SYSTEM_PATH
from support.running import Answer, environment, run_module

PYTHON = "/usr/bin/python3"
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

pytestmark = [
    pytest.mark.skipif(UV is None, reason="uv is not installed"),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"there is no {PYTHON}"),
]

Install = t.Callable[..., Answer]


def write_wheel(folder: Path, version: str, tag: str = "py3-none-any") -> None:
    """An engine that is one function behind a console script."""
    info = f"tinyengine-{version}.dist-info"
    contents = {
        "tinyengine.py": "def main():\n    print('served')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tinyengine\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": "[console_scripts]\nvllm = tinyengine:main\n",
    }
    record = "".join(f"{name},,\n" for name in (*contents, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"tinyengine-{version}-{tag}.whl", "w") as wheel:
        for name, text in {**contents, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        write_wheel(folder, version)
    return folder


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "engines" / "tinyengine-1.0"


@pytest.fixture
def install(tmp_path: Path, wheels: Path, dest: Path) -> Install:
    """Run the module as Ansible does: one process, options as JSON."""

    def run(**options: t.Any) -> Answer:
        arguments: Answer = {
            "dest": str(dest),
            "package": "tinyengine",
            "version": "1.0",
            "python": PYTHON,
            "uv": UV,
            "_ansible_diff": True,
        }
        arguments.update({"find_links": [str(wheels)], "no_index": True, **options})
        env = environment(UV_HTTP_RETRIES="0", UV_CACHE_DIR=None)
        return run_module("engine_install", tmp_path, env, **arguments)

    return run


def test_the_venv_holds_the_engine_and_the_marker_says_what(install: Install, dest: Path) -> None:
    answer = install()
    assert answer["changed"]
    assert answer["packages"] == {"tinyengine": "1.0"}
    assert subprocess.run([answer["command"]], capture_output=True, text=True, check=True).stdout == "served\n"
    assert json.loads(Path(answer["marker"]).read_text())["requirement"] == "tinyengine==1.0"
    assert sorted(path.name for path in dest.iterdir() if path.name.startswith(".gpufleet")) == [".gpufleet-complete.json"]


def test_bytecode_is_there_and_everything_is_readable_for_the_units_user(install: Install, dest: Path) -> None:
    old = os.umask(0o077)
    try:
        install()
    finally:
        os.umask(old)
    assert list(dest.glob("lib/python*/site-packages/__pycache__/tinyengine*.pyc"))
    assert all(path.stat().st_mode & 0o004 for path in dest.glob("lib/python*/site-packages/**/*") if path.is_file())


def test_files_are_shared_with_the_cache_beside_the_venv(install: Install, dest: Path) -> None:
    install()
    assert (dest.parent / ".uv-cache").is_dir()
    assert all(path.stat().st_nlink > 1 for path in dest.glob("lib/python*/site-packages/tinyengine.py"))


def test_a_second_run_changes_nothing_and_needs_no_uv(install: Install) -> None:
    install()
    again = install(uv="/nonexistent/uv", find_links=["/nonexistent/wheels"])
    assert not again["changed"]
    assert again["packages"] == {"tinyengine": "1.0"}


def test_an_engine_that_misses_a_compiler_is_warned_of(install: Install, dest: Path) -> None:
    assert install()["missing_compilers"] == []
    marker = dest / ".gpufleet-complete.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "packages": {"torch": "2.13.0"}}))
    answer = install()
    missing = [] if shutil.which("g++", path=SYSTEM_PATH) else ["g++"]
    assert (answer["changed"], answer["missing_compilers"]) == (False, missing)
    assert ["This host has no g++" in str(warning) for warning in answer.get("warnings", [])] == [True for _each in missing]


def test_check_mode_foretells_and_touches_nothing(install: Install, dest: Path) -> None:
    answer = install(_ansible_check_mode=True)
    assert answer["changed"]
    assert answer["diff"]["before"] == "absent\n"
    assert answer["diff"]["after"] == "tinyengine==1.0\n"
    assert not dest.parent.exists()
    install()
    assert not install(_ansible_check_mode=True)["changed"]


def test_what_a_killed_run_left_is_removed_first(install: Install, dest: Path) -> None:
    install()
    (dest / ".gpufleet-complete.json").unlink()
    (dest / "half-written").touch()
    assert install(_ansible_check_mode=True)["leftover_removed"]
    answer = install()
    assert answer["changed"]
    assert answer["leftover_removed"]
    assert not (dest / "half-written").exists()


def test_a_complete_venv_whose_interpreter_is_gone_is_built_again(install: Install, dest: Path) -> None:
    install()
    (dest / "bin" / "python").unlink()
    (dest / "bin" / "python").symlink_to("/nonexistent/python3")
    assert install()["changed"]


def test_another_version_under_the_same_folder_is_refused_also_in_check_mode(install: Install, dest: Path) -> None:
    install()
    for check in (True, False):
        answer = install(version="2.0", _ansible_check_mode=check)
        assert answer["failed"]
        assert answer["code"] == "other_engine"
    assert not install()["changed"]


def test_a_folder_with_something_else_in_it_is_left_alone(install: Install, dest: Path) -> None:
    dest.mkdir(parents=True)
    (dest / "thesis.txt").write_text("years of work")
    answer = install()
    assert answer["code"] == "dest_in_use"
    assert (dest / "thesis.txt").exists()


def test_a_failed_run_leaves_no_marker_and_the_next_one_succeeds(install: Install, dest: Path, wheels: Path) -> None:
    (wheels / "tinyengine-3.0-py3-none-any.whl").write_bytes(b"half a wheel")
    answer = install(version="3.0")
    assert answer["code"] == "damaged_wheel"
    assert not (dest / ".gpufleet-complete.json").exists()
    write_wheel(wheels, "3.0")
    assert install(version="3.0")["changed"]


def test_a_wheel_for_another_python_is_named_as_the_reason(install: Install, wheels: Path) -> None:
    write_wheel(wheels, "3.0", "cp27-cp27m-manylinux1_x86_64")
    answer = install(version="3.0")
    assert answer["code"] == "no_matching_wheel"
    assert "cp27" in answer["msg"]


def test_an_unknown_version_an_unreachable_index_and_a_missing_command_are_told_apart(install: Install) -> None:
    assert install(version="9.9")["code"] == "not_found"
    assert install(find_links=[], no_index=False, index_url="http://127.0.0.1:9/simple")["code"] == "index_unreachable"
    assert install(command="sglang")["code"] == "command_missing"


def test_missing_tools_are_refused_before_anything_is_touched(install: Install, dest: Path) -> None:
    assert install(uv="/nonexistent/uv")["code"] == "uv_missing"
    assert install(python="/usr/bin/python2.2")["code"] == "python_missing"
    assert install(python="/root/.pyenv/shims/python3")["code"] == "python_in_home"
    assert not dest.parent.exists()


def test_credentials_of_an_index_are_in_no_result(install: Install) -> None:
    address = "http://reader:m4rker-s3cret@127.0.0.1:9/simple"
    for options in ({"index_url": address}, {"extra_index_urls": [address.replace("reader:", "")]}, {"find_links": [address]}):
        answer = install(**{"find_links": [], "no_index": False, **options})
        assert answer["failed"]
        assert "m4rker" not in json.dumps(answer)


def test_a_run_waits_for_another_one_only_as_long_as_it_is_told(install: Install, dest: Path) -> None:
    dest.parent.mkdir(parents=True)
    with (dest.parent / f".{dest.name}.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert install(lock_timeout=0)["code"] == "busy"
    assert install(lock_timeout=0)["changed"]
