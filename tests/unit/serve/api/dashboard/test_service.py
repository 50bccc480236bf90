"""The stream of the dashboard: a complete frame first, then changes, built once for all browsers."""

from __future__ import annotations

import asyncio
import json
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from lbctl.serve.api import streams
from lbctl.serve.api.dashboard import service
from lbctl.serve.api.dashboard.frames import GZIP_HEADER, Frame
from lbctl.serve.api.dashboard.series import Query
from lbctl.serve.api.dashboard.service import DashboardService
from lbctl.serve.api.dashboard.state import DashboardState, FrameChange
from lbctl.serve.api.dashboard.stream import FrameStream
from lbctl.serve.api.events import TooManyClientsError
from tests.support.api import Fleet
from tests.support.dashboard import MovingFleet, serving
from tests.support.openapi import validate


class StillFleet(MovingFleet):
    """A fleet in which only `queues` change, and in which the replicas in `gone` are absent."""

    def __init__(self, replicas: int = 6) -> None:
        super().__init__(replicas)
        self.queues: dict[str, float] = {}
        self.gone: set[str] = set()

    def live(self):  # type: ignore[no-untyped-def]
        self.moment = -1
        for pool, rows in super().live():
            kept = [row for row in rows if row.name not in self.gone]
            yield pool, [replace(row, queue=self.queues.get(row.name, row.queue)) for row in kept]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_INTERVAL", 0.02)


def frames(text: bytes) -> list[Any]:
    """Return the data of each `live` event, which must match the OpenAPI document."""
    blocks = [block.split(b"\n") for block in text.split(b"\n\n")]
    data = [json.loads(block[1].partition(b": ")[2]) for block in blocks if block[0] == b"event: live"]
    for each in data:
        validate("Live", each)
    return data


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[DashboardService]:
    task = asyncio.create_task(fleet.dashboard.run())
    try:
        yield fleet.dashboard
    finally:
        task.cancel()


def conversation(fleet: Fleet, script: Callable[[DashboardService], Awaitable[None]]) -> None:
    async def talk() -> None:
        async with running(fleet) as dashboard, asyncio.timeout(60):
            await script(dashboard)

    asyncio.run(talk())


async def next_frame(stream: FrameStream) -> Any:
    """Return the data of the next `live` event."""
    while True:
        part = await stream.next()
        assert part is not None
        if live := frames(part):
            return live[-1]


def test_stream_sends_everything_first_and_changes_after() -> None:
    fleet = StillFleet()

    async def script(dashboard: DashboardService) -> None:
        with dashboard.subscribe(packed=False) as stream:
            first = await next_frame(stream)
            assert first["complete"]
            assert len(first["replicas"]) == 6
            assert [item["name"] for item in first["pools"]] == ["llama-70b", "qwen-32b", "embed"]
            assert first["status"]["ready"]
            fleet.queues["llama-01"] = 77.0
            fleet.gone.add("qwen-00")
            second = await next_frame(stream)
            assert second["frame"] == first["frame"] + 1
            assert [(item["name"], item["queue"]) for item in second["replicas"]] == [("llama-01", 77.0)]
            assert second["gone"] == [{"pool": "qwen-32b", "name": "qwen-00"}]
            assert second["proxies"] is None

    conversation(fleet, script)


def test_changes_are_kept_when_building_a_section_fails() -> None:
    fleet = StillFleet(2)
    state = DashboardState()

    def update(sections: Iterable[tuple[str, object]]) -> FrameChange:
        parts = state.update([rows for _, rows in fleet.live()], sections)
        while True:
            try:
                next(parts)
            except StopIteration as done:
                change: FrameChange = done.value
                return change

    def failing() -> Iterator[tuple[str, object]]:
        raise RuntimeError("a bug")
        yield "pools", []

    with pytest.raises(RuntimeError):
        update(failing())
    assert not state.everything()
    assert len(update([("pools", [1])]).replicas) == 2
    assert not update([("pools", [1])])


def test_stream_includes_earlier_and_new_events() -> None:
    fleet = StillFleet()
    fleet.events.task_failed("an earlier one")

    async def script(dashboard: DashboardService) -> None:
        with dashboard.subscribe(packed=False) as stream:
            first = await stream.next()
            assert first is not None
            assert first.count(b"event: task_failed") == 1
            fleet.events.task_failed("a later one")
            part = b""
            while b"a later one" not in part:
                part = await stream.next() or b""
            assert b"an earlier one" not in part

    conversation(fleet, script)


