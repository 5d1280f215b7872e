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

from .engine_config import engine_yaml
from .errors import VllmError

__all__ = ["Release", "absolute_path", "content_id", "deployment_name", "engine_folder", "environment_file", "release_json", "without_keys"]

ENGINE_YAML = "engine.yaml"
ENVIRONMENT = "environment"
RELEASE_JSON = "release.json"

_DEPLOYMENT = re.compile(r"[a-z][a-z0-9-]{0,25}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# One of these in a value, and systemd reads nothing of the file: halves of surrogate pairs and what Unicode reserves for no character.
_NONCHARACTERS = "".join(chr(plane << 16 | end) for plane in range(17) for end in (0xFFFE, 0xFFFF))
_NO_SYSTEMD_TEXT = re.compile(f"[\0\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
# systemd tells the unit's programs these; a variable of the release would win over them.
_OF_SYSTEMD = ("CREDENTIALS_DIRECTORY", "EXIT_CODE", "EXIT_STATUS", "INVOCATION_ID", "MAINPID", "SERVICE_RESULT")
# Bytes: the kernel's limits of one variable with its name and of a path, each with its end.
_VARIABLE_SIZE = 128 * 1024
_PATH_SIZE = 4096


def deployment_name(name: str) -> str:
    """``name`` itself when it can name a unit, a user (32 characters with its prefix) and a folder."""
    if not _DEPLOYMENT.fullmatch(name) or name.endswith("-"):
        raise VllmError(
            f"The deployment name {name!r} cannot name a systemd unit and a system user.",
            code="bad_deployment",
            remedy="Use 1 to 26 lower-case letters, digits and inner dashes, starting with a letter.",
        )
    return name


def absolute_path(path: str, what: str) -> str:
    """``path`` itself when a link and a command line can hold it; ``what`` says in the refusal what it leads to."""
    refusal = None
    if not path.startswith("/"):
        refusal = "is not absolute"
    elif re.search("[\0\ud800-\udfff]", path):
        refusal = "holds a character that no path can hold"
    elif len(path.encode()) >= _PATH_SIZE:
        refusal = f"is longer than {_PATH_SIZE - 1} bytes"
    if refusal:
        raise VllmError(f"The path of the {what}, {path[:200]!r}, {refusal}.", code="bad_path", remedy="Give the full path of a folder.")
    return path


def engine_folder(path: str) -> str:
    """The path of an engine venv, whose programs the engine finds through ``PATH``."""
    if ":" in path:
        raise VllmError(
            f"The path of the engine, {path!r}, holds a colon, which ends an entry of PATH.",
            code="bad_path",
            remedy="Install the engine below a folder without a colon in its name.",
        )
    return absolute_path(path, "engine")


def environment_file(variables: t.Mapping[str, t.Any]) -> str:
    """The text of a systemd EnvironmentFile, each value between double quotes; variables that are null are left out."""
    lines = []
    for name, value in sorted(variables.items()):
        if value is not None:
            escaped = re.sub(r'([\\"$`])', r"\\\1", _variable(name, value))
            lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def _variable(name: str, value: t.Any) -> str:
    """The value as text that reaches the engine unchanged."""
    if not _VARIABLE.fullmatch(name):
        raise _bad_variable(f"{name!r} is no name of an environment variable.", "Use letters, digits and underscores.")
    if name in _OF_SYSTEMD:
        raise _bad_variable(f"The environment variable {name} is systemd's own.", "Leave it out.")
    if isinstance(value, (bool, list, tuple, t.Mapping)):
        shown = json.dumps(value)[:200]
        raise _bad_variable(
            f"The environment variable {name} is {shown}, which is no text.", "Write, in quotes, what the engine is to see."
        )
    text = str(value)
    found = _NO_SYSTEMD_TEXT.search(text)
    if found:
        raise _bad_variable(
            f"The environment variable {name} holds the character U+{ord(found[0]):04X} at position {found.start() + 1}; "
            "systemd takes it for no text and the unit would not start.",
            "Remove it, or hand the value over in a file.",
        )
    if len(name) + len(text.encode()) + 2 > _VARIABLE_SIZE:
        raise _bad_variable(f"The environment variable {name} is longer than the kernel's 128 KiB.", "Hand the value over in a file.")
    return text


def _bad_variable(message: str, remedy: str) -> VllmError:
    return VllmError(message, code="bad_environment", remedy=remedy)


class Release(t.NamedTuple):
    """Everything that makes a release what it is. Paths are absolute; ``gpus`` are NVML UUIDs, none for a CPU engine."""

    deployment: str
    model_path: str
    engine_path: str
    arguments: t.Mapping[str, t.Any]
    environment: t.Mapping[str, t.Any]
    gpus: t.Sequence[str]
    gpu_wait: t.Mapping[str, t.Any]
    origin: t.Mapping[str, t.Any]

    @property
    def id(self) -> str:
        """Equal inputs are the same release."""
        return content_id(self._asdict(), engine_yaml(self.arguments), environment_file(self.environment))

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


def content_id(record: t.Mapping[str, t.Any], arguments: str, environment: str) -> str:
    """Twelve hex digits of a release's content, from its inputs or from what lies on the disk: ``record`` may be its release.json."""
    paths, details = [record["model_path"], record["engine_path"]], [dict(record["gpu_wait"]), dict(record["origin"])]
    content = [*paths, arguments, environment, list(record["gpus"]), *details]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def without_keys(text: t.Optional[str]) -> str:
    """The text of an engine.yaml as it may be shown."""
    return "".join(line for line in (text or "").splitlines(keepends=True) if not line.startswith("api-key:"))


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
