# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fake engine behaves as the real one was seen to: memory, log lines, processes, exit statuses, HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import struct
import subprocess
import sys
import time
import typing as t
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.diagnose import diagnose
from support.running import ROOT, load_file
from support.served_unit import free_port

ENGINE = ROOT / "tests" / "bench" / "engine"
MINIMAX = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_local_experts": 256,
    "vocab_size": 200064,
    "max_position_embeddings": 196608,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
TINY = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128}


def write_model(folder: Path, config: dict[str, t.Any], shards: int, total_size: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    names = {f"t{number}": f"model-{number:05d}-of-{shards + 1:05d}.safetensors" for number in range(shards)}
    for tensor, name in names.items():
        header = json.dumps({tensor: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(header)) + header + b"data")
    index = {"metadata": {"total_size": total_size}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


class Server:
    """One start of the fake engine."""

    def __init__(
        self, model: Path, log: Path, arguments: t.Sequence[str], environment: t.Mapping[str, str], folder: t.Optional[str] = None
    ) -> None:
        self.port = free_port()
        self.log_path = log
        command = [sys.executable, "-m", "fake_vllm", "serve", str(model), "--host", "127.0.0.1", "--port", str(self.port), *arguments]
        # not FAKE_NVML_DIR of the machine that runs the tests: without that folder it is the CPU build
        base = {"FAKE_VLLM_SCRIPT": "load-seconds=0.3", "FAKE_NVML_DIR": "/nonexistent", "PYTHONPATH": str(ENGINE)}
        with log.open("wb") as file:
            full = {**os.environ, **base, **environment}
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=full, cwd=folder, start_new_session=True)

    def lines(self) -> list[str]:
        return self.log_path.read_text(encoding="utf-8").replace("\r", "").splitlines()

    def ready(self) -> Server:
        self.until(lambda: any("Application startup complete." in line for line in self.lines()))
        return self

    def until(self, condition: t.Callable[[], t.Any], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.lines()[-30:])
            time.sleep(0.02)

    def end(self) -> int:
        return self.process.wait(timeout=60)

    def children(self, pid: t.Optional[int] = None) -> dict[str, int]:
        """Process names below ``pid``, and below those."""
        found: dict[str, int] = {}
        parent = pid or self.process.pid
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            found[Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
            found.update(self.children(int(child)))
        return found

    def get(self, path: str, body: t.Optional[dict[str, t.Any]] = None, key: str = "") -> tuple[int, t.Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        data = json.dumps(body).encode() if body is not None else None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            answer = opener.open(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers), timeout=10)
        except urllib.error.HTTPError as exc:
            answer = exc
        text = answer.read().decode()
        return answer.status or 0, json.loads(text) if text.startswith("{") else text


Start = t.Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> t.Iterator[Start]:
    servers: list[Server] = []

    def begin(model: Path, *arguments: str, working_folder: t.Optional[str] = None, **environment: str) -> Server:
        servers.append(Server(model, tmp_path / f"log{len(servers)}", arguments, environment, working_folder))
        return servers[-1]

    yield begin
    for server in servers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny", TINY, 3, 12)


@pytest.fixture
def minimax(tmp_path: Path) -> Path:
    return write_model(tmp_path / "minimax", MINIMAX, 125, 230_135_000_000)


@pytest.fixture
def config(tmp_path: Path) -> t.Callable[..., str]:
    def write(**options: t.Any) -> str:
        path = tmp_path / "engine.yaml"
        path.write_text("".join(f"{name.replace('_', '-')}: {json.dumps(value)}\n" for name, value in options.items()))
        return str(path)

    return write


FOUR_GPUS = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
STORY = {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.95}


def test_the_story_1024_sequences_die_at_the_sampler_and_256_serve(
    start: Start, minimax: Path, config: t.Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "nvml").mkdir()
    environment = {**FOUR_GPUS, "FAKE_NVML_DIR": str(tmp_path / "nvml")}
    died = start(minimax, "--config", config(**STORY, max_num_seqs=1024), **environment)
    assert died.end() == 1
    found = diagnose(died.lines())
    assert (found.cause, found.phase) == ("oom_sampler_warmup", "warming_up_sampler")
    assert found.remedies[0] == {**found.remedies[0], "option": "max-num-seqs", "value": 256}
    serves = start(minimax, "--config", config(**STORY, max_num_seqs=256), **environment).ready()
    assert {"VLLM::EngineCor", "VLLM::Worker_TP"} <= set(serves.children())
    holders = {path.read_text().split()[0] for path in (tmp_path / "nvml" / "holders").glob("vllm-*") if _alive(path)}
    assert holders == {"0", "1", "2", "3"}
    contender = start(minimax, "--config", config(**STORY, max_num_seqs=256), **environment)
    assert contender.end() == 1
    assert diagnose(contender.lines()).cause == "gpu_memory_held"


def _alive(holder: Path) -> bool:
    return Path(f"/proc/{holder.read_text().split()[2]}").exists()


def test_memory_decides_the_other_ways_to_die_too(start: Start, minimax: Path, config: t.Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "nvml").mkdir()
    environment = {**FOUR_GPUS, "FAKE_NVML_DIR": str(tmp_path / "nvml")}
    causes = {}
    starts: dict[str, dict[str, t.Any]] = {
        "two GPUs": {"tensor_parallel_size": 2},
        "small budget": {**STORY, "gpu_memory_utilization": 0.55},
        "smaller budget": {**STORY, "gpu_memory_utilization": 0.6},
        "more than four": {"tensor_parallel_size": 8},
        "five": {"tensor_parallel_size": 5},
    }
    for name, options in starts.items():
        server = start(minimax, "--config", config(**{"max_num_seqs": 256, **options}), **environment)
        assert server.end() == 1
        causes[name] = diagnose(server.lines()).cause
    assert causes == {
        "two GPUs": "oom_weights",
        "small budget": "no_kv_memory",
        "smaller budget": "kv_cache_too_small",
        "more than four": "too_few_gpus",
        "five": "heads_not_divisible",
    }


def test_eight_gpus_refine_the_fp8_blocks_as_0_33_does(start: Start, minimax: Path, tmp_path: Path) -> None:
    (tmp_path / "nvml").mkdir()
    uuids = ",".join(f"GPU-f00d{index:04x}" for index in range(8))
    server = start(minimax, "-tp", "8", "--max-num-seqs", "256", CUDA_VISIBLE_DEVICES=uuids, FAKE_NVML_DIR=str(tmp_path / "nvml")).ready()
    assert any("refined from [128, 128] to [64, 64]" in line for line in server.lines())


def test_the_config_file_is_read_as_vllm_reads_it(start: Start, tiny: Path, config: t.Callable[..., str]) -> None:
    names = {"served_model_name": ["m", "alias"], "api_key": ["k1", "k2"]}
    path = config(**names, enforce_eager=True, enable_prefix_caching=False, max_model_len=512)
    server = start(tiny, "--config", path, "--max-model-len", "256").ready()
    arguments = next(line for line in server.lines() if "non-default args" in line)
    assert "'api_key': ['***']" in arguments and "k1" not in arguments and "prefix" not in arguments
    assert [model["id"] for model in server.get("/v1/models", key="k2")[1]["data"]] == ["m", "alias"]
    assert server.get("/v1/models", key="k2")[1]["data"][0]["max_model_len"] == 256


@pytest.mark.parametrize(
    ("option", "said"), [({"bogus_key": 5}, "unrecognized arguments: --bogus-key 5"), ({"port": "x"}, "argument --port")]
)
def test_a_wrong_argument_ends_with_2(start: Start, tiny: Path, config: t.Callable[..., str], option: dict[str, t.Any], said: str) -> None:
    server = start(tiny, "--config", config(**option))
    assert server.end() == 2
    assert said in server.lines()[-1] and diagnose(server.lines()).cause == "bad_argument"


def test_the_key_guards_some_routes_only(start: Start, tiny: Path) -> None:
    server = start(tiny, "--served-model-name", "m", "--api-key", "k1", "k2").ready()
    question = {"model": "m", "messages": [{"role": "user", "content": "What is 17 + 25? Answer with the number only."}], "max_tokens": 8}
    assert server.get("/v1/models")[0] == server.get("/v1/models", key="bad")[0] == 401
    assert server.get("/health")[0] == server.get("/metrics")[0] == server.get("/version")[0] == 200
    assert server.get("/invocations", question)[1]["choices"][0]["message"]["content"] == "42"
    assert server.get("/v1/chat/completions", question, key="k1")[1]["choices"][0]["message"]["content"] == "42"
    assert server.get("/v1/completions", {"model": "x", "prompt": "y"}, key="k1")[0] == 404
    assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 2.0' in server.get("/metrics")[1]


def test_the_port_is_bound_before_loading_and_refuses_until_it_is_done(start: Start, tiny: Path) -> None:
    server = start(tiny, FAKE_VLLM_SCRIPT="load-seconds=1.5")
    server.until(lambda: any("Starting to load model" in line for line in server.lines()))
    with pytest.raises(urllib.error.URLError, match="refused"):
        server.get("/health")
    assert server.ready().get("/health")[0] == 200
    clash = start(tiny, "--port", str(server.port))
    assert clash.end() == 1 and diagnose(clash.lines()).cause == "port_in_use"


@pytest.mark.parametrize(
    ("content", "cause"),
    [(None, "weights_missing"), (b"", "weights_damaged"), (b"version https://git-lfs.github.com/spec/v1\n", "weights_damaged")],
)
def test_a_missing_or_damaged_shard_ends_the_start(start: Start, tiny: Path, content: t.Optional[bytes], cause: str) -> None:
    shard = tiny / "model-00001-of-00004.safetensors"
    shard.unlink()
    if content is not None:
        shard.write_bytes(content)
    server = start(tiny)
    assert server.end() == 1 and diagnose(server.lines()).cause == cause


def test_scripted_crash_and_hang_happen_at_their_shard(start: Start, tiny: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("crash-at-shard=2\nload-seconds=0.1\n")
    crashed = start(tiny, FAKE_VLLM_SCRIPT=str(script))
    assert crashed.end() == 1 and diagnose(crashed.lines()).cause == "gpu_error"
    hung = start(tiny, FAKE_VLLM_SCRIPT="hang-at-shard=3,load-seconds=0.1")
    hung.until(lambda: any("| 2/3 [" in line for line in hung.lines()))
    hung.process.send_signal(signal.SIGTERM)  # swallowed while loading
    hung.process.send_signal(signal.SIGCONT)
    time.sleep(0.2)
    assert hung.process.poll() is None
    hung.process.send_signal(signal.SIGTERM)
    assert hung.end() == -signal.SIGINT


def test_a_crash_may_happen_a_number_of_times_and_say_what_was_recorded(start: Start, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "fake-vllm-crashes").write_text("1")
    script = tmp_path / "script"
    said = "Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 0 MiB free."
    script.write_text(f"load-seconds=0.1\ncrash-at-shard=1\ncrash-times=2\ncrash-with=RuntimeError: {said}\n")
    crashed = start(tiny, FAKE_VLLM_SCRIPT=str(script), working_folder=str(tmp_path))
    assert crashed.end() == 1 and diagnose(crashed.lines()).cause == "shm_too_small"
    assert start(tiny, FAKE_VLLM_SCRIPT=str(script), working_folder=str(tmp_path)).ready().get("/health")[0] == 200


def test_sigterm_when_idle_ends_with_0_at_once(start: Start, tiny: Path) -> None:
    server = start(tiny).ready()
    began = time.monotonic()
    server.process.terminate()
    assert server.end() == 0 and time.monotonic() - began < 5
    assert diagnose(server.lines()).cause == "stopped"


def test_a_dead_engine_process_ends_the_server_with_0(start: Start, tiny: Path) -> None:
    server = start(tiny, FAKE_VLLM_SCRIPT="load-seconds=0.1,engine-dies-after=0.2").ready()
    assert server.end() == 0
    assert diagnose(server.lines()).cause == "engine_died"


def test_a_killed_worker_ends_the_server_with_0(start: Start, tiny: Path) -> None:
    server = start(tiny, "-tp", "2").ready()
    os.kill(server.children()["VLLM::Worker_TP"], signal.SIGKILL)
    assert server.end() == 0
    assert diagnose(server.lines()).cause == "worker_died"


def test_a_killed_api_server_leaves_its_engine_behind(start: Start, tiny: Path) -> None:
    server = start(tiny).ready()
    left = server.children()
    server.process.kill()
    assert server.end() == -signal.SIGKILL
    time.sleep(0.3)
    assert all(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" for pid in left.values())


def test_draining_answers_what_is_in_flight_and_refuses_the_rest(start: Start, tiny: Path) -> None:
    server = start(tiny, "--shutdown-timeout", "10", FAKE_VLLM_SCRIPT="load-seconds=0.1,answer-seconds=0.8").ready()
    code = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{server.port}/v1/completions', b'{{}}').status)"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "no_proxy": "*"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as client:
        server.until(lambda: server.get("/metrics")[1].splitlines()[1].endswith("} 1.0"))
        server.process.terminate()
        server.until(lambda: any("mode=drain timeout=10s" in line for line in server.lines()))
        assert server.get("/health")[0] == 200 and server.get("/v1/completions", {})[0] == 500
        assert client.communicate(timeout=10)[0].strip() == "200"
    assert server.end() == 0


def stream(server: Server, max_tokens: int) -> http.client.HTTPResponse:
    """An answer that has begun and is read as it comes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "go on", "stream": True, "max_tokens": max_tokens}))
    return connection.getresponse()


def parts(lines: t.Iterable[bytes]) -> list[t.Any]:
    """What is in the parts of a stream, its end as text."""
    sent = [line.decode().removeprefix("data: ").strip() for line in lines if line.strip()]
    return [json.loads(each) if each.startswith("{") else each for each in sent]


ENDLESS = "load-seconds=0.1,answer=endless,token-seconds=0.1"


def test_a_stream_sends_each_word_when_it_is_there(start: Start, tiny: Path) -> None:
    server = start(tiny, FAKE_VLLM_SCRIPT=ENDLESS).ready()
    began = time.monotonic()
    answer = stream(server, max_tokens=20)
    first = answer.readline()
    assert parts([first])[0]["choices"][0]["text"] == "and " and time.monotonic() - began < 1.9
    rest = parts(answer)
    assert [part["choices"][0]["finish_reason"] for part in rest[:-1]] == [*[None] * 18, "length"]
    assert rest[-1] == "[DONE]" and time.monotonic() - began >= 2


def test_the_engine_forgets_a_request_whose_client_hung_up(start: Start, tiny: Path) -> None:
    server = start(tiny, FAKE_VLLM_SCRIPT=ENDLESS).ready()
    stream(server, max_tokens=100_000).close()
    server.until(lambda: server.get("/metrics")[1].splitlines()[1].endswith("} 0.0"))
    server.process.terminate()
    assert server.end() == 0


def test_draining_lets_a_stream_come_to_its_end(start: Start, tiny: Path) -> None:
    server = start(tiny, "--shutdown-timeout", "10", FAKE_VLLM_SCRIPT=ENDLESS).ready()
    answer = stream(server, max_tokens=10)
    server.process.terminate()
    received = parts(answer)
    assert len(received) == 11 and received[-2]["choices"][0]["finish_reason"] == "length"
    assert server.end() == 0


def test_beyond_the_time_to_drain_the_engine_is_killed_and_the_server_waits_for_its_clients(start: Start, tiny: Path) -> None:
    server = start(tiny, "--shutdown-timeout", "1", FAKE_VLLM_SCRIPT=ENDLESS).ready()
    answer = stream(server, max_tokens=100_000)
    server.process.terminate()
    server.until(lambda: any("Waiting for connections to close" in line for line in server.lines()))
    assert any("force killing remaining processes" in line for line in server.lines())
    with pytest.raises(urllib.error.URLError, match="refused"):
        server.get("/health")
    server.process.terminate()  # without effect, as with the real one
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(timeout=1)
    answer.close()
    assert server.end() == 0


def test_a_stream_is_told_when_its_engine_dies(start: Start, tiny: Path) -> None:
    server = start(tiny, FAKE_VLLM_SCRIPT=f"{ENDLESS},engine-dies-after=1").ready()
    received = parts(stream(server, max_tokens=100_000))
    assert received[-2]["error"]["code"] == 500 and received[-1] == "[DONE]"
    assert server.end() == 0


def test_last_words_come_all_at_once_before_a_death(start: Start, tiny: Path) -> None:
    server = start(tiny, FAKE_VLLM_SCRIPT="load-seconds=0.1,engine-dies-after=0.2,last-words=500")
    assert server.end() == 0
    assert len([line for line in server.lines() if "last word " in line]) == 500


def test_the_wheel_installs_nothing_but_a_stand_in_for_vllm(tmp_path: Path) -> None:
    builder = load_file(ENGINE / "build_wheel.py")
    wheel = builder.build(tmp_path, "0.32.1")
    assert wheel.name == "vllm-0.32.1-py3-none-any.whl"
    assert wheel.read_bytes() == builder.build(tmp_path / "again", "0.32.1").read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "fake_vllm", "--version"]
    shown = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "0.32.1"
