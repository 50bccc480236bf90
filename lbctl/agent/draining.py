"""Decides when a drain is complete: the engine has no request in flight, and every client has noticed the drain.

A proxy needs several failed checks until it sends no more requests. So each client must have received one answer more
than its threshold since the drain began, unless it has stopped asking: a control plane does not check a replica that it
has removed. No I/O, no clock: times are parameters, in seconds on one clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.agent.readings import EngineReading

DEFAULT_THRESHOLD = 2
"""Threshold of clients that do not state theirs: the one of pools with `health.agent`."""
MAX_THRESHOLD = 30
"""Upper bound on the threshold that a client states."""
MIN_IDLE_READINGS = 2
"""Readings in a row without a request in flight. A request may be on its way during the first one."""
MAX_SILENCE = 60.0
"""Seconds without a question after which a client is forgotten."""
MIN_SILENCE = 5.0
MAX_MISSED = 3
"""A client is also forgotten after this many of its intervals, but not before `MIN_SILENCE` seconds."""
DEFAULT_INTERVAL = 5.0
"""Interval in seconds of a client that has asked only once: a person, or a proxy that has just started."""
MAX_CLIENTS = 1024
"""Maximum number of remembered clients; further clients are not waited for."""


@dataclass(slots=True)
class _Client:
    answered_at: float
    answers: int = 0
    """Answers since the drain began."""
    interval: float = DEFAULT_INTERVAL
    """The longest recent time between two questions, in seconds."""

    def ask(self, now: float) -> None:
        """Record a question. The workers of a proxy are one client, so an interval may be much shorter than others."""
        self.interval = max(now - self.answered_at, self.interval / 2)
        self.answered_at = now

    def is_gone(self, now: float) -> bool:
        """Return whether the client has stopped asking."""
        return now - self.answered_at > max(MIN_SILENCE, min(MAX_MISSED * self.interval, MAX_SILENCE))


class Drain:
    """The clients of the agent, and the progress of a drain. It is used for the whole life of the process.

    If the requests in flight are unknown, for example because the engine has no metrics page, it is never complete.
    """

    def __init__(self) -> None:
        self.begun_at: float | None = None
        """When the drain began; None: no drain."""
        self.in_flight: int | None = None
        """The last known number of requests in the engine; None if it has never been known."""
        self._clients: dict[tuple[str, int], _Client] = {}
        """Clients by name and threshold. A proxy may check one agent for pools with different thresholds."""
        self._idle_readings = 0

    def begin(self, now: float) -> None:
        """Begin a drain. A drain that has already begun continues."""
        if self.begun_at is None:
            self.begun_at, self._idle_readings = now, 0
            for client in self._clients.values():
                client.answers = 0

    def end(self) -> None:
        """End the drain."""
        self.begun_at = None

    def answered(self, client: str, now: float, threshold: int = DEFAULT_THRESHOLD) -> None:
        """Record an answer to a health check or an agent check.

        `client`: any text that identifies the client. `threshold`: failed checks in a row after which it sends no more
        requests, at most `MAX_THRESHOLD`.
        """
        known = self._clients.get((client, threshold))
        if known is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._forget(now)
                if len(self._clients) >= MAX_CLIENTS:
                    return
            known = self._clients[client, threshold] = _Client(now)
        else:
            known.ask(now)
        known.answers += self.begun_at is not None

    def read(self, reading: EngineReading) -> None:
        """Take a new reading of the engine. Call it once for each reading."""
        in_flight = reading.in_flight
        if in_flight is None:
            return
        self.in_flight = in_flight
        self._idle_readings = 0 if in_flight else self._idle_readings + 1

    def is_drained(self, now: float) -> bool:
        """Return whether the drain is complete; False without a drain."""
        if self.begun_at is None:
            return False
        self._forget(now)
        return self._idle_readings >= MIN_IDLE_READINGS and all(
            client.answers > threshold for (_, threshold), client in self._clients.items()
        )

    def _forget(self, now: float) -> None:
        self._clients = {key: client for key, client in self._clients.items() if not client.is_gone(now)}
