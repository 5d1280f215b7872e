# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the server says of itself: that it is healthy, which model it serves, and what it counts. PRIVATE to the collection."""

from __future__ import annotations

import os.path
import typing as t

from .health_types import Effects, Facts, Obstacle, Want
from .health_unit import UnitWatch
from .http import Response, Unreachable
from .metrics import sum_of
from .server_url import request_root

__all__ = ["FINAL", "Server"]

_PROBE_TIMEOUT = 10.0
_MOST_PATIENCE = 60.0
_TOKENS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
FINAL = ("tls_untrusted", "name_unknown", "no_permission")


class Server:
    """One server, asked again and again."""

    def __init__(self, want: Want, effects: Effects, watch: UnitWatch, facts: Facts) -> None:
        self._want = want
        self._effects = effects
        self._watch = watch
        self._facts = facts
        self._health: t.Optional[Response] = None
        self._tokens: t.Optional[float] = None
        self._patience = self._limit = min(_PROBE_TIMEOUT, max(1.0, want.timeout))

    @property
    def root(self) -> str:
        return request_root(self._want.url)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._want.api_key}"} if self._want.api_key else {}

    def get(self, path: str, timeout: t.Optional[float] = None) -> Response:
        """The key goes to the routes that it guards, and to no other."""
        headers = self.headers() if path.startswith("/v1") else {}
        return self._effects.transport("GET", f"{self.root}{path}", headers, None, timeout or self._limit)

    def metrics(self) -> str:
        return self.get("/metrics").body.decode("utf-8", "replace")

    def has_made_tokens(self) -> bool:
        """Whether the engine's token counters moved since the last look."""
        try:
            now = sum_of(self.metrics(), _TOKENS) or 0.0
        except Unreachable:
            return False
        before, self._tokens = self._tokens, now
        return before is not None and now > before

    def check_listening(self) -> t.Optional[Obstacle]:
        self._health = None
        try:
            self._health = self.get("/health", self._patience)
        except Unreachable as exc:
            if exc.code in FINAL:
                return Obstacle(exc.message.rstrip("."), exc.code, exc.remedy)
            if exc.code == "timeout":
                return self._busy_or_silent()
            loading = f", {self._watch.tracker.describe()}" if self._want.unit else ""
            return Obstacle(f"{exc.message.rstrip('.')}{loading}")
        self._facts["address"] = self._health.peer
        return None

    def _busy_or_silent(self) -> Obstacle:
        """A server under load answers late; the next time it gets longer."""
        if not self.has_made_tokens():
            return Obstacle("/health did not answer in time")
        self._patience = min(_MOST_PATIENCE, 2 * self._patience)
        return Obstacle("/health did not answer in time, busy: tokens are being produced")

    def check_healthy(self) -> t.Optional[Obstacle]:
        status = self._health.status if self._health else 0
        if status == 200:
            return None
        if status == 503 and self._want.unit:
            reason = f"{self._want.unit}: /health answers 503, its engine process is dead"
            return Obstacle(reason, "engine_dead", f"Restart it: systemctl restart {self._want.unit}.")
        return self._odd("/health", self._health)

    def check_serving(self) -> t.Optional[Obstacle]:
        try:
            response = self.get("/v1/models")
            if response.status == 200 and self._facts["version"] is None:
                self._facts["version"] = _field(self.get("/version"), "version")
        except Unreachable as exc:
            return Obstacle(exc.message.rstrip("."))
        if response.status == 401 or (response.status == 403 and not response.proxied):
            return self.key_refused(response.status)
        if response.status != 200:
            return self._odd("/v1/models", response)
        models = [model for model in _field(response, "data") or [] if isinstance(model, dict)]
        return self._wrong_name(models) or self._wrong_path(models)

    def key_refused(self, status: int) -> Obstacle:
        if self._want.api_key:
            reason = f"{self._want.who}: the server runs and refuses the API key ({status})"
            return Obstacle(reason, "key_refused", "Set api_key to a key it was given.")
        return Obstacle(f"{self._want.who}: the server runs and wants an API key ({status})", "key_needed", "Set api_key.")

    def _odd(self, path: str, response: t.Optional[Response]) -> Obstacle:
        if response is None:
            return Obstacle(f"{self._want.url}{path} did not answer")
        moved = f", it refers to {response.headers['location']}" if "location" in response.headers else ""
        proxy = "; the answer came from a proxy" if response.proxied else ""
        return Obstacle(f"{self._want.url}{path} answers {response.status}{moved}{proxy}")

    def _wrong_name(self, models: t.Sequence[t.Mapping[str, t.Any]]) -> t.Optional[Obstacle]:
        names = [str(model.get("id")) for model in models]
        self._facts["served_model_names"] = names
        if not names:
            return Obstacle(f"{self._want.who} serves no model yet")
        wanted = self._want.served_model_name
        if wanted and wanted not in names:
            remedy = f"Set served-model-name to {wanted}, or ask for {names[0]}."
            return Obstacle(f"{self._want.who} serves {', '.join(names)}, not {wanted}", "wrong_model_name", remedy)
        return None

    def _wrong_path(self, models: t.Sequence[t.Mapping[str, t.Any]]) -> t.Optional[Obstacle]:
        chosen = next((model for model in models if model.get("id") == self._want.served_model_name), models[0])
        root = chosen.get("root")
        self._facts.update(model=str(chosen.get("id")), loaded_path=root, max_model_len=chosen.get("max_model_len"))
        if not self._want.model_path:
            return None
        if not root:
            self._facts.note("the server does not say which path it loaded, so it could not be compared")
            return None
        real = self._effects.real_path
        if os.path.normpath(str(root)) == os.path.normpath(self._want.model_path) or real(str(root)) == real(self._want.model_path):
            return None
        return Obstacle(
            f"{self._want.who} serves {chosen.get('id')} from {root}, not from {self._want.model_path}: another model is loaded",
            "wrong_model_path",
            "Restart the unit with the intended release.",
        )


def _field(response: Response, name: str) -> t.Any:
    try:
        value = response.json()
    except ValueError:
        return None
    return value.get(name) if isinstance(value, dict) else None
