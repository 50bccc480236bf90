"""Determines when a drain is complete, that is, when no requests are in flight and every client has noticed it.

A proxy stops sending requests only after several failed checks. Each client must therefore have received one more
response than its threshold since the drain began. Clients that have stopped checking are excluded, because a control
plane does not check a replica that it has removed. This module does no I/O and does not read the clock. Times are
parameters, in seconds on a single clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.agent.readings import EngineReading

DEFAULT_THRESHOLD = 2
"""Threshold for clients that do not specify one, which is the default for pools with `health.agent`."""
MAX_THRESHOLD = 30
"""Upper bound on a threshold specified by a client."""
MIN_IDLE_READINGS = 2
"""Required number of consecutive readings without requests in flight. During the first of these readings, a request may
still be on its way to the engine."""
MAX_SILENCE = 60.0
"""Seconds without a check after which a client is forgotten."""
MIN_SILENCE = 5.0
MAX_MISSED = 3
"""A client is also forgotten after it misses checks for this many intervals, but not before `MIN_SILENCE` seconds."""
DEFAULT_INTERVAL = 5.0
"""Assumed interval, in seconds, for a client that has checked only once, such as a person or a proxy that has just
started."""
MAX_CLIENTS = 1024
"""Maximum number of remembered clients. A drain does not wait for any additional clients."""


@dataclass(slots=True)
class _Client:
    answered_at: float
    answers: int = 0
    """Number of responses since the drain began."""
    interval: float = DEFAULT_INTERVAL
    """Longest recent time between two checks, in seconds."""

    def ask(self, now: float) -> None:
        """Record a check. A proxy's workers count as one client, so some intervals may be much shorter than others."""
        self.interval = max(now - self.answered_at, self.interval / 2)
        self.answered_at = now

    def is_gone(self, now: float) -> bool:
        """Return whether the client has stopped checking."""
        return now - self.answered_at > max(MIN_SILENCE, min(MAX_MISSED * self.interval, MAX_SILENCE))


class Drain:
    """The agent's clients and the progress of a drain, tracked for the lifetime of the process.

    If the number of requests in flight is unknown, for example because the engine has no metrics page, a drain never
    completes.
    """

    def __init__(self) -> None:
        self.begun_at: float | None = None
        """The time at which the drain began; None if no drain is in progress."""
        self.in_flight: int | None = None
        """Last known number of requests in the engine; None if it has never been known."""
        self._clients: dict[tuple[str, int], _Client] = {}
        """Clients by name and threshold. A proxy may check the same agent for pools with different thresholds."""
        self._idle_readings = 0

    def begin(self, now: float) -> None:
        """Begin a drain, or continue a drain that has already begun."""
        if self.begun_at is None:
            self.begun_at, self._idle_readings = now, 0
            for client in self._clients.values():
                client.answers = 0

    def end(self) -> None:
        """End the drain."""
        self.begun_at = None

    def answered(self, client: str, now: float, threshold: int = DEFAULT_THRESHOLD) -> None:
        """Record a response to a health check or an agent check.

        `client` is any string that identifies the client. `threshold` is the number of consecutive failed checks after
        which it stops sending requests, at most `MAX_THRESHOLD`.
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
        """Record a new engine reading. Call this once per reading."""
        in_flight = reading.in_flight
        if in_flight is None:
            return
        self.in_flight = in_flight
        self._idle_readings = 0 if in_flight else self._idle_readings + 1

    def is_drained(self, now: float) -> bool:
        """Return whether the drain is complete; False if no drain is in progress."""
        if self.begun_at is None:
            return False
        self._forget(now)
        return self._idle_readings >= MIN_IDLE_READINGS and all(
            client.answers > threshold for (_, threshold), client in self._clients.items()
        )

    def _forget(self, now: float) -> None:
        self._clients = {key: client for key, client in self._clients.items() if not client.is_gone(now)}
