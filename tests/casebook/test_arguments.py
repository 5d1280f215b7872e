# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has gone wrong for people between what they wrote for the engine and what reached it, and what should have.

Each test is one situation that was reported in public, reduced to the facts that decide it: the real module writes a release, whose files
are read as vLLM reads its configuration and as a shell reads what systemd takes for an environment. With systemd itself the scenario
`unit` shows the same for whatever a value may hold.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.engine_config import engine_yaml
from support.running import ROOT, Answer, environment, run_module

SERVE = ["/opt/vllm/bin/vllm", "serve", "/srv/models/a"]


@pytest.fixture
def release(tmp_path: Path) -> t.Callable[..., Answer]:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\necho LoadState=loaded; echo ActiveState=inactive\n")
    systemctl.chmod(0o755)

    def write(**options: t.Any) -> Answer:
        paths = {"root": str(tmp_path / "etc"), "model_path": SERVE[2], "engine_path": "/opt/vllm"}
        env = environment(PATH=f"{tmp_path}:/usr/bin:/bin")
        return run_module("vllm_release", tmp_path, env, deployment="a", **{**paths, "arguments": {}, **options})

    return write


def written(released: Answer) -> str:
    return (Path(released["path"]) / "engine.yaml").read_text()


def command_line(configuration: str) -> list[str]:
    """What vLLM makes of its configuration file: it puts the words of it into its command line."""
    words = []
    for name, value in yaml.safe_load(configuration).items():
        values = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else str(value)]
        words += [f"--{name}", *([] if value is True else values)]
    return [*SERVE, *words]


def variables(released: Answer) -> dict[str, str]:
    """What a shell makes of the environment file, by whose rules systemd reads text between double quotes."""
    told = f"set -a; . {released['path']}/environment; env -0"
    done = subprocess.run(["env", "-i", "/bin/sh", "-c", told], capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)


def test_json_is_still_json_when_it_arrives(release: t.Callable[..., Answer]) -> None:
    method = {"method": "mtp", "num_speculative_tokens": 3}
    for given in (method, json.dumps(method)):
        words = command_line(written(release(arguments={"speculative-config": given})))
        assert words[:4] == [*SERVE, "--speculative-config"]
        assert json.loads(words[4]) == method and len(words) == 5


def test_what_means_something_to_systemd_means_nothing_in_an_argument(release: t.Callable[..., Answer]) -> None:
    values = ['{"a":"%z"}', "{%if x%}", "re:.*mlp$", "price$HOME", "${HOME}", "$$", "%%", "a\n\nb", " # ;"]
    given = {f"option-{number}": value for number, value in enumerate(values)}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    assert command_line(written(release(arguments={**given, "z-list": values}))) == [*SERVE, *words, "--z-list", *values]


def test_what_means_something_to_systemd_means_nothing_in_a_variable(release: t.Callable[..., Answer]) -> None:
    given = {"API": "pa%sword", "OTHER": "ab%zcd", "TOKEN": "a$b", "QUOTED": 'it\'s "${HOME}" `id` \\', "LINES": "one\n\n\ttwo "}
    assert given.items() <= variables(release(environment=given)).items()


def test_no_set_of_options_cuts_the_command_short() -> None:
    """Each optional argument may be left out, and all that stay arrive, in whatever set."""
    every = {"port": 8000, "max-model-len": 4096, "trust-remote-code": True, "seed": 7}
    for kept in itertools.product((True, False), repeat=len(every)):
        given = {name: value if keep else None for (name, value), keep in zip(every.items(), kept)}
        words = command_line(engine_yaml(given)) if any(kept) else SERVE
        expected = {f"--{name}" for name, value in given.items() if value is not None}
        assert {word for word in words if word.startswith("--")} == expected
        assert len(words) == len(SERVE) + sum(1 if value is True else 2 for value in given.values() if value is not None)


def test_the_unit_holds_no_argument_at_all() -> None:
    """A line of a unit is cut, expanded and unquoted by rules of its own: so none of them says what the engine is told."""
    lines = (ROOT / "roles" / "server" / "templates" / "vllm.service.j2").read_text().splitlines()
    started = [line for line in lines if line.startswith("Exec")]
    assert [line.partition("=")[0] for line in started] == ["ExecStartPre", "ExecStart", "ExecStopPost"]
    assert all(line.endswith(" {{ server_deployment }}") and "\\" not in line for line in started)
    assert not [line for line in lines if "arguments" in line and not line.startswith("#")]
