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


def _choose_gpus(
    gpus: t.Sequence[t.Mapping[str, t.Any]],
    wanted: t.Union[int, t.Sequence[str]],
    taken: t.Optional[t.Mapping[str, str]] = None,
    current: t.Sequence[str] = (),
) -> list[t.Mapping[str, t.Any]]:
    if not _is_list(gpus):
        raise AnsibleFilterError(f"choose_gpus takes the list gpus that gpu_info returns, not {type(gpus).__name__}.")
    for gpu in gpus:
        if not isinstance(gpu, t.Mapping) or "index" not in gpu:
            raise AnsibleFilterError(f"choose_gpus takes the list gpus that gpu_info returns; {gpu!r} is no member of one.")
    if taken is not None and not isinstance(taken, t.Mapping):
        raise AnsibleFilterError(f"taken of choose_gpus maps the UUID of a GPU to its deployment; {taken!r} does not.")
    if not _is_list(current):
        raise AnsibleFilterError(f"current of choose_gpus is a list of UUIDs; {current!r} is not.")
    try:
        return choose_gpus(gpus, wanted, taken=taken, current=current)
    except VllmError as exc:
        raise AnsibleFilterError(str(exc)) from exc


def _is_list(value: object) -> bool:
    return isinstance(value, t.Sequence) and not isinstance(value, str)


class FilterModule:
    """The filter, for Ansible."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"choose_gpus": _choose_gpus}
