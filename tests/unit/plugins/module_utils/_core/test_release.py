# SPDX-License-Identifier: GPL-3.0-or-later
"""What a release contains and how it reaches the disk."""

from __future__ import annotations

import json
import os
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.engine_config import address, engine_yaml, names_of, read_engine_yaml
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import VllmError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_files import HostFiles
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release import (
    Release,
    absolute_path,
    deployment_name,
    engine_folder,
    environment_file,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.release_store import ReleaseStore
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.restart import restart_reason
from hypothesis import given
from hypothesis import strategies as st


def a_release(**changes: t.Any) -> Release:
    values: dict[str, t.Any] = {
        "deployment": "minimax-m25",
        "model_path": "/models/m/c1",
        "engine_path": "/engines/vllm-0.33.0",
        "arguments": {"max-num-seqs": 256},
        "environment": {"HF_HUB_OFFLINE": "1"},
        "gpus": ["GPU-1", "GPU-2"],
        "gpu_wait": {"utilization": 0.95, "timeout": 600},
        "origin": {},
    }
    return Release(**{**values, **changes})


@pytest.mark.parametrize("name", ["minimax-m25", "a", "k2"])
def test_a_name_that_can_be_a_unit_and_a_user_is_taken(name: str) -> None:
    assert deployment_name(name) == name


@pytest.mark.parametrize("name", ["", "MiniMax", "2fast", "a_b", "../etc", "x" * 27, "a-", "a b"])
def test_a_name_that_cannot_be_a_unit_or_a_user_is_refused(name: str) -> None:
    with pytest.raises(VllmError, match="cannot name a systemd unit"):
        deployment_name(name)


def test_a_false_flag_becomes_its_no_form_because_vllm_drops_false() -> None:
    assert engine_yaml({"enable-prefix-caching": False}) == "no-enable-prefix-caching: true\n"


def test_null_goes_back_to_the_default_of_the_engine() -> None:
    assert engine_yaml({"max-num-seqs": None, "seed": 1}) == "seed: 1\n"


def test_without_an_option_the_file_is_a_map_all_the_same() -> None:
    assert yaml.safe_load(engine_yaml({})) == yaml.safe_load(engine_yaml({"seed": None})) == {}


def test_one_option_under_two_spellings_is_refused() -> None:
    with pytest.raises(VllmError, match="max-num-seqs is given twice"):
        engine_yaml({"max-num-seqs": 1, "max_num_seqs": 2})


def test_an_argument_that_is_no_option_name_is_refused() -> None:
    with pytest.raises(VllmError, match="is no option name"):
        engine_yaml({"max num seqs": 1})


JSON_VALUES = st.recursive(
    st.booleans().filter(bool) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), inner),
)


def words_of_vllm(text: str) -> list[str]:
    """The command line that vLLM makes of its configuration file."""
    words: list[str] = []
    for key, value in yaml.safe_load(text).items():
        words.append(f"--{key}")
        if isinstance(value, list):
            words += map(str, value)
        elif value is not True:
            words.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return words


@given(JSON_VALUES)
def test_any_value_comes_back_from_yaml_as_it_went_in(value: t.Any) -> None:
    assert yaml.safe_load(engine_yaml({"option": {"inner": value}})) == {"option": {"inner": value}}


@given(st.lists(JSON_VALUES.filter(lambda value: not str(value).startswith("-"))))
def test_any_list_becomes_a_word_for_each_item(items: list[t.Any]) -> None:
    words = words_of_vllm(engine_yaml({"option": items}))
    assert words[:1] == ["--option"]
    for word, item in zip(words[1:], items):
        assert json.loads(word) == item if isinstance(item, (dict, list)) else word == str(item)
    assert len(words) == len(items) + 1


def test_a_map_s_key_may_be_longer_than_yaml_looks_for_its_end() -> None:
    value = {"k" * 2000: {"l" * 1100: 1}, "short": [{"m" * 1024: None}]}
    assert yaml.safe_load(engine_yaml({"option": value})) == {"option": value}


