# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What became of each host of a rollout: one record a host, and the records as a table. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .text_table import aligned

__all__ = ["host_record", "outcome_of", "table"]

Facts = t.Mapping[str, t.Any]

_HEAD = ("host", "result", "release", "model", "engine", "health", "seconds", "changed", "phases")
_RIGHT = {"seconds"}
_EVIDENCE = 6
# Seconds of a phase that is worth its place in a line.
_TELLING = 0.1


def outcome_of(facts: Facts, plan: Facts) -> Facts:
    """What became of a host in the rollout of this plan; an earlier one in the same run has left its own."""
    outcome = _mapping(facts.get("vllm_outcome"))
    return outcome if outcome.get("plan") == plan.get("made") else {}


def host_record(host: str, plan: Facts, facts: Facts) -> dict[str, t.Any]:
    """One host, from the plan and from what the tasks of the plays registered for it; a host that was never planned needs None."""
    need = plan["needs"].get(host)
    outcome, release, health = outcome_of(facts, plan), _mapping(facts.get("server_release")), _mapping(facts.get("server_health"))
    result = outcome.get("result") or ("unchanged" if need == "nothing" else "untouched" if need else "not planned")
    before = _deployment(facts, release.get("deployment"))
    if outcome.get("foretold"):
        result = "would-change"
    worked_on = result not in ("unchanged", "untouched", "not planned")
    shown = release if worked_on and release else before
    health = health if worked_on and health else _mapping(facts.get("server_now"))
    phases = [{"name": phase["name"], "seconds": round(phase["seconds"], 1)} for phase in health.get("phases") or []]
    return {
        "host": host,
        "need": need,
        "result": result,
        "deployment": release.get("deployment") or before.get("deployment"),
        "release": shown.get("release"),
        "model": _folder(shown.get("model_path"), 2),
        "engine": _folder(shown.get("engine_path"), 1),
        "level": health.get("level") or None,
        "ready": bool(health.get("ready")),
        "phases": phases if worked_on else [],
        "changed": _changed(facts, outcome) if worked_on else [],
        "failure": outcome.get("failure"),
    }


def table(records: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """The records as lines, and below them why hosts failed, with the evidence and the remedies.

    No cell holds a single space, since Ansible's YAML breaks long lines there.
    """
    failures = [record for record in records if record.get("failure")]
    return [*aligned(_HEAD, map(_row, records), _RIGHT), *(line for record in failures for line in _failure(record))]


def _row(record: t.Mapping[str, t.Any]) -> tuple[str, ...]:
    phases = record["phases"]
    return (
        record["host"],
        record["result"],
        record["release"] or "-",
        record["model"] or "-",
        record["engine"] or "-",
        record["level"] if record["ready"] else f"not-ready({record['level'] or 'down'})",
        f"{sum(phase['seconds'] for phase in phases):.1f}" if phases else "-",
        ",".join(record["changed"]) or "-",
        ",".join(f"{phase['name']}:{phase['seconds']:.1f}" for phase in phases if phase["seconds"] >= _TELLING) or "-",
    )


def _failure(record: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    failure = record["failure"]
    yield f"{record['host']}: {failure.get('task') or 'a task'} failed: {failure.get('msg') or 'it does not say why'}"
    if failure.get("unit"):
        yield f"  unit: {failure['unit']}"
    yield from (f"  | {line}" for line in (failure.get("evidence") or [])[-_EVIDENCE:])
    for gpu, process in failure.get("holders") or []:
        who = f"pid {process['pid']} ({process['name']}, {process['unit'] or 'no unit'})"
        yield f"  GPU {gpu} is held by {who} with {(process['bytes'] or 0) / 1e9:.1f} GB"
    if failure.get("returned"):
        yield f"  {failure['returned']}"


def _changed(facts: Facts, outcome: Facts) -> list[str]:
    """What of the host was made new: parts that the roles brought, and what is different in the release."""
    brought = {"host": "host_helper", "weights": "weights_snapshot", "engine": "engine_venv"}
    differences = _mapping(outcome.get("failure") or facts.get("server_release")).get("differences") or []
    parts = [part for part, name in brought.items() if _mapping(facts.get(name)).get("changed")]
    return list(dict.fromkeys([*parts, *(difference.replace(" ", "-") for difference in differences)]))


def _deployment(facts: Facts, name: t.Optional[str]) -> Facts:
    known = _mapping(facts.get("server_deployments")).get("deployments") or []
    return next((entry for entry in known if entry["deployment"] == name), {})


def _folder(path: t.Optional[str], levels: int) -> t.Optional[str]:
    """The last parts of a path: ``org--name/commit`` of weights with a short commit, ``vllm-0.33.0`` of an engine."""
    parts = (path or "").rstrip("/").split("/")[-levels:]
    return "@".join([*parts[:-1], parts[-1][:12] if levels > 1 else parts[-1]]) if path else None


def _mapping(value: t.Any) -> Facts:
    return value if isinstance(value, t.Mapping) else {}
