# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a health check that need no server: addresses, expected listeners, judgement, figures."""

from __future__ import annotations

import math
import re
import typing as t

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.answers import QUESTIONS, Answer
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.engine_config import address
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.health import Effects, Want
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.health_listeners import check_expected, check_listeners
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.health_types import Facts
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.health_unit import UnitWatch
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.judgement import judge
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.listeners import ProcFs
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.metrics import sum_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.server_url import port_of, request_root, server_root, socket_path
from support.virtual_host import UNIT, VirtualHost

SUM, CAPITAL = QUESTIONS
NCCL = "0002000A:E443"
LISTENING = "{}: {} 00000000:0000 0A 0:0 0:0 0 0 0 50{}\n"


# -- addresses -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "root", "port"),
    [
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000", 8000),
        ("http://[::]:8000/", "http://[::1]:8000", 8000),
        ("http://[fd00::5]:8000", "http://[fd00::5]:8000", 8000),
        ("https://gpu1.example/vllm/", "https://gpu1.example/vllm", 443),
        ("http://gpu1.example", "http://gpu1.example", 80),
        ("unix:///run/vllm.sock", "unix:///run/vllm.sock", None),
        ("unix:/run/vllm.sock", "unix:///run/vllm.sock", None),
    ],
)
def test_an_address_is_what_the_host_itself_would_ask(given: str, root: str, port: t.Optional[int]) -> None:
    assert (server_root(given), port_of(root)) == (root, port)


