# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine venv should hold, and what uv's failures mean. The outputs are those of uv 0.13.9."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core import venv
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.effects import CommandResult
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError

SPEC = venv.Spec(package="vllm", version="0.33.0", python="/usr/bin/python3.11")
OFFLINE = venv.Source(find_links=("/srv/wheels",), no_index=True)
INDEX = venv.Source(index_url="https://reader:s3cret@packages.example/simple")

UV_SAYS = {
    "wheel_folder_missing": """
Using Python 3.11.2 environment at: v
error: Failed to read `--find-links` directory: /srv/wheels
  cause: No such file or directory (os error 2)
""",
    "not_found": """
error: No solution found when resolving dependencies
  cause: Because there is no version of vllm==0.33.0 and you require vllm==0.33.0, we can conclude
         that your requirements are unsatisfiable.
""",
    "no_matching_wheel": """
error: No solution found when resolving dependencies
  cause: Because vllm==0.33.0 has no wheels with a matching Python implementation tag (e.g., `cp311`)
         and you require vllm==0.33.0, we can conclude that your requirements are unsatisfiable.

hint: You require CPython 3.11 (`cp311`), but we only found wheels for `vllm` (v0.33.0) with the following Python
  implementation tag: `cp312`
""",
    "damaged_wheel": """
error: No solution found when resolving dependencies
  cause: Because vllm==0.33.0 has an invalid package format and only vllm==0.33.0 is available, we can
         conclude that all versions of vllm cannot be used.

hint: The structure of `vllm` (v0.33.0) was invalid:
  Failed to read from zip file
""",
    "disk_full": """
Resolved 1 package in 5ms
Prepared 1 package in 153ms
error: Failed to install: networkx-3.6.1-py3-none-any.whl (networkx==3.6.1)
  cause: Failed to copy to `/opt/gpufleet/engines/vllm-0.33.0/lib/python3.11/site-packages/networkx/test_asyn_fluid.py`
  cause: failed to copy file from /cache/test_asyn_fluid.py to /opt/.tmpsO4KWr: No space left on device (os error 28)
""",
    "hash_mismatch": """
Downloading networkx (2.0MiB)
error: Failed to download `networkx==3.6.1`
  cause: Hash mismatch for `networkx==3.6.1`

         Expected:
           sha256:0000000000000000000000000000000000000000000000000000000000000000

         Computed:
           sha256:d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762
""",
    "access_denied": """
error: No solution found when resolving dependencies
  cause: Because vllm was not found in the package registry and you require vllm==0.33.0, we can conclude
         that your requirements are unsatisfiable.

hint: An index URL (https://packages.example/simple) could not be queried due to a lack of valid
  authentication credentials (401 Unauthorized)
""",
    "index_unreachable": """
error: Failed to fetch: https://packages.example/simple/vllm/
  cause: error sending request for url (https://packages.example/simple/vllm/)
  cause: client error (Connect)
  cause: dns error
  cause: failed to lookup address information: Name or service not known
""",
    "python_missing": """
error: No interpreter found for Python 3.14 in managed installations or search path

hint: A managed Python download is available for Python 3.14, but Python downloads are set to 'never'
""",
    "install_failed": "thread 'main' panicked at something new\n",
}


@pytest.mark.parametrize("code", UV_SAYS)
def test_a_failure_of_uv_gets_its_code_and_a_remedy(code: str) -> None:
    error = venv.explain(CommandResult(2, "", UV_SAYS[code]), SPEC, OFFLINE, [])
    assert error.code == code
    assert error.remedy


def test_a_failure_is_told_in_one_line_without_the_log_around_it() -> None:
    log = "".join(f"Downloading package-{number}\n" for number in range(200)) + UV_SAYS["disk_full"]
    message = venv.explain(CommandResult(2, "", log), SPEC, INDEX, []).message
    assert "No space left on device" in message
    assert "\n" not in message
    assert "Downloading" not in message
    assert len(message) < 900


def test_a_failure_without_a_word_still_says_something() -> None:
    assert "ended with status 137 and said nothing" in venv.explain(CommandResult(137, "", ""), SPEC, INDEX, []).message


def test_credentials_of_an_index_are_starred_out_of_what_uv_says() -> None:
    secrets = venv.secrets_of([INDEX.index_url or "", "https://t0ken%2Fx@other.example/"])
    said = "error: Failed to fetch: https://reader:s3cret@packages.example/simple with t0ken/x or t0ken%2Fx\n"
    message = venv.explain(CommandResult(2, "", said), SPEC, INDEX, secrets).message
    assert "s3cret" not in message
    assert "t0ken" not in message
    assert "packages.example/simple" in message


