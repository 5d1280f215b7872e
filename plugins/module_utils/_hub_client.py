# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Hub client in a child process, and the lock around a folder. PRIVATE to the collection.

The child is a fork that imports huggingface_hub, so that it can be killed whatever it waits for, and so that token and
environment never show in an argument list or in this process's own environment. It dies with its parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import threading
import time
import typing as t
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from ._core.download_job import Failure
from ._core.effects import Report
from ._core.errors import VllmError
from ._core.hub import DEFAULT_ENDPOINT

__all__ = ["HubClient", "writer_lock"]

_TICK = 0.5
_FINAL = {"gated", "token_refused", "disk_full", "client_missing", "entry"}
_KINDS = {
    "GatedRepoError": "gated",
    "RepositoryNotFoundError": "token_refused",
    "RemoteEntryNotFoundError": "entry",
    "EntryNotFoundError": "entry",
    "ImportError": "client_missing",
    "LocalEntryNotFoundError": "unreachable",
    "TransportError": "unreachable",
}
"""What the client's errors mean, by the name of their class: older clients lack some of these classes."""


class HubClient(t.NamedTuple):
    """The real Hub client, ready to fetch files of one repository."""

    repo_id: str
    endpoint: str
    token: t.Optional[str]
    max_workers: int
    stall_timeout: float
    bundle: t.Optional[str] = None

    def fetch(self, commit: str, paths: t.Sequence[str], folder: Path, seen: t.Callable[[], int]) -> dict[str, Failure]:
        """Fetch ``paths`` into ``folder``; answers with the files that did not arrive and why."""
        results_out, results_in = os.pipe()
        life_out, life_in = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(results_out)
            os.close(life_in)
            _become_worker(self, [(commit, path, folder) for path in paths], results_in, life_out)
        os.close(results_in)
        os.close(life_out)
        try:
            failures, answered = _follow(results_out, seen, self.stall_timeout)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(results_out)
            os.close(life_in)
        lost = Failure("transfer", "the transfer ended without a word or stood still")
        return {**{path: lost for path in paths if path not in answered and not failures}, **failures}


def _follow(results: int, seen: t.Callable[[], int], stall_timeout: float) -> tuple[dict[str, Failure], set[str]]:
    """Read the child's answers until it is done, a failure is final, or no byte has arrived for too long."""
    failures: dict[str, Failure] = {}
    answered: set[str] = set()
    rest, most, moved = b"", -1, time.monotonic()
    while time.monotonic() - moved < stall_timeout:
        ready, _none, _none = select.select([results], [], [], _TICK)
        chunk = os.read(results, 65536) if ready else b""
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            path, kind, message = json.loads(line)
            answered.add(path)
            if kind:
                failures[path] = Failure(kind, message)
        size = seen()
        if size != most or lines:
            most, moved = size, time.monotonic()
        if (ready and not chunk) or any(failure.kind in _FINAL for failure in failures.values()):
            break
    return failures, answered


# -- inside the child ----------------------------------------------------------------------------------------------------------


def _become_worker(client: HubClient, jobs: t.Sequence[tuple[str, str, Path]], results: int, life: int) -> t.NoReturn:
    """Never return into the parent's code, whatever happens."""
    try:
        _prepare(client, jobs[0][2])
        threading.Thread(target=_die_with_parent, args=(life,), daemon=True).start()
        with ThreadPoolExecutor(max_workers=client.max_workers) as pool:
            transfers = {pool.submit(_fetch_one, client, *job): job[1] for job in jobs}
            for transfer in as_completed(transfers):
                kind, message = _verdict(transfer, client.token)
                os.write(results, json.dumps([transfers[transfer], kind, message]).encode() + b"\n")
    finally:
        os._exit(0)


def _prepare(client: HubClient, folder: Path) -> None:
    """The client's environment: it reads these once, on import. Nothing it prints may reach the module's own output."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        del os.environ[name]
    os.environ.update(
        HF_ENDPOINT=client.endpoint,
        HF_HOME=str(folder / ".hf"),
        HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_UPDATE_CHECK="1",
        DO_NOT_TRACK="1",
    )
    if client.endpoint != DEFAULT_ENDPOINT:
        # Xet would go past a mirror, straight to the public store.
        os.environ["HF_HUB_DISABLE_XET"] = "1"
    if client.bundle:
        os.environ["SSL_CERT_FILE"] = client.bundle
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _die_with_parent(life: int) -> None:
    """The parent holds the other end open for as long as it lives."""
    os.read(life, 1)
    os._exit(1)


def _fetch_one(client: HubClient, commit: str, path: str, folder: Path) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(client.repo_id, path, revision=commit, local_dir=str(folder), endpoint=client.endpoint, token=client.token or False)


def _verdict(job: Future[None], token: t.Optional[str]) -> tuple[str, str]:
    """The kind of failure and its text; two empty strings for a file that arrived."""
    failure = job.exception()
    if failure is None:
        return "", ""
    text = (str(failure).strip() or type(failure).__name__).splitlines()[0][:300]
    message = text.replace(token, "***") if token else text
    if getattr(failure, "errno", None) in {errno.ENOSPC, errno.EDQUOT} or "No space left on device" in message:
        return "disk_full", message
    return next((_KINDS[base.__name__] for base in type(failure).__mro__ if base.__name__ in _KINDS), "transfer"), message


# -- the lock ------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def writer_lock(path: Path, *, timeout: float, report: Report) -> t.Iterator[None]:
    """Hold the lock file, waiting up to ``timeout`` seconds for another writer, who is named in it."""
    deadline = time.monotonic() + timeout
    with path.open("a+", encoding="utf-8") as file:
        while not _try_lock(file):
            file.seek(0)
            holder = file.read().strip() or "another process"
            if time.monotonic() > deadline:
                raise VllmError(
                    f"{path}: {holder} has been writing the same folder for more than {timeout:.0f} s.",
                    code="locked",
                    remedy="Wait for it, or raise lock_timeout.",
                )
            report({"what": f"waiting for {holder}, which writes the same folder"})
            time.sleep(_TICK)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _try_lock(file: t.TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
