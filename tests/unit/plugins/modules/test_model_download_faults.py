# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong while a model is fetched: the real module and the real Hub client are killed, starved and lied to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.download_bench import Bench, fake_hub, shard_name
from support.running import Answer, environment, module_command, read_answer

SHARDS = [shard_name(number) for number in range(5)]


def wait_for(condition: t.Callable[[], object], limit: float = 30.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def session_of(pid: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == pid and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
    return found


class Run:
    """The module in a session of its own, so that it can be killed with all that it started."""

    def __init__(self, bench: Bench, **options: t.Any) -> None:
        command = module_command("model_download")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
        )
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"ANSIBLE_MODULE_ARGS": bench.arguments(**options)}))
        self.process.stdin.close()
        self.process.stdin = None

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        wait_for(lambda: not session_of(self.process.pid))

    def answer(self) -> Answer:
        return read_answer(self.process.communicate(timeout=60)[0])


@contextlib.contextmanager
def served(folder: Path) -> t.Iterator[Bench]:
    """A bench of one's own, for several at once."""
    bench = Bench(folder)
    yield bench
    bench.hub.shutdown()
    bench.hub.server_close()


def staging(bench: Bench) -> Path:
    return bench.models / f".{bench.commit}.incomplete"


def finished(bench: Bench, folder: Path) -> set[str]:
    """The files there that are what the repository holds."""
    published = {path.name: path.read_bytes() for path in bench.repository.iterdir()}
    return {path.name for path in folder.glob("*") if path.name in published and path.read_bytes() == published[path.name]}


def wanted(bench: Bench) -> set[str]:
    return {path.name for path in bench.repository.iterdir()}


def contents_asked_for(bench: Bench) -> list[str]:
    return sorted(line.rsplit("/", 1)[1] for line in bench.hub.log if line.startswith("GET /cdn/"))


def leftovers(models: Path) -> list[Path]:
    """What is there besides models and the lock files beside them."""
    return [path for path in models.rglob("*") if "incomplete" in path.name] + records_of_writers(models)


def records_of_writers(models: Path) -> list[Path]:
    return list(models.rglob(".*.lock.*"))


