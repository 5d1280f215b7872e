# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does a running unit run what the host holds for it? PRIVATE to the collection."""

from __future__ import annotations

import typing as t

__all__ = ["restart_reason"]


def restart_reason(
    *,
    active: bool,
    running: t.Optional[t.Mapping[str, t.Any]],
    release_id: str,
    unit_sha256: t.Optional[str],
    written: t.Optional[str] = None,
) -> t.Optional[str]:
    """Why the unit must be restarted, None when it need not.

    It looks at what the unit was started with and not at what this run changed, so that a play that was killed between
    writing a file and restarting is completed by the next one.
    """
    if not active:
        return None
    if running is None:
        return "the unit runs something that this collection did not start"
    if running.get("release") != release_id:
        return f"the unit runs release {running.get('release')}, current is {release_id}"
    if running.get("unit_sha256") != unit_sha256:
        return "the unit file changed since the unit was started"
    if running.get("written") != written:
        return f"release {release_id} was edited and is written anew since the unit was started"
    return None
