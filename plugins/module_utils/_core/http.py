# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the core expects of an HTTP client: the edge hands one in. PRIVATE to the collection."""

from __future__ import annotations

import json
import typing as t

from .errors import VllmError

__all__ = ["Response", "Transport", "Unreachable"]


class Unreachable(VllmError):
    """No HTTP answer at all: refused, timed out, TLS not trusted, name unknown. ``code`` says which."""


class Response(t.NamedTuple):
    """An HTTP answer of any status. Header names are lower case.

    ``peer`` is the address that it came from; ``proxied`` where that is a proxy's.
    """

    status: int
    headers: t.Mapping[str, str]
    body: bytes
    peer: t.Optional[str] = None
    proxied: bool = False

    def json(self) -> t.Any:
        """The body as JSON; raises :class:`ValueError` when it is none."""
        return json.loads(self.body.decode("utf-8"))


class Transport(t.Protocol):
    """``transport(method, url, headers, body, timeout)`` answers with a :class:`Response` or raises :class:`Unreachable`.

    ``timeout`` is in seconds and bounds the whole exchange. Statuses of 400 and above are answers, not exceptions.
    """

    def __call__(
        self,
        method: str,
        url: str,
        headers: t.Optional[t.Mapping[str, str]] = None,
        body: t.Optional[bytes] = None,
        timeout: float = 10.0,
    ) -> Response: ...
