"""The client of HAProxy's Runtime API, and the agents: invalid peers cause failures, not exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.apply.agent_check import lines
from lbctl.apply.haproxy import runtime
from lbctl.apply.haproxy.applied import HaproxyResult
from lbctl.apply.haproxy.driver import HaproxyUpdater
from lbctl.apply.haproxy.running import COUNTERS
from lbctl.apply.haproxy.runtime import Replies, Runtime
from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight, from_capacity
from lbctl.serve.traffic.haproxy import HaproxySource
from lbctl.serve.traffic.interface import TrafficReport
from lbctl.targets.haproxy import TARGET, agents
from lbctl.targets.haproxy.desired import desired
from lbctl.targets.replica_weights import quantise
from tests.support.haproxy import everything, forward, make_view
from tests.support.weights import row_of_plain

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def replies_of(tmp_path: Path, handler: Handler, *commands: str, timeout: float = 60) -> Replies:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    async def run() -> Replies:
        place = str(tmp_path / "s")
        server = await asyncio.start_unix_server(closing, place)
        async with server:
            return await Runtime(place, timeout=timeout).send(commands)

    return asyncio.run(run())


def test_missing_socket_is_a_failure(tmp_path: Path) -> None:
    replies = asyncio.run(Runtime(str(tmp_path / "none")).query("show info"))
    assert replies.texts == ()
    assert "none" in replies.failure


def test_silent_proxy_times_out(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    assert "did not respond within 0.3 s" in replies_of(tmp_path, silent, "show info", timeout=0.3).failure


def test_answers_before_a_closed_connection_are_kept(tmp_path: Path) -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"\n> ")
        await reader.readuntil(b"three\n")
        writer.write(b"\n> No such server.\n\n> ")
        await writer.drain()
        writer.close()

    replies = replies_of(tmp_path, dies, "one", "two", "three")
    assert replies.texts == ("", "No such server.")
    assert "closed" in replies.failure


def endless_handler(piece: bytes) -> Handler:
    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                await reader.readline()
                while True:
                    writer.write(piece)
                    await writer.drain()
        finally:
            writer.transport.abort()

    return write


@pytest.mark.parametrize(
    "piece", [b"Pid: 1\n" * 10_000, b"\n> " * 20_000, b"\xff" * 60_000], ids=["lines", "prompts", "bytes"]
)
def test_endless_answer_is_limited_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(runtime, "MAX_ANSWER_BYTES", 1_000_000)

    async def script() -> Replies:
        place = str(tmp_path / "s")
        async with await asyncio.start_unix_server(endless_handler(piece), place):
            return await Runtime(place, timeout=30).query("show info")

    assert "did not end its response" in asyncio.run(script()).failure


def test_reply_without_a_prompt_is_limited_by_its_size(tmp_path: Path) -> None:
    assert "did not end its response" in replies_of(tmp_path, endless_handler(b"x" * 60_000), "show info").failure


def test_long_reply_is_shortened(tmp_path: Path) -> None:
    async def wordy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"\n> ")
        await reader.readline()
        writer.write(b"no " * 10_000 + b"\n\n> ")
        await writer.drain()
        writer.close()

    (reply,) = replies_of(tmp_path, wordy, "one").texts
    assert 900 < len(reply) <= 1000


_INFO, _STATE = "Pid: 1\nUptime_sec: 2\nVersion: 2.8\n", "1\n# be_id be_name\n"
_COLUMNS = "# be_id be_name srv_id srv_name srv_addr srv_port srv_admin_state srv_uweight srv_fqdn"


@pytest.mark.parametrize(
    ("info", "state", "stat"),
    [
        ("\r\0\ufffd", "\r\0", "\r\0,\r\n\0"),
        (_INFO, _STATE, "# pxname,svname,scur\n" + "x" * 200_000 + ",y,1\n"),
        (_INFO, _STATE, "# pxname\nx\n"),
        (_INFO, _STATE, '# pxname,svname,scur\n"' + "x\n" * 50_000),
        ("Pid: " + "9" * 5000 + "\nUptime_sec: 2\nVersion: 2.8\n", _STATE, "# pxname,svname\n"),
        (_INFO, f"1\n{_COLUMNS}\n3 p 1\n", "# pxname,svname\n"),
        (_INFO, f"1\n{_COLUMNS}\n3 pool_p 1 a;b 10.0.0.1 80 0 1 -\n", "# pxname,svname\n"),
        (_INFO, f"1\n{_COLUMNS}\n3 pool_p 1 a x 80 0 {'9' * 5000} -\n", "# pxname,svname\n"),
    ],
    ids=["bytes", "long field", "no columns", "a quote", "a long number", "short row", "two commands", "a long weight"],
)  # fmt: skip
def test_invalid_answer_fails_one_attempt(tmp_path: Path, info: str, state: str, stat: str) -> None:
    answers = {"show info": info, "show servers state": state, "show stat -1 4 -1": stat, COUNTERS: f"{info}\n\n{stat}"}
    sent: list[str] = []

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = (await reader.readline()).decode().strip()
        sent.append(question)
        if question == "prompt":
            writer.write(b"\n> ")
            while line := await reader.readline():
                sent.append(line.decode().strip())
                writer.write(b"type=sint value=<" + b"9" * 5000 + b">\n\n> ")
        else:
            writer.write(answers[question].encode())
        with suppress(OSError):
            await writer.drain()
        writer.close()

    async def script() -> tuple[HaproxyResult, TrafficReport | None]:
        place = str(tmp_path / "s")
        proxy = Proxy("edge", "haproxy", (2, 6), runtime_api=place)
        async with await asyncio.start_unix_server(nonsense, place):
            view = view_with_weights((5, 2), (1, 2))
            return await HaproxyUpdater(proxy).converge(view), await HaproxySource(Runtime(place)).poll()

    applied, _ = asyncio.run(script())
    assert not applied.done
    assert socket_of(applied.failure) == str(tmp_path / "s")
    assert len(applied.failure) < 1000
    assert not [line for line in sent if ";" in line and line != COUNTERS]


class ScriptedHaproxy:
    """Answers for two servers of weight 50, and records the commands. Calls `read` after each reading."""

    def __init__(self, read: Callable[[], None]) -> None:
        self.commands: list[str] = []
        self._read = read

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
            await writer.drain()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = (await reader.readline()).decode().strip()
        if question == "prompt":
            writer.write(b"\n> ")
            while line := await reader.readline():
                self.commands.append(line.decode().strip())
                writer.write(b"\n\n> ")
        elif question == "show servers state":
            rows = "".join(f"3 pool_p {i} r{i} 10.0.0.1 {8000 + i} 0 50 -\n" for i in range(2))
            writer.write(f"1\n{_COLUMNS}\n{rows}\n".encode())
        elif question == "show info":
            writer.write(_INFO.encode())
        else:
            writer.write(b"# pxname,svname,scur\n")
            self._read()


@pytest.mark.parametrize("lost", [False, True])
def test_former_leader_sends_nothing_after_a_reading(tmp_path: Path, lost: bool) -> None:
    leads = [True]
    haproxy = ScriptedHaproxy(lambda: leads.__setitem__(0, not lost))

    async def script() -> HaproxyResult:
        place = str(tmp_path / "s")
        proxy = Proxy("edge", "haproxy", (2, 6), runtime_api=place)
        async with await asyncio.start_unix_server(haproxy, place):
            return await HaproxyUpdater(proxy, permit=lambda: leads[0]).converge(view_with_weights((5, 2), (1, 2)))

    applied = asyncio.run(script())
    assert bool([command for command in haproxy.commands if command.startswith("set server")]) is not lost
    assert ("no longer the leader" in applied.failure) is lost


def socket_of(failure: str) -> str:
    return failure.partition(":")[0]


@pytest.mark.parametrize("place", ["ipv4@10.0.0.1:9999", "ipv4@localhost:9999", "ipv4@127.0.0.1:x"])
def test_tcp_is_only_allowed_on_loopback(place: str) -> None:
    assert "loopback" in asyncio.run(Runtime(place).query("show info")).failure


def view_with_weights(
    weights: tuple[float, ...], live: tuple[float, ...], drained: frozenset[str] = frozenset()
) -> View:
    replicas = tuple(Replica(f"r{i}", Address("10.0.0.1", 8000 + i), weight) for i, weight in enumerate(weights))
    listener = Listener("pub", Address("127.0.0.1", 1), rules=everything())
    base = make_view((listener,), (forward("p"),), (Pool("p", replicas),), agent_check=Address("127.0.0.1", 18600))
    return View(base.proxy, base.listeners, base.routes, base.pools, {"p": row_of_plain(live)}, {"p": drained})


def test_agent_ports_count_up_and_file_has_the_capacities() -> None:
    text = TARGET.render(view_with_weights((5, 2), (1, 2))).main.text
    assert "server r0 '10.0.0.1:8000' weight 100 agent-check agent-addr 127.0.0.1 agent-port 18600" in text
    assert "server r1 '10.0.0.1:8001' weight 40 agent-check agent-addr 127.0.0.1 agent-port 18601" in text
    assert agents.places(view_with_weights((5, 2), (1, 2)))["p", "r1"] == Address("127.0.0.1", 18601)


def test_agent_lines_have_one_line_for_each_server() -> None:
    agent_lines = lines(view_with_weights((10, 10, 10), (5, 10, 10), frozenset({"r1"})), {("p", "r2"): "xid 79;\nup"})
    assert agent_lines == {
        ("p", "r0"): "up ready 50%\n",
        ("p", "r1"): "up drain 100%\n",
        ("p", "r2"): "down #xid 79  up\n",
    }


def test_agent_and_runtime_api_agree_about_a_slow_replica() -> None:
    view = view_with_weights((10, 10), (10, 10))
    slow = replace(view, weights={"p": (Weight(rate=2.5, room=10.0, speed=0.25), from_capacity(10.0))})
    assert lines(slow, {})["p", "r0"] == "up ready 50%\n"
    weights = {item.name: item.weight for item in desired(slow).servers}
    assert weights["r0"] / weights["r1"] == 1.0, "the file's weights stay with an agent"
    without_agent = replace(slow, proxy=replace(slow.proxy, agent_check=None))
    weights_over_the_api = {item.name: item.weight for item in desired(without_agent).servers}
    assert weights_over_the_api["r0"] / weights_over_the_api["r1"] == 0.5


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=8))
def test_agent_lines_give_the_decided_weights(pairs: list[tuple[int, int]]) -> None:
    filed, live = zip(*((float(base), float(now)) for base, now in pairs), strict=True)
    agent_lines = lines(view_with_weights(filed, live), {})
    bases, expected = quantise(filed, 256), quantise(live, 256)
    for (_, line), base, weight in zip(agent_lines.items(), bases, expected, strict=True):
        percent = int(line.split()[2].removesuffix("%"))
        assert percent >= 1
        assert abs(base * percent // 100 - weight) <= max(1, base // 100)
