# SPDX-License-Identifier: GPL-3.0-or-later
"""On bare hosts: what cannot work is refused in one sentence with the remedy, and nothing is touched.

Refusals of the same task share a run, one on each host.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import typing as t

import pytest

if t.TYPE_CHECKING:
    from molecule.conftest import Operator

FOOTPRINT = """
    find /etc/gpufleet /opt/gpufleet /var/lib/gpufleet /etc/systemd/system -printf '%p %s %T@\n' 2>/dev/null | sort
    getent passwd | grep ^vllm-; getent group | grep -e ^vllm- -e ^gpufleet"""
LIBRARY = "$(ldconfig -p | sed -n 's/.*libnvidia-ml.so.1.* => //p')"
FAKE_NVML = "python3 /srv/bench/nvml/fake_nvml.py"
SQUAT = "/usr/bin/python3 -m http.server 8000"
LISTENS = "timeout 20 sh -c 'until ss -Hltn sport = :8000 | grep -q .; do sleep 0.1; done'"


class Refusal(t.NamedTuple):
    """What is wrong on each host, and what the play has to say about it."""

    variables: dict[str, dict[str, t.Any]]
    said: dict[str, list[str]]


def on_both(variables: dict[str, t.Any], *said: str) -> Refusal:
    return Refusal({"gpu1": variables, "gpu2": variables}, {"gpu1": list(said), "gpu2": list(said)})


def assert_refused(operator: Operator, refusal: Refusal) -> None:
    before = operator.on_all(FOOTPRINT)
    play = operator.play("deploy", variables={"vllm_recipe": "minimax-m2.5"}, host_variables=refusal.variables)
    assert play.status != 0
    assert play.changed == {"gpu1": 0, "gpu2": 0}
    for host, sentence in refusal.said.items():
        for words in sentence:
            assert words in play.failures[host]
    assert operator.on_all(FOOTPRINT) == before


@contextlib.contextmanager
def changed_host(host: t.Any, do: str, undo: str) -> t.Iterator[None]:
    host.check_output(do)
    try:
        yield
    finally:
        host.check_output(undo)


@pytest.fixture
def gated_repository(operator: Operator) -> t.Iterator[str]:
    folder = operator.root / ".cache" / "bench" / "hub" / "gpufleet" / "gated"
    folder.mkdir()
    try:
        (folder / "config.json").write_text("{}")
        (folder / ".hub.json").write_text(json.dumps({"gated": True, "tokens": ["the-right-one"]}))
        yield "gpufleet/gated"
    finally:
        shutil.rmtree(folder)


def test_the_hosts_are_bare(operator: Operator) -> None:
    assert not [text for text in operator.on_all(FOOTPRINT).values() if "gpufleet" in text or "minimax" in text]


def test_stopping_what_was_never_deployed_changes_nothing(operator: Operator) -> None:
    before = operator.on_all(FOOTPRINT)
    play = operator.play("stop", variables={"vllm_recipe": "minimax-m2.5"})
    assert (play.status, play.changed) == (0, {"gpu1": 0, "gpu2": 0})
    assert operator.on_all(FOOTPRINT) == before


@pytest.mark.long
def test_check_mode_tells_what_would_be_done_and_does_nothing(operator: Operator) -> None:
    before = operator.on_all(FOOTPRINT)
    play = operator.play("deploy-minimax", "--check", "--diff")
    assert play.status == 0
    assert {
        "Have the weights, whole and proven",
        "Have the engine in its own venv",
        "Helper | Have the program that units run beside the engine",
    } <= play.tasks_changed()
    assert {"Unit | Write the unit file, keeping a backup of one that was edited"} <= play.tasks_changed()
    assert "+max-num-seqs: 256" in play.output
    assert operator.on_all(FOOTPRINT) == before


def test_an_unknown_recipe(operator: Operator) -> None:
    play = operator.play("deploy", variables={"vllm_recipe": "minimax"})
    assert play.changed == {"gpu1": 0, "gpu2": 0}
    for sentence in play.failures.values():
        assert "There is no recipe minimax (" in sentence
        assert "Set vllm_recipe to minimax-m2.5, tiny-qwen3, or to the path of a recipe of your own." in sentence


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(
            on_both(
                {"engine_version": "0.19.0"},
                "vllm 0.19.0 cannot serve MiniMaxAI/MiniMax-M2.5, which needs 0.20.2 or newer",
                "Set engine_version to 0.20.2 or newer.",
            ),
            id="an engine that is too old for the model",
            marks=pytest.mark.long,
        ),
        pytest.param(
            Refusal(
                {"gpu1": {"server_host": "0.0.0.0"}, "gpu2": {"server_arguments": {"--api_key": "secret", "max_num_seqs": 8}}},
                {
                    "gpu1": ["server_host is 0.0.0.0", "would answer everybody", "Set server_api_keys"],
                    "gpu2": ["server_arguments holds api-key, which the role sets itself", "Use the variables", "server_api_keys"],
                },
            ),
            id="a public address without keys, a reserved argument in another spelling",
        ),
        pytest.param(
            Refusal(
                {"gpu1": {"server_deployment": "MiniMax_1"}, "gpu2": {"server_port": 80000}},
                {
                    "gpu1": [
                        "name MiniMax_1 cannot name a unit and a system user",
                        "Use 1 to 26 lower-case letters, digits and inner dashes",
                    ],
                    "gpu2": ["server_port is 80000", "Set it to a port from 1 to 65535."],
                },
            ),
            id="a bad name of a deployment, a port that is none",
            marks=pytest.mark.long,
        ),
        pytest.param(
            Refusal(
                {"gpu1": {"server_arguments": {"tensor_parallel_size": 16}}, "gpu2": {"server_gpus": [0, 1, 2, 9]}},
                {
                    "gpu1": [
                        "minimax-m25 needs 16 GPUs (tensor-parallel-size 16), gpu1 has 8",
                        "Lower tensor-parallel-size in server_arguments",
                    ],
                    "gpu2": ["this host has no GPU '9'", "It has: 0 (GPU-"],
                },
            ),
            id="more ranks than GPUs, a GPU that is not there",
            marks=pytest.mark.long,
        ),
        pytest.param(
            Refusal(
                {"gpu1": {"weights_revision": "v9"}, "gpu2": {"weights_endpoint": "http://nohub:8080"}},
                {
                    "gpu1": ["MiniMaxAI/MiniMax-M2.5 on http://hub:8080 has no revision v9", "weights_revision) to a branch, a tag"],
                    "gpu2": [
                        "The hub could not be reached: http://nohub:8080/",
                        "does not resolve",
                        "Check that this host reaches http://nohub:8080",
                    ],
                },
            ),
            id="a revision that does not exist, a hub out of reach",
        ),
    ],
)
def test_options_that_cannot_work(operator: Operator, refusal: Refusal) -> None:
    assert_refused(operator, refusal)


def test_a_port_that_somebody_else_has(operator: Operator) -> None:
    unit = f"systemd-run --quiet --unit=squatter.service {SQUAT} && {LISTENS}"
    process = f"nohup {SQUAT} >/dev/null 2>&1 & {LISTENS}"
    with (
        changed_host(operator.hosts["gpu1"], unit, "systemctl stop squatter.service"),
        changed_host(operator.hosts["gpu2"], process, "pkill --full [h]ttp.server"),
    ):
        remedy = "Stop it, or set server_port to a free port."
        said = {
            "gpu1": ["Port 8000 on gpu1 is taken by python3 (squatter.service, pid ", remedy],
            "gpu2": ["Port 8000 on gpu2 is taken by python3 (", ", pid ", remedy],
        }
        assert_refused(operator, Refusal({}, said))


def test_no_library_of_the_driver_and_no_driver(operator: Operator) -> None:
    with (
        changed_host(operator.hosts["gpu1"], f"mv {LIBRARY} /root/moved.so", f"mv /root/moved.so {LIBRARY}"),
        changed_host(operator.hosts["gpu2"], f"{FAKE_NVML} fail 'nvmlInit*' 9", f"{FAKE_NVML} heal"),
    ):
        said = {
            "gpu1": ["libnvidia-ml.so.1", "nstall the NVIDIA driver"],
            "gpu2": ["NVML cannot be used", "the NVIDIA kernel module is not loaded", "Load it (modprobe nvidia)"],
        }
        assert_refused(operator, Refusal({}, said))


def test_a_gated_repository_without_a_token_and_with_a_wrong_one(operator: Operator, gated_repository: str) -> None:
    variables = {"weights_repo_id": gated_repository}
    refusal = Refusal(
        {"gpu1": variables, "gpu2": {**variables, "weights_token": "the-wrong-one"}},
        {
            "gpu1": [
                "gpufleet/gated is gated and no token was sent",
                "Accept its licence at http://hub:8080/gpufleet/gated",
                "weights_token",
            ],
            "gpu2": ["this token has not been granted access to gpufleet/gated", "Accept its licence at http://hub:8080/", "weights_token"],
        },
    )
    assert_refused(operator, refusal)


@pytest.mark.long
def test_a_disk_that_is_too_small_for_the_model(operator: Operator) -> None:
    mount = "mkdir -p /mnt/small && mount -t tmpfs -o size=1m small /mnt/small"
    with changed_host(operator.hosts["gpu1"], mount, "umount /mnt/small"):
        said = ["MB are still to be fetched and /mnt/small has 1.0 MB free", "Free space there, or set dest (the role's weights_store)"]
        assert_refused(operator, Refusal({"gpu1": {"weights_store": "/mnt/small"}}, {"gpu1": said}))
