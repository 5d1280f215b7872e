# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server behind HAProxy: read, taken out and put back over the runtime API. PRIVATE to the collection.

Two answers are read together. ``show servers state`` has what an administrator asked for, ``show stat`` what HAProxy makes of it and
how many requests it has on each server. After a reload the workers of before go on with what they began: they are asked through the
master process, or a server would look idle while it still answers.
"""

from __future__ import annotations

import csv
import typing as t

from .effects import Clock, Sleep
from .errors import VllmError

__all__ = ["STATES", "Exchange", "Server", "patient", "read_servers", "set_state", "the_server", "wait_for"]

Exchange = t.Callable[[str], str]
"""Sends one command and answers with the text that came back; raises :class:`OSError` where nobody listens."""

STATES = ("ready", "drain", "maint")
POLL = 0.2
GRACE = 3.0
"""Seconds for which a socket may be away: a reload replaces it."""
# Administrative bits of a server: by command, inherited, by configuration, by name resolution.
_MAINT = 0x01 | 0x02 | 0x04 | 0x20 | 0x40
_DRAIN = 0x08 | 0x10
_SERVERS = "4 -1"
_STRANGERS = ("Can't find backend", "No such backend", "No such proxy")
_OPERATIONAL = {"UP": "up", "DRAIN": "up", "DOWN": "down", "NOLB": "stopping", "no check": "unchecked"}


class Server(t.NamedTuple):
    """One server of a backend as HAProxy sees it."""

    name: str
    state: str
    operational: str
    in_flight: int
    check: str

    @property
    def is_up(self) -> bool:
        """Whether it takes requests and no check speaks against it."""
        return self.state == "ready" and self.operational in ("up", "unchecked")

    @property
    def serves(self) -> bool:
        """Whether requests go to it at this moment, even where the last check failed."""
        return self.is_up or (self.state == "ready" and self.operational == "failing")


def patient(ask: Exchange, clock: Clock, sleep: Sleep) -> Exchange:
    """The same, tried again for a moment where nobody listens."""

    def exchange(command: str) -> str:
        end = clock() + GRACE
        while True:
            try:
                return ask(command)
            except (FileNotFoundError, ConnectionError):
                if clock() >= end:
                    raise
            sleep(POLL)

    return exchange


def read_servers(ask: Exchange, backend: str, ask_master: t.Optional[Exchange] = None) -> dict[str, Server]:
    """The servers of a backend by their names, with what workers of before a reload still have in flight."""
    states = _states(_of_backend(ask, f"show servers state {backend}", backend))
    rows = _rows(_of_backend(ask, f"show stat {backend} {_SERVERS}", backend))
    older = [_in_flight(row) for row in _rows_of_old_workers(ask_master, backend)] if ask_master else []
    servers = {}
    for row in rows:
        name, own = _in_flight(row)
        state = states.get(name, "ready")
        in_flight = own + sum(count for other, count in older if other == name)
        servers[name] = Server(name, state, _operational(row["status"]), in_flight, _last_check(row))
    return servers


def the_server(servers: t.Mapping[str, Server], backend: str, name: str) -> Server:
    """The server of that name, or an error with the names there are."""
    if name not in servers:
        raise VllmError(
            f"HAProxy has no server {name} in {backend}.",
            code="unknown_server",
            remedy=f"There are {', '.join(servers) or 'none'}. Add it with the playbook balancer, or correct the name.",
            details={"servers": list(servers)},
        )
    return servers[name]


def set_state(ask: Exchange, backend: str, name: str, state: str) -> None:
    """Ask for an administrative state; HAProxy answers with nothing where it obeys."""
    answer = ask(f"set server {backend}/{name} state {state}").strip()
    if answer:
        raise VllmError(
            f"HAProxy did not set {name} of {backend} to {state}: {answer}",
            code="refused",
            remedy="Its stats socket must have the level admin." if "denied" in answer.lower() else "",
        )


def wait_for(goal: str, read: t.Callable[[], Server], backend: str, *, timeout: float, clock: Clock, sleep: Sleep) -> tuple[Server, float]:
    """Wait until the server is ``drained`` or ``up``; the server as it was seen last, and the seconds that took."""
    began = clock()
    while True:
        server = read()
        waited = clock() - began
        if _reached(goal, server):
            return server, waited
        if waited >= timeout:
            raise _too_late(goal, server, backend, waited)
        sleep(min(POLL, max(timeout - waited, 0.01)))


def _reached(goal: str, server: Server) -> bool:
    return server.in_flight == 0 if goal == "drained" else server.is_up


def _too_late(goal: str, server: Server, backend: str, waited: float) -> VllmError:
    details = {**server._asdict(), "waited_seconds": round(waited, 2)}
    if goal == "drained":
        many = f"{server.in_flight} request{'s' if server.in_flight != 1 else ''}"
        return VllmError(
            f"{server.name} of {backend} still has {many} in flight after {waited:.0f} s.",
            code="not_drained",
            remedy="It takes no new ones. Give it a longer timeout, or end those requests.",
            details=details,
        )
    if server.state != "ready":
        why, remedy = f"its state is {server.state}", "Set it to ready."
    else:
        why, remedy = f"it is {server.operational}, and its last check said {server.check or 'nothing yet'}", "See what the server logs."
    return VllmError(
        f"HAProxy does not hold {server.name} of {backend} for up after {waited:.0f} s: {why}.",
        code="not_up",
        remedy=remedy,
        details=details,
    )


def _of_backend(ask: Exchange, command: str, backend: str) -> str:
    answer = ask(command)
    if answer.strip().startswith(_STRANGERS):
        known = [line.strip() for line in ask("show backend").splitlines() if line.strip() and not line.startswith("#")]
        raise VllmError(
            f"HAProxy has no backend {backend}.",
            code="unknown_backend",
            remedy=f"There are {', '.join(known) or 'none'}. Add it with the playbook balancer, or correct the name.",
            details={"backends": known},
        )
    return answer


def _states(text: str) -> dict[str, str]:
    """The administrative state of each server, from a table whose second line names the columns."""
    lines = [line for line in text.splitlines() if line.strip()]
    header = next((line[1:].split() for line in lines if line.startswith("#")), [])
    rows = [dict(zip(header, line.split())) for line in lines if len(line.split()) >= len(header) > 0 and not line.startswith("#")]
    return {row["srv_name"]: _administrative(int(row["srv_admin_state"], 0)) for row in rows}


def _administrative(bits: int) -> str:
    return "maint" if bits & _MAINT else "drain" if bits & _DRAIN else "ready"


def _rows(text: str) -> list[dict[str, str]]:
    """Comma-separated rows under a header that begins with ``# ``."""
    return list(csv.DictReader(text.lstrip().lstrip("# ").splitlines()))


