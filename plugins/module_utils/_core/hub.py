# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Hub publishes about a repository: commit, files, sizes, hashes. PRIVATE to the collection.

Only metadata and small files pass through here, as plain requests, so a preflight needs no Hub client. Redirects are followed
by hand: the token goes to the endpoint's own host and to no other.
"""

from __future__ import annotations

import re
import typing as t
from urllib.parse import quote, urljoin, urlsplit

from .effects import Sleep
from .errors import VllmError
from .http import Response, Transport, Unreachable

__all__ = ["COMMIT", "DEFAULT_ENDPOINT", "FileSpec", "Hub", "Resolved", "denied"]

DEFAULT_ENDPOINT = "https://huggingface.co"
COMMIT = re.compile(r"[0-9a-f]{40}")

_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_REDIRECTS = {301, 302, 303, 307, 308}
_BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0)
_LONGEST_RETRY_AFTER = 60.0


class FileSpec(t.NamedTuple):
    """A file as published. Large files carry the sha256 of their content, others the hash git gives a blob."""

    path: str
    size: t.Optional[int]
    sha256: t.Optional[str] = None
    git_sha1: t.Optional[str] = None


class Resolved(t.NamedTuple):
    """A revision made definite: the commit, and the repository's present name."""

    commit: str
    repo_id: str


