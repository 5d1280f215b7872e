# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdicts on a download: each says what is wrong with which files, and what to do. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from pathlib import Path

from .download_job import Failure, Request, Source
from .errors import VllmError
from .hub import denied
from .leftovers import Leftover
from .proof import Damage
from .snapshot import INDEX_NAME, inconsistent, some

__all__ = [
    "became_full",
    "broken_as_published",
    "corrupt_source",
    "final",
    "gave_up",
    "hashes_unknown",
    "index_disagrees",
    "lacking_tensors",
    "no_receipt",
    "nothing_to_prove",
    "other_commit",
    "other_repository",
    "reason",
    "remarks",
    "summary",
    "too_small",
    "unproven",
    "unrepaired",
]


def _size(count: int) -> str:
    """An amount of bytes as people read it, in the decimal units of disks."""
    steps = min((len(str(count)) - 1) // 3, 4)
    return f"{count / 1000**steps:.1f} {('bytes', 'kB', 'MB', 'GB', 'TB')[steps]}" if steps else f"{count} bytes"


def other_repository(folder: Path, held: str, wanted: str) -> VllmError:
    return VllmError(f"{folder} holds {held}, not {wanted}.", code="other_repository", remedy="Choose another dest, or remove the folder.")


def other_commit(folder: Path, held: str, wanted: str) -> VllmError:
    """A snapshot may be in use; another commit is never mixed into it."""
    return VllmError(
        f"{folder} holds commit {held}, and {wanted} is wanted now; a snapshot that may be in use is not turned into another.",
        code="other_commit",
        remedy=f"Put {{commit}} into dest, so that each commit has its own folder, or set revision to {held}, or remove the folder.",
    )


def index_disagrees(index: str, absent: t.Sequence[str], all_here: bool) -> VllmError:
    """The repository asks for shards that it does not hold."""
    here = "every file that it lists is here in its published size" if all_here else "nothing is wrong with the transfer"
    return inconsistent(f"{index} names {some(absent)}, which the repository does not hold; {here}.", absent)


def unproven(error: VllmError, folder: Path, missing: t.Sequence[str]) -> VllmError:
    """What is known without the hub is added to its absence."""
    lacking = f"{folder} lacks {some(missing)}." if missing else f"That {folder} holds every shard of its index is no proof."
    return VllmError(
        f"{error.message} {lacking}", code=error.code, remedy=error.remedy, details={**error.details, "missing": list(missing)}
    )


def no_receipt(request: Request) -> VllmError:
    return VllmError(
        f"{request.dest} holds no receipt of {request.repo_id} at {request.revision}, and offline forbids to ask the hub.",
        code="incomplete",
        remedy="Run once without offline, or set revision to the full commit.",
    )


def nothing_to_prove(folder: Path) -> VllmError:
    return VllmError(
        f"{folder} holds neither receipt nor index nor model.safetensors, and offline forbids to ask the hub.",
        code="incomplete",
        remedy="Run once without offline.",
        details={"missing": [INDEX_NAME]},
    )


def hashes_unknown(address: str, *, offline: bool) -> VllmError:
    if offline:
        what, remedy = "The published hashes are not known here, and offline forbids to ask for them.", "Run once without offline"
    else:
        what, remedy = f"{address} does not say the published hashes of its files.", "Put a file SHA256SUMS there"
    return VllmError(what, code="hashes_unknown", remedy=f"{remedy}, or set verify to structure, which hashes nothing.")


def unrepaired(folder: Path, bad: t.Mapping[str, Damage]) -> VllmError:
    """The folder is not whole and may not be repaired now."""
    missing = sorted(name for name, damage in bad.items() if damage.kind == "missing")
    damaged = sorted(set(bad) - set(missing))
    sentences = [f"{name} {bad[name]}" for name in damaged] + ([f"missing: {', '.join(missing)}"] if missing else [])
    return VllmError(
        f"{folder} is not whole and offline forbids to fetch: {'; '.join(sentences)}.",
        code="damaged" if damaged else "incomplete",
        remedy="Run without offline to fetch exactly these files.",
        details={"missing": missing, "damaged": damaged},
    )


def too_small(place: Path, needed: int, free: int, leftovers: t.Sequence[Leftover]) -> VllmError:
    """Told before the first byte."""
    wasted = sum(leftover.size for leftover in leftovers)
    kept = f", and interrupted downloads hold {_size(wasted)} ({some([str(leftover.path) for leftover in leftovers], 3)})" if wasted else ""
    return VllmError(
        f"{_size(needed)} are still to be fetched and {place} has {_size(free)} free{kept}.",
        code="disk_full",
        remedy=f"{'Remove what nobody needs' if wasted else 'Free space there'}, or set dest (the role's weights_store) to a larger disk.",
        details={"bytes_needed": needed, "bytes_free": free, "leftovers": [str(leftover.path) for leftover in leftovers]},
    )


def became_full(place: Path, name: str, free: int) -> VllmError:
    """Told by a failed write: somebody else took the space, or a quota did."""
    return VllmError(
        f"The disk of {place} became full while {name} was being fetched ({_size(free)} free).",
        code="disk_full",
        remedy="Free space there and run again: finished files are kept.",
        details={"bytes_free": free},
    )


def corrupt_source(endpoint: str, bad: t.Mapping[str, Damage]) -> VllmError:
    """Files arrived and are not what is published."""
    name = min(bad)
    return VllmError(
        f"{endpoint} delivered {len(bad)} of the files damaged: {name} {bad[name]}.",
        code="damaged",
        remedy="Fetch from another endpoint, or clear the mirror's or proxy's copy of these files.",
        details={"damaged": sorted(bad)},
    )


def broken_as_published(repo_id: str, bad: t.Mapping[str, Damage]) -> t.Optional[VllmError]:
    """Files that are exactly as published and no sound model files."""
    names = sorted(name for name, damage in bad.items() if damage.kind == "published")
    return inconsistent(f"{repo_id} publishes a broken file: {names[0]} {bad[names[0]]}.", names) if names else None


def lacking_tensors(lacking: t.Mapping[str, t.Sequence[str]]) -> VllmError:
    shard = min(lacking)
    tensors = lacking[shard]
    return inconsistent(f"{INDEX_NAME} puts {len(tensors)} tensors into {shard} that it does not hold ({tensors[0]}).", sorted(lacking))


def gave_up(endpoint: str, pending: t.Sequence[str], failures: t.Mapping[str, Failure], bad: t.Mapping[str, Damage]) -> VllmError:
    """No further file came in for too long."""
    if bad and not failures:
        return corrupt_source(endpoint, bad)
    unreachable = {name: failure for name, failure in failures.items() if failure.kind == "unreachable"}
    opening = "The hub could not be reached: " if unreachable else ""
    return VllmError(
        f"{opening}{len(pending)} of the files did not arrive ({some(pending)}): {reason(unreachable or failures, bad)}.",
        code="hub_unreachable" if unreachable else "incomplete",
        remedy=f"Check {endpoint} and run again: finished files are kept.",
        details={"missing": list(pending)},
    )


def final(source: Source, place: Path, free: int, failures: t.Mapping[str, Failure]) -> t.Optional[VllmError]:
    """The verdict where a failure is one that another try would only repeat."""
    for name, failure in sorted(failures.items()):
        if failure.kind in {"gated", "token_refused"}:
            without_token = {"gated": "gated_no_token", "token_refused": "no_token"}
            return denied(source.address, source.repo_id, failure.kind if source.authorised else without_token[failure.kind])
        if failure.kind == "disk_full":
            return became_full(place, name, free)
        if failure.kind == "entry":
            return source.vanished(name)
        if failure.kind == "client_missing":
            return VllmError(
                f"This Python cannot load huggingface_hub ({failure.message}).",
                code="client_missing",
                remedy="Set ansible_python_interpreter of the task to a Python that has it, such as the host venv's.",
            )
    return None


def reason(failures: t.Mapping[str, Failure], bad: t.Mapping[str, Damage]) -> str:
    """The first of several causes, for a sentence."""
    causes = [f"{name}: {failure.message.rstrip('.')}" for name, failure in sorted(failures.items())]
    causes += [f"{name} {damage}" for name, damage in sorted(bad.items())]
    return causes[0] if causes else "no file arrived"


def summary(result: t.Mapping[str, t.Any]) -> str:
    """A run that went well, in one sentence."""
    how = "structure; the content was not hashed" if result["verified"] == "structure" else result["verified"]
    came = [f"{len(result[verb])} {verb}" for verb in ("fetched", "linked", "removed") if result[verb]]
    amounts = [f"{result['files']} files", _size(result["bytes_total"]), *came]
    return f"{', '.join(amounts)}, proven by {how}."


def remarks(repo_id: str, result: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """What does not keep a run from going well and is worth a look."""
    if "renamed_to" in result:
        yield f"{repo_id} is called {result['renamed_to']} now. Set repo_id to that name."
    strange, leftovers, unindexed = result["shards"]["unexpected"], result["leftovers"], result["tensors_unindexed_names"]
    if strange:
        yield f"{result['path']} holds files that are no part of the snapshot ({some(strange)}). Set remove_unexpected to remove them."
    if leftovers:
        yield f"Interrupted downloads of other commits were left ({some(leftovers)}). Set remove_unexpected to remove them."
    if unindexed:
        count = result["tensors_unindexed"]
        yield f"The index leaves out {count} tensors that its shards hold, such as {unindexed[0]}; an engine may not load them."
