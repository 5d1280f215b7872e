# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose port it is, and what else the unit has opened to the network. PRIVATE to the collection.

An engine's processes talk to each other over sockets that ask nobody who they are; beyond loopback they belong to whoever comes.
"""

from __future__ import annotations

import ipaddress
import typing as t

from .errors import VllmError
from .health_types import Effects, Facts, Obstacle, Want
from .health_unit import UnitWatch
from .listeners import Listener, find_listeners, find_socket_file
from .server_url import port_of, socket_path

__all__ = ["check_expected", "check_listeners", "check_owner"]


class _Expected(t.NamedTuple):
    """A network whose listeners are known, on one port or on any."""

    network: t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network, None]
    port: t.Optional[int]

    def covers(self, listener: Listener) -> bool:
        address = ipaddress.ip_address(listener.address)
        within = self.network is None or (address.version == self.network.version and address in self.network)
        return within and self.port in (None, listener.port)


def check_expected(entries: t.Sequence[str]) -> None:
    """Refuse what is neither an address, a network nor a port."""
    for entry in entries:
        _expected(entry)


def check_listeners(want: Want, effects: Effects, watch: UnitWatch, facts: Facts) -> t.Optional[Obstacle]:
    """The address must be held by the unit, or an old server's answers pass for the new one's; and nothing else may be open."""
    if not want.unit:
        return None
    every = find_listeners(effects.proc)
    holders = _holders(every, want, effects)
    if not holders:
        return Obstacle(f"nothing listens on {_where(want)} yet, {watch.tracker.describe()}")
    foreign = _foreign(holders, want, watch, facts)
    if foreign:
        return foreign
    own = [one for one in every if watch.owns(one)]
    facts["listeners"] = [one._asdict() for one in own]
    return _unexpected(own, want)


def check_owner(want: Want, effects: Effects, watch: UnitWatch, facts: Facts) -> t.Optional[Obstacle]:
    """Whether somebody else answers at the address; nobody is no obstacle."""
    holders = _holders(find_listeners(effects.proc), want, effects)
    return _foreign(holders, want, watch, facts) if holders else None


def _holders(every: t.Sequence[Listener], want: Want, effects: Effects) -> list[Listener]:
    path, port = socket_path(want.url), port_of(want.url)
    return find_socket_file(effects.proc, path, effects.real_path) if path else [one for one in every if one.port == port]


def _where(want: Want) -> str:
    path = socket_path(want.url)
    return f"socket {path}" if path else f"port {port_of(want.url)}"


def _foreign(holders: t.Sequence[Listener], want: Want, watch: UnitWatch, facts: Facts) -> t.Optional[Obstacle]:
    if any(watch.owns(holder) for holder in holders):
        return None
    known = [holder for holder in holders if holder.pid]
    if not known:
        facts.note(f"the owner of {_where(want)} is not visible, so it was not checked")
        return None
    reason = f"{_where(want)} does not belong to {want.unit}: {known[0].describe()}"
    return Obstacle(reason, "port_foreign", "Stop that process or change the port.")


def _unexpected(own: t.Sequence[Listener], want: Want) -> t.Optional[Obstacle]:
    port = port_of(want.url)
    expected = [_expected(entry) for entry in want.expected_listeners]
    found = [one for one in own if one.port != port and not _is_loopback(one) and not any(entry.covers(one) for entry in expected)]
    if not found:
        return None
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    reason = f"{want.unit} listens beyond loopback on more than its port{more}: {found[0].describe()}"
    remedy = (
        "Bind it to loopback (VLLM_HOST_IP, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME for an engine on one host), or name it in "
        "expected_listeners."
    )
    return Obstacle(reason, "unexpected_listener", remedy, evidence=[one.describe() for one in found])


def _is_loopback(listener: Listener) -> bool:
    address = ipaddress.ip_address(listener.address)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _expected(entry: str) -> _Expected:
    """``*``, ``29500``, ``10.0.0.5``, ``10.0.0.0/24``, ``10.0.0.5:29500``, ``[fd00::5]:29500``."""
    host, port = _split(entry.strip())
    try:
        return _Expected(None if host == "*" else ipaddress.ip_network(host, strict=False), int(port) if port else None)
    except ValueError as exc:
        raise VllmError(
            f"expected_listeners holds {entry!r}, which is no address, network or port ({exc}).",
            code="bad_options",
            remedy="Write an entry as 29500, 10.0.0.5, 10.0.0.0/24, 10.0.0.5:29500 or [fd00::5]:29500.",
        ) from exc


def _split(entry: str) -> tuple[str, str]:
    if entry.isdigit():
        return "*", entry
    if entry.startswith("["):
        host, _bracket, port = entry[1:].partition("]")
        return host, port.lstrip(":")
    if entry.count(":") == 1:
        host, _colon, port = entry.partition(":")
        return host, port
    return entry, ""