class Hub:
    """One repository on one Hub, through an HTTP transport that does not follow redirects."""

    def __init__(
        self, endpoint: str, repo_id: str, transport: Transport, sleep: Sleep, token: t.Optional[str] = None, *, patience: float = 60.0
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.repo_id = repo_id
        self.token = token
        self._transport = transport
        self._sleep = sleep
        self._pauses = [pause for number, pause in enumerate(_BACK_OFF) if sum(_BACK_OFF[: number + 1]) <= patience]

    @property
    def address(self) -> str:
        """For messages."""
        return self.endpoint

    @property
    def authorised(self) -> bool:
        """Whether a token is sent along."""
        return self.token is not None

    def resolve(self, revision: str) -> Resolved:
        """The commit a branch, tag or commit stands for now."""
        url = f"{self.endpoint}/api/models/{self.repo_id}/revision/{quote(revision, safe='')}"
        answer = self._json(url, f"revision {revision}")
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise self._no_hub(url)
        return Resolved(commit, str(answer.get("id") or self.repo_id))

    def files(self, commit: str) -> dict[str, FileSpec]:
        """Every file of the repository at ``commit``, by path."""
        url: t.Optional[str] = f"{self.endpoint}/api/models/{self.repo_id}/tree/{commit}?recursive=true&expand=false"
        found: dict[str, FileSpec] = {}
        while url:
            response = self._get(url, f"revision {commit}")
            entries = self._decoded(response, url)
            if not isinstance(entries, list):
                raise self._no_hub(url)
            found.update((entry["path"], _spec(entry)) for entry in entries if entry.get("type") == "file")
            url = _next_page(url, response)
        return found

    def read(self, commit: str, path: str) -> bytes:
        """The content of one small file."""
        return self._get(self._file_url(commit, path), path).body

    def probe(self, commit: str, path: str) -> None:
        """Ask whether this token may fetch ``path``, without fetching it: listing a gated repository is open to everybody."""
        self._get(self._file_url(commit, path), path, method="HEAD")

    def vanished(self, path: str) -> VllmError:
        """The verdict where a file that was listed is not there."""
        return VllmError(
            f"{self.repo_id} on {self.endpoint} lists {path} but does not hold it.",
            code="repository_inconsistent",
            remedy="Downloading again will not help: choose another revision or tell its publisher.",
            details={"damaged": [path]},
        )

    def _file_url(self, commit: str, path: str) -> str:
        return f"{self.endpoint}/{self.repo_id}/resolve/{commit}/{quote(path)}"

    def _json(self, url: str, subject: str) -> t.Any:
        return self._decoded(self._get(url, subject), url)

    def _decoded(self, response: Response, url: str) -> t.Any:
        try:
            return response.json()
        except ValueError as exc:
            raise self._no_hub(url) from exc

    def _get(self, url: str, subject: str, method: str = "GET") -> Response:
        """The good answer to a request, repeated with growing pauses while the Hub is busy or out of reach."""
        problem = VllmError("")
        for pause in (*self._pauses, None):
            asked = ""
            try:
                response = self._follow(method, url)
            except Unreachable as exc:
                problem = self._unreachable(str(exc.message), exc.code)
                if exc.code in {"tls_untrusted", "name_unknown"}:
                    break
            else:
                if response.status < 400:
                    return response
                problem = self._refusal(response, url, subject)
                if response.status not in _TRANSIENT:
                    break
                asked = response.headers.get("retry-after", "")
            if pause is not None:
                self._sleep(max(pause, min(float(asked), _LONGEST_RETRY_AFTER)) if asked.isdigit() else pause)
        raise problem

    def _follow(self, method: str, url: str) -> Response:
        """Follow redirects; a HEAD stops where the content host begins, for only the Hub decides about access."""
        home = urlsplit(self.endpoint).netloc
        for _hop in range(5):
            at_home = urlsplit(url).netloc == home
            headers = {"Accept-Encoding": "identity", "User-Agent": "gpufleet.vllm"}
            if self.token and at_home:
                headers["Authorization"] = f"Bearer {self.token}"
            response = self._transport(method, url, headers=headers, timeout=30.0)
            target = urljoin(url, response.headers.get("location", ""))
            if response.status not in _REDIRECTS or (method == "HEAD" and urlsplit(target).netloc != home):
                return response
            url = target
        raise Unreachable(f"{url}: redirected more than five times.", code="redirect_loop")

    def _refusal(self, response: Response, url: str, subject: str) -> VllmError:
        code = response.headers.get("x-error-code", "")
        if code == "GatedRepo":
            return denied(self.endpoint, self.repo_id, "gated" if self.token else "gated_no_token")
        if response.status in {401, 403}:
            return denied(self.endpoint, self.repo_id, "token_refused" if self.token else "no_token")
        if code == "RevisionNotFound":
            return VllmError(
                f"{self.repo_id} on {self.endpoint} has no {subject}.",
                code="revision_not_found",
                remedy="Set revision (the role's weights_revision) to a branch, a tag or a full 40-digit commit of this repository.",
            )
        if response.status == 404:
            return self._not_found(code, subject)
        return self._unreachable(f"{url} answered with HTTP status {response.status}.", f"http_{response.status}")

    def _not_found(self, code: str, subject: str) -> VllmError:
        if code == "EntryNotFound":
            return self.vanished(subject)
        return VllmError(
            f"{self.endpoint} holds no model repository {self.repo_id}.",
            code="repository_not_found",
            remedy="Check repo_id (the role's weights_repo_id) for a typing error or a new name, and endpoint for the right address.",
        )

    def _unreachable(self, what: str, reason: str) -> VllmError:
        return VllmError(
            f"The hub could not be reached: {what}",
            code="hub_unreachable",
            remedy=(
                f"Check that this host reaches {self.endpoint} (network, proxy, weights_endpoint), "
                "or set offline (the role's weights_offline) for proven weights."
            ),
            details={"reason": reason, "endpoint": self.endpoint},
        )

    def _no_hub(self, url: str) -> VllmError:
        return self._unreachable(f"{url} answered, but not as a Hub does.", "no_hub")


def denied(endpoint: str, repo_id: str, reason: str) -> VllmError:
    """Access denied, told apart by ``reason``: ``gated``, ``gated_no_token``, ``token_refused`` or ``no_token``."""
    what, remedy = {
        "gated": (
            f"The account of this token has not been granted access to {repo_id}.",
            f"Accept its licence at {endpoint}/{repo_id} with that account, or set token (the role's weights_token) to one that may.",
        ),
        "gated_no_token": (
            f"{repo_id} is gated and no token was sent.",
            f"Accept its licence at {endpoint}/{repo_id} and set token (the role's weights_token) or token_file.",
        ),
        "token_refused": (
            f"{endpoint} refused the token for {repo_id}.",
            "Set token (the role's weights_token) or token_file to a valid token that may read it.",
        ),
        "no_token": (
            f"{endpoint} does not show {repo_id} to everybody and no token was sent.",
            "Set token (the role's weights_token) or token_file; it may also be a wrong repo_id.",
        ),
    }[reason]
    return VllmError(what, code="access_denied", remedy=remedy, details={"reason": reason})


def _spec(entry: t.Mapping[str, t.Any]) -> FileSpec:
    lfs = entry.get("lfs")
    if lfs:
        return FileSpec(entry["path"], int(lfs.get("size", entry["size"])), sha256=lfs["oid"])
    return FileSpec(entry["path"], int(entry["size"]), git_sha1=entry.get("oid"))


def _next_page(url: str, response: Response) -> t.Optional[str]:
    found = re.search(r'<([^>]+)>\s*;\s*rel="next"', response.headers.get("link", ""))
    return urljoin(url, found.group(1)) if found else None
