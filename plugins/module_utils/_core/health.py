# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The readiness ladder of a vLLM server, and the wait for one of its rungs. PRIVATE to the collection.

alive: the unit runs. listening: the port is open, and the unit's own processes hold it. healthy: /health says so. serving: the key
is taken, and the intended model is served from the intended path. answering: a question with one right answer gets it.
"""

from __future__ import annotations

import os.path
import typing as t
from urllib.parse import urlsplit

from .answers import QUESTIONS, Answer, RequestRefused, ask, judge
from .diagnose import diagnose
from .effects import Clock, Report, Runner, Sleep
from .http import Response, Transport, Unreachable
from .journal import read_entries, read_invocation
from .listeners import ProcFs, find_listeners
from .phases import DESCRIPTIONS, StartTracker
from .unit import UnitState, show_unit

__all__ = ["LEVELS", "Effects", "Health", "Want", "look_once", "wait_ready"]

LEVELS = ("alive", "listening", "healthy", "serving", "answering")
_INTERVAL = 0.5
_PROBE_TIMEOUT = 10.0
_MAX_TOKENS = 512
_COUNTERS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")


class Want(t.NamedTuple):
    """What is waited for, and how long. ``url`` is the server's root, without a trailing slash."""

    url: str
    unit: str = ""
    api_key: str = ""
    served_model_name: str = ""
    model_path: str = ""
    level: str = "answering"
    timeout: float = 1800.0
    stall_timeout: float = 300.0
    answer_timeout: float = 120.0
    answer_check: str = "judged"


class Effects(t.NamedTuple):
    """Everything the ladder does to the outside."""

    transport: Transport
    runner: Runner
    clock: Clock
    sleep: Sleep
    report: Report
    proc: ProcFs
    real_path: t.Callable[[str], str] = os.path.normpath


class Obstacle(t.NamedTuple):
    """Why the next rung is not reached. With a ``code`` it will not be reached by waiting."""

    reason: str
    code: str = ""
    remedy: str = ""
    cause: str = ""
    evidence: t.Sequence[str] = ()
    remedies: t.Sequence[t.Mapping[str, t.Any]] = ()


class Health(t.NamedTuple):
    """The end of a wait, or one look. ``code`` is empty unless waiting on is pointless or the time is over."""

    level: str
    ready: bool
    reason: str
    code: str
    remedy: str
    facts: dict[str, t.Any]


def wait_ready(want: Want, effects: Effects) -> Health:
    """Climb until ``want.level``. The deadline moves while the start visibly does; what cannot get better ends the wait at once."""
    ladder = _Ladder(want, effects)
    deadline = _Deadline(want, effects.clock)
    said = ""
    while True:
        reached, obstacle = ladder.climb()
        if obstacle is None or obstacle.code:
            return ladder.health(reached, obstacle)
        moved = deadline.note(ladder.mark(reached))
        if moved or obstacle.reason != said:
            effects.report(ladder.progress(obstacle))
            said = obstacle.reason
        over = deadline.verdict(ladder, obstacle)
        if over:
            return ladder.health(reached, over)
        effects.sleep(_INTERVAL)


def look_once(want: Want, effects: Effects) -> Health:
    """How far the server is now."""
    ladder = _Ladder(want, effects)
    return ladder.health(*ladder.climb())