def test_killed_at_ten_random_moments_nothing_looks_whole_and_only_the_rest_is_fetched(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    moments = [chance.uniform(0.0, 2.0) for _kill in range(10)]

    def kill_and_go_on(moment: float) -> None:
        with served(tmp_path / f"{moment}") as bench:
            bench.faults({"match": "/cdn/", "rate": 250_000})
            run = Run(bench, max_workers=2)
            # Before that Python and Ansible start, and nothing is there yet.
            wait_for(bench.models.exists)
            time.sleep(moment)
            run.kill()
            whole = bench.folder.exists()
            had = finished(bench, bench.folder if whole else staging(bench))
            if whole:
                assert (bench.folder / ".gpufleet-receipt.json").exists()
                assert had == wanted(bench)
            bench.faults()
            answer = Run(bench).answer()
            assert set(answer["fetched"]) == wanted(bench) - had
            # A set: the hub may come to a last request of the killed run only now.
            assert set(contents_asked_for(bench)) == set(SHARDS) - had
            assert answer["shards"]["present"] == SHARDS
            assert finished(bench, bench.folder) == wanted(bench)
            # Where the model was whole already, the run had nothing to write, and left the record of the killed one to the next writer.
            assert leftovers(bench.models) == (records_of_writers(bench.models) if whole else [])

    with ThreadPoolExecutor(max_workers=2) as pool:
        runs = [pool.submit(kill_and_go_on, moment) for moment in moments]
    failures = [f"after {moment:.3f} s: {run.exception()}" for moment, run in zip(moments, runs) if run.exception()]
    assert not failures, f"seed {seed}\n" + "\n".join(failures)


WRITER = """
import sys
from pathlib import Path
from ansible_collections.gpufleet.vllm.plugins.module_utils._writer_lock import writer_lock
with writer_lock(Path(sys.argv[1]), timeout=0, report=print):
    print(flush=True)
    sys.stdin.read()
"""


def test_killed_when_all_was_in_place_the_model_counts_and_the_next_writer_removes_the_record(bench: Bench) -> None:
    bench.run()
    lock = bench.models / f".{bench.commit}.lock"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as killed:
        assert killed.stdout and killed.stdout.readline() == b"\n"
        killed.kill()
    (record,) = records_of_writers(bench.models)
    assert (bench.run()["changed"], records_of_writers(bench.models)) == (False, [record])
    (bench.folder / SHARDS[0]).unlink()
    assert (bench.run()["fetched"], records_of_writers(bench.models)) == ([SHARDS[0]], [])


def test_a_writer_waits_for_another_and_goes_on_where_that_was_killed(bench: Bench, tmp_path: Path) -> None:
    # One shard comes at once, the next would take a minute.
    bench.faults(*({"match": f"/cdn/.*{name}", "rate": 1_000} for name in SHARDS[1:]))
    first = Run(bench, max_workers=1)
    wait_for(lambda: any(staging(bench).glob("*.safetensors")))
    progress = tmp_path / "progress"
    second = Run(bench, progress_path=str(progress))
    wait_for(lambda: progress.exists() and "waiting for process" in progress.read_text())
    assert f"process {first.process.pid} on " in progress.read_text()
    first.kill()
    had = finished(bench, staging(bench))
    bench.faults()
    answer = second.answer()
    assert had & set(SHARDS)
    assert set(answer["fetched"]) == wanted(bench) - had
    assert leftovers(bench.models) == []


DISK = """
import json, subprocess, sys, time
from pathlib import Path
job = json.loads(sys.stdin.read())
models = Path(job["models"])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(models)], check=True)
print("mounted", file=sys.stderr)
def start():
    child = subprocess.Popen(job["command"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdin.write(job["arguments"])
    child.stdin.close()
    child.stdin = None
    return child
def files():
    return sorted(path.name for path in models.glob(".*.incomplete/*.safetensors"))
first = start()
while not files() and first.poll() is None:
    time.sleep(0.02)
filler = models / "filler"
with open(filler, "wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError as exc:
        assert exc.errno == 28
answer = json.loads(first.communicate()[0])
kept = files()
filler.unlink()
print(json.dumps([answer, kept, json.loads(start().communicate()[0]), files()]))
"""


def test_a_disk_that_becomes_full_is_named_and_what_was_finished_is_kept(bench: Bench) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("util-linux has no unshare here")
    bench.models.mkdir()
    bench.faults({"match": "/cdn/", "rate": 250_000})
    arguments = json.dumps({"ANSIBLE_MODULE_ARGS": bench.arguments(max_workers=2, retry_timeout=20)})
    job = {"models": str(bench.models), "command": module_command("model_download"), "arguments": arguments}
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", DISK],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    if "mounted" not in done.stderr:
        pytest.skip(f"no file system of its own here: {done.stderr.strip()}")
    full, kept, again, left = json.loads(done.stdout)
    assert full["code"] == "disk_full"
    assert f"The disk of {bench.models} became full while " in full["msg"]
    assert any(name in full["msg"] for name in wanted(bench))
    assert kept and set(kept) < set(SHARDS)
    assert again["shards"]["present"] == SHARDS
    assert not set(again["fetched"]) & set(kept)
    assert set(SHARDS) - set(kept) <= set(again["fetched"])
    assert left == []


def test_refused_and_short_answers_that_go_on_are_told_and_only_these_files_are_fetched_later(bench: Bench) -> None:
    bench.faults(
        {"match": f"/cdn/.*{SHARDS[0]}", "status": 403},
        {"match": f"/cdn/.*{SHARDS[1]}", "status": 503},
        {"match": f"/cdn/.*{SHARDS[3]}", "short": 10},
    )
    answer = bench.look()
    bad = [SHARDS[0], SHARDS[1], SHARDS[3]]
    assert (answer["code"], answer["missing"]) == ("incomplete", bad)
    assert f"{SHARDS[0]}: 403 Forbidden" in answer["msg"]
    assert not bench.folder.exists()
    bench.faults()
    assert bench.look()["fetched"] == bad


@pytest.mark.parametrize("check", [True, False])
def test_a_hub_without_metadata_is_out_of_reach(bench: Bench, check: bool) -> None:
    bench.faults({"match": "/api/models/", "status": 503})
    answer = bench.look(check=check)
    assert answer["code"] == "hub_unreachable"
    assert "The hub could not be reached" in answer["msg"] and "503" in answer["msg"]


def test_a_hub_that_wants_to_be_asked_later_is_asked_later(bench: Bench) -> None:
    later: Answer = {"status": 429, "headers": {"Retry-After": "1"}, "times": 1}
    bench.faults(*({"match": match, **later} for match in ("/revision/", f"/cdn/.*{SHARDS[0]}", f"/cdn/.*{SHARDS[3]}")))
    began = time.monotonic()
    assert bench.look(retry_timeout=5)["changed"] is True
    # One second for the metadata, and the client itself adds another to the one for the content.
    assert time.monotonic() - began > 3
    assert contents_asked_for(bench) == sorted([*SHARDS, SHARDS[0], SHARDS[3]])


def test_a_corrupt_mirror_is_named_with_both_hashes_and_an_honest_one_gives_the_file(bench: Bench) -> None:
    bench.faults({"match": f"/cdn/.*{SHARDS[2]}", "flip": 50_000})
    answer = bench.look(retry_timeout=20)
    content = bytearray((bench.repository / SHARDS[2]).read_bytes())
    right = hashlib.sha256(content).hexdigest()
    content[50_000] ^= 1
    assert (answer["code"], answer["damaged"]) == ("damaged", [SHARDS[2]])
    assert f"http://127.0.0.1:{bench.hub.port} delivered" in answer["msg"]
    assert right in answer["msg"] and hashlib.sha256(content).hexdigest() in answer["msg"]
    assert not bench.folder.exists()
    bench.faults()
    assert bench.look()["fetched"] == [SHARDS[2]]


def test_a_hub_that_goes_away_is_a_failure_and_another_one_gives_the_rest(bench: Bench) -> None:
    bench.faults({"match": "/cdn/", "rate": 300_000})
    run = Run(bench, max_workers=1)
    wait_for(lambda: any(staging(bench).glob("*.safetensors")))
    bench.hub.vanish()
    answer = run.answer()
    assert answer["code"] == "hub_unreachable"
    assert answer["msg"].startswith("The hub could not be reached: ")
    had = finished(bench, staging(bench))
    assert had & set(SHARDS)
    assert not bench.folder.exists()
    bench.hub = fake_hub.FakeHub(bench.hub.root, 0, "127.0.0.1")
    threading.Thread(target=bench.hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    assert set(bench.look()["fetched"]) == wanted(bench) - had == set(answer["missing"])


def test_a_transfer_that_stands_still_is_repeated_and_the_play_sees_why(bench: Bench, tmp_path: Path) -> None:
    bench.faults({"match": f"/cdn/.*{SHARDS[2]}", "stall": 60, "times": 2})
    progress = tmp_path / "progress"
    run = Run(bench, stall_timeout=1, retry_timeout=20, progress_path=str(progress))
    # On a busy machine others may stand still for a second, too.
    said = rf"trying \d+ files again in \d+ s: .*{SHARDS[2]}: no byte arrived for 1 s"
    wait_for(lambda: progress.exists() and re.search(said, progress.read_text()))
    assert run.answer()["shards"]["present"] == SHARDS


def test_a_limit_is_kept(bench: Bench) -> None:
    answer = bench.look(bandwidth_limit="250k")
    assert answer["seconds"] > answer["bytes_downloaded"] / (250 * 1024)
    assert answer["shards"]["present"] == SHARDS