@pytest.mark.parametrize("given", ["8000", "unix://run/vllm.sock", "unix:", "ftp://gpu1", "http://", "http://u:p@gpu1", "http://gpu1?k=1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(VllmError) as refused:
        server_root(given)
    assert refused.value.code == "bad_url"


def test_a_release_with_a_socket_file_is_reached_by_it_and_by_no_port() -> None:
    root = address({"uds": "/run/vllm.sock", "host": "127.0.0.1", "port": 8000, "ssl-certfile": None})
    assert (root, socket_path(root), request_root(root)) == ("unix:///run/vllm.sock", "/run/vllm.sock", "http://localhost")
    assert socket_path(address({"port": 1})) is None


# -- listeners -------------------------------------------------------------------------------------------------------------


def check(expected: t.Sequence[str], *more: str) -> str:
    """The code of what stands against a unit that holds its port and these sockets."""
    host = VirtualHost()
    table = "".join(LISTENING.format(number, where, number) for number, where in enumerate(["0100007F:1F40", *more]))
    texts = {"/proc/net/tcp": f"head\n{table}", "/proc/40/comm": "vllm", "/proc/40/cgroup": f"0::/system.slice/{UNIT}"}

    def read(path: str) -> str:
        if path not in texts:
            raise FileNotFoundError(path)
        return texts[path]

    proc = ProcFs(read, lambda path: list("0123") if path.endswith("/fd") else ["40"], lambda path: f"socket:[50{path[-1]}]")
    want = Want("http://127.0.0.1:8000", unit=UNIT, expected_listeners=expected)
    effects: Effects = host.effects()._replace(proc=proc)
    watch = UnitWatch(want, effects)
    watch.look()
    found = check_listeners(want, effects, watch, Facts(notes=[]))
    return found.code if found else ""


def test_only_the_served_port_and_loopback_are_open() -> None:
    assert check([]) == check([], "0100007F:E443") == check([], "017F007F:E444") == ""
    assert check([], "00000000:1F40") == ""
    assert check([], NCCL) == check([], "00000000:E443") == "unexpected_listener"


@pytest.mark.parametrize("entry", ["58435", "10.0.2.0", "10.0.0.0/16", "10.0.2.0:58435", "*", "*:58435"])
def test_an_expected_listener_is_none_to_report(entry: str) -> None:
    assert check([entry], NCCL) == ""


@pytest.mark.parametrize("entry", ["58436", "10.0.2.1", "10.1.0.0/16", "10.0.2.0:58436", "fd00::5", "[fd00::5]:58435", "0.0.0.0"])
def test_another_than_the_expected_one_is_reported(entry: str) -> None:
    assert check([entry], NCCL) == "unexpected_listener"


@pytest.mark.parametrize("entry", ["", "eth0", "eth0:1", "10.0.0.5:x", "10.0.0.0/99", "[fd00::5"])
def test_an_entry_that_says_nothing_is_refused(entry: str) -> None:
    if entry == "[fd00::5":
        check_expected([entry])  # it can mean one thing only
        return
    with pytest.raises(VllmError) as refused:
        check_expected([entry])
    assert refused.value.code == "bad_options"


# -- judgement -------------------------------------------------------------------------------------------------------------


def verdict(text: str, question: t.Any = SUM, tokens: int = 20, **more: t.Any) -> str:
    found = judge(Answer(text, more.pop("reasoning", ""), tokens, "chat", **more), question)
    return found.code if found else ""


@pytest.mark.parametrize(
    "text",
    ["42", " 42.", "答案是42。", "\uff14\uff12", "٤٢", "Die Antwort ist 42.", "forty-two", "四十二", "**42**", "<think>so</think>\n\n42"],
)
def test_the_right_number_counts_in_any_language(text: str) -> None:
    assert verdict(text) == ""


@pytest.mark.parametrize("text", ["Paris", "PARIS.", "巴黎", "パリ", "Париж", "La capitale est Paris, paris, paris", "باريس"])
def test_the_right_city_counts_in_any_language(text: str) -> None:
    assert verdict(text, CAPITAL) == ""


@pytest.mark.parametrize("text", ["7", "142", "420", "4 2", "I do not know.", "0.42"])
def test_a_wrong_answer_is_no_nonsense(text: str) -> None:
    assert verdict(text) == "wrong_answer"


@pytest.mark.parametrize(
    "text",
    [
        "!" * 32,
        "the the the the the the",
        "The answer is 42, and this is why. " + "so on " * 60,
        "42 " + "\n" * 3 + "0" * 80,
        "wher привет 的ung שלום",
        "\ufffd\ufffd\x00\ufffd ok 42",
        "การ 42 жук the",
    ],
)
def test_loops_debris_and_mixed_scripts_are_nonsense_even_beside_the_right_number(text: str) -> None:
    assert verdict(text, tokens=99) == "degenerate_answer"


@pytest.mark.parametrize(
    "text",
    [
        "17 + 25 = 42, and 42 is very, very, very good",
        "Let x ∈ \u211d and π be what they are: 十七加二十五 is 42.",
        "42 😀🎉",
        "42\n\n------------------------------------------------",
        "| a | b |\n|---|---|\n| 17 | 25 |\n| sum | 42 |",
    ],
)
def test_sensible_text_with_odd_characters_is_none(text: str) -> None:
    assert verdict(text) == ""


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer("", "", 0, "chat"), "empty_answer"),
        (Answer(" \n", "", 1, "chat", finish_reason="stop"), "empty_answer"),
        (Answer("", "", 16, "chat", finish_reason="length"), ""),
        (Answer("", "The user asks", 16, "chat", finish_reason="length"), ""),
        (Answer("<think>The user", "", 16, "chat", finish_reason="length"), ""),
        (Answer("", "!" * 64, 16, "chat"), "degenerate_answer"),
        (Answer("42", "", 1, "chat", logprobs=[-0.1, math.nan]), "broken_numbers"),
        (Answer("42", "", 1, "chat", logprobs=[-9999.0]), "broken_numbers"),
        (Answer("42", "", 1, "chat", logprobs=[-14.2]), ""),
        (Answer("42", "", 1, "chat", logprobs_refused="500: Out of range float values are not JSON compliant"), "broken_numbers"),
        (Answer("42", "", 1, "chat", logprobs_refused="400: not allowed"), ""),
        (Answer("", "", 0, "embeddings", 1.0), ""),
        (Answer("", "", 0, "embeddings", 0.0), "broken_numbers"),
        (Answer("", "", 0, "embeddings", math.nan), "broken_numbers"),
        (Answer("", "", 0, "embeddings", math.inf), "broken_numbers"),
    ],
)
def test_silence_thoughts_and_numbers_are_told_apart(answer: Answer, code: str) -> None:
    found = judge(answer, SUM)
    assert (found.code if found else "") == code


def test_the_patterns_are_of_one_answer_each() -> None:
    assert not re.search(SUM.expected, "Paris") and not re.search(CAPITAL.expected, "42")


# -- figures ---------------------------------------------------------------------------------------------------------------


def test_the_figures_of_every_engine_are_added_up() -> None:
    text = '# TYPE a gauge\na{engine="0",model_name="a b} c"} 2.0\na{engine="1"} 3 1700000000000\na_total 9\nb NaN\nc x\n'
    assert sum_of(text, ["a"]) == 5.0
    assert sum_of(text, ["a", "a_total"]) == 14.0
    assert sum_of(text, ["c"]) == 0.0
    assert sum_of(text, ["nothing"]) is None
