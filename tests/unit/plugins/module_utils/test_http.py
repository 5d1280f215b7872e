# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP client against servers that take their time, and its time limit."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.http import Unreachable
from ansible_collections.gpufleet.vllm.plugins.module_utils._http import http_transport, is_of_this_host
from support.served_unit import HandMade

LIMIT = 0.5


class Trickle:
    """Sends ``begin``, and then ``step`` again and again."""

    def __init__(self, begin: bytes, step: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._serve, args=(begin, step), daemon=True).start()

    def _serve(self, begin: bytes, step: bytes) -> None:
        with contextlib.suppress(OSError):
            client, _address = self._listener.accept()
            with client:
                client.sendall(begin)
                while True:
                    client.sendall(step)
                    time.sleep(0.05)

    def end(self) -> None:
        self._listener.close()


@pytest.mark.parametrize(
    ("begin", "step"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 999\r\n\r\n", b"x"),
    ],
    ids=["status", "header", "headers", "body", "chunk", "error"],
)
def test_an_exchange_that_trickles_ends_with_its_time(begin: bytes, step: bytes) -> None:
    server = Trickle(begin, step)
    began = time.monotonic()
    with pytest.raises(Unreachable) as over:
        http_transport(use_proxy=False)("GET", server.url, timeout=LIMIT)
    server.end()
    if over.value.code != "unreachable":  # too many headers, or too long a line, are no HTTP, which may be said sooner
        assert over.value.code == "timeout" and time.monotonic() - began >= LIMIT
    assert time.monotonic() - began < LIMIT + 5


def test_the_alarm_clock_is_given_back_as_it_was() -> None:
    def mine(_number: int, _frame: t.Any) -> None:
        """Somebody else's."""

    before = signal.signal(signal.SIGALRM, mine)
    server = HandMade()
    assert http_transport(use_proxy=False)("GET", f"{server.url}/health", timeout=5).status == 200
    assert signal.getsignal(signal.SIGALRM) is mine and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    signal.signal(signal.SIGALRM, before)
    server.end()


def test_beside_the_main_thread_it_works_without_the_alarm_clock() -> None:
    server, statuses = HandMade(), []

    def ask() -> None:
        statuses.append(http_transport(use_proxy=False)("GET", f"{server.url}/nothing", timeout=5).status)

    worker = threading.Thread(target=ask)
    worker.start()
    worker.join()
    server.end()
    assert statuses == [404]


def test_of_a_name_the_address_that_answered_is_told() -> None:
    server = HandMade()
    answer = http_transport(use_proxy=False)("GET", f"http://localhost:{server.port}/health", timeout=5)
    server.end()
    assert (answer.peer, answer.proxied) == ("127.0.0.1", False)


def test_this_host_knows_its_own_addresses() -> None:
    assert is_of_this_host("http://127.0.0.1:1") and is_of_this_host("http://[::1]:1")
    assert not is_of_this_host("http://192.0.2.77:1") and not is_of_this_host("http://nothing.invalid:1")
