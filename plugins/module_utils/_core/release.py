# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release: one immutable state of a deployment, as files below C(/etc/gpufleet). PRIVATE to the collection.

This file says what a release contains and what its files read like; :mod:`release_store` puts them on disk.
"""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

from .errors import VllmError

__all__ = ["Release", "address", "deployment_name", "engine_yaml", "environment_file", "read_engine_yaml", "release_json"]

ENGINE_YAML = "engine.yaml"
ENVIRONMENT = "environment"
RELEASE_JSON = "release.json"

_DEPLOYMENT = re.compile(r"[a-z][a-z0-9-]{0,25}")
_OPTION = re.compile(r"[a-z][a-z0-9.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# YAML ends a line at these, or forbids them, even between double quotes; JSON does not escape them.
_YAML_SPECIAL = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def deployment_name(name: str) -> str:
    """``name`` itself when it can name a unit, a user (32 characters with its prefix) and a folder."""
    if not _DEPLOYMENT.fullmatch(name) or name.endswith("-"):
        raise VllmError(
            f"The deployment name {name!r} cannot name a systemd unit and a system user.",
            code="bad_deployment",
            remedy="Use 1 to 26 lower-case letters, digits and inner dashes, starting with a letter.",
        )
    return name


def engine_yaml(arguments: t.Mapping[str, t.Any]) -> str:
    """The text of vLLM's ``--config`` file: one option a line, each value as JSON.

    vLLM drops ``key: false`` from this file, so a false flag is written as ``no-key: true``; options that are null are left out.
    """
    options: dict[str, t.Any] = {}
    for name, value in arguments.items():
        option = str(name).lstrip("-").replace("_", "-")
        if not _OPTION.fullmatch(option):
            raise VllmError(
                f"The engine argument {name!r} is no option name.",
                code="bad_argument",
                remedy="Write it as in the help of vllm serve, without dashes in front.",
            )
        if option in options:
            raise VllmError(
                f"The engine argument {option} is given twice, with - and with _.", code="bad_argument", remedy="Keep one of them."
            )
        if value is not None:
            options[option] = value
    lines = [f"no-{option}: true" if value is False else f"{option}: {_yaml_scalar(value)}" for option, value in sorted(options.items())]
    return "".join(f"{line}\n" for line in lines)


def read_engine_yaml(text: str) -> dict[str, t.Any]:
    """The options that :func:`engine_yaml` wrote, a ``no-`` form as the false flag that it was."""
    options: dict[str, t.Any] = {}
    for line in text.splitlines():
        option, _colon, value = line.partition(": ")
        try:
            options[option] = json.loads(value)
        except ValueError as exc:
            raise VllmError(
                f"engine.yaml has the line {option}, which is no option with a JSON value.",
                code="bad_release",
                remedy="It was edited; deploy again, which writes it anew.",
            ) from exc
    return {name[3:] if name.startswith("no-") and value is True else name: value for name, value in options.items()}


def address(options: t.Mapping[str, t.Any]) -> str:
    """The root URL of a server with these options, as its own host reaches it."""
    host = str(options.get("host") or "0.0.0.0")
    scheme = "https" if options.get("ssl-certfile") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{options.get('port', 8000)}"


def _yaml_scalar(value: t.Any) -> str:
    """JSON that YAML reads the same way; YAML 1.1 takes a float for text unless it has a point."""
    if isinstance(value, t.Mapping):
        return "{" + ", ".join(f"{_yaml_scalar(str(key))}: {_yaml_scalar(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_yaml_scalar, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    return _YAML_SPECIAL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def environment_file(variables: t.Mapping[str, t.Any]) -> str:
    """The text of a systemd EnvironmentFile, each value between double quotes."""
    lines = []
    for name, value in sorted(variables.items()):
        if not _VARIABLE.fullmatch(name):
            raise VllmError(
                f"{name!r} is no name of an environment variable.", code="bad_environment", remedy="Use letters, digits and underscores."
            )
        if "\0" in str(value):
            raise VllmError(f"The environment variable {name} contains a NUL byte.", code="bad_environment", remedy="Remove it.")
        escaped = re.sub(r'([\\"$`])', r"\\\1", str(value))
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


class Release(t.NamedTuple):
    """Everything that makes a release what it is. Paths are absolute; ``gpus`` are NVML UUIDs, none for a CPU engine."""

    deployment: str
    model_path: str
    engine_path: str
    arguments: t.Mapping[str, t.Any]
    environment: t.Mapping[str, str]
    gpus: t.Sequence[str]
    gpu_wait: t.Mapping[str, t.Any]
    origin: t.Mapping[str, t.Any]

    @property
    def id(self) -> str:
        """Twelve hex digits of the content: equal inputs are the same release."""
        content = [
            self.model_path,
            self.engine_path,
            engine_yaml(self.arguments),
            environment_file(self.environment),
            list(self.gpus),
            dict(self.gpu_wait),
            dict(self.origin),
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def files(self) -> dict[str, tuple[str, int]]:
        """Name to text and mode. Keys may be in the first two, so only root reads them; systemd hands them to the engine."""
        return {
            ENGINE_YAML: (engine_yaml(self.arguments), 0o600),
            ENVIRONMENT: (environment_file(self.environment), 0o600),
            RELEASE_JSON: (release_json(self), 0o644),
        }

    def links(self) -> dict[str, str]:
        """Name to target of the links in the release's folder."""
        return {"engine": self.engine_path, "model": self.model_path}


def release_json(release: Release) -> str:
    """What the host helper and people read of a release; no secret is in it."""
    record = {
        "schema": 1,
        "id": release.id,
        "deployment": release.deployment,
        "model_path": release.model_path,
        "engine_path": release.engine_path,
        "gpus": list(release.gpus),
        "gpu_wait": dict(release.gpu_wait),
        "origin": dict(release.origin),
    }
    return json.dumps(record, indent=2, sort_keys=True) + "\n"
