# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs the role server gives a deployment beside others on the host."""

from __future__ import annotations

import json
import typing as t

import pytest
from support.role_vars import GPUS, UUIDS, server_host, template_all

BRIDGE = [{**gpu, "links": [{"uuid": UUIDS[index ^ 2], "nvlinks": 4}]} for index, gpu in enumerate(GPUS)]

CASES: dict[str, tuple[t.Any, dict[str, t.Any], t.Any]] = {
    "alone": (4, server_host({}), [0, 1, 2, 3]),
    "beside-others": (4, server_host({"kimi-k2": [1], "glm-5": [0]}), [4, 5, 6, 7]),
    "beside-one-that-runs-and-is-not-enabled": (4, server_host({}, ["kimi-k2"], {"kimi-k2": [3]}), [4, 5, 6, 7]),
    "beside-one-that-is-neither": (4, server_host({}, [], {"kimi-k2": [3]}), [0, 1, 2, 3]),
    "again-as-before": (2, server_host({"minimax-m25": [4, 5]}), [4, 5]),
    "again-with-more": (4, server_host({"minimax-m25": [0, 1]}), [0, 1, 2, 3]),
    "by-name": (["5", "4"], server_host({"minimax-m25": [4], "kimi-k2": [0]}), [5, 4]),
    "by-the-links-that-the-host-venv-reads": (2, {**server_host({}), "server_joined_gpus": {"gpus": BRIDGE}}, [0, 2]),
    "by-place-alone-where-it-was-not-asked": (2, {**server_host({}), "server_joined_gpus": {"skipped": True}}, [0, 1]),
    "on-the-cpu": ("0", server_host({"minimax-m25": []}), []),
    "a-name-that-is-taken": (["0", "1"], server_host({"kimi-k2": [1]}), "the deployment kimi-k2 on this host has it"),
    "in-place-of-another": (4, {**server_host({"kimi-k2": [4, 5, 6, 7]}), "server_replaces": ["kimi-k2"]}, [4, 5, 6, 7]),
    "by-name-in-place-of-another": (["4"], {**server_host({"kimi-k2": [4]}), "server_replaces": "kimi-k2"}, [4]),
    "in-place-of-one-beside-another": (
        4,
        {**server_host({"kimi-k2": [0, 1], "glm-5": [4]}), "server_replaces": ["kimi-k2"]},
        [0, 1, 2, 3],
    ),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    hosts = {name: {**host, "server_gpus": wanted} for name, (wanted, host, _found) in CASES.items()}
    return template_all(tmp_path_factory.mktemp("server"), "server", hosts, "{{ __server_gpus }}")


@pytest.mark.parametrize("case", CASES)
def test_a_deployment_keeps_its_own_and_gets_none_of_the_others(said: dict[str, str], case: str) -> None:
    found = CASES[case][2]
    if isinstance(found, str):
        assert found in said[case]
    else:
        assert json.loads(said[case])["msg"] == [UUIDS[index] for index in found]
