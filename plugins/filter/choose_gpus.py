# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose GPUs among those that gpu_info returned."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import VllmError
from ..module_utils._core.gpus import choose_gpus

__all__ = ["FilterModule"]


def _choose_gpus(gpus: t.Sequence[t.Mapping[str, t.Any]], wanted: t.Union[int, t.Sequence[str]]) -> list[t.Mapping[str, t.Any]]:
    if isinstance(gpus, (str, t.Mapping)) or not isinstance(gpus, t.Sequence):
        raise AnsibleFilterError(f"choose_gpus takes the list gpus that gpu_info returns, not {type(gpus).__name__}.")
    try:
        return choose_gpus(gpus, wanted)
    except VllmError as exc:
        raise AnsibleFilterError(str(exc)) from exc


class FilterModule:
    """The filter, for Ansible."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"choose_gpus": _choose_gpus}
