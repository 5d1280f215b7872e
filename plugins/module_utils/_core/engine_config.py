# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's configuration: vLLM's ``--config`` file, which a release writes and others read again. PRIVATE to the collection."""

from __future__ import annotations

import json
import re
import typing as t

from .errors import VllmError

__all__ = ["address", "engine_yaml", "names_of", "read_engine_yaml"]

_OPTION = re.compile(r"[a-z][a-z0-9.-]*")
# YAML ends a line at these, or forbids them, even between double quotes; JSON does not escape them.
_YAML_SPECIAL = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
# YAML finds the end of a map's key within this many characters, unless the key is marked as one.
_YAML_KEY = 1000
# What argparse takes for a value although it begins with a dash.
_NEGATIVE = re.compile(r"-(\d+|\d*\.\d+)?")
# Bytes: systemd's limit of a credential.
_CREDENTIAL_SIZE = 1024 * 1024


def engine_yaml(arguments: t.Mapping[str, t.Any]) -> str:
    """The text of vLLM's ``--config`` file: one option a line, each value as JSON; never empty, which vLLM would not read.

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
    text = "".join(f"{_option_line(option, value)}\n" for option, value in sorted(options.items())) or "{}\n"
    if len(text.encode()) > _CREDENTIAL_SIZE:
        raise VllmError(
            f"The engine arguments are {len(text.encode())} bytes, more than the {_CREDENTIAL_SIZE} that systemd hands over.",
            code="bad_argument",
            remedy="Put the long ones into files on the host and name those, as chat-template allows.",
        )
    return text


def _option_line(option: str, value: t.Any) -> str:
    if value is False:
        return f"no-{option}: true"
    words = value if isinstance(value, (list, tuple)) else [value]
    for word in words:
        if str(word).startswith("-") and not _NEGATIVE.fullmatch(str(word)):
            raise VllmError(
                f"A value of the engine argument {option} begins with a dash, {str(word)[:200]!r}; vllm serve would take it for an option.",
                code="bad_argument",
                remedy="Give each option as an argument of its own.",
            )
    try:
        line = f"{option}: {_yaml_scalar(_as_words(value))}"
        line.encode()
    except ValueError as exc:
        raise VllmError(
            f"The value of the engine argument {option} cannot be written as text ({exc}).",
            code="bad_argument",
            remedy="Give finite numbers and whole characters.",
        ) from exc
    return line


def _as_words(value: t.Any) -> t.Any:
    """vLLM makes each item of a list one word of its command line, a map among them in Python's notation, which nothing reads back."""
    if isinstance(value, (list, tuple)):
        return [json.dumps(item, allow_nan=False, sort_keys=True) if isinstance(item, (t.Mapping, list, tuple)) else item for item in value]
    return value


def read_engine_yaml(text: str) -> dict[str, t.Any]:
    """The options that :func:`engine_yaml` wrote, a ``no-`` form as the false flag that it was.

    Somebody may have edited it since: a value that is no JSON is taken as the text that it is.
    """
    pairs = (line.partition(": ")[::2] for line in text.splitlines() if ": " in line and line[0] not in "# ")
    options = {option: _json_or_text(value) for option, value in pairs}
    negated = {option for option, value in options.items() if option.startswith("no-") and value is True}
    return {**{option: value for option, value in options.items() if option not in negated}, **{option[3:]: False for option in negated}}


def _json_or_text(value: str) -> t.Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def names_of(options: t.Mapping[str, t.Any], option: str) -> list[str]:
    """The values of an option that takes several."""
    value = options.get(option) or []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def address(options: t.Mapping[str, t.Any]) -> str:
    """The root URL of a server with these options, as its own host reaches it; with a socket file vLLM opens no port."""
    if options.get("uds"):
        return f"unix://{options['uds']}"
    host = str(options.get("host") or "0.0.0.0")
    scheme = "https" if options.get("ssl-certfile") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{options.get('port', 8000)}"


def _yaml_scalar(value: t.Any) -> str:
    """JSON that YAML reads the same way; YAML 1.1 takes a float for text unless it has a point."""
    if isinstance(value, t.Mapping):
        return "{" + ", ".join(f"{_yaml_key(str(key))}: {_yaml_scalar(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_yaml_scalar, value)) + "]"
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, float):
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    return _YAML_SPECIAL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _yaml_key(key: str) -> str:
    text = _yaml_scalar(key)
    return text if len(text) <= _YAML_KEY else f"? {text} "
