#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What it costs to know that weights are whole: with a receipt, by structure, by sha256; beside the Hub client and one-core hashing.

The first two are measured on a sparse tree of 125 shards with real headers, 215 GB by its look. Zeros have no published hash, so its
receipt is written directly, with hashes made up: what is timed is how a receipt is believed, which reads no content. The hashes are
measured on real bytes (``--gigabytes``), in a folder that is removed at the end. Repetitions are interleaved; on a machine with other
work to do, believe the ratios and the best values.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from ansible.module_utils.testing import patch_module_args

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "playbooks" / "collections"
sys.path[:0] = [str(TREE)]
COLLECTION = "ansible_collections.gpufleet.vllm.plugins"

REPOSITORY = "MiniMaxAI/MiniMax-M2.5"
SHARDS, TENSORS = 125, 770
SHAPES = ([1536, 2909], "F8_E4M3", 1536 * 2909), ([12, 24], "F32", 12 * 24 * 4)
BLOCK = 1 << 20
BYTES_FILES = 8
CORES = len(os.sched_getaffinity(0))
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
# A process starts out with the peak of the one it was forked from, so a small one has to stand between.
PEAK = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)
WARM_RUN = "from huggingface_hub import snapshot_download; snapshot_download({!r}, local_dir={!r})"
Seconds = dict[str, list[float]]


def core(name: str) -> t.Any:
    """A file of the collection's module_utils/_core."""
    return importlib.import_module(f"{COLLECTION}.module_utils._core.{name}")


# -- what is measured ------------------------------------------------------------------------------------------------------------


def shard_name(number: int) -> str:
    return f"model-{number:05d}-of-00126.safetensors"


def shard_header(shard: int) -> tuple[bytes, int, list[str]]:
    """A shard's header as the format's own writer writes it, the bytes of data behind it, and its tensors."""
    header: dict[str, t.Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for number in range(TENSORS):
        shape, dtype, size = SHAPES[number % 2]
        suffix = "_scale_inv" if number % 2 else ""
        name = f"model.layers.{shard // 2}.block_sparse_moe.experts.{number // 2 % 256}.w{number // 512 + 1 + shard % 2 * 2}.weight{suffix}"
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8), position, list(header)[1:]


def write_file(path: Path, raw: bytes, data: int = 0, length: bool = True) -> None:
    """A header, with its length before it, and a hole of so many bytes."""
    with path.open("wb") as file:
        file.write((len(raw).to_bytes(8, "little") if length else b"") + raw)
        file.truncate(file.tell() + data)


def write_sparse_tree(folder: Path) -> int:
    """The tree, with its index and a few small files; answers with its size."""
    folder.mkdir(parents=True)
    weight_map = {}
    for shard in range(SHARDS):
        raw, data, names = shard_header(shard)
        write_file(folder / shard_name(shard), raw, data)
        weight_map.update(dict.fromkeys(names, shard_name(shard)))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt"):
        (folder / name).write_text("{}")
    return sum(path.stat().st_size for path in folder.iterdir())


def write_receipt(folder: Path, commit: str) -> None:
    """The receipt that a proof by sha256 would have left; the hashes of shards are made up from their names."""
    receipt = core("receipt")
    contents = {path: path.name.encode() if path.suffix == ".safetensors" else path.read_bytes() for path in sorted(folder.iterdir())}
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    receipt.write_receipt(
        folder,
        receipt.Receipt(
            repo_id=REPOSITORY,
            commit=commit,
            revision="main",
            level="sha256",
            include=(),
            exclude=(),
            manifest={path.name: core("hub").FileSpec(path.name, path.stat().st_size, sha256) for path, sha256 in hashes.items()},
            shards=tuple(map(shard_name, range(SHARDS))),
            files={path.name: receipt.identify(path, sha256) for path, sha256 in hashes.items()},
        ),
    )


