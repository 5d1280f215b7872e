# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Hub client in a process of its own. PRIVATE to the collection.

The process is a fresh interpreter, not a fork: the caller hashes in threads of its own meanwhile, and a fork would inherit whatever
locks they hold. It can be killed whatever it waits for, holds none of the caller's files open (a lock among them), and dies
with the caller. What it is to do, the token included, is told to it through a pipe, so that no list of processes shows it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import re
import select
import signal
import sys
import threading
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor, as_completed

from ._core.download_job import Failure, Order
from ._core.hub import DEFAULT_ENDPOINT
from ._core.throttle import Throttle

__all__ = ["HubClient"]

_TICK = 0.5
_LONGEST_WAIT = 600.0
_LARGEST_CHUNK = 256 * 1024
_SMALLEST_CHUNK = 4096
_FINAL = {"gated", "token_refused", "disk_full", "client_missing", "entry"}
_KINDS = {
    "GatedRepoError": "gated",
    "RepositoryNotFoundError": "token_refused",
    "FileMetadataError": "transfer",
    "LocalEntryNotFoundError": "unreachable",
    "EntryNotFoundError": "entry",
    "ConnectError": "unreachable",
    "ConnectTimeout": "unreachable",
    "ProxyError": "unreachable",
    "ImportError": "client_missing",
}
"""What the client's errors mean, by the name of their class: not every client has all of these classes."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_TEXT = re.compile("No space left on device|[Dd]isk quota exceeded")
_CLOSED = "the client has been closed"
_ASKED_TO_WAIT = re.compile(r"Waiting ([\d.]+) ?s")
_FRESH_START = 416

_START = """
import importlib, json, sys
job = json.loads(sys.stdin.readline())
sys.path[:] = job["sys_path"]
importlib.import_module(job["module"]).work(job)
"""


class HubClient(t.NamedTuple):
    """The real Hub client, ready to fetch files of one repository."""

    repo_id: str
    endpoint: str
    token: t.Optional[str]
    max_workers: int
    stall_timeout: float
    bundle: t.Optional[str] = None
    bandwidth_limit: t.Optional[int] = None

    def fetch(self, order: Order) -> dict[str, Failure]:
        """Carry out an order; answers with the files that did not arrive and why."""
        try:
            child = _Child(_environment(self, order))
        except OSError as exc:
            lost = Failure("transfer", f"the Hub client cannot be started ({exc.strerror})")
            return {spec.path: lost for spec in order.specs}
        with contextlib.closing(child):
            child.tell(_job(self, order))
            return _Follower(order, child, self.max_workers).follow(self.stall_timeout)


def _job(client: HubClient, order: Order) -> dict[str, t.Any]:
    """All that the child needs to know."""
    limit = client.bandwidth_limit or None
    return {
        "module": __name__,
        "sys_path": sys.path,
        "repo_id": client.repo_id,
        "endpoint": client.endpoint,
        "token": client.token,
        "commit": order.commit,
        "folder": str(order.folder),
        "paths": [spec.path for spec in order.specs],
        "max_workers": client.max_workers,
        "bandwidth_limit": limit,
        # Small steps keep many threads together below a small limit, and let the watchdog see a slow transfer move.
        "chunk": max(_SMALLEST_CHUNK, min(_LARGEST_CHUNK, limit // (4 * client.max_workers) if limit else _LARGEST_CHUNK)),
    }


def _environment(client: HubClient, order: Order) -> dict[str, str]:
    """The client's variables, which it reads once, on import. Those of the caller would let its runs differ from ours."""
    # One transfer that stands still is taken up again by the client itself before the watchdog ends all of them.
    patience = str(max(1, int(client.stall_timeout / 2)))
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
    variables.update(
        HF_ENDPOINT=client.endpoint,
        HF_HOME=str(order.folder / ".hf"),
        HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_UPDATE_CHECK="1",
        HF_HUB_DOWNLOAD_TIMEOUT=patience,
        HF_HUB_ETAG_TIMEOUT=patience,
        DO_NOT_TRACK="1",
    )
    if not _xet_may_be_used(client, order):
        variables["HF_HUB_DISABLE_XET"] = "1"
    if client.bundle:
        variables["SSL_CERT_FILE"] = client.bundle
    return variables


def _xet_may_be_used(client: HubClient, order: Order) -> bool:
    """Xet goes past a mirror, straight to the public store, and past our limit; and what it failed at is repeated without it."""
    return client.endpoint.rstrip("/") == DEFAULT_ENDPOINT and not client.bandwidth_limit and order.attempt == 0


