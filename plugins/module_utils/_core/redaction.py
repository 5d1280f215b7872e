# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take secrets out of what is returned. PRIVATE to the collection.

ansible-core does it for values of options marked ``no_log``; from 2.22 on the controller does, and knows nothing of a secret that a
module read on the host.
"""

from __future__ import annotations

import typing as t

__all__ = ["HIDDEN", "without_secrets"]

HIDDEN = "***"


def without_secrets(value: t.Any, secrets: t.Collection[str]) -> t.Any:
    """The value with every secret in its texts replaced, also in lists and in the values of dictionaries; an empty secret is none."""
    if isinstance(value, str):
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, t.Mapping):
        return {name: without_secrets(item, secrets) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, secrets) for item in value]
    return value
