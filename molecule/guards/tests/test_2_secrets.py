# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys and the hub's token appear nowhere but in the engine's configuration, and the keys work."""

from __future__ import annotations

import base64
import typing as t
from pathlib import Path

import pytest

if t.TYPE_CHECKING:
    from molecule.conftest import Operator, Play

UNIT = "vllm-minimax-m25.service"
MARKER = "gpufleet-marker-"
# As a pattern that does not match itself: sudo writes the commands of these very tests to the journal.
PATTERN = MARKER.replace("marker", "[m]arker")
OLD, KEPT, NEW, TOKEN = (f"{MARKER}{word}" for word in ("old", "kept", "new", "token"))
FIRST: dict[str, t.Any] = {"server_api_keys": [OLD, KEPT], "weights_token": TOKEN}
CHANGED: dict[str, t.Any] = {"server_api_keys": [KEPT, NEW], "weights_token": TOKEN}

# Every process of the unit, with its children, and what systemd itself shows of it.
PROCESSES = f"""
    for pid in $(cat /sys/fs/cgroup$(systemctl show --value --property=ControlGroup {UNIT})/cgroup.procs); do
        cat /proc/$pid/cmdline /proc/$pid/environ
    done; systemctl show {UNIT}; systemctl cat {UNIT}; systemctl show-environment"""
COUNT_PROCESSES = f"wc -l < /sys/fs/cgroup$(systemctl show --value --property=ControlGroup {UNIT})/cgroup.procs"
PLACES = "/etc /run/systemd /run/vllm-* /var/lib /var/log /var/cache /opt/gpufleet/host /root /home /tmp /var/tmp /dev/shm"
REQUEST = """
import sys, urllib.error, urllib.request
for key in {keys!r}:
    headers = {{"Authorization": "Bearer " + key}} if key else {{}}
    try:
        print(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8000/v1/models", headers=headers)).status)
    except urllib.error.HTTPError as error:
        print(error.status)
"""


def statuses(host: t.Any, *keys: str) -> list[str]:
    """What the server answers to each key; the script travels in base64, since sudo writes commands to the journal."""
    script = base64.b64encode(REQUEST.format(keys=keys).encode()).decode()
    return str(host.check_output(f"echo {script} | base64 -d | python3 -")).split()


@pytest.fixture(scope="module")
def plays(operator: Operator) -> dict[str, Play]:
    """A first deployment, one that is refused, one that fails at the gate and a change of keys, each as talkative as can be."""

    def deploy(variables: dict[str, t.Any], **more: t.Any) -> Play:
        limit = ["--limit=gpu1"] if variables is not FIRST else []
        return operator.play("deploy-minimax", "-vvv", "--diff", *limit, variables={**variables, **more})

    return {
        "first": deploy(FIRST),
        "refused": deploy(CHANGED, server_health_level="perfect"),
        "failed": deploy(CHANGED, server_environment={"FAKE_VLLM_SCRIPT": "crash-at-shard=3"}),
        "changed": deploy(CHANGED),
    }


def test_the_plays_ended_as_they_should(plays: dict[str, Play]) -> None:
    assert {name: play.status == 0 for name, play in plays.items()} == {"first": True, "refused": False, "failed": False, "changed": True}
    assert "server_health_level" in plays["refused"].failures["gpu1"]
    assert "vllm-minimax-m25.service failed while" in plays["failed"].failures["gpu1"]
    assert "Release | Write what runs and make it current" in plays["changed"].tasks_changed()


def test_the_output_of_no_play_shows_a_secret(plays: dict[str, Play]) -> None:
    assert [name for name, play in plays.items() if MARKER in play.output] == []


def test_neither_unit_nor_processes_show_a_secret(plays: dict[str, Play], operator: Operator) -> None:
    for name, shown in operator.on_all(PROCESSES).items():
        assert f"Id={UNIT}" in shown
        assert "CUDA_VISIBLE_DEVICES" in shown
        assert MARKER not in shown, name
    assert all(int(count) >= 6 for count in operator.on_all(COUNT_PROCESSES).values())


def test_no_journal_shows_a_secret(plays: dict[str, Play], operator: Operator) -> None:
    count = "journalctl --all --output=export | grep --text --count"
    assert all(int(found) > 0 for found in operator.on_all(f"{count} '[v]llm_release'").values())
    assert {found.strip() for found in operator.on_all(f"{count} '{PATTERN}'").values()} == {"0"}


def test_on_the_hosts_only_the_engine_s_configuration_holds_the_keys(plays: dict[str, Play], operator: Operator) -> None:
    for name, shown in operator.on_all(f"grep --recursive --text --no-messages --files-with-matches '{PATTERN}' {PLACES}").items():
        found = shown.split()
        assert found, name
        assert [path for path in found if not path.endswith("/engine.yaml")] == []
        assert {path.split("/releases/")[0] for path in found} == {"/etc/gpufleet/minimax-m25"}
    modes = operator.on_all(
        "stat -c '%a %U' /etc/gpufleet/minimax-m25/releases/*/engine.yaml /etc/gpufleet/minimax-m25/releases/*/environment"
    )
    assert {line for text in modes.values() for line in text.splitlines()} == {"600 root"}


def test_nobody_else_can_read_a_secret(plays: dict[str, Play], operator: Operator) -> None:
    look = f"find /etc/gpufleet /var/lib/gpufleet -type f -perm /077 -exec grep --text --files-with-matches '{PATTERN}' {{}} +"
    assert set(operator.on_all(look).values()) == {""}


def test_the_controller_keeps_no_secret_and_the_hosts_no_files_of_modules(plays: dict[str, Play], operator: Operator) -> None:
    own = operator.folder / "variables.json"
    left = [path for path in (Path.home() / ".ansible" / "tmp").rglob("*") if path.is_file() and MARKER.encode() in path.read_bytes()]
    left += [path for path in Path("/tmp").glob("ansible*/**/*") if path.is_file() and MARKER.encode() in path.read_bytes()]
    assert left == []
    assert MARKER in own.read_text()
    leftovers = operator.on_all("find /home/ops/.ansible/tmp /root/.ansible/tmp /root/.ansible_async /home/ops/.ansible_async -type f")
    assert set(leftovers.values()) == {""}


def test_each_key_works_and_nothing_else_does(plays: dict[str, Play], operator: Operator) -> None:
    assert statuses(operator.hosts["gpu1"], "", "wrong", KEPT, NEW, OLD) == ["401", "401", "200", "200", "401"]
    assert statuses(operator.hosts["gpu2"], "", "wrong", KEPT, OLD, NEW) == ["401", "401", "200", "200", "401"]