class _Child:
    """The process. It reads its job from one pipe, whose other end then lives as long as we do, and answers through another."""

    def __init__(self, variables: t.Mapping[str, str]) -> None:
        job, self._life = os.pipe()
        self.answers, results = os.pipe()
        actions = [
            (os.POSIX_SPAWN_DUP2, job, 0),
            (os.POSIX_SPAWN_DUP2, results, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        self._pid = 0
        try:
            self._pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", _START], variables, file_actions=actions)
        finally:
            os.close(job)
            os.close(results)
            if not self._pid:
                self.close()

    def tell(self, job: t.Mapping[str, t.Any]) -> None:
        """Hand it its job. Where it is dead already, its answers have ended too."""
        with contextlib.suppress(BrokenPipeError):
            _write_all(self._life, json.dumps(job).encode() + b"\n")

    def end(self) -> str:
        """Kill it where it still runs; answers with how it ended."""
        os.kill(self._pid, signal.SIGKILL)
        _pid, status = os.waitpid(self._pid, 0)
        self._pid = 0
        if os.WIFSIGNALED(status):
            return f"was killed by signal {os.WTERMSIG(status)}"
        return f"ended with status {os.WEXITSTATUS(status)}"

    def close(self) -> None:
        if self._pid:
            self.end()
        os.close(self.answers)
        os.close(self._life)


class _Follower:
    """Reads the child's answers until it is done, going on is in vain, or no byte has arrived for too long."""

    def __init__(self, order: Order, child: _Child, workers: int) -> None:
        self._order = order
        self._child = child
        self._workers = workers
        self._in_vain = 0
        self._failures: dict[str, Failure] = {}
        self._open = {spec.path for spec in order.specs}
        self._remark = ""
        self._rest = b""
        self._moved = time.monotonic()

    def follow(self, stall_timeout: float) -> dict[str, Failure]:
        """Every file that did not arrive, and why: those that the child did not come to included."""
        message = self._listen(stall_timeout)
        lost = Failure("unreachable" if self._in_vain >= self._workers else "transfer", message)
        self._order.seen()
        return {**self._failures, **dict.fromkeys(self._open, lost)}

    def _listen(self, stall_timeout: float) -> str:
        """Answers with what became of the files that were not spoken of."""
        most, look = -1, 0.0
        while time.monotonic() < self._moved + stall_timeout:
            ready, _none, _none = select.select([self._child.answers], [], [], _TICK)
            chunk = os.read(self._child.answers, 65536) if ready else b""
            self._take(chunk)
            final = [path for path, failure in self._failures.items() if failure.kind in _FINAL]
            if final or self._in_vain >= self._workers:
                cause = (final or list(self._failures))[-1]
                return f"it was not tried any more after {cause}: {self._failures[cause].message}"
            if ready and not chunk:
                return f"the Hub client {self._child.end()}{self._remark}"
            if time.monotonic() >= look:
                size, look = self._order.seen(), time.monotonic() + _TICK
                if size != most:
                    most, self._moved = size, max(self._moved, time.monotonic())
        return f"no byte arrived for {stall_timeout:.0f} s{self._remark}"

    def _take(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            path, kind, message = json.loads(line)
            if path in self._open:
                self._settle(path, kind, message)
            else:
                self._remark = f" ({message})"
                self._moved = max(self._moved, time.monotonic() + _asked_to_wait(message))

    def _settle(self, path: str, kind: str, message: str) -> None:
        self._open.discard(path)
        self._moved = max(self._moved, time.monotonic())
        # The client itself tries for half a minute, for each file anew: as many in a row as there are workers are enough.
        self._in_vain = self._in_vain + 1 if kind == "unreachable" else 0
        if kind:
            self._failures[path] = Failure(kind, message)
        else:
            self._order.landed(path)


def _asked_to_wait(remark: str) -> float:
    """How long the Hub wants the client to wait, which then does not stand still; far in the past where it does not."""
    asked = _ASKED_TO_WAIT.search(remark)
    return min(float(asked.group(1)), _LONGEST_WAIT) if asked else float("-inf")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


# -- inside the child ----------------------------------------------------------------------------------------------------------


def work(job: t.Mapping[str, t.Any]) -> t.NoReturn:
    """The child's whole life. Nothing that the client prints may reach the pipes."""
    status = 1
    try:
        life, results = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        threading.Thread(target=_die_with_parent, args=(life,), daemon=True).start()
        _Worker(job, results).run()
        status = 0
    finally:
        os._exit(status)


def _die_with_parent(life: int) -> None:
    """The parent holds the other end open for as long as it lives."""
    os.read(life, 1)
    os._exit(1)


class _Worker:
    def __init__(self, job: t.Mapping[str, t.Any], results: int) -> None:
        self._job = job
        self._results = results
        self._writing = threading.Lock()
        self._remark = ""
        limit = job["bandwidth_limit"]
        # Xet, which is off below a limit, asks more of a progress bar.
        self._hook = {"tqdm_class": _meter(Throttle(limit, time.monotonic, time.sleep))} if limit else {}

    def run(self) -> None:
        self._adjust_client()
        with ThreadPoolExecutor(max_workers=self._job["max_workers"]) as pool:
            transfers = {pool.submit(self._fetch, path): path for path in self._job["paths"]}
            for transfer in as_completed(transfers):
                self._say(transfers[transfer], *_verdict(transfer.exception(), self._remark))

    def _adjust_client(self) -> None:
        """Let it write in finer steps than its own of 10 MiB, and pass its warnings on. That it is missing is told for each file."""
        with contextlib.suppress(ImportError):
            constants: t.Any = importlib.import_module("huggingface_hub.constants")
            constants.DOWNLOAD_CHUNK_SIZE = self._job["chunk"]
        logging.getLogger("huggingface_hub").addHandler(_Remarks(self._pass_on))

    def _pass_on(self, remark: str) -> None:
        self._remark = remark
        self._say("", "", remark)

    def _fetch(self, path: str) -> None:
        try:
            self._download(path)
        except OSError as exc:
            if _status(exc) != _FRESH_START:
                raise
            # Older clients take up a partial file that is longer than the real one, and would for ever.
            self._download(path, force_download=True)

    def _download(self, path: str, **options: t.Any) -> None:
        from huggingface_hub import hf_hub_download

        job = self._job
        hf_hub_download(
            job["repo_id"],
            path,
            revision=job["commit"],
            local_dir=job["folder"],
            endpoint=job["endpoint"],
            token=job["token"] or False,
            **self._hook,
            **options,
        )

    def _say(self, path: str, kind: str, message: str) -> None:
        """One line an answer, without the token and the keys in addresses of a content host."""
        text = re.sub(r"\?[^\s'\",]+", "", message).replace(self._job["token"] or "\0", "***")[:300]
        with self._writing:
            _write_all(self._results, json.dumps([path, kind, text]).encode() + b"\n")


class _Remarks(logging.Handler):
    """The client's warnings say what it waits for, and it waits where the Hub tells it to."""

    def __init__(self, pass_on: t.Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._pass_on = pass_on

    def emit(self, record: logging.LogRecord) -> None:
        remark = next(iter(record.getMessage().splitlines()), "")
        # Such a line follows the one that says why.
        if not remark.startswith("Retrying in"):
            self._pass_on(remark)


def _meter(throttle: Throttle) -> type:
    """Stands in for the client's progress bar, which is told of every chunk before it is written."""

    class Meter:
        def __init__(self, *_arguments: t.Any, **_options: t.Any) -> None:
            pass

        def __enter__(self) -> t.Any:
            return self

        def __exit__(self, *_exception: object) -> None:
            pass

        def update(self, count: float = 1) -> None:
            throttle.spent(int(count))

        def close(self) -> None:
            pass

    return Meter


def _verdict(failure: t.Optional[BaseException], remark: str) -> tuple[str, str]:
    """The kind of failure and its text; two empty strings for a file that arrived."""
    if failure is None:
        return "", ""
    cause = _cause(failure)
    message = _text(cause)
    if getattr(failure, "errno", None) in _FULL or _FULL_TEXT.search(message):
        return "disk_full", message
    if _CLOSED in message:
        # Older clients go on with a connection they gave up, and tell why they did in a warning only.
        return "unreachable", remark or message
    kind = next((_KINDS[name] for error in (cause, failure) for name in _classes(error) if name in _KINDS), "transfer")
    there = _status(cause) in range(400, 500)
    return "transfer" if kind == "unreachable" and there else kind, message


def _cause(failure: BaseException) -> BaseException:
    """What the client means by a file that it finds neither on the Hub nor in its cache."""
    return (failure.__cause__ if "LocalEntryNotFoundError" in _classes(failure) else None) or failure


def _classes(failure: BaseException) -> list[str]:
    return [base.__name__ for base in type(failure).__mro__]


def _text(failure: BaseException) -> str:
    """The first line, and the address that another may name. The rest is advice for those who call the client by hand."""
    first, *more = str(failure).strip().splitlines() or [type(failure).__name__]
    addresses = [line for line in more if "://" in line and not line.startswith("For more information")]
    return " ".join(line.strip() for line in [first, *addresses[:1]])


def _status(failure: BaseException) -> int:
    """The HTTP status behind an error of the client."""
    return int(getattr(getattr(failure, "response", None), "status_code", 0) or 0)