def test_slow_browser_gets_a_complete_frame_again() -> None:
    fleet = StillFleet()

    async def script(dashboard: DashboardService) -> None:
        with dashboard.subscribe(packed=False) as slow, dashboard.subscribe(packed=False) as quick:
            await slow.next()
            for number in range(12):
                fleet.queues["llama-01"] = float(number)
                await next_frame(quick)
            assert len(slow._waiting) <= 4
            caught_up = await next_frame(slow)
            assert caught_up["complete"]
            assert {row["name"]: row["queue"] for row in caught_up["replicas"]}["llama-01"] == 11.0

    conversation(fleet, script)


@pytest.mark.slow
def test_browser_with_full_socket_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_WRITE_TIMEOUT", 1)
    fleet = StillFleet()

    async def script() -> None:
        async with serving(fleet) as port, aiohttp.ClientSession() as session, asyncio.timeout(30):
            with socket.socket() as stuck:
                stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                stuck.connect(("127.0.0.1", port))
                stuck.sendall(b"GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
                while not fleet.dashboard._streams:
                    await asyncio.sleep(0.01)
                async with session.get(f"http://127.0.0.1:{port}/api/v1/live") as answer:
                    descriptors = _descriptors()
                    while _descriptors() == descriptors:
                        fleet.events.task_failed("x" * 200_000)
                        await answer.content.readany()
                    fleet.queues["llama-00"] = 77.0
                    text = b""
                    while b'"queue": 77.0' not in text:
                        text += await answer.content.readany()

    asyncio.run(script())


def _descriptors() -> int:
    """Return the number of open descriptors of this process, which includes the server's connections."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_shared_compressed_frames_form_a_gzip_stream() -> None:
    texts = [b"event: live\ndata: %d\n\n" % number * 50 for number in range(4)]
    parts = [Frame(number, text) for number, text in enumerate(texts)]
    for order in ([0, 1, 2, 3], [2, 0], [3]):
        decompressor = zlib.decompressobj(wbits=31)
        stream = GZIP_HEADER + b"".join(parts[number].content(True) for number in order)
        assert decompressor.decompress(stream) == b"".join(texts[number] for number in order)


def test_ordinary_client_reads_the_compressed_stream() -> None:
    fleet = StillFleet()

    async def script() -> None:
        async with (
            serving(fleet) as port,
            aiohttp.ClientSession() as session,
            asyncio.timeout(60),
            session.get(f"http://127.0.0.1:{port}/api/v1/live") as answer,
        ):
            assert answer.headers["content-encoding"] == "gzip"
            text = b""
            while b"\n\n" not in text:
                text += await answer.content.readany()
            assert frames(text)[0]["complete"]
            fleet.queues["llama-00"] = 5.0
            while len(frames(text)) < 2:
                text += await answer.content.readany()
            assert frames(text)[1]["replicas"][0]["queue"] == 5.0

    asyncio.run(script())


def test_streams_are_limited_and_end_with_the_process() -> None:
    fleet = StillFleet()

    async def script(dashboard: DashboardService) -> None:
        with dashboard.subscribe(packed=True) as stream:
            others: Sequence[Any] = [dashboard.subscribe(packed=True) for _ in range(service.MAX_STREAMS - 1)]
            for each in others:
                each.__enter__()
            with pytest.raises(TooManyClientsError), dashboard.subscribe(packed=True):
                pass
            dashboard.end()
            assert await stream.next() is None
            for each in others:
                each.__exit__(None, None, None)

    conversation(fleet, script)


def test_unchanged_series_is_not_sent_again() -> None:
    fleet = StillFleet()

    async def script() -> None:
        async with serving(fleet) as port, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{port}/api/v1/series?pool=embed&metric=queue&replica=*"
            while not fleet.dashboard.history.samples:
                await asyncio.sleep(0.01)
            async with session.get(url) as answer:
                shown = await answer.json()
                validate("Series", shown)
                assert [item["replica"] for item in shown["replicas"]] == ["embed-00", "embed-01"]
                etag = answer.headers["etag"]
            async with session.get(url, headers={"if-none-match": etag}) as answer:
                assert answer.status == 304
            async with session.get(f"http://127.0.0.1:{port}/api/v1/series?pool=embed&metric=x") as answer:
                assert answer.status == 400
                assert "metric must be one of state, observed" in (await answer.json())["error"]

    asyncio.run(script())


def test_cached_answers_are_bounded() -> None:
    async def script(dashboard: DashboardService) -> None:
        for points in range(2, 102):
            await dashboard.series(Query("pool", "queue", "*", points))
        assert len(dashboard._answers) == service._MAX_CACHED_SERIES
        assert Query("pool", "queue", "*", 101) in dashboard._answers

    conversation(StillFleet(), script)
