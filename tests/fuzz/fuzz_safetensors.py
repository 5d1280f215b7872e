#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the collection's reader of safetensors headers with the safetensors package, on files made up at random.

For each file: both accept it and name the same tensors, or the package refuses it and ours raises Malformed; anything else is a
disagreement, and so is a file that takes ours longer than a second. Every tenth file is also opened with ``safe_open``, as an
engine would. Exit status 1 when the two disagree; each disagreement is printed as Python that writes the file.

Not compared: headers of more than some kilobytes (the longest allowed ones are, once a run, as sparse files), files larger than
memory, file systems that fail, and what the messages say.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import types
import typing as t
from pathlib import Path
from random import Random

import safetensors

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from fuzz.safetensors_inputs import any_file, packed  # noqa: E402

Verdict = t.Optional[dict[str, tuple[str, tuple[int, ...], int]]]
"""The tensors of an accepted file: name, type, shape and bytes; None for a file that was refused."""

SLOW = 1.0
LONGEST = 100_000_000
EMPTY = b'{"a":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}}'


def load_reader() -> t.Any:
    """The collection's reader, imported as the host helper does it: without Ansible."""
    package = types.ModuleType("gpufleet_host")
    package.__path__ = [str(ROOT / "plugins" / "module_utils")]
    sys.modules.setdefault("gpufleet_host", package)
    return importlib.import_module("gpufleet_host._core.safetensors")


READER = load_reader()


def our_verdict(path: Path) -> Verdict:
    try:
        tensors = READER.read_header(path)
    except READER.Malformed:
        return None
    return {name: (tensor.dtype, tensor.shape, tensor.end - tensor.start) for name, tensor in tensors.items()}


def package_verdict(content: bytes) -> Verdict:
    try:
        tensors = t.cast(t.Any, safetensors).deserialize(content)
    except safetensors.SafetensorError:
        return None
    return {name: (entry["dtype"], tuple(entry["shape"]), len(entry["data"])) for name, entry in tensors}


def opens(path: Path) -> bool:
    """Whether ``safe_open`` takes the file. It wants NumPy to be importable, and needs nothing of it to open a file."""
    sys.modules.setdefault("numpy", types.ModuleType("numpy"))
    try:
        with safetensors.safe_open(path, framework="np"):
            return True
    except safetensors.SafetensorError:
        return False


def disagreement(content: bytes, path: Path, also_open: bool) -> str:
    """What the two readers see differently in a file; empty when they agree."""
    path.write_bytes(content)
    theirs = package_verdict(content)
    if also_open and opens(path) != (theirs is not None):
        return "deserialize and safe_open of the package differ"
    started = time.process_time()
    try:
        ours = our_verdict(path)
    except Exception as exc:  # noqa: BLE001 a crash is one of the things looked for
        return f"ours raises {exc!r}"
    if time.process_time() - started > SLOW:
        return f"ours takes {time.process_time() - started:.1f} s"
    if ours == theirs:
        return ""
    return f"ours {ours}, theirs {theirs}" if ours and theirs else f"only {'ours' if ours is not None else 'the package'} accepts it"


def long_headers(folder: Path) -> t.Iterator[tuple[str, Path]]:
    """Files at the limit of the header's length, blank but for one tensor, and of data too long for memory."""
    for name, length, padding, data in [
        ("the longest header", LONGEST, LONGEST - len(EMPTY), 0),
        ("a header one byte too long", LONGEST + 1, LONGEST + 1 - len(EMPTY), 0),
        ("the longest header, cut by a byte", LONGEST, LONGEST - len(EMPTY) - 1, 0),
        ("a byte behind the longest header", LONGEST, LONGEST - len(EMPTY), 1),
    ]:
        path = folder / "long"
        path.write_bytes(length.to_bytes(8, "little") + EMPTY + b" " * padding + bytes(data))
        yield name, path
    for name, size, declared in [("5 GB of zeros", 5 << 30, 5 << 30), ("5 GB of zeros, one missing", (5 << 30) - 1, 5 << 30)]:
        header = f'{{"a":{{"dtype":"U8","shape":[{declared}],"data_offsets":[0,{declared}]}}}}'.encode()
        path.write_bytes(packed(header))
        with path.open("r+b") as file:
            file.truncate(8 + len(header) + size)
        yield name, path


def compare(options: argparse.Namespace, folder: Path) -> int:
    """Compare so many files, print what was seen, and return how many disagreements there were."""
    random, path = Random(options.seed), folder / "file"
    accepted = found = 0
    for index in range(options.inputs):
        content = any_file(random)
        why = disagreement(content, path, also_open=index % 10 == 0)
        accepted += package_verdict(content) is not None
        if why:
            found += 1
            print(f"DISAGREEMENT {why}\n  Path('file').write_bytes({content!r})", flush=True)
    long = [(name, opens(path), our_verdict(path) is not None) for name, path in long_headers(folder)] if options.long else []
    for name, theirs, ours in long:
        print(f"{name}: {'accepted' if theirs else 'refused'} by the package, {'accepted' if ours else 'refused'} by ours")
    found += sum(theirs != ours for _name, theirs, ours in long)
    print(f"seed {options.seed}: {options.inputs + len(long)} inputs compared, {accepted} accepted by the package, {found} disagreements")
    return found


def main() -> int:
    """Run the comparison in a folder of its own, in memory where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--long", action="store_true", help="also the longest headers and sparse files (0.5 GB of memory)")
    options = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        return 1 if compare(options, Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