@pytest.mark.parametrize("value", ["--trust-remote-code", ["a", "-x"], "-1e-05", -1e-05, ["--"]])
def test_a_value_that_the_engine_would_take_for_an_option_is_refused(value: t.Any) -> None:
    with pytest.raises(VllmError, match="served-model-name begins with a dash"):
        engine_yaml({"served-model-name": value})


@pytest.mark.parametrize("value", [-1, "-1", -0.5, "-", "a -x", {"a": "-x"}])
def test_a_value_with_a_dash_that_is_no_option_is_taken(value: t.Any) -> None:
    assert yaml.safe_load(engine_yaml({"max-model-len": value})) == {"max-model-len": value}


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {"a": [float("-inf")]}, [[float("nan")]], "\ud800", ["a\udfff"], {"\udc80": 1}]
)
def test_a_value_that_is_no_text_is_refused_by_the_name_of_its_option(value: t.Any) -> None:
    with pytest.raises(VllmError, match="engine argument hf-overrides cannot be written"):
        engine_yaml({"hf_overrides": value})


def test_more_arguments_than_a_credential_holds_are_refused() -> None:
    with pytest.raises(VllmError, match="more than the 1048576 that systemd hands over"):
        engine_yaml({"chat-template": "x" * 1024 * 1024})


def test_a_small_number_inside_a_map_stays_a_number() -> None:
    assert yaml.safe_load(engine_yaml({"override": {"eps": 1e-05}})) == {"override": {"eps": 1e-05}}


def test_environment_values_are_quoted_for_systemd() -> None:
    assert environment_file({"A": 'a "b" $c `d` \\e'}) == 'A="a \\"b\\" \\$c \\`d\\` \\\\e"\n'


@pytest.mark.parametrize("name", ["1A", "A-B", "", "A=B", "A\n", "\u00c4"])
def test_an_impossible_variable_name_is_refused(name: str) -> None:
    with pytest.raises(VllmError, match="no name of an environment variable"):
        environment_file({name: "x"})


@pytest.mark.parametrize("name", ["CREDENTIALS_DIRECTORY", "INVOCATION_ID", "EXIT_STATUS"])
def test_a_variable_that_is_systemd_s_own_is_refused(name: str) -> None:
    with pytest.raises(VllmError, match=f"{name} is systemd's own"):
        environment_file({name: "x"})


@pytest.mark.parametrize(
    ("character", "shown"),
    [("\0", "U+0000"), ("\ud800", "U+D800"), ("\ufdd0", "U+FDD0"), ("\ufffe", "U+FFFE"), ("\U0010ffff", "U+10FFFF")],
)
def test_a_character_with_which_systemd_reads_no_environment_is_refused_by_name_and_place(character: str, shown: str) -> None:
    with pytest.raises(VllmError, match=rf"variable TOKEN holds the character {re.escape(shown)} at position 3"):
        environment_file({"TOKEN": f"ab{character}c"})


@given(st.characters(codec="utf-8", exclude_categories=["Cn"], exclude_characters="\0"))
def test_every_other_character_is_taken(character: str) -> None:
    assert environment_file({"TOKEN": f"a{character}b"}).endswith('b"\n')


def test_numbers_are_written_as_text_and_null_leaves_a_variable_out() -> None:
    assert environment_file({"A": 8, "B": None, "C": 0.5}) == 'A="8"\nC="0.5"\n'


@pytest.mark.parametrize(("value", "shown"), [(True, "true"), ([1], r"\[1\]"), ({"a": 1}, r'\{"a": 1\}')])
def test_what_has_several_readings_as_text_is_refused(value: t.Any, shown: str) -> None:
    with pytest.raises(VllmError, match=f"variable A is {shown}, which is no text. Write, in quotes"):
        environment_file({"A": value})