class _Deadline:
    """``timeout`` from the start, or ``stall_timeout`` from the last progress, whichever is later.

    Where steps are counted and none is done for ``stall_timeout``, it is over sooner.
    """

    def __init__(self, want: Want, clock: Clock) -> None:
        self._want = want
        self._clock = clock
        self.started = self._moved_at = clock()
        self._mark: t.Any = None

    def note(self, mark: t.Any) -> bool:
        """Take in what can be seen of the start; whether it changed."""
        if mark == self._mark:
            return False
        if self._mark is not None:
            self._moved_at = self._clock()
        self._mark = mark
        return True

    def verdict(self, ladder: _Ladder, obstacle: Obstacle) -> t.Optional[Obstacle]:
        now, want = self._clock(), self._want
        still = now - self._moved_at
        if ladder.tracker.is_counting and still > want.stall_timeout:
            reason = f"{ladder.who} stands still while {ladder.tracker.describe()}: nothing moved for {still:.0f} s"
            return Obstacle(reason, "stalled", "Look at the processes and the GPUs, then restart the unit.", evidence=ladder.last_lines())
        if now > max(self.started + want.timeout, self._moved_at + (want.stall_timeout if ladder.has_moved else 0)):
            reason = f"{ladder.who} did not reach level {want.level} in {now - self.started:.0f} s: {obstacle.reason}"
            return Obstacle(reason, "timeout", "Raise timeout if it is only slow.", evidence=ladder.last_lines())
        return None


