# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets taken out of a result, wherever they stand in it."""

from __future__ import annotations

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.redaction import without_secrets


def test_a_secret_is_taken_out_of_texts_at_every_depth() -> None:
    result = {"msg": "MARKER-1 is busy", "evidence": ["a", ("key=MARKER-1",)], "number": 1, "nothing": None}
    assert without_secrets(result, ["MARKER-1"]) == {"msg": "*** is busy", "evidence": ["a", ["key=***"]], "number": 1, "nothing": None}


def test_a_secret_that_begins_another_leaves_no_rest_of_it() -> None:
    assert without_secrets("MARKER-12", ["MARKER-1", "MARKER-12"]) == "***"


def test_an_empty_secret_is_none_and_names_of_fields_stay() -> None:
    assert without_secrets({"key": "ab"}, ["", "key"]) == {"key": "ab"}
