#!/usr/bin/env python3
# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile the fake NVML library into a folder: ``build.py DIR``."""

from __future__ import annotations

import sys

from fake_nvml import build

if __name__ == "__main__":
    print(build(sys.argv[1]))