def _in_flight(row: t.Mapping[str, str]) -> tuple[str, int]:
    """A server's name, and how many requests it has or has waiting for it alone."""
    return row["svname"], int(row["scur"] or 0) + int(row["qcur"] or 0)


def _operational(status: str) -> str:
    """From words such as ``UP``, ``UP 1/2``, ``DOWN 1/2``, ``MAINT (resolution)`` or ``no check``."""
    word, _blank, progress = status.partition(" ")
    known = _OPERATIONAL.get(status) or _OPERATIONAL.get(word, "unknown")
    if progress[:1].isdigit():
        return {"UP": "failing", "DRAIN": "failing", "DOWN": "recovering"}.get(word, known)
    return known


def _last_check(row: t.Mapping[str, str]) -> str:
    """What the last health check said, in HAProxy's words."""
    code = row.get("check_code") or "0"
    said = [row.get("check_desc"), code != "0" and f"status {code}", row.get("last_chk")]
    words = ", ".join(str(part) for part in said if part)
    return f"{row.get('check_status', '').lstrip('* ')}: {words}" if words else row.get("check_status", "").lstrip("* ")


def _rows_of_old_workers(ask_master: Exchange, backend: str) -> t.Iterator[dict[str, str]]:
    old = ask_master("show proc").partition("# old workers")[2]
    for line in old.splitlines():
        pid = line.split()[0] if line.split() else ""
        if line.startswith("#"):
            return
        if pid.isdigit():
            answer = ask_master(f"@!{pid} show stat {backend} {_SERVERS}")
            # A worker that ended in between, or had no such backend, has nothing in flight.
            yield from _rows(answer) if answer.lstrip().startswith("# pxname") else []
