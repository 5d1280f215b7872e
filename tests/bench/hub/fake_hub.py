#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small Hub that the unmodified huggingface_hub accepts, with faults that can be switched while it runs.

    fake_hub.py --root DIR [--port 8080] [--bind ADDRESS]

DIR holds repositories as plain folders ``<org>/<name>/``, each with an optional ``.hub.json``. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
import typing as t
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

__all__ = ["FakeHub", "FakeXetStore"]

SETTINGS = ".hub.json"
LFS_FROM = 10 * 1024 * 1024
CHUNK = 64 * 1024
LISTING_AGE = 0.2


class Blob(t.NamedTuple):
    """One file of a repository as the Hub publishes it."""

    path: str
    size: int
    git_sha1: str
    sha256: str
    lfs: bool

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_sha1

    def entry(self, in_xet: bool) -> dict[str, t.Any]:
        entry: dict[str, t.Any] = {"type": "file", "path": self.path, "size": self.size, "oid": self.git_sha1}
        if self.lfs:
            entry["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        if self.lfs and in_xet:
            entry["xetHash"] = self.xet_hash
        return entry

    @property
    def xet_hash(self) -> str:
        """A name of its own in the Xet store."""
        return hashlib.sha256(self.sha256.encode()).hexdigest()


class Repository:
    """A folder seen as a model repository with one commit, hashed once and again only for files that changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hashed: dict[tuple[str, int, int], Blob] = {}
        self._lock = threading.Lock()
        self._listing: dict[str, Blob] = {}
        self._listed_at = float("-inf")

    @property
    def settings(self) -> dict[str, t.Any]:
        """What ``.hub.json`` says: see README.md."""
        try:
            return dict(json.loads((self.folder / SETTINGS).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}

    def blobs(self) -> dict[str, Blob]:
        """All files by path; the folder is read again after a moment, so that a hundred requests at once cost one look."""
        with self._lock:
            if time.monotonic() - self._listed_at > LISTING_AGE:
                self._listing, self._listed_at = self._list(), time.monotonic()
            return self._listing

    def _list(self) -> dict[str, Blob]:
        found = {}
        for root, _folders, names in os.walk(self.folder):
            for name in names:
                path = Path(root) / name
                relative = path.relative_to(self.folder).as_posix()
                if relative != SETTINGS:
                    found[relative] = self._blob(path, relative)
        return dict(sorted(found.items()))

    def _blob(self, path: Path, relative: str) -> Blob:
        stat = path.stat()
        key = (relative, stat.st_size, stat.st_mtime_ns)
        if key not in self._hashed:
            sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % stat.st_size, usedforsecurity=False)
            with path.open("rb") as file:
                while chunk := file.read(1024 * 1024):
                    sha256.update(chunk)
                    git.update(chunk)
            lfs = stat.st_size >= LFS_FROM or relative.endswith((".safetensors", ".bin", ".pth"))
            self._hashed[key] = Blob(relative, stat.st_size, git.hexdigest(), sha256.hexdigest(), lfs)
        return self._hashed[key]

    @property
    def commit(self) -> str:
        """The commit of the settings, else one made from the content."""
        fixed = self.settings.get("commit")
        listing = "\n".join(f"{blob.path} {blob.etag}" for blob in self.blobs().values())
        return str(fixed or hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest())

    def knows(self, revision: str) -> bool:
        return revision in {self.commit, *self.settings.get("revisions", ["main"])}


class Fault:
    """Something that goes wrong: for requests whose path fits ``match``, ``times`` times (without it, until cleared).

    ``status``: answer with it; ``truncate``: cut the connection after that many bytes; ``short``: send so many bytes fewer and say
    so; ``flip``: change the byte at that offset; ``stall``: wait so many seconds in the middle; ``rate``: bytes a second.
    """

    def __init__(self, record: t.Mapping[str, t.Any]) -> None:
        self.record = dict(record)
        self.match = re.compile(record.get("match", ""))
        self.methods = set(record.get("methods", ["GET", "HEAD"]))
        self.left = record.get("times")

    def strikes(self, method: str, path: str) -> bool:
        """Whether it goes wrong this time; counts."""
        if method not in self.methods or not self.match.search(path) or self.left == 0:
            return False
        if self.left is not None:
            self.left -= 1
        return True


class FakeHub(ThreadingHTTPServer):
    """The server. ``faults`` and ``log`` may also be used directly, where it runs inside a test."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path, port: int = 8080, bind: str = "", cdn: str | None = None) -> None:
        super().__init__((bind, port), Handler)
        self.root = root
        self.cdn = cdn
        self.log: list[str] = []
        self.faults: list[Fault] = []
        self.bytes_sent = 0
        self._repositories: dict[str, Repository] = {}
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def get_request(self) -> tuple[socket.socket, t.Any]:
        connection, address = super().get_request()
        with self._lock:
            self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: t.Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """A client that went away is none of the hub's errors."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def vanish(self) -> None:
        """Go away in the middle of everything: no new connections, and the open ones break."""
        self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def repository(self, name: str) -> Repository | None:
        with self._lock:
            folder = self.root / name
            if name not in self._repositories and folder.is_dir():
                self._repositories[name] = Repository(folder)
            return self._repositories.get(name)

    def struck(self, method: str, path: str) -> dict[str, t.Any]:
        """Everything that goes wrong with this request, merged."""
        with self._lock:
            self.log.append(f"{method} {path}")
            merged: dict[str, t.Any] = {}
            for fault in self.faults:
                if fault.strikes(method, path):
                    merged.update(fault.record)
            return merged

    def control(self, order: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """``faults``: replaces them all; ``clear_log``: forgets the requests. Answers with the state."""
        with self._lock:
            if "faults" in order:
                self.faults = [Fault(record) for record in order["faults"]]
            if order.get("clear_log"):
                self.log.clear()
                self.bytes_sent = 0
            faults = [{**fault.record, "left": fault.left} for fault in self.faults]
            return {"faults": faults, "requests": list(self.log), "bytes_sent": self.bytes_sent}


class Refused(Exception):
    """An error answer: status and the Hub's own error code."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Moved(Exception):
    """A redirect to the repository's new name."""


class Handler(BaseHTTPRequestHandler):
    """The routes: /api/models/..., /<org>/<name>/resolve/..., /cdn/... and /_control."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeHub

    def log_message(self, format: str, *args: t.Any) -> None:
        """Say nothing: the requests are in the log that /_control shows."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/_control":
            self._json(self.server.control(json.loads(body or b"{}")))
        else:
            self._refuse(Refused(404))

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/_control":
            self._json(self.server.control({}))
            return
        fault = self.server.struck(self.command, self.path)
        try:
            if "status" in fault:
                raise Refused(fault["status"], fault.get("code", ""), "made to fail")
            self._route(path, fault)
        except Moved as moved:
            self._head(307, {"Location": str(moved), "Content-Length": "0"})
        except Refused as refusal:
            self._refuse(refusal, fault.get("headers"))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, path: str, fault: t.Mapping[str, t.Any]) -> None:
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree|xet-read-token)/(.+)", path)
        if api:
            name, kind, revision = api.groups()
            {"revision": self._revision, "tree": self._tree, "xet-read-token": self._xet_token}[kind](name, revision)
            return
        file = re.fullmatch(r"/(cdn/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not file:
            raise Refused(404)
        cdn, name, revision, filename = file.groups()
        self._file(name, revision, filename, fault, cdn=bool(cdn))

    # -- what is published -----------------------------------------------------------------------------------------------------

    def _revision(self, name: str, revision: str) -> None:
        repository = self._repository(name, revision)
        siblings = [{"rfilename": path} for path in repository.blobs()]
        gated = "manual" if repository.settings.get("gated") else False
        private = bool(repository.settings.get("private"))
        self._json(
            {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, "private": private, "gated": gated, "tags": []}
        )

    def _tree(self, name: str, revision: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        repository = self._repository(name, revision)
        in_xet = bool(repository.settings.get("xet"))
        entries = [blob.entry(in_xet) for blob in repository.blobs().values()]
        first, limit = int(query.get("cursor", ["0"])[0]), int(query.get("limit", ["1000"])[0])
        headers = {}
        if first + limit < len(entries):
            headers["Link"] = (
                f'<{self._home()}/api/models/{name}/tree/{revision}?recursive=true&cursor={first + limit}&limit={limit}>; rel="next"'
            )
        self._json(entries[first : first + limit], headers)

    def _xet_token(self, name: str, revision: str) -> None:
        """Where the Xet store is, and a key to it."""
        store = self._repository(name, revision).settings.get("xet")
        if not store:
            raise Refused(404)
        expires = int(time.time()) + 3600
        headers = {"X-Xet-Cas-Url": store, "X-Xet-Access-Token": "xet-token", "X-Xet-Token-Expiration": str(expires)}
        self._json({"casUrl": store, "accessToken": "xet-token", "exp": expires}, headers)

    def _file(self, name: str, revision: str, filename: str, fault: t.Mapping[str, t.Any], *, cdn: bool) -> None:
        repository = self._repository(name, revision, trusted=cdn)
        if not cdn and repository.settings.get("gated"):
            self._admit(repository, Refused(403 if self.headers.get("Authorization") else 401, "GatedRepo", "access is restricted"))
        blob = repository.blobs().get(filename)
        if blob is None:
            raise Refused(404, "EntryNotFound", "no such file")
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{blob.etag}"'}
        if blob.lfs and not cdn:
            headers.update({"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size)})
            headers["Location"] = f"{self._cdn()}/cdn/{name}/resolve/{repository.commit}/{quote(filename)}"
            if repository.settings.get("xet"):
                headers["X-Xet-Hash"] = blob.xet_hash
                headers["Link"] = f'<{self._home()}/api/models/{name}/xet-read-token/{repository.commit}>; rel="xet-auth"'
            self._head(302, {**headers, "Content-Length": "0"})
            return
        self._content(repository.folder / filename, blob.size, headers, fault)

    def _repository(self, name: str, revision: str, *, trusted: bool = False) -> Repository:
        repository = self.server.repository(name)
        if repository is None:
            raise Refused(404 if self.headers.get("Authorization") else 401, "RepoNotFound", "no such repository")
        moved = repository.settings.get("renamed_to")
        if moved:
            raise Moved(self.path.replace(name, moved))
        if repository.settings.get("private") and not trusted:
            self._admit(repository, Refused(401, "RepoNotFound", "no such repository"))
        if not repository.knows(revision):
            raise Refused(404, "RevisionNotFound", "no such revision")
        return repository

    def _admit(self, repository: Repository, refusal: Refused) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token or token not in repository.settings.get("tokens", []):
            raise refusal

    def _home(self) -> str:
        return f"http://{self.headers.get('Host')}"

    def _cdn(self) -> str:
        """Where large files are served: this same server under another name, if it has one, so that the redirect crosses hosts."""
        if self.server.cdn:
            return self.server.cdn
        host, _, port = self.headers.get("Host", "").partition(":")
        other = {"localhost": "127.0.0.1", "127.0.0.1": "localhost"}.get(host) or self.connection.getsockname()[0].removeprefix("::ffff:")
        return f"http://{other}:{port or 80}"

    # -- answers ---------------------------------------------------------------------------------------------------------------

    def _head(self, status: int, headers: t.Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _json(self, document: t.Any, headers: t.Mapping[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, refusal: Refused, headers: t.Mapping[str, str] | None = None) -> None:
        body = json.dumps({"error": str(refusal)}).encode()
        codes = {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)} if refusal.code else {}
        self._head(refusal.status, {"Content-Type": "application/json", "Content-Length": str(len(body)), **codes, **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _content(self, path: Path, size: int, headers: dict[str, str], fault: t.Mapping[str, t.Any]) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(asked.group(1)) if asked else 0
        last = min(int(asked.group(2)) if asked and asked.group(2) else size - 1, size - 1)
        if asked and first >= size:
            raise Refused(416)
        if asked:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        last -= int(fault.get("short", 0))
        length = max(0, last + 1 - first)
        self._head(
            206 if asked else 200,
            {**headers, "Content-Length": str(length), "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"},
        )
        if self.command != "HEAD":
            self._send(path, first, length, fault)

    def _send(self, path: Path, first: int, length: int, fault: t.Mapping[str, t.Any]) -> None:
        sent, cut = 0, fault.get("truncate")
        rate, began, size = fault.get("rate"), time.monotonic(), CHUNK
        if rate:
            size = max(1024, min(CHUNK, int(rate) // 10))
        with path.open("rb") as file:
            file.seek(first)
            while sent < length:
                chunk = bytearray(file.read(min(size, length - sent)))
                if "flip" in fault and 0 <= fault["flip"] - first - sent < len(chunk):
                    chunk[fault["flip"] - first - sent] ^= 1
                if cut is not None and sent + len(chunk) > cut:
                    self.wfile.write(chunk[: cut - sent])
                    self.close_connection = True
                    return
                if "stall" in fault and sent <= length // 2 < sent + len(chunk):
                    time.sleep(fault["stall"])
                self.wfile.write(chunk)
                sent += len(chunk)
                self.server.bytes_sent += len(chunk)
                if rate:
                    time.sleep(max(0.0, began + sent / rate - time.monotonic()))


class FakeXetStore(ThreadingHTTPServer):
    """A Xet store that holds nothing and remembers who came: whoever fetches through a mirror has no business there."""

    daemon_threads = True

    def __init__(self, port: int = 0, bind: str = "127.0.0.1") -> None:
        super().__init__((bind, port), _XetHandler)
        self.log: list[str] = []

    @property
    def address(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


class _XetHandler(BaseHTTPRequestHandler):
    server: FakeXetStore

    def log_message(self, format: str, *args: t.Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.server.log.append(f"GET {self.path}")
        self.send_error(404)


def main() -> None:
    parser = argparse.ArgumentParser(description="A small Hub for tests.")
    parser.add_argument("--root", type=Path, required=True, help="folder with the repositories, <org>/<name>/")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--bind", default="", help="address to listen on (default: all)")
    parser.add_argument("--cdn", help="base address of large files (default: this server, by its address)")
    options = parser.parse_args()
    with FakeHub(options.root, options.port, options.bind, options.cdn) as hub:
        print(f"serving {options.root} on port {hub.port}", flush=True)
        hub.serve_forever()


if __name__ == "__main__":
    main()