def test_a_variable_is_as_long_as_the_kernel_takes_and_no_longer() -> None:
    longest = 128 * 1024 - len("A=") - 1
    assert environment_file({"A": "x" * longest})
    with pytest.raises(VllmError, match="longer than the kernel's 128 KiB"):
        environment_file({"A": "\u00e4" * (longest // 2 + 1)})


@pytest.mark.parametrize("path", ["/a", "/models/a b/%i $HOME \"'\\\n\u2028\U0001f600"])
def test_a_path_is_taken_as_it_is(path: str) -> None:
    assert absolute_path(path, "model") == engine_folder(path) == path


@pytest.mark.parametrize(
    ("path", "said"),
    [("models", "is not absolute"), ("~/m", "is not absolute"), ("/a\0b", "no path can hold"), ("/\ud800", "no path can hold"),
     ("/" + "\u00e4" * 2048, "is longer than 4095 bytes")],
)  # fmt: skip
def test_a_path_that_cannot_be_one_is_refused(path: str, said: str) -> None:
    with pytest.raises(VllmError, match=said):
        absolute_path(path, "model")


def test_an_engine_whose_path_would_break_the_search_path_is_refused() -> None:
    with pytest.raises(VllmError, match="holds a colon, which ends an entry of PATH"):
        engine_folder("/engines/a:b")


def test_equal_content_is_the_same_release_and_any_change_another() -> None:
    assert a_release().id == a_release().id
    changes: list[dict[str, t.Any]] = [
        {"arguments": {"max-num-seqs": 128}},
        {"gpus": ["GPU-1"]},
        {"model_path": "/models/m/c2"},
        {"environment": {}},
        {"origin": {"commit": "c2"}},
    ]
    assert len({a_release(**change).id for change in changes} | {a_release().id}) == len(changes) + 1


def test_only_root_reads_what_may_hold_keys(tmp_path: Path) -> None:
    store = ReleaseStore(tmp_path, "d")
    release = a_release(arguments={"api-key": ["k"]})
    store.write(release, "b")
    modes = {path.name: path.stat().st_mode & 0o777 for path in store.path(release.id).iterdir() if not path.is_symlink()}
    assert modes == {"engine.yaml": 0o600, "environment": 0o600, "release.json": 0o644}
    assert "k" not in json.loads((store.path(release.id) / "release.json").read_text())


def test_switching_keeps_the_release_before_as_previous(tmp_path: Path) -> None:
    store = ReleaseStore(tmp_path, "d")
    first, second = a_release(), a_release(gpus=["GPU-9"])
    for release in (first, second, second):
        store.write(release, "b")
        store.switch(release.id)
    assert (store.linked("current"), store.linked("previous")) == (second.id, first.id)


def test_a_hand_edit_is_seen_and_moved_aside(tmp_path: Path) -> None:
    store = ReleaseStore(tmp_path, "d")
    release = a_release()
    store.write(release, "b0")
    edited = store.path(release.id) / "engine.yaml"
    edited.write_text("max-num-seqs: 1024\n")
    assert [Path(drift.path).name for drift in store.drift(release)] == ["engine.yaml"]
    backup = store.write(release, "b1")
    assert backup is not None and (Path(backup) / "engine.yaml").read_text() == "max-num-seqs: 1024\n"
    assert store.drift(release) == []


def test_what_was_written_is_no_drift_whatever_characters_are_in_it(tmp_path: Path) -> None:
    store = ReleaseStore(tmp_path, "d")
    text = "\r\n\x0b\x1c\x85\u2028\U0001f600\\ \t"
    release = a_release(arguments={"chat-template": text}, environment={"A": text}, model_path=f"/m/{text}")
    store.write(release, "b")
    assert store.drift(release) == []


def test_an_edit_that_is_no_text_is_drift_as_well(tmp_path: Path) -> None:
    store = ReleaseStore(tmp_path, "d")
    store.write(a_release(), "b")
    (store.path(a_release().id) / "environment").write_bytes(b"A=\xff\n")
    assert [Path(drift.path).name for drift in store.drift(a_release())] == ["environment"]


def test_a_killed_write_leaves_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ReleaseStore(tmp_path, "d")

    def killed(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        store.write(a_release(), "b")
    assert not store.path(a_release().id).exists()
    monkeypatch.undo()
    store.write(a_release(), "b")
    assert store.drift(a_release()) == []


RUNNING = {"release": "r1", "unit_sha256": "u1"}


@pytest.mark.parametrize(
    ("active", "running", "release_id", "unit_sha256", "expected"),
    [
        (False, None, "r1", "u1", None),
        (True, RUNNING, "r1", "u1", None),
        (True, None, "r1", "u1", "did not start"),
        (True, RUNNING, "r2", "u1", "runs release r1, current is r2"),
        (True, RUNNING, "r1", "u2", "unit file changed"),
    ],
)
def test_a_restart_is_due_when_the_unit_runs_something_else(
    active: bool, running: t.Optional[dict[str, str]], release_id: str, unit_sha256: str, expected: t.Optional[str]
) -> None:
    reason = restart_reason(active=active, running=running, release_id=release_id, unit_sha256=unit_sha256)
    assert reason is None if expected is None else expected in str(reason)


def test_a_restart_is_due_when_the_release_was_written_anew_under_the_same_name() -> None:
    started_with: dict[str, t.Any] = {**RUNNING, "written": "17-1"}
    same = restart_reason(active=True, running=started_with, release_id="r1", unit_sha256="u1", written="17-1")
    anew = restart_reason(active=True, running=started_with, release_id="r1", unit_sha256="u1", written="18-2")
    assert same is None
    assert "was edited and is written anew" in str(anew)


OPTIONS = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True).filter(lambda name: not name.startswith("no-"))
PLAIN_WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0")).filter(lambda word: not word.startswith("-"))
PLAIN = st.booleans() | st.integers(0) | PLAIN_WORDS | st.lists(PLAIN_WORDS) | st.dictionaries(PLAIN_WORDS, st.integers() | PLAIN_WORDS)


@given(st.dictionaries(OPTIONS, PLAIN))
def test_what_was_written_of_the_arguments_is_read_again(options: dict[str, t.Any]) -> None:
    assert read_engine_yaml(engine_yaml(options)) == options


def test_an_edited_file_is_still_read_as_far_as_it_goes() -> None:
    text = "# by hand\nhost: 0.0.0.0\n\nport: 8001\nno-enable-log-requests: true\nserved-model-name: M\nnonsense\n"
    options = read_engine_yaml(text)
    assert options == {"host": "0.0.0.0", "port": 8001, "enable-log-requests": False, "served-model-name": "M"}
    assert (names_of(options, "served-model-name"), names_of(options, "api-key")) == (["M"], [])


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"host": "127.0.0.1", "port": 8001}, "http://127.0.0.1:8001"),
        ({"host": "::1", "port": 8001, "ssl-certfile": "/x"}, "https://[::1]:8001"),
        ({}, "http://0.0.0.0:8000"),
    ],
)
def test_the_address_of_a_server_follows_from_its_options(options: dict[str, t.Any], url: str) -> None:
    assert address(options) == url


UNIT = "# made\n[Unit]\nDescription=a\nConflicts=b.service\n\n[Service]\n# why\nExecStart=/bin/a\n[Install]\nWantedBy=multi-user.target\n"


@pytest.mark.parametrize(
    ("before", "after", "is_another_service"),
    [
        ("# why", "# why not", False),
        ("# why\n", "\n\n", False),
        ("Conflicts=b.service", "Conflicts=c.service", False),
        ("multi-user", "graphical", False),
        ("/bin/a", "/bin/b", True),
        ("ExecStart", "User=c\nExecStart", True),
        ("multi-user.target\n", "multi-user.target\n[Service]\nNice=1\n", True),
    ],
)
def test_only_a_change_of_the_service_itself_makes_another_unit(tmp_path: Path, before: str, after: str, is_another_service: bool) -> None:
    files = HostFiles("a", tmp_path)
    files.unit_file.parent.mkdir(parents=True)
    files.unit_file.write_text(UNIT)
    started_with = files.unit_sha256()
    files.unit_file.write_text(UNIT.replace(before, after))
    assert (files.unit_sha256() != started_with) == is_another_service
