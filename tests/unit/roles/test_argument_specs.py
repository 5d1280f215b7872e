# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role promises in its argument specs is what its defaults hold."""

from __future__ import annotations

import re
import typing as t

import pytest
import yaml
from support.running import ROOT

ROLES = sorted(path.parent.parent for path in ROOT.glob("roles/*/defaults/main.yml"))
Specs = dict[str, t.Any]


def load(path: t.Any) -> t.Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def specs(role: t.Any) -> Specs:
    return t.cast(Specs, load(role / "meta" / "argument_specs.yml")["argument_specs"])


@pytest.fixture(params=ROLES, ids=[role.name for role in ROLES])
def role(request: pytest.FixtureRequest) -> t.Any:
    return request.param


def entry_points_used(role: t.Any) -> set[str]:
    """Task files that playbooks and other roles enter this role by."""
    names = {"main"}
    for path in [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]:
        for task in re.findall(r"(?:include|import)_role:\n((?:\s+\w+:.*\n)+)", path.read_text(encoding="utf-8")):
            options = dict(re.findall(r"(\w+): *[\"']?([\w.-]+)", task))
            if options.get("name") == f"gpufleet.vllm.{role.name}":
                names.add(options.get("tasks_from", "main").removesuffix(".yml"))
    return names


def test_every_entry_point_has_a_spec_and_every_spec_an_entry_point(role: t.Any) -> None:
    tasks = {path.stem for path in (role / "tasks").glob("*.yml")}
    assert entry_points_used(role) <= set(specs(role)) <= tasks


def test_the_options_of_the_specs_are_the_defaults(role: t.Any) -> None:
    described = {name for spec in specs(role).values() for name in spec.get("options", {})}
    assert described == set(load(role / "defaults" / "main.yml"))


def test_a_default_that_the_spec_names_is_the_roles_default(role: t.Any) -> None:
    defaults = load(role / "defaults" / "main.yml")
    for spec in specs(role).values():
        named = {name: option["default"] for name, option in spec.get("options", {}).items() if "default" in option}
        assert named == {name: defaults[name] for name in named}


def test_a_plain_default_is_named_in_the_spec_and_a_computed_one_is_explained(role: t.Any) -> None:
    defaults = load(role / "defaults" / "main.yml")
    options = {name: option for spec in specs(role).values() for name, option in spec.get("options", {}).items()}
    plain = {name for name, value in defaults.items() if "{{" not in str(value)}
    assert plain == {name for name, option in options.items() if "default" in option}
    unexplained = [name for name in set(defaults) - plain if not re.search("recipe|[Dd]efault|role", str(options[name]["description"]))]
    assert not unexplained


def test_secrets_are_marked_and_hold_text_so_that_no_type_error_prints_them(role: t.Any) -> None:
    for spec in specs(role).values():
        for name, option in spec.get("options", {}).items():
            if re.search("token$|keys?$|password", name):
                assert option.get("no_log") is True, name
                assert "choices" not in option and option.get("elements", option["type"]) in {"str", "list"}, name
