# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules that deal with releases share: their lock, and what has to happen to the unit. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import fcntl
import os
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ._core.download_job import lock_of
from ._core.host_files import HostFiles, read_json, unit_name
from ._core.leftovers import TryLock
from ._core.restart import restart_reason
from ._core.unit import UnitState, show_unit
from ._host import module_runner
from ._writer_lock import try_writer_lock

__all__ = ["locked", "try_lock_of", "unit_facts"]


@contextlib.contextmanager
def locked(root: Path) -> t.Iterator[None]:
    """Keep others from changing the deployments of this host meanwhile; nobody holds this for longer than some renames take.

    A folder that is not there holds nothing to keep, and a check must not make it.
    """
    if not root.is_dir():
        yield
        return
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock_of(kind: str) -> TryLock:
    """How to keep others from a folder of this kind: the lock of whoever installs an engine or fetches weights."""
    if kind == "weights":
        return lambda folder: try_writer_lock(lock_of(folder))
    return _try_engine_lock if kind == "engines" else lambda _folder: contextlib.nullcontext(True)


@contextlib.contextmanager
def _try_engine_lock(folder: Path) -> t.Iterator[bool]:
    with (folder.parent / f".{folder.name}.lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def unit_facts(
    module: AnsibleModule,
    deployment: str,
    release_id: str,
    *,
    drifted: bool = False,
    forget_others: bool = True,
    unit_text: t.Optional[str] = None,
) -> dict[str, t.Any]:
    """What has to happen to the unit, where its file is to have ``unit_text``.

    A recorded failure is forgotten; that of another release only with ``forget_others``.
    """
    files = HostFiles(deployment)
    state = show_unit(module_runner(module), unit_name(deployment))
    reason = restart_reason(
        active=state.is_alive,
        running=read_json(files.running),
        release_id=release_id,
        unit_sha256=files.unit_sha256(unit_text),
        written="" if drifted else files.written(release_id),
    )
    forget = files.last_failure.exists() and (forget_others or (read_json(files.last_failure) or {}).get("release") == release_id)
    return {
        "restart_required": reason is not None,
        "restart_reason": reason,
        "reload_required": state.need_daemon_reload,
        "unit_loaded": state.load_state == "loaded",
        "reset": _clear_failure(module, files, state, starts=reason is not None or not state.is_alive, forget=forget),
    }


def _clear_failure(module: AnsibleModule, files: HostFiles, state: UnitState, *, starts: bool, forget: bool) -> bool:
    """What is deliberate may try again: forget the block, and systemd's count of starts, which takes restarts for failures.

    Also where another release serves meanwhile: a host that returned to it is active, and what it returned from is blocked.
    """
    failed = state.active_state == "failed" or (forget and (starts or state.active_state != "active"))
    if (failed or starts) and not module.check_mode:
        if failed and forget:
            files.last_failure.unlink(missing_ok=True)
        module.run_command(["systemctl", "reset-failed", unit_name(files.deployment)], check_rc=state.active_state == "failed")
    return failed
