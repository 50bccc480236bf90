"""Feeds the dashboard: a single task reads the fleet for all browsers, so each additional browser only costs bandwidth.

Once a second, if a browser is connected, the task builds and compares the rows, and encodes and compresses the changes
once. Otherwise, the rows are built only for the history. The task works in short turns and uses a limited share of the
CPU, so that it does not delay publishing to proxies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from lbctl.api import schema
from lbctl.api.codec import encode
from lbctl.runtime.yielding import in_turns
from lbctl.serve.api import status_rows
from lbctl.serve.api.dashboard import rows
from lbctl.serve.api.dashboard.frames import Frame
from lbctl.serve.api.dashboard.history import MIN_INTERVAL, SampleHistory
from lbctl.serve.api.dashboard.series import Query, series
from lbctl.serve.api.dashboard.state import SECTIONS, DashboardState, FrameChange
from lbctl.serve.api.dashboard.stream import FrameStream
from lbctl.serve.api.events import EventLog, TooManyClientsError

MAX_STREAMS = 96
"""Maximum number of dashboard streams. Dashboard and event streams together stay below the API's connection limit, so
that they never block other requests."""
EVENTS_AT_FIRST = 100
"""Number of past events sent at the start of a new stream."""
_MAX_CACHED_SERIES = 32
"""Number of series that are cached until the next sample; a series for all replicas of a large pool takes megabytes."""
_INTERVAL = 1.0
"""Minimum time between two frames, in seconds."""
_BUSY = 0.05
"""Maximum fraction of time spent building frames."""
_AT_ONCE, _APART = 2, 0.004
"""Number of browsers served per event-loop turn, and the pause before the next turn in seconds. Writing to fifty
browsers at once would delay updates to the proxies by milliseconds."""
_SILENCE = 5.0
"""Seconds of inactivity after which a stream sends a comment, to show the browser that the connection is alive."""


class DashboardSource(Protocol):
    """The dashboard's data source."""

    @property
    def history_seconds(self) -> float:
        """The period covered by the charts, in seconds."""

    def live(self) -> Iterator[tuple[schema.LivePool, Iterable[schema.LiveReplica]] | None]:
        """Yield each pool with its replicas, built on demand, and None at points where other tasks may run."""

    def status(self) -> schema.Status:
        """Return `/api/v1/status`."""

    def proxies(self) -> schema.Proxies:
        """Return `/api/v1/proxies`."""

    def rollouts(self) -> schema.Rollouts:
        """Return `/api/v1/rollouts`."""

    def splits(self) -> Sequence[schema.LiveSplit]:
        """Return the splits of routes that forward to several pools."""


