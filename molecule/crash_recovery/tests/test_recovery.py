# SPDX-License-Identifier: GPL-3.0-or-later
"""After the crash: what the second attempt left."""

from __future__ import annotations

import json
import typing as t

UNIT = "vllm-minimax-m25.service"


def journal(host: t.Any) -> str:
    with host.sudo():
        return str(host.check_output(f"journalctl --no-pager --output=cat --unit={UNIT}"))


def test_the_corrected_deployment_serves_on_every_host(host: t.Any) -> None:
    assert host.service(UNIT).is_running
    assert host.service(UNIT).is_enabled
    with host.sudo():
        assert "max-num-seqs: 256\n" in host.file("/etc/gpufleet/minimax-m25/current/engine.yaml").content_string


def test_the_release_that_crashed_is_kept_as_the_previous_one(host: t.Any) -> None:
    if host.backend.get_hostname() != "gpu1":
        assert not host.file("/etc/gpufleet/minimax-m25/previous").exists
        return
    with host.sudo():
        assert "max-num-seqs: 1024\n" in host.file("/etc/gpufleet/minimax-m25/previous/engine.yaml").content_string


def test_the_engine_died_once_and_was_then_refused(host: t.Any) -> None:
    deaths = journal(host).count("raise RuntimeError(")
    refusals = journal(host).count("refusing release ")
    crashed = host.backend.get_hostname() == "gpu1"
    assert refusals == (1 if crashed else 0)
    assert (deaths > 0) == crashed


def test_the_second_start_waited_for_the_gpus_that_were_held(host: t.Any) -> None:
    if host.backend.get_hostname() != "gpu1":
        return
    text = journal(host)
    assert "waiting for 2 of 4 GPUs: GPU 1" in text
    assert "GPU 3" in text.split("waiting for 2 of 4 GPUs", 1)[1].splitlines()[0]
    assert "memory of 4 of 4 GPUs is free" in text


def test_the_failure_is_forgotten_once_another_release_serves(host: t.Any) -> None:
    with host.sudo():
        assert not host.file("/var/lib/gpufleet/minimax-m25/last-failure.json").exists
        running = json.loads(host.file("/run/vllm-minimax-m25/running.json").content_string)
        current = json.loads(host.file("/etc/gpufleet/minimax-m25/current/release.json").content_string)
    assert running["release"] == current["id"]
