"""The client of HAProxy's Runtime API, and the agents: whatever the other side does, an answer and no exception."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.apply.agent_check import lines
from lbctl.apply.haproxy.runtime import Replies, Runtime
from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight, from_capacity
from lbctl.targets.haproxy import TARGET, agents
from lbctl.targets.haproxy.desired import desired
from lbctl.targets.quantise import quantise
from tests.support.haproxy import everything, forward, make_view
from tests.support.weights import row_of_plain

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _against(tmp_path: Path, handler: Handler, *commands: str) -> Replies:
    async def run() -> Replies:
        place = str(tmp_path / "s")
        server = await asyncio.start_unix_server(handler, place)
        async with server:
            return await Runtime(place, timeout=0.3).send(commands)

    return asyncio.run(run())


def test_a_socket_that_is_not_there_is_words(tmp_path: Path) -> None:
    replies = asyncio.run(Runtime(str(tmp_path / "none")).query("show info"))
    assert replies.texts == ()
    assert "none" in replies.failure


def test_a_proxy_that_says_nothing_is_given_up_on(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    assert "did not answer within 0.3 s" in _against(tmp_path, silent, "show info").failure


def test_what_was_answered_before_the_end_is_kept(tmp_path: Path) -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"\n> ")
        await reader.readuntil(b"three\n")
        writer.write(b"\n> No such server.\n\n> ")
        await writer.drain()
        writer.close()

    replies = _against(tmp_path, dies, "one", "two", "three")
    assert replies.texts == ("", "No such server.")
    assert "closed" in replies.failure


@pytest.mark.parametrize("place", ["ipv4@10.0.0.1:9999", "ipv4@localhost:9999", "ipv4@127.0.0.1:x"])
def test_tcp_is_for_loopback_alone(place: str) -> None:
    assert "loopback" in asyncio.run(Runtime(place).query("show info")).failure


def _view(weights: tuple[float, ...], live: tuple[float, ...], drained: frozenset[str] = frozenset()) -> View:
    each = tuple(Replica(f"r{i}", Address("10.0.0.1", 8000 + i), weight) for i, weight in enumerate(weights))
    listener = Listener("pub", Address("127.0.0.1", 1), rules=everything())
    shown = make_view((listener,), (forward("p"),), (Pool("p", each),), agent_check=Address("127.0.0.1", 18600))
    return View(shown.proxy, shown.listeners, shown.routes, shown.pools, {"p": row_of_plain(live)}, {"p": drained})


def test_the_ports_count_up_and_the_file_keeps_the_capacities() -> None:
    text = TARGET.render(_view((5, 2), (1, 2))).main.text
    assert "server r0 '10.0.0.1:8000' weight 100 agent-check agent-addr 127.0.0.1 agent-port 18600" in text
    assert "server r1 '10.0.0.1:8001' weight 40 agent-check agent-addr 127.0.0.1 agent-port 18601" in text
    assert agents.places(_view((5, 2), (1, 2)))["p", "r1"] == Address("127.0.0.1", 18601)


def test_each_line_is_whole() -> None:
    said = lines(_view((10, 10, 10), (5, 10, 10), frozenset({"r1"})), {("p", "r2"): "xid 79;\nup"})
    assert said == {("p", "r0"): "up ready 50%\n", ("p", "r1"): "up drain 100%\n", ("p", "r2"): "down #xid 79  up\n"}


def test_an_agent_gives_a_slow_replica_what_the_runtime_api_would() -> None:
    view = _view((10, 10), (10, 10))
    slow = replace(view, weights={"p": (Weight(rate=2.5, room=10.0, speed=0.25), from_capacity(10.0))})
    assert lines(slow, {})["p", "r0"] == "up ready 50%\n"
    weights = {item.name: item.weight for item in desired(slow).servers}
    assert weights["r0"] / weights["r1"] == 1.0, "the file's weights stay with an agent"
    plainly = replace(slow, proxy=replace(slow.proxy, agent_check=None))
    told = {item.name: item.weight for item in desired(plainly).servers}
    assert told["r0"] / told["r1"] == 0.5


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=8))
def test_haproxy_comes_to_the_weights_that_it_would_be_told(pairs: list[tuple[int, int]]) -> None:
    filed, live = zip(*((float(base), float(now)) for base, now in pairs), strict=True)
    said = lines(_view(filed, live), {})
    bases, wanted = quantise(filed, 256), quantise(live, 256)
    for (_, line), base, weight in zip(said.items(), bases, wanted, strict=True):
        percent = int(line.split()[2].removesuffix("%"))
        assert percent >= 1
        assert abs(base * percent // 100 - weight) <= max(1, base // 100)
