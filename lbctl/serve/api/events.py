"""The API's stream of changes as server-sent events, for any number of clients.

Events are numbered and the latest ones are retained, so that a client that reconnects with `Last-Event-ID` gets the
events it missed. The numbers keep increasing across process restarts. Each event is encoded once for all clients. A
client that does not read events fast enough is disconnected, so that memory use stays bounded and nothing waits for the
client.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from lbctl.api import schema
from lbctl.api.codec import encode
from lbctl.api.fields import Timestamp
from lbctl.control.overrides import Override
from lbctl.control.rollouts import Rollouts, RolloutState
from lbctl.ir.weight import Weight
from lbctl.serve.api import decision_rows, rollout_rows, status_rows
from lbctl.serve.fleet.log import ReloadOutcome
from lbctl.serve.fleet.publisher import PublishedFleet, PublishResult
from lbctl.store.history import ActiveRollback

KEPT = 1_000
"""Number of past events from which a client can resume."""
QUEUED = 256
"""Maximum number of events queued for one client; if there are more, the client is disconnected."""
MAX_CLIENTS = 96
"""Maximum number of event streams. Together with dashboard and picker streams, they stay below the API's connection
limit, so that streams do not block other requests."""
RETRY = 2.0
"""Seconds after which a disconnected client should reconnect."""
_MAX_WEIGHTS = 100
"""Maximum number of changed weights in a single event."""
_EVENT_ID = re.compile(r"[0-9]{1,19}")
_NAMES = {kind: name for name, kind in schema.EVENTS.items()}


class TooManyClientsError(Exception):
    """The maximum number of streams has been reached."""


class EventSubscription:
    """The events queued for one client.

    The subscription ends after `end` is called or if the queue becomes too long.
    """

    def __init__(self, first: tuple[bytes, ...], most: int) -> None:
        self._waiting = deque(first)
        self._most = max(most, len(first) + most)
        self._ended = False
        self._news = asyncio.Event()
        self._news.set()

    def put(self, event: bytes) -> None:
        """Add an event.

        If too many events are queued, the client is disconnected after a final event that states the reason.
        """
        if self._ended:
            return
        if len(self._waiting) >= self._most:
            self._waiting.clear()
            self.end(schema.Closed("slow"))
            return
        self._waiting.append(event)
        self._news.set()

    def end(self, last: schema.Closed | None = None) -> None:
        """End the subscription after the queued events and this final event."""
        if not self._ended and last is not None:
            self._waiting.append(_encoded(last))
        self._ended = True
        self._news.set()

    async def next(self) -> bytes | None:
        """Wait for the next events and return them as stream bytes; None after the last event."""
        await self._news.wait()
        events = b"".join(self._waiting)
        self._waiting.clear()
        if not self._ended:
            self._news.clear()
        return events or (None if self._ended else b"")


class EventLog:
    """Numbers events, retains the latest ones, and delivers each event to every client."""

    def __init__(self, now: Callable[[], float] = time.time, kept: int = KEPT, queued: int = QUEUED) -> None:
        self._now = now
        self._queued = queued
        self._last = int(now() * 1000)
        self._kept: deque[bytes] = deque(maxlen=kept)
        self._subscriptions: dict[EventSubscription, None] = {}
        self._overrides: tuple[Override, ...] | None = None
        self._closed = False

    # ── What happens ─────────────────────────────────────────────────────────────────────────────────────────────────

    def emit_overrides(self, served: PublishedFleet) -> None:
        """Emit `overrides` if the overrides differ from those in the previous fleet.

        Nothing is emitted for the first fleet.
        """
        before, after = self._overrides, served.composed.overrides
        self._overrides = after
        if before is None or before == after:
            return
        self._emit(
            schema.OverridesChanged(
                self._timestamp(),
                tuple(decision_rows.override(item) for item in after if item not in before),
                tuple(decision_rows.override(item) for item in before if item not in after),
            )
        )

    def published(self, served: PublishedFleet, result: PublishResult, cause: str) -> None:
        """Emit `published` if the version is new or if weights have changed."""
        if not result.new and not result.weights:
            return
        weights = _first_weights(result.weights)
        moved = sum(map(len, result.weights.values()))
        self._emit(
            schema.Published(
                at=self._timestamp(),
                version=served.cached_snapshot.version,
                cause=cause,
                changed=result.changed,
                names=result.names,
                weights=weights,
                more_weights=moved - sum(map(len, weights.values())),
            )
        )

    def reloaded(self, result: ReloadOutcome) -> None:
        """Emit `reload`."""
        severities = [item.severity for item in result.diagnostics]
        self._emit(
            schema.Reloaded(
                at=status_rows.timestamp(result.at),
                result=result.result,
                refused=result.refused or None,
                errors=severities.count("error"),
                warnings=severities.count("warning"),
            )
        )

    def rollouts_changed(self, before: Rollouts, after: Rollouts) -> None:
        """Emit `rollout` for each rollout that has changed or has been evaluated."""
        for state in after:
            earlier = next((item for item in before if item.route == state.route), None)
            if state != earlier:
                self._emit(self._rollout(state, earlier))

    def _rollout(self, state: RolloutState, earlier: RolloutState | None) -> schema.RolloutChanged:
        evaluations = state.analysis.evaluations
        new = evaluations[-1:] if earlier is not None and evaluations != earlier.analysis.evaluations else ()
        return schema.RolloutChanged(
            at=self._timestamp(),
            route=state.route,
            phase=state.phase,
            step=state.step + 1,
            percent=state.percent if state.moves else None,
            reason=state.reason or None,
            evaluation=next(map(rollout_rows.evaluation, new), None),
        )

    def rolled_back(self, rollback: ActiveRollback) -> None:
        """Emit `rollback`."""
        at = status_rows.timestamp(rollback.at)
        self._emit(schema.RolledBack(at, rollback.digest, rollback.actor, rollback.reason or None))

    def role_changed(self, member: str, role: str, epoch: int) -> None:
        """Emit `role`."""
        self._emit(schema.RoleChanged(self._timestamp(), member, role, epoch))

    def store_changed(self, member: str, problem: str) -> None:
        """Emit `store`; the problem is empty once the store is responding again."""
        self._emit(schema.StoreChanged(self._timestamp(), member, not problem, problem or None))

    def files_differ(self, members: tuple[str, ...]) -> None:
        """Emit `files_differ`."""
        self._emit(schema.FilesDiffer(self._timestamp(), members))

    def pools_shared(self, members: tuple[str, ...], pools: tuple[str, ...]) -> None:
        """Emit `pools`."""
        self._emit(schema.PoolsShared(self._timestamp(), members, pools))

    def task_failed(self, task: str) -> None:
        """Emit `task_failed`."""
        self._emit(schema.TaskFailed(self._timestamp(), task))

    # ── Clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def last(self) -> int:
        """The number of the most recent event."""
        return self._last

    def since(self, number: int, until: int) -> tuple[bytes, ...]:
        """Return the encoded events after `number` and up to `until`, if they are still retained."""
        before_kept = self._last - len(self._kept)
        return tuple(islice(self._kept, max(0, number - before_kept), max(0, until - before_kept)))

    @contextmanager
    def subscribe(self, last_event_id: str | None) -> Iterator[EventSubscription]:
        """Subscribe to the events after this ID, or only to new events if there is no ID.

        Raises TooManyClientsError.
        """
        if len(self._subscriptions) >= MAX_CLIENTS:
            raise TooManyClientsError
        subscription = EventSubscription(self._first(last_event_id), self._queued)
        if self._closed:
            subscription.end(schema.Closed("shutdown"))
        self._subscriptions[subscription] = None
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]

    def close(self) -> None:
        """End all streams; new streams end immediately."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.end(schema.Closed("shutdown"))

    def _first(self, last_event_id: str | None) -> tuple[bytes, ...]:
        head = f"retry: {RETRY * 1000:.0f}\nid: {self._last}\n\n".encode()
        if last_event_id is None:
            return (head,)
        oldest = self._last - len(self._kept) + 1
        last_seen = int(last_event_id) if _EVENT_ID.fullmatch(last_event_id) else -1
        if not oldest - 1 <= last_seen <= self._last:
            return (head, _encoded(schema.Missed(oldest)), *self._kept)
        return (f"retry: {RETRY * 1000:.0f}\n\n".encode(), *islice(self._kept, last_seen - oldest + 1, None))

    def _emit(self, event: schema.Event) -> None:
        self._last += 1
        encoded = _encoded(event, self._last)
        self._kept.append(encoded)
        for subscription in self._subscriptions:
            subscription.put(encoded)

    def _timestamp(self) -> Timestamp:
        return status_rows.timestamp(self._now())


def _encoded(event: schema.Event, number: int | None = None) -> bytes:
    """Return the event as stream bytes: JSON without indentation fits on one line."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {_NAMES[type(event)]}\ndata: {encode(event)}\n\n".encode()


def _first_weights(weights: Mapping[str, Mapping[str, Weight]]) -> dict[str, dict[str, float]]:
    every = ((pool, name, weight.rate) for pool, moved in weights.items() for name, weight in moved.items())
    first: dict[str, dict[str, float]] = {}
    for pool, name, rate in islice(every, _MAX_WEIGHTS):
        first.setdefault(pool, {})[name] = round(rate, 6)
    return first
