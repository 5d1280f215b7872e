# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one HTTP client of the modules, on ansible-core's open_url. PRIVATE to the collection."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import typing as t
from urllib.error import HTTPError, URLError

from ansible.module_utils.urls import open_url

from ._core.http import Response, Transport, Unreachable

__all__ = ["http_transport"]

_CHUNK = 64 * 1024


def http_transport(
    *,
    ca_path: t.Optional[str] = None,
    use_proxy: bool = True,
    unix_socket: t.Optional[str] = None,
    follow_redirects: str = "safe",
) -> Transport:
    """A :class:`Transport` over ansible-core's ``open_url``.

    ``ca_path`` is a PEM file with the private CA; ``use_proxy=False`` ignores the proxy variables of the environment, which is
    right for an address of this host; ``unix_socket`` sends every request to that socket.
    """

    def transport(
        method: str,
        url: str,
        headers: t.Optional[t.Mapping[str, str]] = None,
        body: t.Optional[bytes] = None,
        timeout: float = 10.0,
    ) -> Response:
        deadline = time.monotonic() + timeout
        try:
            answer = open_url(
                url,
                method=method,
                headers=dict(headers or {}),
                data=body,
                timeout=timeout,
                ca_path=ca_path,
                use_proxy=use_proxy,
                unix_socket=unix_socket,
                follow_redirects=follow_redirects,
            )
        except HTTPError as exc:
            return _response(exc, deadline, url)
        except (URLError, OSError, ValueError, http.client.HTTPException) as exc:
            raise _unreachable(url, exc) from exc
        return _response(answer, deadline, url)

    return transport


def _response(answer: t.Any, deadline: float, url: str) -> Response:
    """Read the body before ``deadline`` (monotonic seconds), so that a trickle of bytes cannot hold the caller."""
    chunks = []
    try:
        while True:
            if time.monotonic() > deadline:
                raise socket.timeout("the answer was still incomplete at the deadline")
            chunk = answer.read1(_CHUNK) if hasattr(answer, "read1") else answer.read(_CHUNK)
            if not chunk:
                break
            chunks.append(chunk)
    except (OSError, http.client.HTTPException) as exc:
        raise _unreachable(url, exc) from exc
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Response(int(getattr(answer, "status", None) or answer.code), headers, b"".join(chunks))


def _unreachable(url: str, exc: BaseException) -> Unreachable:
    cause = getattr(exc, "reason", exc)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Unreachable(
            f"{url}: the TLS certificate is not trusted ({cause}).", code="tls_untrusted", remedy="Set ca_path to the CA that signed it."
        )
    if isinstance(cause, ConnectionRefusedError):
        return Unreachable(f"{url}: connection refused.", code="refused")
    if isinstance(cause, (socket.timeout, TimeoutError)):
        return Unreachable(f"{url}: no complete answer in time ({cause}).", code="timeout")
    if isinstance(cause, socket.gaierror):
        return Unreachable(f"{url}: the host name does not resolve ({cause}).", code="name_unknown")
    return Unreachable(f"{url}: {cause or exc}.", code="unreachable")
