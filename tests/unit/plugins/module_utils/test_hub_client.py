# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The child process with the real huggingface_hub against the fake hub; where only the client's errors matter, a stand-in for it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpufleet.vllm.plugins.module_utils import _hub_client
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.download_job import Failure, Order
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import FileSpec
from ansible_collections.gpufleet.vllm.plugins.module_utils._hub_client import HubClient
from support.running import ROOT, environment, load_file

fake_hub = load_file(ROOT / "tests" / "bench" / "hub" / "fake_hub.py")

REPOSITORY = "acme/parts"
TOKEN = "hf_MARKERsecretMARKER"
PARTS = [f"part-{number}.bin" for number in range(4)]
SIZE = 600_000


class Site:
    """A hub with a repository of four large files and a small one, and a folder to fetch them into."""

    def __init__(self, root: Path) -> None:
        self.repository = root / "hub" / REPOSITORY
        self.repository.mkdir(parents=True)
        for number, name in enumerate(PARTS):
            (self.repository / name).write_bytes(bytes([number]) * SIZE)
        (self.repository / "config.json").write_text("{}")
        self.folder = root / "fetched"
        self.folder.mkdir()
        self.hub = fake_hub.FakeHub(root / "hub", 0, "127.0.0.1")
        threading.Thread(target=self.hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.hub.port}"
        self.landed: list[str] = []

    def client(self, **options: t.Any) -> HubClient:
        return HubClient(**{"repo_id": REPOSITORY, "endpoint": self.url, "token": None, "max_workers": 4, "stall_timeout": 30.0, **options})

    def order(self, seen: t.Optional[t.Callable[[], int]] = None, attempt: int = 0, names: t.Sequence[str] = ()) -> Order:
        blobs = self.hub.repository(REPOSITORY).blobs().values()
        specs = tuple(FileSpec(blob.path, blob.size) for blob in blobs if not names or blob.path in names)
        return Order(self.hub.repository(REPOSITORY).commit, specs, self.folder, attempt, seen or self.bytes_there, self._land)

    def fetch(self, *, seen: t.Optional[t.Callable[[], int]] = None, attempt: int = 0, **options: t.Any) -> dict[str, Failure]:
        return self.client(**options).fetch(self.order(seen, attempt))

    def faults(self, *faults: dict[str, t.Any]) -> None:
        self.hub.control({"faults": faults, "clear_log": True})

    def bytes_there(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def contents(self, name: str) -> list[str]:
        return [line for line in self.hub.log if line.startswith("GET /cdn/") and line.endswith(name)]

    def _land(self, name: str) -> None:
        assert (self.folder / name).read_bytes() == (self.repository / name).read_bytes()
        self.landed.append(name)


@pytest.fixture
def site(tmp_path: Path) -> t.Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.hub.shutdown()
    site.hub.server_close()


@pytest.fixture
def store(site: Site) -> t.Iterator[t.Any]:
    """A Xet store that the hub announces for its large files."""
    store = fake_hub.FakeXetStore()
    threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    (site.repository / ".hub.json").write_text(json.dumps({"xet": store.address}))
    yield store
    store.shutdown()
    store.server_close()


def children() -> list[int]:
    """The processes that were started from here and not collected."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: t.Callable[[], object], limit: float = 20.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def test_every_file_is_told_of_once_when_it_is_whole_and_nothing_stays_behind(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    before, files = children(), set(Path("/proc/self/fd").iterdir())
    assert site.fetch() == {}
    assert sorted(site.landed) == ["config.json", *PARTS]
    assert children() == before
    # The hub of the test lives in this process, and takes a moment to close its side of each connection.
    deadline = time.monotonic() + 20
    while not set(Path("/proc/self/fd").iterdir()) <= files:
        assert time.monotonic() < deadline
    assert capfd.readouterr() == ("", "")


def test_the_process_shows_no_token_and_holds_none_of_our_files(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.repository / ".hub.json").write_text(json.dumps({"gated": True, "tokens": [TOKEN]}))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    site.faults({"match": "/cdn/", "rate": 500_000})
    shown: list[str] = []
    before = children()

    def seen() -> int:
        for pid in set(children()) - set(before):
            folder = Path(f"/proc/{pid}")
            shown.append((folder / "cmdline").read_text() + (folder / "environ").read_text())
            shown.extend(str(link.readlink()) for link in (folder / "fd").iterdir() if link.is_symlink())
        return site.bytes_there()

    with (tmp_path / "ours").open("w"):
        assert site.fetch(seen=seen, token=TOKEN) == {}
    assert shown
    assert not any(TOKEN in text or text.endswith("/ours") for text in shown)
    assert any("HF_ENDPOINT" in text for text in shown)


def test_it_starts_whatever_other_threads_hold(site: Site) -> None:
    """A fork would inherit these locks in the state they are in, and never see them opened."""
    import logging

    def hold() -> None:
        with logging._lock:  # type: ignore[attr-defined]
            held.set()
            over.wait(20)

    held, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert site.fetch() == {}
    over.set()
    thread.join()


def test_it_ends_with_the_caller_even_when_that_is_killed(site: Site) -> None:
    site.faults({"match": "/cdn/", "rate": 10_000})
    program = (
        "import sys, json; from pathlib import Path\n"
        "from ansible_collections.gpufleet.vllm.plugins.module_utils._hub_client import HubClient\n"
        "from ansible_collections.gpufleet.vllm.plugins.module_utils._core.download_job import Order\n"
        "from ansible_collections.gpufleet.vllm.plugins.module_utils._core.hub import FileSpec\n"
        "commit, url, folder = sys.argv[1:]\n"
        "specs = (FileSpec('part-0.bin', 1),)\n"
        "order = Order(commit, specs, Path(folder), 0, lambda: print('alive', flush=True), print)\n"
        f"HubClient('{REPOSITORY}', url, None, 2, 60.0).fetch(order)\n"
    )
    arguments = [sys.executable, "-c", program, site.order().commit, site.url, str(site.folder)]
    parent = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment(), text=True)
    assert parent.stdout and parent.stdout.readline() == "alive\n"
    wait_for(lambda: site.hub.bytes_sent > 0)
    (child,) = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    assert runs(child)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_for(lambda: not runs(child))


def test_it_is_gone_when_the_caller_gives_up(site: Site) -> None:
    before = children()

    def seen() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        site.fetch(seen=seen)
    assert children() == before


def test_one_that_is_killed_is_said_to_be(site: Site) -> None:
    site.faults({"match": "/cdn/", "rate": 10_000})
    before = children()

    def seen() -> int:
        for pid in set(children()) - set(before):
            os.kill(pid, signal.SIGKILL)
        return 0

    failures = site.client().fetch(site.order(seen, names=PARTS[:2]))
    assert failures == dict.fromkeys(PARTS[:2], Failure("transfer", "the Hub client was killed by signal 9"))


def test_a_transfer_that_stands_still_is_broken_off_with_the_reason_after_the_others_were_told_of(site: Site) -> None:
    site.faults({"match": "part-1", "stall": 60})
    began = time.monotonic()
    failures = site.fetch(stall_timeout=2)
    assert time.monotonic() - began < 15
    assert list(failures) == [PARTS[1]]
    assert failures[PARTS[1]].kind == "transfer"
    assert failures[PARTS[1]].message.startswith("no byte arrived for 2 s")
    assert "timed out" in failures[PARTS[1]].message
    assert sorted(site.landed) == ["config.json", PARTS[0], *PARTS[2:]]


def test_a_slow_transfer_does_not_stand_still(site: Site) -> None:
    site.faults({"match": "part-1", "rate": 100_000})
    began = time.monotonic()
    assert site.fetch(stall_timeout=4) == {}
    assert time.monotonic() - began > 4


def test_a_client_that_waits_because_the_hub_says_so_does_not_stand_still(site: Site) -> None:
    site.faults({"match": "/cdn/.*part-1", "status": 429, "headers": {"Retry-After": "5"}, "times": 1})
    assert site.fetch(stall_timeout=4) == {}
    assert len(site.contents(PARTS[1])) == 2


def test_a_range_that_cannot_be_satisfied_starts_exactly_that_file_afresh_once(site: Site) -> None:
    site.faults({"match": "/cdn/.*part-1", "status": 416, "times": 1})
    assert site.fetch() == {}
    assert [len(site.contents(name)) for name in PARTS] == [1, 2, 1, 1]
    site.faults({"match": "/cdn/.*part-1", "status": 416})
    (site.folder / PARTS[1]).unlink()
    failures = site.fetch()
    assert "416" in failures[PARTS[1]].message
    assert len(site.contents(PARTS[1])) == 2


def test_a_partial_file_that_is_too_long_where_an_older_client_looks_for_it_costs_nothing(site: Site) -> None:
    assert site.fetch() == {}
    kept = site.folder / ".cache" / "huggingface" / "download"
    (site.folder / PARTS[2]).unlink()
    (kept / f"{PARTS[2]}.metadata").unlink()
    place = base64.urlsafe_b64encode(hashlib.sha1(f"{PARTS[2]}.metadata".encode(), usedforsecurity=False).digest()).decode()
    partial = kept / f"{place}.{site.hub.repository(REPOSITORY).blobs()[PARTS[2]].etag}.incomplete"
    partial.write_bytes(b"x" * (SIZE + 1))
    site.faults()
    site.landed.clear()
    assert site.fetch() == {}
    assert sorted(site.landed) == ["config.json", *PARTS]
    assert not any(site.contents(name) for name in (PARTS[0], PARTS[1], PARTS[3]))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"status": 403, "code": "GatedRepo"}, "gated"),
        ({"status": 401, "code": "RepoNotFound"}, "token_refused"),
        ({"status": 404, "code": "EntryNotFound"}, "entry"),
    ],
)
def test_what_another_try_would_only_repeat_ends_all_at_once(site: Site, fault: dict[str, t.Any], kind: str) -> None:
    site.faults({"match": "/resolve/.*part-1", **fault}, {"match": "/cdn/", "rate": 1000})
    failures = site.fetch()
    assert failures.pop(PARTS[1]).kind == kind
    assert {failure.kind for failure in failures.values()} == {"transfer"}
    assert all("not tried any more after part-1.bin" in failure.message for failure in failures.values())


def test_what_another_try_may_mend_is_told_with_its_cause(site: Site) -> None:
    site.faults(
        {"match": f"^/{REPOSITORY}/resolve/.*part-0", "status": 403, "methods": ["HEAD"]},
        {"match": "/cdn/.*part-1", "status": 403},
        {"match": "/cdn/.*part-2", "status": 503},
        {"match": "/cdn/.*part-3", "short": 10},
    )
    failures = site.fetch()
    assert [failures[name].kind for name in PARTS] == ["transfer"] * 4
    for name, says in zip(PARTS, ["403 Forbidden", "403 Forbidden", "503 Service Unavailable", "should be of size 600000"]):
        assert says in failures[name].message
    assert site.landed == ["config.json"]


def test_a_limit_holds_for_all_transfers_together(site: Site) -> None:
    """Counted where it arrives."""
    began: list[float] = []
    limit, total = 1_500_000, len(PARTS) * SIZE

    def seen() -> int:
        there = site.bytes_there()
        if there and not began:
            began.append(time.monotonic())
        if there:
            assert there <= limit * (time.monotonic() - began[0] + 1)
        return there

    start = time.monotonic()
    assert site.fetch(seen=seen, bandwidth_limit=limit) == {}
    assert time.monotonic() - start > total / limit - 0.1


def test_a_mirror_is_not_left_for_the_xet_store(site: Site, store: t.Any) -> None:
    assert site.fetch() == {}
    assert store.log == []


def test_the_client_alone_would_leave_it(site: Site, store: t.Any, tmp_path: Path) -> None:
    """Without this the test before it proved nothing."""
    program = "import sys; from huggingface_hub import hf_hub_download; hf_hub_download(sys.argv[1], 'part-0.bin', local_dir=sys.argv[2])"
    arguments = [sys.executable, "-c", program, REPOSITORY, str(tmp_path / "alone")]
    bare = {"HF_ENDPOINT": site.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(arguments, env=environment(**bare), capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert any("reconstructions" in line for line in store.log)


@pytest.mark.parametrize(
    ("options", "goes"),
    [({}, True), ({"attempt": 1}, False), ({"bandwidth_limit": 10**9}, False)],
    ids=["at first", "when repeated", "below a limit"],
)
def test_the_public_hub_is_left_for_it_at_the_first_try_without_a_limit(
    site: Site, store: t.Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, t.Any], goes: bool
) -> None:
    monkeypatch.setattr(_hub_client, "DEFAULT_ENDPOINT", site.url)
    failures = site.fetch(**options)
    assert bool(store.log) is goes
    assert sorted(failures) == (PARTS if goes else [])


STAND_IN = """
class HfHubHTTPError(OSError): response = None
class RepositoryNotFoundError(HfHubHTTPError): pass
class GatedRepoError(RepositoryNotFoundError): pass
class FileMetadataError(OSError): pass
class EntryNotFoundError(Exception): pass
class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError): pass
class IncompleteSnapshotError(LocalEntryNotFoundError): pass
class TransportError(Exception): pass
class ConnectError(TransportError): pass
class ReadTimeout(TransportError): pass
def hf_hub_download(*arguments, **options):
    print("loud", flush=True)
    {}
