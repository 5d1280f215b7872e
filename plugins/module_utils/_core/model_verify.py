# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove the snapshots that lie on a host, without writing anything. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import typing as t
from pathlib import Path

from .download_job import staging_of
from .effects import Report
from .errors import VllmError
from .folder_layouts import find_snapshots, inside, list_files
from .hub import COMMIT, FileSpec
from .proof import Damage, Meter, is_published, prove_all
from .receipt import RECEIPT_NAME, Receipt, read_receipt
from .snapshot import index_name, missing_tensors, read_index, some, unexpected

__all__ = ["verify"]

IsHeld = t.Callable[[Path], bool]
"""Whether somebody writes this snapshot now."""

_PLACES = ("", "[!.]*", "[!.]*/[!.]*")
_REPAIR = "Deploy the model again: that fetches exactly these files."
_PROVE = "Deploy the model again: what is whole is kept, and a receipt written."
_STAGINGS = (".*.incomplete", "[!.]*/.*.incomplete")


class Target(t.NamedTuple):
    """A snapshot and what is known of it. ``state`` and ``why`` are given where that settles the verdict without any proof."""

    folder: Path
    repo_id: str
    commit: str
    revision: str = ""
    specs: t.Mapping[str, FileSpec] = {}
    receipt: t.Optional[Receipt] = None
    state: str = ""
    why: str = ""


def verify(path: Path, level: str, report: Report, is_held: IsHeld) -> dict[str, t.Any]:
    """The verdict on every snapshot at or below ``path``."""
    targets = _find(path, is_held)
    specs = [spec for target in targets if not target.state for spec in target.specs.values()]
    meter = Meter(report, "proving", specs) if level == "sha256" else None
    snapshots = [_verdict(target, level, meter, is_held) for target in targets]
    bad = [snapshot for snapshot in snapshots if not snapshot["proven"]]
    said = (
        " ".join(snapshot["message"] for snapshot in bad) or f"{len(snapshots)} snapshot{'s' * (len(snapshots) != 1)} proven below {path}."
    )
    return {"proven": not bad, "snapshots": snapshots, "msg": said}


# -- what there is to prove ----------------------------------------------------------------------------------------------------


def _find(path: Path, is_held: IsHeld) -> list[Target]:
    """By receipts and their absence; else by whatever else a folder may have that tells what belongs into it."""
    if not path.is_dir() and not staging_of(path).is_dir():
        raise VllmError(f"{path} is no folder on this host.", code="path_missing", remedy="Set path to a snapshot or a store of models.")
    found = [*_folders(path), *_being_fetched(path, is_held)] or _other_layouts(path)
    if not found:
        raise VllmError(
            f"Nothing below {path} says which files belong to a model (no {RECEIPT_NAME}, no record of the Hub client, no SHA256SUMS).",
            code="nothing_to_prove",
            remedy="Set path to a snapshot or a store of models, or deploy a model first.",
        )
    return found


def _folders(path: Path) -> t.Iterator[Target]:
    for folder in sorted(folder for place in _PLACES for folder in (path.glob(place) if place else [path]) if folder.is_dir()):
        if (folder / RECEIPT_NAME).exists():
            yield _received(folder)
        elif COMMIT.fullmatch(folder.name) and "--" in folder.parent.name:
            yield _of_store(folder, "unproven", f"has no receipt, so nothing says which files belong to it. {_PROVE}")


def _received(folder: Path) -> Target:
    receipt = read_receipt(folder)
    if receipt is None:
        return _of_store(folder, "unproven", f"has a receipt that cannot be understood. {_PROVE}")
    specs = {inside(name, folder): receipt.manifest.get(name, FileSpec(name, None)) for name in receipt.files}
    return Target(folder, receipt.repo_id, receipt.commit, receipt.revision, specs, receipt)


def _being_fetched(path: Path, is_held: IsHeld) -> t.Iterator[Target]:
    """Snapshots that are not there yet."""
    for staging in sorted({staging_of(path), *(found for pattern in _STAGINGS for found in path.glob(pattern))}):
        folder = staging.with_name(staging.name[1:].rpartition(".")[0])
        if staging.is_dir() and not folder.exists():
            yield _of_store(folder, "incomplete", _progress("download", is_held(folder)))


def _of_store(folder: Path, state: str, why: str) -> Target:
    """A snapshot of which only its place in the store is known."""
    return Target(folder, folder.parent.name.replace("--", "/", 1), folder.name, state=state, why=why)


