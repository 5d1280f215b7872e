# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The compilers that an engine calls while it runs. PRIVATE to the collection.

Nothing asks for them at the start: the server comes up, says that it is healthy, and dies at the first request that has code compiled.
"""

from __future__ import annotations

import typing as t

__all__ = ["describe_missing", "missing_compilers"]

_NEEDED = (("torch", ("g++",)), ("triton", ("gcc", "clang")))
"""What a package calls, by the names that it tries itself; one of them is enough."""


def missing_compilers(packages: t.Iterable[str], has_program: t.Callable[[str], t.Any]) -> list[str]:
    """The compiler to install for each package of an engine's venv that finds none."""
    installed = set(packages)
    return [names[0] for package, names in _NEEDED if package in installed and not any(map(has_program, names))]


def describe_missing(missing: t.Sequence[str], requirement: str) -> str:
    """What will happen, and what to do."""
    return (
        f"This host has no {' and no '.join(missing)}. {requirement} compiles code while it runs, and ends at the first request that needs"
        f" a compiler and finds none. Install {' and '.join(missing)}, as engine_system_packages of the role engine does by default"
        " (gcc-c++ is g++ on Red Hat's systems), or name other compilers in the engine's environment (CC, CXX)."
    )
