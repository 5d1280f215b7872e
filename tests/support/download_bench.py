# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hub with one small repository, and the real module with the real Hub client run against it."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufleet.vllm.plugins.modules import model_download

from support.running import ROOT, Answer, environment, load_file, module_command, read_answer

__all__ = ["REPOSITORY", "TOKEN", "Bench", "fake_hub", "flip", "make_minimax", "make_repository", "shard_name"]

REPOSITORY = "acme/tiny"
TOKEN = "hf_MARKERsecretMARKER"
HUB = ROOT / "tests" / "bench" / "hub"
fake_hub, make_minimax = load_file(HUB / "fake_hub.py"), load_file(HUB / "make_minimax.py")


def shard_name(number: int) -> str:
    return f"model-{number:05d}-of-00006.safetensors"


def make_repository(root: Path, name: str = REPOSITORY, shards: int = 5) -> Path:
    """Five shards that call themselves of-00006 and count from zero."""
    folder = root / name
    folder.mkdir(parents=True)
    weight_map = {}
    for number in range(shards):
        tensors = [f"layers.{number}.{part}" for part in "abc"]
        make_minimax.write_shard(folder / shard_name(number), tensors, 60_000, seed=number)
        weight_map.update(dict.fromkeys(tensors, shard_name(number)))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    return folder


class Bench:
    """A hub with one repository, and the module run against it."""

    def __init__(self, folder: Path) -> None:
        self.python, self.environment = sys.executable, environment()
        self.repository = make_repository(folder / "hub")
        self.models = folder / "models"
        self.hub = fake_hub.FakeHub(folder / "hub", 0, "127.0.0.1")
        threading.Thread(target=self.hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def commit(self) -> str:
        return str(self.hub.repository(REPOSITORY).commit)

    @property
    def folder(self) -> Path:
        return self.models / self.commit

    def settings(self, **settings: t.Any) -> None:
        (self.repository / ".hub.json").write_text(json.dumps(settings))

    def faults(self, *faults: Answer) -> None:
        self.hub.control({"faults": faults, "clear_log": True})

    def publish(self, name: str, content: bytes) -> None:
        """A file in a new commit, seen by the hub from now on."""
        before = self.commit
        (self.repository / name).write_bytes(content)
        while self.commit == before:
            time.sleep(0.02)

    def arguments(self, *, check: bool = False, diff: bool = False, **options: t.Any) -> Answer:
        arguments = {
            "repo_id": REPOSITORY,
            "dest": f"{self.models}/{{commit}}",
            "endpoint": f"http://127.0.0.1:{self.hub.port}",
            "retry_timeout": 1,
        }
        arguments.update(options, _ansible_check_mode=check, _ansible_diff=diff)
        return arguments

    def start(self, **options: t.Any) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            module_command("model_download", self.python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )
        assert child.stdin
        child.stdin.write(json.dumps({"ANSIBLE_MODULE_ARGS": self.arguments(**options)}))
        child.stdin.close()
        child.stdin = None
        return child

    def run(self, **options: t.Any) -> Answer:
        """The module in a process of its own."""
        return self._read(self.start(**options).communicate(timeout=60)[0])

    def look(self, **options: t.Any) -> Answer:
        """The module in this process, which is quicker, for runs that start no Hub client."""
        printed = io.StringIO()
        with patch_module_args(self.arguments(**options)), contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
            model_download.main()
        return self._read(printed.getvalue())

    def _read(self, output: str) -> Answer:
        answer = read_answer(output)
        assert TOKEN not in json.dumps(answer)
        return answer


@pytest.fixture(name="bench")
def bench_fixture(tmp_path: Path) -> t.Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.hub.shutdown()
    bench.hub.server_close()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
