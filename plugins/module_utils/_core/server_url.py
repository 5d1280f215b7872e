# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The address of a server: its root over TCP, or the socket file it listens on. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from urllib.parse import urlsplit, urlunsplit

from .errors import VllmError

__all__ = ["is_loopback", "port_of", "request_root", "server_root", "socket_path"]

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
_PORTS = {"http": 80, "https": 443}
_REMEDY = "Set it to one like http://127.0.0.1:8000, or unix:///run/vllm.sock."


def server_root(url: str) -> str:
    """The address to ask: no slash at the end, and a host in place of the word for all of them."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as exc:
        raise VllmError(f"url is no address ({exc}).", code="bad_url", remedy=_REMEDY) from exc
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise VllmError(
            "url holds more than an address: a user name, a password, a query or a fragment, which logs would show.",
            code="bad_url",
            remedy="Give a key as api_key.",
        )
    if parts.scheme == "unix" and not host and parts.path.startswith("/"):
        return f"unix://{parts.path}"
    if parts.scheme not in _PORTS or not host:
        raise VllmError(f"url is {url!r}, which is no http, https or unix address.", code="bad_url", remedy=_REMEDY)
    loopback = f"{_LOOPBACK[host]}{f':{port}' if port else ''}" if host in _LOOPBACK else parts.netloc
    return urlunsplit(parts._replace(netloc=loopback, path=parts.path.rstrip("/")))


def socket_path(root: str) -> t.Optional[str]:
    """The socket file of a ``unix:`` address."""
    return urlsplit(root).path if root.startswith("unix:") else None


def request_root(root: str) -> str:
    """What requests begin with; over a socket file the host in it says nothing."""
    return "http://localhost" if root.startswith("unix:") else root


def port_of(root: str) -> t.Optional[int]:
    """The TCP port, also where the scheme implies it."""
    parts = urlsplit(root)
    return parts.port or _PORTS.get(parts.scheme)


def is_loopback(root: str) -> bool:
    """An address of this host that no proxy can reach."""
    host = urlsplit(root).hostname or ""
    return root.startswith("unix:") or host in ("localhost", "::1") or host.startswith("127.")
