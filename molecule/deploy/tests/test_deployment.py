# SPDX-License-Identifier: GPL-3.0-or-later
"""What `deploy-minimax.yml` leaves on every host."""

from __future__ import annotations

import json
import typing as t

from on_hosts import Unit

UNIT = "vllm-minimax-m25.service"
CURRENT = "/etc/gpufleet/minimax-m25/current"


def test_the_unit_runs_now_and_after_a_boot(host: t.Any) -> None:
    unit = host.service(UNIT)
    assert unit.is_running
    assert unit.is_enabled


def test_the_main_process_of_the_unit_owns_the_port(host: t.Any) -> None:
    with host.sudo():
        listeners = host.check_output("ss --listening --numeric --tcp --processes sport = :8000")
        assert f"pid={Unit(host).main_pid}," in listeners
        assert "127.0.0.1:8000" in listeners
        assert "0.0.0.0" not in listeners.split("127.0.0.1:8000")[0].splitlines()[-1]


def test_the_engine_runs_as_the_system_user_of_the_deployment(host: t.Any) -> None:
    assert host.process.get(pid=Unit(host).main_pid).user in ("vllm-minimax-m25", "vllm-mi+")
    assert host.user("vllm-minimax-m25").shell == "/usr/sbin/nologin"
    assert "gpufleet-models" in host.user("vllm-minimax-m25").groups


def test_the_unit_was_started_once(host: t.Any) -> None:
    assert Unit(host).shown("NRestarts") == "0"


def test_arguments_are_in_the_release_and_not_in_unit_or_argv(host: t.Any) -> None:
    with host.sudo():
        assert "max-num-seqs: 256\n" in host.file(f"{CURRENT}/engine.yaml").content_string
        argv = host.file(f"/proc/{Unit(host).main_pid}/cmdline").content_string
    assert "256" not in host.file(f"/etc/systemd/system/{UNIT}").content_string
    assert "--config" in argv
    assert "max-num-seqs" not in argv


def test_the_release_pins_four_gpus_of_one_node_and_the_commit(host: t.Any) -> None:
    record = Unit(host).release()
    assert len(set(record["gpus"])) == 4
    assert all(uuid.startswith("GPU-") for uuid in record["gpus"])
    assert record["model_path"].endswith(record["origin"]["commit"])
    assert len(record["origin"]["commit"]) == 40


def test_all_four_gpus_are_used_and_no_other(host: t.Any) -> None:
    with host.sudo():
        shown = host.check_output("python3 /srv/bench/nvml/fake_nvml.py show")
    assert [int(line.split()[0]) for line in shown.splitlines() if " 0 MiB used" not in line] == [0, 1, 2, 3]


def test_the_weights_are_whole_readable_by_the_group_and_by_nobody_else(host: t.Any) -> None:
    path = Unit(host).release()["model_path"]
    with host.sudo():
        shards = host.check_output(f"ls {path} | grep -c '\\.safetensors$'")
        folder = host.file(path)
        assert shards == "125"
        assert (folder.user, folder.group) == ("root", "gpufleet-models")
        assert folder.mode & 0o007 == 0
        assert host.run(f"find {path} -name '*.incomplete' | grep .").rc == 1


def test_the_server_answers_and_serves_the_model_of_the_release(host: t.Any) -> None:
    models = json.loads(
        host.check_output("python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/v1/models').read().decode())\"")
    )
    assert models["data"][0]["id"] == "MiniMax-M2.5"
    assert models["data"][0]["root"] == Unit(host).release()["model_path"]
