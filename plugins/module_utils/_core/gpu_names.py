# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs an operator means by an index, a UUID, the start of one, or a PCI address. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from .errors import VllmError
from .pci import is_pci, normal_pci

__all__ = ["Identity", "places"]


class Identity(t.NamedTuple):
    """What a GPU answers to; ``error`` says why it cannot be read."""

    index: int  # type: ignore[assignment] # hides tuple.index, which nobody needs here
    uuid: t.Optional[str]
    pci_bus_id: t.Optional[str]
    error: t.Optional[str] = None


def places(identities: t.Sequence[Identity], wanted: t.Sequence[str]) -> list[int]:
    """The positions of those meant by ``wanted``, in that order; all of them where it is empty."""
    if not wanted:
        return list(range(len(identities)))
    found = [_place(identities, word.strip()) for word in wanted]
    for position, place in enumerate(found):
        if place in found[:position]:
            first = wanted[found.index(place)]
            raise VllmError(
                f"gpus names GPU {identities[place].index} twice: as {first!r} and as {wanted[position]!r}.",
                code="gpu_duplicate",
                remedy="Name each GPU once.",
            )
    return found


def _place(identities: t.Sequence[Identity], word: str) -> int:
    found = [place for place, identity in enumerate(identities) if _means(word, identity)]
    if len(found) == 1:
        return found[0]
    if found:
        candidates = ", ".join(str(identities[place].uuid) for place in found)
        raise VllmError(
            f"gpus: {word!r} is the start of several UUIDs: {candidates}.", code="gpu_ambiguous", remedy="Give more of the UUID."
        )
    raise _unknown(identities, word)


def _unknown(identities: t.Sequence[Identity], word: str) -> VllmError:
    if word.lower().startswith("mig-"):
        return VllmError(
            f"gpus: {word!r} is a MIG device, and engines are started on whole GPUs: several vLLM versions cannot read such a name"
            " in CUDA_VISIBLE_DEVICES.",
            code="gpu_is_mig_device",
            remedy="Name the GPU itself and turn its MIG mode off, or name another GPU.",
        )
    unread = [f"GPU {one.index} cannot be used ({one.error})" for one in identities if one.error and not one.uuid]
    if unread:
        return VllmError(
            f"gpus: {word!r} is none of the GPUs that can be read, and {', '.join(unread)}.",
            code="gpu_lost",
            remedy="Look for Xid lines in the kernel log; a GPU that is lost comes back only with a reboot, if at all.",
            details={"verdict": "lost"},
        )
    known = ", ".join(f"{one.index} ({one.uuid}, {one.pci_bus_id})" for one in identities)
    return VllmError(f"gpus: this host has no GPU {word!r}.", code="gpu_unknown", remedy=f"It has: {known or 'none'}.")


def _means(word: str, identity: Identity) -> bool:
    if word.isdigit():
        return int(word) == identity.index
    if is_pci(word):
        return normal_pci(word) == identity.pci_bus_id
    start = word.lower() if word.lower().startswith("gpu-") else f"gpu-{word.lower()}"
    return len(start) > len("gpu-") and (identity.uuid or "").lower().startswith(start)