def _other_layouts(path: Path) -> list[Target]:
    found = find_snapshots(path)
    return [Target(one.folder, one.repo_id, one.commit or "", "".join(one.names[:1]), one.specs(list_files(one.folder))) for one in found]


# -- the verdict ---------------------------------------------------------------------------------------------------------------


def _verdict(target: Target, level: str, meter: t.Optional[Meter], is_held: IsHeld) -> dict[str, t.Any]:
    """One snapshot's entry in the result."""
    held = is_held(target.folder)
    if target.receipt and not target.receipt.complete:
        target = target._replace(state="incomplete", why=_progress("repair", held))
    if not target.receipt and not target.state and level == "receipt":
        target = target._replace(state="unproven", why="has no receipt that level receipt could go by. Set level to structure or sha256.")
    if target.state:
        return _entry(target, target.state, "", {}, target.why)
    bad = _changed(target) if level == "receipt" else _proof(target, level, meter)
    unhashed = [] if level != "sha256" else sorted(name for name, spec in target.specs.items() if not (spec.sha256 or spec.git_sha1))
    if bad and held and staging_of(target.folder).is_dir():
        return _entry(target, "incomplete", "", bad, _progress("repair", held))
    if bad:
        return _entry(target, "damaged", "", bad, _complaint(bad))
    if unhashed:
        why = f"has the right structure, and nothing tells the published hashes of {some(unhashed)}."
        return _entry(target, "unproven", "structure", {}, why)
    return _entry(target, "proven", level, {}, f"is proven by {level}.")


def _changed(target: Target) -> dict[str, Damage]:
    """The files that the receipt no longer speaks for."""
    holding = target.receipt.holding(target.folder) if target.receipt else set()
    bad = {name: target.folder / name for name in target.specs if name not in holding}
    return {name: Damage("is not the file that was proven" if path.exists() else "is missing", _kind(path)) for name, path in bad.items()}


def _kind(path: Path) -> str:
    return "damaged" if path.exists() else "missing"


def _proof(target: Target, level: str, meter: t.Optional[Meter]) -> dict[str, Damage]:
    """What a proof finds wrong, whatever was proven before. The index is hashed on each level: it decides what belongs to the model."""
    content = level == "sha256"
    proof = prove_all(target.folder, list(target.specs.values()), content=content, meter=meter if content else None)
    bad = dict(proof.bad)
    name = index_name(target.receipt.load_format if target.receipt else "auto")
    with contextlib.suppress(OSError, VllmError):
        raw = (target.folder / name).read_bytes() if name in proof.good else b""
        if raw and not is_published(raw, target.specs[name]):
            bad[name] = Damage("has other content than published")
        elif raw:
            lacking = missing_tensors(read_index(raw), proof.tensors)
            bad.update(
                {shard: Damage(f"lacks {len(names)} tensors of the index ({names[0]})", "published") for shard, names in lacking.items()}
            )
    return bad


def _complaint(bad: t.Mapping[str, Damage]) -> str:
    missing = sorted(name for name, damage in bad.items() if damage.kind == "missing")
    sentences = [f"{name} {damage}" for name, damage in sorted(bad.items()) if damage.kind != "missing"]
    said = "is not whole: " + "; ".join([*sentences[:5], *([f"{len(sentences) - 5} more are damaged"] if len(sentences) > 5 else [])])
    said += f"{'; ' if sentences and missing else ''}{f'missing: {some(missing)}' if missing else ''}"
    as_published = all(damage.kind == "published" for damage in bad.values())
    return f"{said}, exactly as published, so that downloading again will not help." if as_published else f"{said}. {_REPAIR}"


def _progress(what: str, held: bool) -> str:
    return f"is incomplete: a {what} {'is under way. Wait for it.' if held else 'was interrupted. Deploy the model again to complete it.'}"


def _entry(target: Target, state: str, level: str, bad: t.Mapping[str, Damage], why: str) -> dict[str, t.Any]:
    sizes = [spec.size if spec.size is not None else _size(target.folder / name) for name, spec in target.specs.items()]
    return {
        "path": str(target.folder),
        "repo_id": target.repo_id,
        "commit": target.commit,
        "revision": target.revision,
        "state": state,
        "proven": state == "proven",
        "level": level,
        "files": len(target.specs),
        "bytes": sum(sizes),
        "missing": sorted(name for name, damage in bad.items() if damage.kind == "missing"),
        "damaged": [{"name": name, "why": str(damage)} for name, damage in sorted(bad.items()) if damage.kind != "missing"],
        "unexpected": unexpected(target.folder, target.specs) if target.specs else [],
        "message": f"{target.folder} {why}",
    }


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
