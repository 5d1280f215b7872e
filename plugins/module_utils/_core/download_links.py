# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sharing files between commits. PRIVATE to the collection.

A new commit seldom changes the weights. What a proven snapshot of another commit holds already is taken from it as a hard link: no byte
is fetched, and no file of the older snapshot is written. A further link moves a file's ctime, though, so the lender's receipt is told.
"""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

from .download_job import Effects, Request
from .durable import make_folders
from .hub import FileSpec
from .receipt import Entry, Receipt, identify, read_receipt, write_receipt

__all__ = ["Loan", "borrow", "find_loans"]


class Loan(t.NamedTuple):
    """A file that another snapshot holds with the very content that is wanted."""

    spec: FileSpec
    lender: Path
    name: str

    @property
    def path(self) -> Path:
        return self.lender / self.name


def find_loans(request: Request, folder: Path, wanted: t.Sequence[FileSpec]) -> list[Loan]:
    """What snapshots of other commits can lend, at most one loan a file."""
    loans: dict[str, Loan] = {}
    for lender in request.folders() if request.commits_apart else []:
        receipt = read_receipt(lender) if lender != folder else None
        if receipt and receipt.repo_id == request.repo_id:
            held = {receipt.files[name].sha256: name for name in receipt.holding(lender)}
            specs = [spec for spec in wanted if spec.sha256 in held and spec.path not in loans]
            loans.update((spec.path, Loan(spec, lender, held[spec.sha256])) for spec in specs if spec.sha256)
    return list(loans.values())


def borrow(loans: t.Sequence[Loan], staging: Path, effects: Effects) -> dict[str, Entry]:
    """Link what can be lent into the staging folder; a lender that is being written by somebody lends nothing."""
    borrowed: dict[str, Entry] = {}
    for lender in sorted({loan.lender for loan in loans}):
        with effects.try_lock(lender) as free:
            receipt = read_receipt(lender) if free else None
            if receipt:
                borrowed.update(_borrow_from(receipt, [loan for loan in loans if loan.lender == lender], staging, effects))
    return borrowed


def _borrow_from(receipt: Receipt, loans: t.Sequence[Loan], staging: Path, effects: Effects) -> dict[str, Entry]:
    lent, borrowed, holding = dict(receipt.files), {}, receipt.holding(loans[0].lender)
    for loan in loans:
        if loan.name not in holding or effects.settle(loan.path, True):
            continue  # a shared file has one owner and one mode, the lender's
        entry = _link(loan, staging / loan.spec.path, receipt.files[loan.name])
        if entry:
            lent[loan.name] = borrowed[loan.spec.path] = entry
    if lent != receipt.files:
        effects.settle(write_receipt(loans[0].lender, receipt._replace(files=lent)), False)
    return borrowed


def _link(loan: Loan, target: Path, proven: Entry) -> t.Optional[Entry]:
    """The identity of the linked file; None where the file system has no links or the file was changed meanwhile."""
    make_folders(target.parent)
    try:
        if not (target.exists() and target.samefile(loan.path)):
            target.unlink(missing_ok=True)
            os.link(loan.path, target)
    except OSError:
        return None
    now = identify(target, proven.sha256)
    if now._replace(ctime_ns=0, device=0) == proven._replace(ctime_ns=0, device=0):
        return now
    target.unlink()
    return None
