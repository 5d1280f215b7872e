# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which earlier release to return to, and what speaks against it. PRIVATE to the collection."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

from .errors import VllmError
from .host_files import HostFiles
from .receipt import read_receipt
from .release_store import Links, ReleaseStore, read_record
from .snapshot import some

__all__ = ["choose_release", "refuse_unfit"]

_ELSE = "or name another release"


def choose_release(links: Links, ids: t.Sequence[str], deployment: str, wanted: t.Optional[str]) -> str:
    """The release to return to: the one that is named, else the one before current.

    Without a name, a roll-back that was done already is not undone: what it left is not returned to, so current stays.
    """
    if links.current is None:
        raise VllmError(f"{deployment} has no current release.", code="no_release", remedy="Deploy one with the deploy playbook.")
    if wanted:
        return _known(wanted, ids, deployment)
    if links.rolled_back not in (None, links.current) and links.previous in (links.rolled_back, links.current):
        return links.current
    if links.previous is None or links.previous == links.current:
        others = [release for release in ids if release != links.current]
        raise VllmError(
            f"{deployment} has no release before {links.current}.",
            code="no_previous",
            remedy=f"Name one of {some(others)}." if others else "Deploy another one.",
        )
    return _known(links.previous, ids, deployment)


def refuse_unfit(store: ReleaseStore, files: HostFiles, release_id: str) -> None:
    """Refuse a release that could not serve, or not as it was."""
    what = f"Release {release_id} of {files.deployment}"
    blocked = files.block(release_id)
    if blocked:
        raise VllmError(
            f"{what} is blocked, since it failed by its own fault: {blocked['message']}",
            code="release_blocked",
            remedy=f"{blocked['remedy']} Deploy it so, {_ELSE}.".lstrip(),
        )
    edited = store.edited(release_id)
    record = read_record(store.path(release_id))
    if edited or record is None:
        raise VllmError(
            f"{what} was edited: {some(edited)} is not as it was written.",
            code="release_drifted",
            remedy=f"Deploy it again, which writes it anew and keeps the edited files beside it, {_ELSE}.",
            details={"drift": edited},
        )
    _refuse_without_weights(what, Path(record["model_path"]))
    program = Path(record["engine_path"]) / "bin" / "vllm"
    if not os.access(program, os.X_OK):
        raise VllmError(
            f"{what} needs the engine {record['engine_path']}, and there is no program {program}.",
            code="engine_gone",
            remedy=f"Deploy it again, which installs its engine, {_ELSE}.",
        )


def _refuse_without_weights(what: str, folder: Path) -> None:
    receipt = read_receipt(folder)
    absent = sorted(name for name in receipt.files if not (folder / name).is_file()) if receipt else []
    if absent or not folder.is_dir():
        why = f"{some(absent)} is gone from it" if absent else "that folder is gone"
        raise VllmError(
            f"{what} needs the weights in {folder}, and {why}.",
            code="weights_gone",
            remedy=f"Deploy it again, which brings its weights, {_ELSE}.",
        )


def _known(release: str, ids: t.Sequence[str], deployment: str) -> str:
    if release in ids:
        return release
    raise VllmError(
        f"{deployment} has no release {release} on this host.",
        code="no_such_release",
        remedy=f"Name one of {some(ids, 10)}." if ids else "Deploy one.",
        details={"releases": list(ids)},
    )
