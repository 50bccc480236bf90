"""The stream of events: a slow client is dropped, a gap is reported, and streams do not block other requests."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest

from lbctl.ir.address import Address
from lbctl.serve.api import streams
from lbctl.serve.api.authorization import ApiAccess
from lbctl.serve.api.events import MAX_CLIENTS, EventLog
from lbctl.serve.api.server import ApiServer
from tests.support.api import Fleet


def lines(data: bytes | None, name: str) -> list[str]:
    """Return the values of this field."""
    assert data is not None
    return [line.removeprefix(f"{name}: ") for line in data.decode().splitlines() if line.startswith(f"{name}: ")]


def test_slow_client_is_dropped_with_a_last_event() -> None:
    async def script() -> None:
        log = EventLog(queued=4)
        with log.subscribe(None) as slow, log.subscribe(None) as quick:
            assert lines(await quick.next(), "retry") == ["2000"]
            for number in range(10):
                log.task_failed(f"task {number}")
                assert lines(await quick.next(), "event") == ["task_failed"]
            last = await slow.next()
            assert lines(last, "event") == ["closed"]
            assert lines(last, "data") == ['{"reason": "slow"}']
            assert await slow.next() is None

    asyncio.run(script())


@pytest.mark.parametrize(
    ("behind", "first", "count"), [(0, None, 0), (3, "task_failed", 3), (5, "task_failed", 5), (6, "missed", 6)]
)
def test_client_resumes_or_gets_a_missed_event(behind: int, first: str | None, count: int) -> None:
    async def script() -> None:
        log = EventLog(now=lambda: 1.0, kept=5)
        for number in range(9):
            log.task_failed(f"task {number}")
        with log.subscribe(str(1009 - behind)) as subscription:
            sent = await subscription.next()
            events = lines(sent, "event")
            assert (events[0] if events else None, len(events)) == (first, count)
            if behind < 6:
                assert lines(sent, "id") == [str(1009 - left) for left in reversed(range(behind))]

    asyncio.run(script())


@pytest.mark.parametrize("last", ["", "abc", "-1", "99999", "1e3", "²", "7" * 5000, "\udcff"])
def test_unknown_last_id_gets_all_kept_events(last: str) -> None:
    async def script() -> None:
        log = EventLog(now=lambda: 1.0)
        log.task_failed("a")
        with log.subscribe(last) as subscription:
            assert lines(await subscription.next(), "event") == ["missed", "task_failed"]

    asyncio.run(script())


def test_event_streams_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.2)

    async def script() -> None:
        api = ApiServer(Fleet(), ApiAccess(Address("127.0.0.1", 0)))
        url = f"http://127.0.0.1:{await api.start()}"
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                anonymous = MAX_CLIENTS - streams.RESERVED
                opened = [await session.get(f"{url}/api/v1/events") for _ in range(anonymous)]
                async with session.get(f"{url}/api/v1/events") as refused:
                    assert refused.status == 503
                    assert f"the limit of {anonymous} such streams" in (await refused.json())["error"]
                async with session.get(f"{url}/api/v1/status") as answer:
                    assert answer.status == 200
                assert b": heartbeat" in await opened[0].content.readuntil(b": heartbeat\n")
                opened.pop().close()
                async with asyncio.timeout(30):
                    while (again := await session.get(f"{url}/api/v1/events")).status == 503:
                        again.release()
                        await asyncio.sleep(0.05)
                assert again.status == 200
                for stream in (*opened, again):
                    stream.close()
        finally:
            api._serving.events.close()
            await api.stop()

    asyncio.run(script())


def test_client_with_full_socket_is_dropped() -> None:
    async def script() -> None:
        fleet = Fleet()
        api = ApiServer(fleet, ApiAccess(Address("127.0.0.1", 0)))
        port = await api.start()
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(("127.0.0.1", port))
            stuck.sendall(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            stream = fleet.events
            async with asyncio.timeout(30):
                while not stream._subscriptions:
                    await asyncio.sleep(0.01)
                (subscription,) = stream._subscriptions
                while not subscription._ended:
                    stream.task_failed("x" * 20_000)
                    await asyncio.sleep(0)
            stream.close()
        await api.stop()

    asyncio.run(script())
