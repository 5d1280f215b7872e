# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which releases, engines and weights nothing refers to. PRIVATE to the collection.

Only what is known to be this collection's own is ever unused: releases by the hash that is their name, engines by their marker, weights
by their receipt, and what removals and deployments that were killed left behind by the names they give it. All else is kept.
"""

from __future__ import annotations

import os
import re
import time
import typing as t
from pathlib import Path

from .host_files import HostFiles, read_json
from .listeners import ProcFs
from .receipt import RECEIPT_NAME, Receipt, read_receipt
from .references import Reference, is_local, process_references, reason_to_keep, release_references
from .release_store import ReleaseStore
from .venv import MARKER, parse_marker

__all__ = ["KINDS", "REMOVED", "Finding", "Places", "Survey", "survey"]

KINDS = ("releases", "engines", "weights")
REMOVED = ".gpufleet-removed"
"""Ends the name of what was put aside to be removed; a dot begins it."""

_BACKUP = re.compile(r"([0-9a-f]{12})\.drift-\d{8}T\d{6}")
_PARTIAL = re.compile(r"\.[0-9a-f]{12}\.partial")
_OF_A_RELEASE = {"engine.yaml", "environment", "release.json", "engine", "model"}
_KILLED = "a removal that was killed left it"


class Finding(t.NamedTuple):
    """A folder, and why it is unused or kept."""

    kind: str
    path: Path
    why: str


class Places(t.NamedTuple):
    """Where everything is. ``host`` is / except in tests."""

    root: Path
    engines: Path
    weights: tuple[Path, ...]
    host: Path = Path("/")


class Survey(t.NamedTuple):
    """What is there."""

    unused: list[Finding]
    kept: list[Finding]


class _Found:
    """Collects findings."""

    def __init__(self) -> None:
        self.unused: list[Finding] = []
        self.kept: list[Finding] = []

    def add(self, kind: str, path: Path, why_kept: t.Optional[str], why_unused: str) -> None:
        (self.kept if why_kept else self.unused).append(Finding(kind, path, why_kept or why_unused))


def survey(places: Places, proc: ProcFs, *, kinds: t.Sequence[str], keep: int, min_age: float, keep_paths: t.Sequence[Path] = ()) -> Survey:
    """Look through the places for these kinds."""
    found, stores = _Found(), [ReleaseStore(path.parent.parent, path.parent.name) for path in sorted(places.root.glob("*/releases"))]
    if "releases" in kinds:
        for store in stores:
            _survey_releases(found, store, HostFiles(store.folder.name, places.host), keep)
    removed = {finding.path for finding in found.unused}
    references = [Reference(Path(os.path.realpath(path)), "keep_paths names it") for path in keep_paths]
    references += [reference for store in stores for reference in release_references(store, removed)]
    references += process_references(proc, [places.engines, *places.weights])
    young, known = time.time() - min_age, any(store.ids() for store in stores)
    if "engines" in kinds:
        _survey_engines(found, places.engines, references, young, known=known)
    for place in places.weights if "weights" in kinds else ():
        _survey_weights(found, place, references, young, known=known, shared=not is_local(place, proc.read_text))
    return Survey(found.unused, found.kept)


def _survey_releases(found: _Found, store: ReleaseStore, files: HostFiles, keep: int) -> None:
    """What current, previous, proven and the running unit name stays in any case, then the latest up to ``keep``."""
    ids, links, running = store.ids(), store.links(), (read_json(files.running) or {}).get("release")
    named = {store.linked("proven"): "it is the one that passed its gate last"}
    named.update({links.current: "it is current", links.previous: "it is the one before current", running: "its unit runs it"})
    others = [release for release in ids if release not in named]
    latest = others[: max(0, keep - len(named.keys() & set(ids)))]
    for folder in sorted(store.releases.iterdir()):
        is_folder = folder.is_dir() and not folder.is_symlink()
        backup = _BACKUP.fullmatch(folder.name) if is_folder else None
        release = backup[1] if backup else folder.name
        why = named.get(release) or ("it is among the latest" if release in latest else None)
        if folder.name in ids:
            found.add("releases", folder, why or _not_ours(store, folder), "it is beyond those that are kept")
        elif backup:
            found.add("releases", folder, why or _foreign(folder, _OF_A_RELEASE), "its release is beyond those that are kept")
        elif is_folder and _PARTIAL.fullmatch(folder.name):
            found.add("releases", folder, None, "a deployment that was killed left it")
        else:
            found.add("releases", folder, None if is_folder and _is_aside(folder) else "it is no release", _KILLED)


def _survey_engines(found: _Found, place: Path, references: t.Sequence[Reference], young: float, *, known: bool) -> None:
    entries = sorted(place.iterdir()) if place.is_dir() else []
    links = [Reference(Path(os.path.realpath(path)), f"the link {path} leads to it") for path in entries if path.is_symlink()]
    for folder in (path for path in entries if path.is_dir() and not path.is_symlink()):
        if _is_aside(folder):
            found.add("engines", folder, None, _KILLED)
        elif not folder.name.startswith("."):
            why = _unmarked(folder) or _why_kept(folder, folder / MARKER, [*references, *links], young, known=known)
            found.add("engines", folder, why, "no release refers to it")


def _survey_weights(found: _Found, store: Path, references: t.Sequence[Reference], young: float, *, known: bool, shared: bool) -> None:
    if shared:
        found.add("weights", store, "other hosts may see its file system, and refer to what is there", "")
        return
    entries = sorted(store.glob("*/*"))
    links = [Reference(Path(os.path.realpath(path)), f"the link {path} leads to it") for path in entries if path.is_symlink()]
    for folder in (path for path in entries if path.is_dir() and not path.is_symlink()):
        if _is_aside(folder):
            found.add("weights", folder, None, _KILLED)
        elif not folder.name.startswith("."):
            why = _unproven(folder) or _why_kept(folder, folder / RECEIPT_NAME, [*references, *links], young, known=known)
            found.add("weights", folder, why, "no release refers to it")


def _why_kept(folder: Path, mark: Path, references: t.Iterable[Reference], young: float, *, known: bool) -> t.Optional[str]:
    """What speaks for an engine or a snapshot that is ours and whole."""
    if not known:
        return "there is no release, so what is in use is not known"
    if mark.stat().st_mtime > young:
        return "it is new, and a deployment may be about to refer to it"
    return reason_to_keep(folder, references)


def _unmarked(folder: Path) -> t.Optional[str]:
    """Why an engine does not count as ours and whole."""
    try:
        marker = parse_marker((folder / MARKER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        marker = None
    return None if marker else "it has no marker: it is unfinished or not this collection's"


def _unproven(folder: Path) -> t.Optional[str]:
    """Why a snapshot does not count as ours and whole."""
    receipt = read_receipt(folder)
    if receipt is None:
        return "it has no receipt: it is unfinished or not this collection's"
    return _foreign(folder, _of_a_snapshot(receipt)) if receipt.complete else "it is being repaired"


def _of_a_snapshot(receipt: Receipt) -> set[str]:
    return {*receipt.files, *receipt.manifest, RECEIPT_NAME, f"{RECEIPT_NAME}.new"}


def _not_ours(store: ReleaseStore, folder: Path) -> t.Optional[str]:
    """Why a release is not what this collection wrote."""
    return _foreign(folder, _OF_A_RELEASE) or ("it was edited" if store.edited(folder.name) else None)


def _foreign(folder: Path, ours: t.Container[str]) -> t.Optional[str]:
    """A file that nobody here wrote."""
    for parent, folders, names in os.walk(folder):
        for name in (*names, *(one for one in folders if (Path(parent) / one).is_symlink())):
            path = (Path(parent) / name).relative_to(folder).as_posix()
            if path not in ours:
                return f"it holds {path}, which this collection did not write"
    return None


def _is_aside(folder: Path) -> bool:
    return folder.name.startswith(".") and folder.name.endswith(REMOVED)
