# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one HTTP client of the modules, on ansible-core's open_url. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import ssl
import threading
import time
import typing as t
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ansible.module_utils.urls import open_url

from ._core.http import Response, Transport, Unreachable

__all__ = ["http_transport", "is_of_this_host"]

_CHUNK = 64 * 1024
_AGAIN = 0.5


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

    def exchange(method: str, url: str, headers: t.Mapping[str, str], body: t.Optional[bytes], timeout: float) -> Response:
        deadline = time.monotonic() + timeout
        try:
            answer = open_url(
                url,
                method=method,
                headers=dict(headers),
                data=body,
                timeout=timeout,
                ca_path=ca_path,
                use_proxy=use_proxy,
                unix_socket=unix_socket,
                follow_redirects=follow_redirects,
            )
        except HTTPError as exc:
            answer = exc
        with contextlib.closing(answer):
            proxied = use_proxy and not unix_socket and _is_proxied(url)
            return _read(answer, deadline)._replace(proxied=proxied)

    def transport(
        method: str,
        url: str,
        headers: t.Optional[t.Mapping[str, str]] = None,
        body: t.Optional[bytes] = None,
        timeout: float = 10.0,
    ) -> Response:
        try:
            with _time_limit(timeout):
                return exchange(method, url, headers or {}, body, timeout)
        except (_Over, URLError, OSError, ValueError, http.client.HTTPException) as exc:
            _stop_alarm()  # it may have rung just as it was to be stopped
            shown = url if unix_socket is None else f"unix://{unix_socket} {urlsplit(url).path}"
            raise _unreachable(shown, exc) from exc

    return transport


def is_of_this_host(url: str) -> bool:
    """Whether the address belongs to one of this host's interfaces: to itself a host speaks from that address. Nothing is sent."""
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_source_towards(family, address) == address[0] for family, _type, _protocol, _name, address in found)


def _source_towards(family: int, address: t.Any) -> t.Optional[str]:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
    return None


class _Over(Exception):
    """The time of an exchange is over. No OSError: those are taken for the fault of one address, and the next one is tried."""


@contextlib.contextmanager
def _time_limit(seconds: float) -> t.Iterator[None]:
    """Bound everything within: names, connecting, TLS and a server that sends one byte now and then.

    By the alarm clock of the process, which only the main thread may set; elsewhere the time limits of the single reads must do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _ring)
    # Again and again: where an exception cannot be raised, as within a destructor, Python drops it.
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds), _AGAIN)
    try:
        yield
    finally:
        _stop_alarm()
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def _stop_alarm() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ring(_number: int, _frame: t.Any) -> t.NoReturn:
    raise _Over("the exchange was still incomplete")


def _read(answer: t.Any, deadline: float) -> Response:
    """Read the body before ``deadline`` (monotonic seconds)."""
    peer, chunks = _peer(answer), []
    while True:
        if time.monotonic() > deadline:
            raise _Over("the answer was still incomplete")
        chunk = answer.read1(_CHUNK) if hasattr(answer, "read1") else answer.read(_CHUNK)
        if not chunk:
            break
        chunks.append(chunk)
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Response(int(getattr(answer, "status", None) or answer.code), headers, b"".join(chunks), peer)


def _peer(answer: t.Any) -> t.Optional[str]:
    """The address at the other end: a name has several, and the first one is not always the one that answers."""
    with contextlib.suppress(OSError, ValueError, AttributeError), socket.socket(fileno=os.dup(answer.fileno())) as end:
        name = end.getpeername()
        return str(name[0]) if isinstance(name, tuple) else None
    return None


def _is_proxied(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


_REASONS: tuple[tuple[t.Any, str, str, str], ...] = (
    (ssl.SSLCertVerificationError, "tls_untrusted", "the TLS certificate is not trusted ({})", "Set ca_path to the CA that signed it."),
    (ConnectionRefusedError, "refused", "connection refused", ""),
    (FileNotFoundError, "refused", "the socket file is not there", ""),
    (PermissionError, "no_permission", "it may not be used ({})", "Run this as root (become: true)."),
    ((_Over, socket.timeout, TimeoutError), "timeout", "no complete answer in time ({})", ""),
    (socket.gaierror, "name_unknown", "the host name does not resolve ({})", ""),
)


def _unreachable(url: str, exc: BaseException) -> Unreachable:
    cause = _root_of(exc)
    for kinds, code, says, remedy in _REASONS:
        if isinstance(cause, kinds):
            return Unreachable(f"{url}: {says.format(cause)}.", code=code, remedy=remedy)
    return Unreachable(f"{url}: {cause or exc}.", code="unreachable")


def _root_of(exc: BaseException) -> t.Any:
    """Beneath what urllib wraps, and beneath what ansible-core says of a socket file instead of passing on the error."""
    cause = getattr(exc, "reason", exc)
    beneath = getattr(cause, "__context__", None)
    return beneath if isinstance(cause, OSError) and cause.errno is None and isinstance(beneath, OSError) else cause