"""


@pytest.mark.parametrize(
    ("action", "failure"),
    [
        (
            "raise IncompleteSnapshotError('Incomplete snapshot of /x: 1 file is missing.\\nSet local_files_only')",
            "unreachable|Incomplete snapshot",
        ),
        ("raise LocalEntryNotFoundError('An error happened') from ConnectError('Connection refused')", "unreachable|Connection refused"),
        ("raise LocalEntryNotFoundError('An error happened') from FileMetadataError('no ETag')", "transfer|no ETag"),
        ("raise LocalEntryNotFoundError('Cannot find the requested files in the disk cache')", "unreachable|Cannot find"),
        ("raise ReadTimeout('')", "transfer|ReadTimeout"),
        ("raise GatedRepoError('403')", "gated|403"),
        ("raise RuntimeError('IO Error: No space left on device (os error 28)')", "disk_full|No space left"),
        ("raise OSError(122, 'Disk quota exceeded')", "disk_full|quota"),
        ("raise OSError(28, 'No space left on device', '/x/.locks/y.lock')", "disk_full|No space left"),
        (f"raise ValueError('{TOKEN} at https://cdn.example/x?X-Amz-Signature=abc')", "transfer|*** at https://cdn.example/x"),
        ("import a_module_that_is_not_here", "client_missing|No module named"),
        ("import os; os._exit(3)", "transfer|ended with status 3"),
    ],
)
def test_the_errors_of_each_client_are_told_in_a_line(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, failure: str
) -> None:
    package = tmp_path / "stand-in" / "huggingface_hub"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN.format(action))
    (package / "constants.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    told = site.client(token=TOKEN).fetch(site.order(names=[PARTS[0]]))[PARTS[0]]
    kind, text = failure.split("|")
    assert told.kind == kind
    assert text in told.message
    assert "Traceback" not in told.message and "\n" not in told.message and "Signature" not in told.message


def test_a_python_without_the_client_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    failures = site.fetch()
    assert "client_missing" in {failure.kind for failure in failures.values()}
    assert sorted(failures) == ["config.json", *PARTS]


def test_a_python_that_cannot_be_started_is_a_failure_of_every_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    failures = site.fetch()
    assert failures[PARTS[0]] == Failure("transfer", "the Hub client cannot be started (No such file or directory)")
    assert sorted(failures) == ["config.json", *PARTS]
