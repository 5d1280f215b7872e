# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.http import Response, Unreachable
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import FileSpec, Hub

HOME = "https://hub.example"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Network:
    """Scripted answers by URL (the last one stays), and what was asked."""

    def __init__(self, **answers: t.Any) -> None:
        self.answers: dict[str, list[t.Any]] = {}
        self.asked: list[tuple[str, str, t.Optional[str]]] = []
        self.slept: list[float] = []

    def on(self, url: str, *answers: t.Any) -> Network:
        self.answers[url] = list(answers)
        return self

    def __call__(
        self, method: str, url: str, headers: t.Optional[t.Mapping[str, str]] = None, body: t.Optional[bytes] = None, timeout: float = 10.0
    ) -> Response:
        self.asked.append((method, url, (headers or {}).get("Authorization")))
        answers = self.answers[url]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return t.cast(Response, answer)

    def hub(self, **options: t.Any) -> Hub:
        return Hub(HOME, "acme/tiny", self, self.slept.append, **options)


def ok(document: t.Any, **headers: str) -> Response:
    return Response(200, headers, json.dumps(document).encode())


def test_the_listing_is_read_page_by_page() -> None:
    tree = f"{HOME}/api/models/acme/tiny/tree/{COMMIT}?recursive=true&expand=false"
    small = {"type": "file", "path": "a", "size": 3, "oid": "11"}
    large = {"type": "file", "path": "b", "size": 130, "oid": "22", "lfs": {"oid": "ff", "size": 9000}}
    network = (
        Network()
        .on(tree, ok([small, {"type": "directory", "path": "d"}], link=f'<{HOME}/more>; rel="next"'))
        .on(f"{HOME}/more", ok([large]))
    )
    assert network.hub().files(COMMIT) == {"a": FileSpec("a", 3, git_sha1="11"), "b": FileSpec("b", 9000, sha256="ff")}


def test_the_token_goes_to_the_hub_and_to_no_other_host() -> None:
    url = f"{HOME}/acme/tiny/resolve/{COMMIT}/index.json"
    network = (
        Network()
        .on(url, Response(302, {"location": "https://cdn.example/x"}, b""))
        .on("https://cdn.example/x", Response(200, {}, b"content"))
    )
    assert network.hub(token="secret").read(COMMIT, "index.json") == b"content"
    assert [asked[2] for asked in network.asked] == ["Bearer secret", None]


def test_a_probe_ends_where_the_content_host_begins() -> None:
    url = f"{HOME}/acme/tiny/resolve/{COMMIT}/a"
    network = Network().on(url, Response(302, {"location": "https://cdn.example/x"}, b""))
    network.hub().probe(COMMIT, "a")
    assert [asked[:2] for asked in network.asked] == [("HEAD", url)]


def test_a_busy_hub_is_asked_again_after_the_pause_it_wants() -> None:
    url = f"{HOME}/api/models/acme/tiny/revision/main"
    busy = Response(429, {"retry-after": "7"}, b"")
    network = Network().on(url, busy, Response(503, {}, b""), ok({"sha": COMMIT, "id": "acme/tiny"}))
    assert network.hub().resolve("main").commit == COMMIT
    assert network.slept == [7.0, 1.0]


def test_patience_bounds_the_pauses_and_an_untrusted_certificate_is_not_tried_again() -> None:
    url = f"{HOME}/api/models/acme/tiny/revision/main"
    for error, pauses in ((Unreachable("refused.", code="refused"), [0.5, 1.0]), (Unreachable("not trusted.", code="tls_untrusted"), [])):
        network = Network().on(url, error)
        with pytest.raises(VllmError, match="The hub could not be reached") as caught:
            network.hub(patience=2).resolve("main")
        assert caught.value.code == "hub_unreachable"
        assert network.slept == pauses


def test_an_address_that_is_no_hub_is_said_to_be_none() -> None:
    url = f"{HOME}/api/models/acme/tiny/revision/main"
    with pytest.raises(VllmError, match="not as a Hub does"):
        Network().on(url, Response(200, {}, b"<html>")).hub().resolve("main")
