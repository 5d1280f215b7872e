# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for ``vllm serve``: its log lines, processes, HTTP surface, exit codes and appetite for GPU memory, without a model."""

from __future__ import annotations

from importlib import metadata

__all__ = ["__version__"]

try:
    __version__ = metadata.version("vllm")
except metadata.PackageNotFoundError:  # run from a checkout
    __version__ = "0.33.0"
