# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the verdicts of model_verify on many hosts as a table."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.text_table import aligned

__all__ = ["FilterModule"]

Row = tuple[str, ...]

_HEAD = ("host", "model", "commit", "level", "files", "GB", "verdict")
_RIGHT = {"files", "GB"}
_NO_WEIGHTS = {"path_missing", "nothing_to_prove"}


def _weights_table(results: t.Mapping[str, t.Any]) -> list[str]:
    if not isinstance(results, t.Mapping):
        raise AnsibleFilterError(f"weights_table takes what model_verify returned by host, not {type(results).__name__}.")
    return aligned(_HEAD, (row for host, result in results.items() for row in _rows(str(host), result)), _RIGHT)


def _rows(host: str, result: t.Optional[t.Mapping[str, t.Any]]) -> list[Row]:
    """A line for each snapshot of a host, or the one that says why there is none."""
    if not result or result.get("unreachable"):
        return [(host, "-", "-", "-", "-", "-", "not reached")]
    if "snapshots" in result:
        return [_row(host, snapshot) for snapshot in result["snapshots"]]
    return [(host, "-", "-", "-", "-", "-", "no weights" if result.get("code") in _NO_WEIGHTS else "not judged")]


def _row(host: str, snapshot: t.Mapping[str, t.Any]) -> Row:
    counts = {name: len(snapshot[name]) for name in ("damaged", "missing", "unexpected")}
    counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    verdict = snapshot["state"] if not counted else counted if snapshot["state"] == "damaged" else f"{snapshot['state']}, {counted}"
    names = (snapshot["repo_id"] or snapshot["path"], snapshot["commit"][:12] or "-", snapshot["level"] or "-")
    return (host, *names, str(snapshot["files"]), f"{snapshot['bytes'] / 1e9:.1f}", verdict)


class FilterModule:
    """The filter, for Ansible."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"weights_table": _weights_table}