class DashboardService:
    """The stream of frames and the history."""

    def __init__(self, source: DashboardSource, events: EventLog, now: Callable[[], float] = time.time) -> None:
        self.history = SampleHistory()
        self._source = source
        self._events = events
        self._now = now
        self._state = DashboardState()
        self._streams: dict[FrameStream, None] = {}
        self._number = 0
        self._last_event = events.last
        self._complete: Frame | None = None
        self._sent_at = 0.0
        self._busy = 0.0
        self._looked_at = asyncio.Event()
        self._first = asyncio.Event()
        self._answers: dict[Query, tuple[float, bytes]] = {}
        self._ended = False

    # ── For browsers ─────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def subscribe(self, *, packed: bool) -> Iterator[FrameStream]:
        """Return a stream for a browser, either compressed or plain. Raises TooManyClientsError."""
        if len(self._streams) >= MAX_STREAMS:
            raise TooManyClientsError
        stream = FrameStream(self._everything, packed)
        if self._ended:
            stream.end()
        self._streams[stream] = None
        self._looked_at.set()
        try:
            yield stream
        finally:
            del self._streams[stream]

    async def series(self, query: Query) -> tuple[str, bytes]:
        """Return the history's version and the series as JSON; the JSON is built once per sample."""
        samples = self.history.samples
        newest = samples[-1].at if samples else 0.0
        cached = self._answers.get(query)
        if cached is None or cached[0] != newest:
            content = await asyncio.to_thread(lambda: encode(series(samples, query)).encode())
            current = [(key, each) for key, each in self._answers.items() if each[0] == newest and key != query]
            self._answers = dict(current[1 - _MAX_CACHED_SERIES :])
            self._answers[query] = cached = (newest, content)
        return f"{newest:.3f}", cached[1]

    def end(self) -> None:
        """End all streams; new streams end immediately."""
        self._ended = True
        self._first.set()
        for stream in self._streams:
            stream.end()

    async def _everything(self) -> Frame:
        await self._first.wait()
        if self._complete is None or self._complete.number != self._number:
            past = self._events.since(self._events.last - EVENTS_AT_FIRST, self._last_event)
            self._complete = self._frame(self._state.everything(), past, complete=True)
        return self._complete

    # ── The task ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Build frames and samples until the task is cancelled."""
        while True:
            self._looked_at.clear()
            await self._tick()
            self._first.set()
            await asyncio.sleep(max(_INTERVAL, self._busy / _BUSY))
            if not self._streams:
                with suppress(TimeoutError):
                    async with asyncio.timeout(MIN_INTERVAL - _INTERVAL):
                        await self._looked_at.wait()

    async def _tick(self) -> None:
        pools: list[schema.LivePool] = []
        change, self._busy = await in_turns(self._state.update(self._rows(pools), self._sections(pools)))
        self._sample()
        news = self._events.since(self._last_event, self._events.last)
        self._last_event = self._events.last
        if change or news:
            self._number += 1
            await self._send(self._frame(change, news))
        elif time.monotonic() - self._sent_at >= _SILENCE:
            await self._send(Frame(self._number + 1, b": nothing new\n\n"))

    def _rows(self, pools: list[schema.LivePool]) -> Iterator[Iterable[schema.LiveReplica]]:
        """Yield each pool's replicas and add the pool to `pools`; yield an empty tuple as a pause."""
        for item in self._source.live():
            if item is not None:
                pools.append(item[0])
            yield () if item is None else item[1]

    def _sections(self, pools: list[schema.LivePool]) -> Iterator[tuple[str, object]]:
        source = self._source
        yield "status", rows.status(source.status())
        yield "pools", pools
        yield "proxies", [rows.proxy(item) for item in source.proxies().proxies]
        yield "rollouts", source.rollouts().rollouts
        yield "splits", source.splits()

    def _sample(self) -> None:
        now, replicas, seconds = self._now(), self._state.rows, self._source.history_seconds
        if replicas and self.history.due(now, seconds, len(replicas)):
            self.history.add(now, tuple(replicas.values()), seconds)

    async def _send(self, frame: Frame) -> None:
        self._sent_at = time.monotonic()
        if any(stream.packed for stream in self._streams):
            await asyncio.to_thread(frame.pack)
        for number, stream in enumerate(list(self._streams)):
            if number and number % _AT_ONCE == 0:
                await asyncio.sleep(_APART)
            stream.put(frame)

    def _frame(self, change: FrameChange, events: Sequence[bytes], *, complete: bool = False) -> Frame:
        """Return the frame as server-sent events: a `live` event with the change, then the control plane events."""
        sections = {name: change.sections.get(name, "null") for name in SECTIONS}
        members = {
            "frame": str(self._number),
            "complete": "true" if complete else "false",
            "at": encode(status_rows.timestamp(self._now())),
            **sections,
            "replicas": f"[{','.join(change.replicas)}]",
            "gone": f"[{','.join(change.gone)}]",
        }
        data = ",".join(f'"{name}":{text}' for name, text in members.items())
        return Frame(self._number, f"event: live\ndata: {{{data}}}\n\n".encode() + b"".join(events))
