# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which deployments a host has, what each runs and whether it does. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from pathlib import Path

from .effects import Runner
from .engine_config import address, names_of, read_engine_yaml
from .host_files import read_json, unit_name
from .unit import show_unit

__all__ = ["Deployment", "read_current", "read_deployments"]


class Deployment(t.NamedTuple):
    """One deployment by its current release and its unit. ``keeps_gpus``: it runs, or would after a boot, so its GPUs are not to be had."""

    deployment: str
    unit: str
    release: str
    model_path: str
    engine_path: str
    gpus: list[str]
    url: str
    served_model_names: list[str]
    active_state: str
    enabled: bool
    keeps_gpus: bool


def read_deployments(root: Path, runner: Runner) -> list[Deployment]:
    """Every deployment below ``root`` with a current release, by name."""
    found = ((current.parent.name, read_current(current)) for current in sorted(root.glob("*/current")))
    return [_deployment(name, *release, runner) for name, release in found if release is not None]


def read_current(current: Path) -> t.Optional[tuple[dict[str, t.Any], dict[str, t.Any]]]:
    """release.json and the engine's options of the release that the link ``current`` names; None where it names none."""
    record = read_json(current / "release.json")
    if record is None:
        return None
    return record, read_engine_yaml((current / "engine.yaml").read_text(encoding="utf-8"))


def _deployment(name: str, record: t.Mapping[str, t.Any], options: t.Mapping[str, t.Any], runner: Runner) -> Deployment:
    unit = show_unit(runner, unit_name(name))
    return Deployment(
        deployment=name,
        unit=unit.name,
        release=record["id"],
        model_path=record["model_path"],
        engine_path=record["engine_path"],
        gpus=record["gpus"],
        url=address(options),
        served_model_names=names_of(options, "served-model-name") or [record["model_path"]],
        active_state=unit.active_state,
        enabled=unit.is_enabled,
        keeps_gpus=unit.is_alive or unit.is_enabled,
    )
