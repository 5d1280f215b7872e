# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the unit tests are run."""

from __future__ import annotations

from hypothesis import settings

# How long one example takes says more about the machine than about the code.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