def remember_download(folder: Path, commit: str) -> None:
    """What the Hub client leaves beside its downloads, by which it knows a file again."""
    client = importlib.import_module("huggingface_hub._local_folder")
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        client.write_download_metadata(folder, path.name, commit, "0" * 64)


def write_real_bytes(folder: Path, size: int) -> None:
    """Files that no disk and no file system can shrink, of that many bytes in all."""
    folder.mkdir(parents=True)
    block = os.urandom(64 * BLOCK)
    for number in range(BYTES_FILES):
        data = size // BYTES_FILES
        entry = {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}
        with (folder / f"model-{number:05d}.safetensors").open("wb") as file:
            raw = json.dumps({f"layer.{number}": entry}).encode()
            file.write(len(raw).to_bytes(8, "little") + raw)
            for position in range(0, data, len(block)):
                start = (number * 7919 + position // 64) % 4096
                file.write((block[start:] + block[:start])[: data - position])
    index = {"metadata": {}, "weight_map": {f"layer.{number}": f"model-{number:05d}.safetensors" for number in range(BYTES_FILES)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    os.sync()


@contextlib.contextmanager
def hub(root: Path) -> t.Iterator[None]:
    """The fake hub in a process of its own, as the endpoint of the module and of the client."""
    command = [sys.executable, str(ROOT / "tests" / "bench" / "hub" / "fake_hub.py"), f"--root={root}", "--port=0", "--bind=127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.stdout.readline().split()[-1]}"
        try:
            yield
        finally:
            server.terminate()


def published_commit() -> str:
    return str(
        importlib.import_module("huggingface_hub").HfApi(endpoint=os.environ["HF_ENDPOINT"]).model_info(REPOSITORY, revision="main").sha
    )


# -- how it is measured ----------------------------------------------------------------------------------------------------------


def interleaved(repetitions: int, ways: t.Mapping[str, t.Callable[[], object]], before: t.Callable[[], None] = lambda: None) -> Seconds:
    """Seconds of each way, in turns, so that a busy machine is the same for all."""
    seconds: Seconds = {name: [] for name in ways}
    for _repetition in range(repetitions):
        for name, way in ways.items():
            before()
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(seconds: Seconds, name: str, reference: str) -> float:
    """How many times the reference's time one takes; the median of the repetitions' own ratios."""
    return statistics.median(one / other for one, other in zip(seconds[name], seconds[reference]))


def forget(folder: Path) -> None:
    """Take a folder's files out of the page cache; of everything, where that is allowed."""
    os.sync()
    if os.access(DROP_CACHES, os.W_OK):
        DROP_CACHES.write_text("3")
        return
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remember(folder: Path) -> None:
    """Bring a folder's files into the page cache."""
    for path in folder.iterdir():
        if path.is_file():
            read_through(path)


def read_through(path: Path, take: t.Callable[[memoryview], object] = len) -> None:
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            take(buffer[:count])


def arguments(folder: Path, **options: t.Any) -> dict[str, t.Any]:
    return {"repo_id": REPOSITORY, "dest": str(folder), "endpoint": os.environ["HF_ENDPOINT"], **options}


def module_here(folder: Path, **options: t.Any) -> None:
    """The module's own work: everything but the start of its interpreter and its imports."""
    module, printed = importlib.import_module(f"{COLLECTION}.modules.model_download"), io.StringIO()
    with patch_module_args(arguments(folder, **options)), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        module.main()
    check(printed.getvalue())


def module_process(folder: Path, *, changed: bool = False, before: t.Sequence[str] = (), **options: t.Any) -> str:
    """The module in a process of its own, as Ansible runs it; answers with what is printed after its result."""
    done = subprocess.run(
        [*before, sys.executable, "-m", f"{COLLECTION}.modules.model_download"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments(folder, **options)}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(TREE)},
    )
    answer, *rest = done.stdout.strip().split("\n")
    check(answer, changed)
    return "".join(rest)


def peak_memory(folder: Path, **options: t.Any) -> int:
    """The most memory the module's process holds, in bytes."""
    return 1024 * int(module_process(folder, before=[sys.executable, "-c", PEAK], **options))


def check(output: str, changed: bool = False) -> None:
    answer = json.loads(output)
    assert not answer.get("failed") and answer["changed"] == changed, answer


def client_here(folder: Path) -> None:
    importlib.import_module("huggingface_hub").snapshot_download(REPOSITORY, local_dir=folder, endpoint=os.environ["HF_ENDPOINT"])


def client_process(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", WARM_RUN.format(REPOSITORY, str(folder))], check=True, stderr=subprocess.DEVNULL)


def client_verify(folder: Path) -> None:
    command = [str(Path(sys.executable).parent / "hf"), "cache", "verify", REPOSITORY, "--local-dir", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# -- the three tables --------------------------------------------------------------------------------------------------------------


def say(name: str, value: str, remark: str = "") -> None:
    print(f"  {name:50} {value:>19}   {remark}".rstrip(), flush=True)


def milliseconds(values: t.Sequence[float]) -> str:
    return f"{1000 * statistics.median(values):.1f} ({1000 * min(values):.1f}) ms"


def measure_receipt(ours: Path, theirs: Path, commit: str, repetitions: int) -> None:
    seconds = interleaved(
        repetitions,
        {
            "own work, commit given": lambda: module_here(ours, revision=commit),
            "own work, commit asked for": lambda: module_here(ours),
            "process, commit asked for": lambda: module_process(ours),
            "client": lambda: client_here(theirs),
            "client's process": lambda: client_process(theirs),
        },
    )
    print(f"Second run over a proven tree, median (best) of {repetitions}:")
    say("module's own work, commit given (no request)", milliseconds(seconds["own work, commit given"]), "target 50 ms")
    say("module's own work, commit asked for (1 request)", milliseconds(seconds["own work, commit asked for"]))
    say("Hub client, snapshot_download in its process", milliseconds(seconds["client"]), "trusts names and times, reads nothing")
    say("module, whole process", milliseconds(seconds["process, commit asked for"]))
    say("Hub client, whole process", milliseconds(seconds["client's process"]))
    for what, name, reference in [
        ("own work", "own work, commit asked for", "client"),
        ("process", "process, commit asked for", "client's process"),
    ]:
        say(f"the client takes, of the module's {what}", f"{1 / ratio(seconds, name, reference):.1f} times")


def measure_structure(folder: Path, commit: str, repetitions: int) -> None:
    read_header, prove_all = core("safetensors").read_header, core("proof").prove_all
    shards = [folder / shard_name(number) for number in range(SHARDS)]
    specs = [core("hub").FileSpec(path.name, path.stat().st_size) for path in shards]

    def prove() -> None:
        assert not prove_all(folder, specs, content=False).bad

    def read() -> None:
        for path in shards:
            assert len(read_header(path)) == TENSORS

    def module() -> None:
        module_here(folder, revision=commit, offline=True, verify="structure")

    ways = {"module": module, "prove": prove, "read": read}
    print(f"Proof of structure, {SHARDS} shards, {SHARDS * TENSORS} tensors, median (best) of {repetitions}:")
    for state, before in (("cold", lambda: forget(folder)), ("warm", lambda: None)):
        seconds = interleaved(repetitions, ways, before)
        remark = "target 500 ms" if state == "cold" else ""
        say(f"{state} cache, headers read and checked, one thread", milliseconds(seconds["read"]), remark)
        say(f"{state} cache, the collection's proof", milliseconds(seconds["prove"]), remark)
        say(f"{state} cache, module's own work, with the index", milliseconds(seconds["module"]))


def hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    read_through(path, digest.update)
    return digest.hexdigest()


def ways_to_hash(folder: Path, paths: t.Sequence[Path]) -> dict[str, t.Callable[[], object]]:
    specs = [core("receipt").read_receipt(folder).manifest[path.name] for path in paths]

    def prove() -> None:
        assert not core("proof").prove_all(folder, specs, content=True).bad

    def at_once() -> None:
        with ProcessPoolExecutor(CORES) as pool:
            list(pool.map(hash_file, paths))

    return {
        "the collection's proof": prove,
        "one core, hashlib": lambda: list(map(hash_file, paths)),
        "a process for each core, hashlib": at_once,
        "hf cache verify": lambda: client_verify(folder),
    }


def measure_hashing(folder: Path, repetitions: int) -> None:
    """The limit is what all cores would do if each were alone, or the disk; where cores share their parts, even processes miss it."""
    paths = sorted(folder.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in paths)
    ways = ways_to_hash(folder, paths)
    ours, one_core, *_others = ways
    print(f"sha256 of {size / 1e9:.1f} GB in {len(paths)} files on {CORES} cores, median (best) of {repetitions}:")
    remember(folder)
    warm = interleaved(repetitions, ways)
    say_speeds("warm", warm, size)
    say_reached(warm[ours], [one / CORES for one in warm[one_core]])
    cold = interleaved(repetitions, {**ways, "no hash, only the disk": lambda: read_at_once(paths)}, lambda: forget(folder))
    say_speeds("cold", cold, size)
    say_reached(cold[ours], [max(one / CORES, disk) for one, disk in zip(warm[one_core], cold["no hash, only the disk"])])
    say("most memory of the module's process", f"{peak_memory(folder, verify='sha256') / 1e6:.0f} MB", "target 200 MB")


def read_at_once(paths: t.Sequence[Path]) -> None:
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(read_through, paths))


def say_speeds(state: str, seconds: Seconds, size: int) -> None:
    ours, *_others = seconds
    for name, values in seconds.items():
        remark = f"ours is {1 / ratio(seconds, ours, name):.2f} times as fast" if name != ours else ""
        say(f"{state} cache, {name}", f"{size / statistics.median(values) / 1e9:.2f} ({size / min(values) / 1e9:.2f}) GB/s", remark)


def say_reached(ours: t.Sequence[float], least: t.Sequence[float]) -> None:
    reached = statistics.median(bound / own for bound, own in zip(least, ours))
    say(f"of what {CORES} times one core or the disk allow", f"{100 * reached:.0f} %", "target 90 %")


def look_at_sparse_tree(place: Path, repetitions: int) -> None:
    """The hub publishes other files of the same names: neither the receipt nor the client asks for more than the commit."""
    ours, theirs, published = place / "ours", place / "theirs", place / "hub" / REPOSITORY
    size = write_sparse_tree(ours)
    write_sparse_tree(theirs)
    published.mkdir(parents=True)
    for path in ours.iterdir():
        (published / path.name).write_text(path.name)
    print(f"A tree of {SHARDS} shards and {size / 1e9:.0f} GB, with holes for content. {CORES} cores, load {os.getloadavg()[0]:.1f}.")
    with hub(place / "hub"):
        commit = published_commit()
        write_receipt(ours, commit)
        remember_download(theirs, commit)
        measure_receipt(ours, theirs, commit, 2 * repetitions)
        measure_structure(ours, commit, repetitions)


def look_at_real_bytes(place: Path, size: int, repetitions: int) -> None:
    """The hub publishes the very files that are proven, under a second name."""
    published, folder = place / "hub" / REPOSITORY, place / "ours"
    write_real_bytes(published, size)
    folder.mkdir()
    for path in published.iterdir():
        os.link(path, folder / path.name)
    with hub(place / "hub"):
        module_process(folder, changed=True)  # hashes everything and leaves the receipt
        measure_hashing(folder, max(3, repetitions // 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="real bytes to hash")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured (default: the temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-weights-") as name:
        os.environ.update(HF_HOME=f"{name}/home", HF_HUB_DISABLE_PROGRESS_BARS="1")
        look_at_sparse_tree(Path(name) / "sparse", options.repetitions)
        look_at_real_bytes(Path(name) / "real", int(options.gigabytes * 1e9), options.repetitions)


if __name__ == "__main__":
    main()