class _Ladder:
    """One server over the time of a wait."""

    def __init__(self, want: Want, effects: Effects) -> None:
        self.want = want
        self.effects = effects
        self.tracker = StartTracker()
        self.facts: dict[str, t.Any] = {"answer": None, "latency": None, "version": None, "probe": None, "notes": []}
        self.has_moved = False
        self._started = effects.clock()
        self._state: t.Optional[UnitState] = None
        self._cursor: t.Optional[str] = None
        self._last_time = 0.0
        self._recent: list[str] = []
        self._health: t.Optional[Response] = None
        self._counters: t.Optional[float] = None
        self._first_mark: t.Any = None
        self._reached_at: dict[str, float] = {}

    @property
    def who(self) -> str:
        return self.want.unit or self.want.url

    def climb(self) -> tuple[str, t.Optional[Obstacle]]:
        """Check rung after rung; the last one reached and what stands before the next."""
        reached = ""
        for level in LEVELS[: LEVELS.index(self.want.level) + 1]:
            obstacle = self._check(level)
            if obstacle:
                return reached, obstacle
            if level == "alive" and not self.want.unit:
                continue
            reached = level
            self._reached_at.setdefault(level, self.effects.clock())
        return reached, None

    def _check(self, level: str) -> t.Optional[Obstacle]:
        checks = {
            "alive": self._alive,
            "listening": self._listening,
            "healthy": self._healthy,
            "serving": self._serving,
            "answering": self._answering,
        }
        return checks[level]()

    def mark(self, reached: str) -> t.Any:
        """Changes when anything about the start moves."""
        lines = self.tracker.lines_seen if self._state and self._state.is_preparing else 0
        mark = (reached, self.tracker.mark, lines, self._state and self._state.invocation_id)
        self._first_mark = self._first_mark or mark
        self.has_moved = self.has_moved or mark != self._first_mark
        return mark

    def progress(self, obstacle: Obstacle) -> dict[str, t.Any]:
        tracker = self.tracker
        if tracker.done is None:
            return {"what": obstacle.reason}
        return {"what": DESCRIPTIONS[tracker.phase], "done": tracker.done, "total": tracker.total, "unit": tracker.unit}

    def last_lines(self) -> list[str]:
        return self._recent[-6:]

    # -- alive -------------------------------------------------------------------------------------------------------------

    def _alive(self) -> t.Optional[Obstacle]:
        if not self.want.unit:
            self._note("the unit was not given, so neither its state nor the owner of the port was checked")
            return None
        before, state = self._state, show_unit(self.effects.runner, self.want.unit)
        self._state = state
        if not state.exists:
            return Obstacle(f"{state.name} does not exist ({state.load_state})", "unit_not_found", "Deploy it first, or correct the name.")
        if before and state.n_restarts > before.n_restarts:
            return self._failure(before.invocation_id or state.invocation_id, state)
        if state.is_settling:
            doing = f"has a job queued ({state.active_state})" if state.job else f"is stopping ({state.sub_state})"
            return Obstacle(f"{state.name} {doing}")
        if state.waits_for_restart or state.active_state == "failed":
            return self._failure(state.invocation_id, state)
        return self._coming_up(before, state)

    def _coming_up(self, before: t.Optional[UnitState], state: UnitState) -> t.Optional[Obstacle]:
        if state.active_state == "inactive" and state.was_skipped:
            reason = f"{state.name} was not started, because a condition of its unit is not met"
            return Obstacle(reason, "unit_not_running", f"systemctl status {state.name} names the condition: meet it or take it out.")
        if state.active_state == "inactive":
            return Obstacle(f"{state.name} is not running", "unit_not_running", f"Start it: systemctl start {state.name}.")
        self._follow(before, state)
        if state.is_running:
            return None
        if state.is_preparing:
            said = f": {self.tracker.last_line}" if self.tracker.last_line else ""
            return Obstacle(f"{state.name} is {DESCRIPTIONS['waiting_for_gpus']}{said}")
        return Obstacle(f"{state.name} is {state.active_state} ({state.sub_state})")

    def _follow(self, before: t.Optional[UnitState], state: UnitState) -> None:
        """Read what this start wrote since the last look; a new start begins a new account."""
        if before and before.invocation_id != state.invocation_id:
            self.tracker, self._cursor, self._recent = StartTracker(), None, []
        for entry in read_entries(self.effects.runner, state.invocation_id, self._cursor):
            self.tracker.feed(entry.time, entry.lines)
            self._cursor, self._last_time = entry.cursor, entry.time
            self._recent = [*self._recent, *entry.lines][-40:]

    def _failure(self, invocation_id: str, state: UnitState) -> Obstacle:
        """The unit's start or run is over: say why, from the journal of exactly that one."""
        lines = read_invocation(self.effects.runner, state.name, invocation_id)
        found = diagnose(lines)
        self.tracker = StartTracker()
        self.tracker.feed(self._last_time, lines)
        while_doing = DESCRIPTIONS.get(found.phase, found.phase)
        if found.cause == "stopped":
            return Obstacle(
                f"{state.name} was stopped while {while_doing}", "unit_not_running", "Start it again.", found.cause, found.evidence
            )
        ended = f" ({state.describe_end()})" if found.cause == "unknown" and not state.is_running else ""
        again = f" It was restarted {state.n_restarts} times." if state.n_restarts > 1 else ""
        reason = f"{state.name} failed while {while_doing}: {found.message.rstrip('.')}{ended}.{again}"
        return Obstacle(reason, "unit_failed", found.remedy, found.cause, found.evidence, found.remedies)

    # -- listening and healthy ---------------------------------------------------------------------------------------------

    def _listening(self) -> t.Optional[Obstacle]:
        foreign = self._foreign_listener()
        if foreign:
            return foreign
        self._health = None
        try:
            self._health = self._get("/health")
        except Unreachable as exc:
            if exc.code in ("tls_untrusted", "name_unknown"):
                return Obstacle(exc.message.rstrip("."), exc.code, exc.remedy)
            if exc.code == "timeout":
                return self._busy_or_silent()
            loading = f", {self.tracker.describe()}" if self.want.unit else ""
            return Obstacle(f"{exc.message.rstrip('.')}{loading}")
        return None

    def _foreign_listener(self) -> t.Optional[Obstacle]:
        """The port must be held by the unit, or an old server's answers pass for the new one's."""
        port = urlsplit(self.want.url).port
        if not self.want.unit or not port:
            return None
        listeners = find_listeners(self.effects.proc, port)
        if not listeners:
            return Obstacle(f"nothing listens on port {port} yet, {self.tracker.describe()}")
        main_pid = self._state.main_pid if self._state else 0
        if any(listener.unit == self.want.unit or (listener.pid and listener.pid == main_pid) for listener in listeners):
            return None
        known = [listener for listener in listeners if listener.pid]
        if not known:
            self._note(f"the owner of port {port} is not visible, so it was not checked")
            return None
        holder = known[0].describe()
        return Obstacle(
            f"port {port} does not belong to {self.want.unit}: {holder}", "port_foreign", "Stop that process or change the port."
        )

    def _busy_or_silent(self) -> Obstacle:
        moved = self._count_tokens()
        return Obstacle("/health did not answer in time" + (", busy: tokens are being produced" if moved else ""))

    def _healthy(self) -> t.Optional[Obstacle]:
        status = self._health.status if self._health else 0
        if status == 200:
            return None
        if status == 503 and self.want.unit:
            return Obstacle(
                f"{self.want.unit}: /health answers 503, its engine process is dead",
                "engine_dead",
                f"Restart it: systemctl restart {self.want.unit}.",
            )
        return Obstacle(f"{self.want.url}/health answers {status}")

    # -- serving -----------------------------------------------------------------------------------------------------------

    def _serving(self) -> t.Optional[Obstacle]:
        try:
            response = self._get("/v1/models")
            if response.status == 200 and self.facts["version"] is None:
                self.facts["version"] = _field(self._get("/version"), "version")
        except Unreachable as exc:
            return Obstacle(exc.message.rstrip("."))
        if response.status in (401, 403):
            return self._key_refused(response.status)
        if response.status != 200:
            return Obstacle(f"{self.want.url}/v1/models answers {response.status}")
        models = [model for model in _field(response, "data") or [] if isinstance(model, dict)]
        return self._wrong_name(models) or self._wrong_path(models)

    def _key_refused(self, status: int) -> Obstacle:
        if self.want.api_key:
            return Obstacle(
                f"{self.who}: the server runs and refuses the API key ({status})", "key_refused", "Set api_key to a key it was given."
            )
        return Obstacle(f"{self.who}: the server runs and wants an API key ({status})", "key_needed", "Set api_key.")

    def _wrong_name(self, models: t.Sequence[t.Mapping[str, t.Any]]) -> t.Optional[Obstacle]:
        names = [str(model.get("id")) for model in models]
        self.facts["served_model_names"] = names
        if not names:
            return Obstacle(f"{self.who} serves no model yet")
        if self.want.served_model_name and self.want.served_model_name not in names:
            wanted = self.want.served_model_name
            return Obstacle(
                f"{self.who} serves {', '.join(names)}, not {wanted}",
                "wrong_model_name",
                f"Set served-model-name to {wanted}, or ask for {names[0]}.",
            )
        return None

    def _wrong_path(self, models: t.Sequence[t.Mapping[str, t.Any]]) -> t.Optional[Obstacle]:
        chosen = next((model for model in models if model.get("id") == self.want.served_model_name), models[0])
        root = chosen.get("root")
        self.facts.update(model=str(chosen.get("id")), loaded_path=root, max_model_len=chosen.get("max_model_len"))
        if not self.want.model_path:
            return None
        if not root:
            self._note("the server does not say which path it loaded, so it was not compared")
            return None
        real = self.effects.real_path
        if os.path.normpath(str(root)) == os.path.normpath(self.want.model_path) or real(str(root)) == real(self.want.model_path):
            return None
        return Obstacle(
            f"{self.who} serves {chosen.get('id')} from {root}, not from {self.want.model_path}: another model is loaded",
            "wrong_model_path",
            "Restart the unit with the intended release.",
        )

    # -- answering ---------------------------------------------------------------------------------------------------------

    def _answering(self) -> t.Optional[Obstacle]:
        complaint: tuple[str, str] = ("", "")
        for question in QUESTIONS:
            self._count_tokens()
            asked = self.effects.clock()
            try:
                answer = ask(
                    self.effects.transport,
                    self.want.url,
                    question,
                    headers=self._headers(),
                    model=self.facts["model"],
                    max_tokens=min(_MAX_TOKENS, (self.facts.get("max_model_len") or 2048) // 2),
                    timeout=self.want.answer_timeout,
                )
            except Unreachable as exc:
                return self._no_answer(exc)
            except RequestRefused as exc:
                return self._refused(exc)
            self._keep(answer, question.text, self.effects.clock() - asked)
            complaint = judge(answer, question)
            if not complaint[0] or (self.want.answer_check == "any" and complaint[0] != "empty_answer"):
                return None
        remedy = "Check the weights, the quantisation and the kernel options of this release."
        return Obstacle(f"{self.who} is healthy but does not answer sensibly: {complaint[1]}", complaint[0], remedy)

    def _keep(self, answer: Answer, question: str, seconds: float) -> None:
        text = answer.text or answer.reasoning
        self.facts.update(answer=text, question=question, probe=answer.probe, tokens=answer.tokens, latency=round(seconds, 3))

    def _no_answer(self, exc: Unreachable) -> Obstacle:
        if exc.code != "timeout":
            return Obstacle(exc.message.rstrip("."))
        if self._count_tokens():
            return Obstacle(f"no answer in {self.want.answer_timeout:g} s, busy: tokens are being produced")
        reason = f"{self.who}: /health answered 200, and a request got no answer in {self.want.answer_timeout:g} s"
        return Obstacle(reason, "generation_timeout", "The engine hangs: look at its processes and the GPUs, then restart the unit.")

    def _refused(self, exc: RequestRefused) -> Obstacle:
        if exc.status >= 500 or exc.status == 429:
            return Obstacle(f"{self.who}: {exc}")
        return Obstacle(f"{self.who}: {exc}", "request_refused", "Check the arguments of the release against the model.")

    # -- shared ------------------------------------------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.want.api_key}"} if self.want.api_key else {}

    def _get(self, path: str) -> Response:
        headers = self._headers() if path.startswith("/v1") else {}
        return self.effects.transport("GET", f"{self.want.url}{path}", headers, None, _PROBE_TIMEOUT)

    def _count_tokens(self) -> bool:
        """Whether the engine's token counters moved since the last look."""
        try:
            text = self._get("/metrics").body.decode("utf-8", "replace")
        except Unreachable:
            return False
        before, self._counters = self._counters, sum(_samples(text))
        return before is not None and self._counters > before

    def _note(self, text: str) -> None:
        if text not in self.facts["notes"]:
            self.facts["notes"].append(text)

    def health(self, reached: str, obstacle: t.Optional[Obstacle]) -> Health:
        failed = obstacle or Obstacle("")
        facts = {**self.facts, "cause": failed.cause or failed.code, "evidence": list(failed.evidence)}
        facts.update(
            remedies=[dict(remedy) for remedy in failed.remedies],
            phases=self._phases(),
            phase=self.tracker.phase if self.want.unit else None,
            waited_seconds=round(self.effects.clock() - self._started, 3),
            restarts=self._state.n_restarts if self._state else None,
        )
        reason = failed.reason or f"{self.who} is {reached}"
        return Health(reached, obstacle is None, reason, failed.code, failed.remedy, facts)

    def _phases(self) -> list[dict[str, t.Any]]:
        """The start's own phases where the journal tells them, else how long each rung took to reach."""
        if self.tracker.lines_seen:
            return self.tracker.phases()
        ends = list(self._reached_at.items())
        begins = [self._started, *(moment for _level, moment in ends)]
        return [{"name": level, "seconds": round(moment - begin, 3)} for (level, moment), begin in zip(ends, begins)]


def _field(response: Response, name: str) -> t.Any:
    try:
        value = response.json()
    except ValueError:
        return None
    return value.get(name) if isinstance(value, dict) else None


def _samples(metrics: str) -> t.Iterator[float]:
    for line in metrics.splitlines():
        if line.startswith(_COUNTERS):
            try:
                yield float(line.rpartition(" ")[2])
            except ValueError:
                continue
