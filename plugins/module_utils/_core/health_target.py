# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which server is meant: what the options say, and the release of a deployment where they say nothing. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from pathlib import Path

from .deployments import read_current
from .engine_config import address, names_of
from .errors import VllmError
from .health_listeners import check_expected
from .health_types import Want
from .host_files import unit_name
from .release import deployment_name
from .server_url import server_root

__all__ = ["of_release", "options_of"]


def of_release(root: str, deployment: str) -> dict[str, t.Any]:
    """What the current release of a deployment says of its server."""
    current = Path(root) / deployment_name(deployment) / "current"
    release = read_current(current)
    if release is None:
        raise VllmError(f"{current} holds no release.", code="no_release", remedy=f"Deploy {deployment}, or give url and unit.")
    record, options = release
    names, keys = names_of(options, "served-model-name"), names_of(options, "api-key")
    target = {"url": address(options), "unit": unit_name(deployment), "model_path": record["model_path"]}
    return {**target, "served_model_name": next(iter(names), None), "api_key": next(iter(keys), None)}


def options_of(params: t.Mapping[str, t.Any]) -> Want:
    """The module's options as the core takes them."""
    if params["level"] == "alive" and not params["unit"]:
        raise VllmError("level is alive and unit is not given.", code="bad_options", remedy="Set unit: only systemd knows what is alive.")
    key = params["api_key"] or ""
    if not (key.isascii() and key.isprintable()):
        raise VllmError("api_key holds characters that no HTTP header can carry.", code="bad_options", remedy="Give the key without them.")
    check_expected(params["expected_listeners"])
    known = {name: params[name] for name in Want._fields if params[name] is not None}
    return Want(**{**known, "url": server_root(params["url"])})
