# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action plugin in a real play, over a connection that breaks once, against the fake hub."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import typing as t
from pathlib import Path

import pytest
from support.running import ROOT, TREE, load_file

TOKEN = "hf_MARKERsecretMARKER"

FLAKY_CONNECTION = '''
DOCUMENTATION = """
name: flaky
short_description: local, but the third look at a job is lost
description: For tests.
author: test
"""
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local


class Connection(Local):
    transport = "flaky"
    looks = 0

    def exec_command(self, cmd, *args, **kwargs):
        Connection.looks += "cksum" in cmd
        if "cksum" in cmd and Connection.looks == 3:
            raise AnsibleConnectionFailure("lost")
        return super().exec_command(cmd, *args, **kwargs)
'''

PLAY = """
- hosts: gpu1
  gather_facts: false
  tasks:
    - name: First run
      gpufleet.vllm.model_download: &model
        repo_id: acme/tiny
        dest: {models}/{{commit}}
        endpoint: http://127.0.0.1:{port}
        token: {token}
        max_workers: 2
      register: first
    - name: Second run
      gpufleet.vllm.model_download: *model
      register: second
    - name: Unknown revision
      gpufleet.vllm.model_download:
        repo_id: acme/tiny
        dest: {models}/{{commit}}
        endpoint: http://127.0.0.1:{port}
        revision: v9
      ignore_errors: true
    - ansible.builtin.assert:
        that:
          - first is changed
          - first.shards.present | length == 12
          - first.ansible_job_id is undefined
          - second is not changed
          - second.verified == "receipt"
"""


@pytest.fixture
def hub(tmp_path: Path) -> t.Iterator[t.Any]:
    fake_hub, make_minimax = (load_file(ROOT / "tests" / "bench" / "hub" / f"{name}.py") for name in ("fake_hub", "make_minimax"))
    folder = tmp_path / "hub" / "acme" / "tiny"
    folder.mkdir(parents=True)
    for number in range(12):
        make_minimax.write_shard(folder / f"part-{number}.safetensors", ["a", "b"], 200_000, seed=number)
    server = fake_hub.FakeHub(tmp_path / "hub", 0, "127.0.0.1")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_progress_is_shown_a_lost_connection_survived_and_a_second_run_is_plain(hub: t.Any, tmp_path: Path) -> None:
    hub.control({"faults": [{"match": "/cdn/", "rate": 90_000}]})
    (tmp_path / "connection").mkdir()
    (tmp_path / "connection" / "flaky.py").write_text(FLAKY_CONNECTION)
    play = tmp_path / "play.yml"
    play.write_text(PLAY.format(models=tmp_path / "models", port=hub.port, token=TOKEN))
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(TREE),
        "ANSIBLE_CONNECTION_PLUGINS": str(tmp_path / "connection"),
        "ANSIBLE_ASYNC_DIR": str(tmp_path / "async"),
    }
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        "gpu1,",
        "-c",
        "flaky",
        "-e",
        f"ansible_python_interpreter={sys.executable}",
    ]
    output = subprocess.run([*command, "-v", str(play)], env=environment, capture_output=True, text=True, timeout=90, check=False)
    lines = [line for line in output.stdout.splitlines() if line.startswith("[gpu1] ")]
    assert output.returncode == 0, output.stdout + output.stderr
    assert any("files" in line and "B/s" in line and "left" in line for line in lines), lines
    assert any("connection is lost" in line for line in lines), lines
    assert "proven by sha256" in lines[-1]
    assert len(lines) == len(set(lines)) < 15
    assert "has no revision v9" in output.stdout
    assert TOKEN not in output.stdout + output.stderr
    assert not list((tmp_path / "async").iterdir())