def test_indexes_with_credentials_reach_uv_outside_its_arguments() -> None:
    environment = venv.uv_environment(INDEX, "/opt/gpufleet/python", "/opt/gpufleet/engines/.uv-cache")
    assert environment["UV_DEFAULT_INDEX"] == INDEX.index_url
    assert "s3cret" not in " ".join(venv.install_command("uv", "/opt/e", SPEC, INDEX, "overrides.txt"))


def test_the_engine_is_installed_as_a_wheel_only_and_compiled() -> None:
    command = venv.install_command("uv", "/opt/e", SPEC._replace(overrides=("triton ; sys_platform == 'never'",)), OFFLINE, "o.txt")
    joined = " ".join(command)
    assert "--only-binary vllm" in joined
    assert "--compile-bytecode" in joined
    assert "--no-index --find-links /srv/wheels --overrides o.txt" in joined
    assert command[-1] == "vllm==0.33.0"


def test_the_order_of_requirements_does_not_make_another_venv_but_their_content_does() -> None:
    one, other = (SPEC._replace(extra_packages=extra) for extra in (("a==1", "b==2"), ("b==2", "a==1")))
    assert one.digest == other.digest
    assert one.digest != SPEC.digest
    assert SPEC._replace(python="3.12").digest != SPEC.digest


@pytest.mark.parametrize(
    ("spec", "source", "named"),
    [
        (SPEC._replace(version=">=0.33"), OFFLINE, "version"),
        (SPEC._replace(version="latest"), OFFLINE, "version"),
        (SPEC._replace(package="vllm==0.33.0"), OFFLINE, "package"),
        (SPEC, venv.Source(no_index=True), "find_links"),
        (SPEC, INDEX._replace(no_index=True, find_links=("/srv/wheels",)), "no_index"),
        (SPEC, venv.Source(find_links=("https://reader:s3cret@packages.example/wheels",)), "find_links"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_name_of_its_option(spec: venv.Spec, source: venv.Source, named: str) -> None:
    with pytest.raises(VllmError, match=named) as refusal:
        venv.check_spec(spec, source)
    assert refusal.value.code == "bad_option"
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize("python", ["/root/.pyenv/shims/python3", "/home/ada/.local/bin/python3.12", "/run/user/0/python"])
def test_an_interpreter_in_a_home_directory_is_refused(python: str) -> None:
    with pytest.raises(VllmError, match="ProtectHome"):
        venv.check_interpreter(python)


@pytest.mark.parametrize("python", ["/usr/bin/python3", "3.12", "/rooted/python", "/opt/gpufleet/python/bin/python3.12"])
def test_an_interpreter_elsewhere_is_accepted(python: str) -> None:
    venv.check_interpreter(python)


def test_a_marker_survives_its_file_and_rubbish_is_no_marker() -> None:
    marker = venv.marker_of(SPEC, "3.11.2", {"vllm": "0.33.0"})
    assert venv.parse_marker(marker.to_json()) == marker
    assert [venv.parse_marker(text) for text in ("", "[]", "{}", '{"spec": "x"}')] == [None] * 4


def test_another_spec_under_the_same_folder_is_refused_with_both_named() -> None:
    marker = venv.marker_of(SPEC, "3.11.2", {})
    with pytest.raises(VllmError, match=r"already holds vllm==0\.33\.0, not vllm==0\.34\.0 as asked, and engine venvs are immutable"):
        venv.refuse_other_spec("/opt/e", marker, SPEC._replace(version="0.34.0"))
    with pytest.raises(VllmError, match="with other extra packages, overrides, command or interpreter"):
        venv.refuse_other_spec("/opt/e", marker, SPEC._replace(extra_packages=("ray",)))


def test_the_list_of_packages_is_read_with_addresses_and_without_noise() -> None:
    text = "torch==2.13.0+cpu\nlocal @ file:///srv/wheels/local-1-py3-none-any.whl\n# comment\n\n"
    assert venv.parse_freeze(text) == {"torch": "2.13.0+cpu", "local": "file:///srv/wheels/local-1-py3-none-any.whl"}


def test_the_interpreter_of_a_venv_is_read_from_its_settings() -> None:
    assert venv.interpreter_home("home = /usr/bin\nimplementation = CPython\nuv = 0.13.9\nversion_info = 3.11.2\n") == (
        "/usr/bin",
        "3.11.2",
    )


def test_a_lock_is_waited_for_until_it_is_free() -> None:
    answers = iter([False, False, True])
    slept: list[float] = []
    venv.wait_for_lock(lambda: next(answers), "/opt/e", 10.0, lambda: sum(slept), slept.append)
    assert len(slept) == 2


def test_a_lock_that_stays_taken_ends_with_what_to_do() -> None:
    slept: list[float] = []
    never: t.Callable[[], bool] = lambda: False  # noqa: E731
    with pytest.raises(VllmError, match="still under way after 3 s"):
        venv.wait_for_lock(never, "/opt/e", 3.0, lambda: sum(slept), slept.append)
