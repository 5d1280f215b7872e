# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules hand to the core: commands and /proc of the host they run on. PRIVATE to the collection."""

from __future__ import annotations

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ._core.effects import CommandResult, Runner
from ._core.listeners import ProcFs

__all__ = ["module_runner", "proc_fs"]

_NOT_FOUND = 127


def module_runner(module: AnsibleModule) -> Runner:
    """A :data:`Runner` over ``module.run_command``. A program that is not there is an answer too, with the shell's status for that."""

    def run(argv: t.Sequence[str]) -> CommandResult:
        try:
            rc, out, err = module.run_command(list(argv), handle_exceptions=False)
        except OSError as exc:
            return CommandResult(_NOT_FOUND, "", f"{argv[0]}: {exc.strerror}")
        return CommandResult(rc, out, err)

    return run


def proc_fs() -> ProcFs:
    """The real /proc."""
    return ProcFs(_read_text, os.listdir, os.readlink)


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
