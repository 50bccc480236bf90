"""Two pickers exchange their requests in flight and their affinity memories over real gRPC."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy
from lbctl.ir.proxies import ServerTls
from lbctl.pick.affinity import AffinityBatch, AffinityMemory
from lbctl.pick.books import Count, Counts
from lbctl.pick.features import Features
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import bounded_calls, shared_memory
from lbctl.picker.exchange import Exchange, message_of, parse
from lbctl.picker.grpc_server import GrpcServer
from lbctl.picker.health import PickerHealth
from lbctl.picker.messages import Caller, PickerQuestion
from lbctl.picker.peer_tls import PeerTls
from lbctl.picker.queue_shares import Demand
from lbctl.picker.service import PickService
from lbctl.picker.shared_memory import SharedMemory
from lbctl.runtime.guard import Guard
from lbctl.xds.protocol.credentials import ServerCredentials
from tests.support.processes.certs import Authority
from tests.support.processes.ports import HOST, free_port


class _Picker:
    """The exchange of a picker, its own counts and affinity memory, and the counts that it received."""

    def __init__(self, name: str, tls: ServerTls | None = None) -> None:
        self.own: Counts = {}
        self.received: dict[str, Counts] = {}
        self.failures: list[str] = []
        self.affinity = AffinityMemory(records_changes=True)
        self.service = PickService(affinity=self.affinity, is_joining=True)
        self.service.set_table("chat", PoolTable("chat", PickPolicy(()), tuple(Candidate(item, item) for item in "ab")))
        self.shared = SharedMemory(name, self.affinity, self.service.merge_affinity, self.service.joined)
        guard = Guard(self.failures.append, first_pause=0.01)
        self.exchange = Exchange(self.shared, lambda: self.own, self.received.__setitem__, PeerTls.of(tls), guard)
        self._credentials = ServerCredentials(tls) if tls else None

    def place(self, session: str, replica: str) -> None:
        """Record that a session was sent to a replica."""
        self.affinity.remember(_session(session), replica, time.monotonic())

    def share(self) -> None:
        self.shared.publish(self.affinity.take_changes())

    def home(self, session: str) -> str | None:
        home = self.affinity.home(_session(session), time.monotonic())
        return home.replica if home else None

    @asynccontextmanager
    async def listening(self, port: int = 0, *, shares: bool = True) -> AsyncIterator[str]:
        """Listen, and yield the address. `shares`: whether the version of the picker shares its memory."""
        health = PickerHealth(lambda: True, self._never)
        shared = [self.shared.handler()] if shares else []
        server = GrpcServer(PickService(), health, self._credentials, self.exchange.handler(), *shared)
        port = await server.start(Address(HOST, port))
        try:
            yield f"{HOST}:{port}"
        finally:
            self.exchange.close()
            await server.stop(0.1)

    async def _never(self) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


def _session(name: str) -> Features:
    return Features("chat", session=name, prompt_tokens=100.0)


@asynccontextmanager
async def _exchanging(
    tls_of_first: ServerTls | None = None, tls_of_second: ServerTls | None = None
) -> AsyncIterator[tuple[_Picker, _Picker]]:
    """Run two pickers that know each other."""
    first, second = _Picker("first", tls_of_first), _Picker("second", tls_of_second)
    async with first.listening() as here, second.listening() as there:
        peers = {"first": here, "second": there}
        first.exchange.follow(peers)
        second.exchange.follow(peers)
        yield first, second


def _files(authority: Authority, name: str, hosts: Sequence[str]) -> ServerTls:
    pair = authority.issue(name, hosts)
    return ServerTls(str(pair.certificate), str(pair.key), str(authority.ca))


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def test_each_picker_receives_only_the_counts_of_the_other() -> None:
    async def run() -> None:
        async with _exchanging() as (first, second):
            first.own = {"chat": {"a": Count(3, 500)}}
            await _until(lambda: second.received.get("first") == {"chat": {"a": Count(3, 500)}})
            first.own = {"chat": {"a": Count(2, 0), "b": Count(1, 40)}}
            await _until(lambda: second.received["first"] == {"chat": {"a": Count(2, 0), "b": Count(1, 40)}})
            await _until(lambda: "second" in first.received)
        assert (first.received.keys(), second.received.keys()) == ({"second"}, {"first"})

    asyncio.run(run())


@pytest.mark.parametrize("hosts", [("*.ml", "lbctl-picker"), ("edge", HOST)], ids=["shared name", "addresses"])
def test_certificates_of_pickers_have_a_shared_name_or_addresses(hosts: tuple[str, ...], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = (_files(authority, f"pod-{number}", hosts) for number in range(2))

    async def run() -> None:
        async with _exchanging(first, second) as (one, other):
            one.own = {"chat": {"a": Count(3, 500)}}
            await _until(lambda: other.received.get("first") == one.own)
            await _until(lambda: "second" in one.received)

    asyncio.run(run())


@pytest.mark.slow
def test_picker_with_another_name_is_not_trusted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    first, second = (_files(authority, name, [name]) for name in ("lbctl-picker", "other"))

    async def run() -> None:
        async with _exchanging(first, second) as (one, other):
            one.own = {"chat": {"a": Count(3, 500)}}
            await _until(lambda: caplog.text.count("another picker cannot be reached") >= 2)
            assert (one.received, other.received) == ({}, {})

    asyncio.run(run())


def test_picker_that_joins_later_receives_counts() -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        first.own = {"chat": {"a": Count(1, 1)}}
        there = f"{HOST}:{free_port()}"
        first.exchange.follow({"second": there})
        await asyncio.sleep(0.1)
        second = _Picker("second")
        second.exchange.follow({"first": there})
        async with second.listening() as again:
            first.exchange.follow({"second": again})
            await _until(lambda: second.received.get("first") == first.own)
        first.exchange.close()

    asyncio.run(run())


def test_failure_to_send_counts_is_logged_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        async with first.listening() as here, second.listening() as there:
            second.exchange.follow({"first": here})
            first.own = {"chat": {"a": object()}}  # type: ignore[dict-item]
            first.exchange.follow({"second": there})
            await _until(lambda: first.failures != [])
            first.own = {"chat": {"a": Count(1, 1)}}
            await _until(lambda: second.received.get("first") == first.own)
        assert set(first.failures) == {"counts for another picker"}

    asyncio.run(run())
    record = next(item for item in caplog.records if "a task failed" in item.getMessage())
    assert record.exc_info
    assert record.__dict__["fields"]["task"] == "counts for another picker"


def test_unfollowed_picker_leaves_no_task() -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        async with second.listening() as there:
            second.exchange.follow({"first": "127.0.0.1:1"})
            first.exchange.follow({"second": there})
            await _until(lambda: "first" in second.received)
            first.exchange.close()
            second.exchange.close()
            await _until(lambda: not any("counts for" in task.get_name() for task in asyncio.all_tasks()))
        assert (first.failures, second.failures) == ([], [])

    asyncio.run(run())


def test_counts_of_an_unknown_picker_are_ignored() -> None:
    async def run() -> None:
        known, stranger, here = _Picker("known"), _Picker("stranger"), _Picker("here")
        known.own = stranger.own = {"chat": {"a": Count(1, 1)}}
        async with here.listening() as address, known.listening() as other:
            here.exchange.follow({"known": other})
            stranger.exchange.follow({"here": address})
            await asyncio.sleep(0.2)
            known.exchange.follow({"here": address})
            await _until(lambda: "known" in here.received)
            stranger.exchange.close()
            known.exchange.close()
        assert here.received.keys() == {"known"}

    asyncio.run(run())


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\xff", b"{}", b"[" * 100_000, b'{"from": 1, "counts": {}}', b'{"from": "x", "counts": []}',
        b'{"from": "x", "counts": {"p": {"r": [1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [1e999, 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [1e300, 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [1, 1, 1, 1e16]}}}',
        b'{"from": "x", "counts": {"p": {"r": [1, NaN, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [-1, 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": ["1", 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [true, 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [1, 1, 1, 1]}}, "cached": {"p": {"r": 1e16}}}',
        b'{"from": "x", "counts": {"p": {"r": [1, 1, 1, 1]}}, "cached": {"p": [1]}}',
        b'{"from": "x", "counts": {}, "waiting": {"p": -1}}',
        b'{"from": "x", "counts": {}, "waiting": [1]}',
        b'{"from": "x", "counts": {}, "waiting": {"p": 1}, "shares": {"p": [1, 1, 1]}}',
        b'{"from": "x", "counts": {}, "waiting": {"p": 1}, "shares": {"p": [1, -1, 1, 1]}}',
        b'{"from": "x", "counts": {}, "waiting": {"p": 1}, "shares": {"p": [1, 1, 1, Infinity]}}',
        b'{"from": "x", "counts": {}, "waiting": {"p": 1}, "shares": {"p": 1}}',
        b'{"from": "' + b"x" * 65 + b'", "counts": {}}',
    ],
)  # fmt: skip
def test_invalid_message_is_rejected(message: bytes) -> None:
    assert parse(message) is None


def test_earlier_version_reads_the_counts_and_is_read() -> None:
    counts = {"chat": {"a": Count(2, 40, 7, 900, 500, 1200, 150, 50, 0), "b": Count(1, 1, 1, 1)}}
    demands = {"chat": Demand((0.0, 2.0, 0.5), 17.25)}
    message = message_of("x", counts, demands)
    assert json.loads(message)["counts"] == {"chat": {"a": [2, 40, 7, 900], "b": [1, 1, 1, 1]}}
    assert json.loads(message)["waiting"] == {"chat": 2}, "the number of tenants, for earlier versions"
    assert parse(message) == ("x", counts, demands)
    earlier = b'{"from":"x","counts":{"chat":{"a":[2,40,7,900]}},"waiting":{"chat":3}}'
    assert parse(earlier) == ("x", {"chat": {"a": Count(2, 40, 7, 900)}}, {"chat": Demand((0.0, 3.0, 0.0))})


@pytest.mark.slow
def test_each_outage_of_another_picker_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> int:
        return sum("another picker cannot be reached" in record.getMessage() for record in caplog.records)

    async def come_and_go(first: _Picker, second: _Picker, port: int, times: int) -> None:
        async with second.listening(port) as address:
            second.exchange.follow({"first": address})
            first.own = {"chat": {"a": Count(times, 1)}}
            first.exchange.follow({"second": address})
            await _until(lambda: second.received.get("first") == first.own)
        await _until(lambda: logged() == times)

    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        port = free_port()
        await come_and_go(first, second, port, 1)
        await come_and_go(first, second, port, 2)
        first.exchange.close()

    asyncio.run(run())


# ── The affinity memory ──────────────────────────────────────────────────────────────────────────────────────────────


def test_session_is_known_to_the_other_picker() -> None:
    async def run() -> None:
        async with _exchanging() as (first, second):
            await _until(lambda: first.service.is_ready and second.service.is_ready)
            for number in range(5000):  # more than a message contains
                first.place(f"s{number}", "ab"[number % 2])
            first.share()
            await _until(lambda: second.home("s4999") == "b")
            assert [second.home(f"s{number}") for number in range(5000)] == ["a", "b"] * 2500
            first.place("s0", "b")
            first.share()
            await _until(lambda: second.home("s0") == "b")

    asyncio.run(run())


def test_picker_that_joins_is_ready_with_the_memory_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        async with first.listening() as here, second.listening() as there:
            first.exchange.follow({"first": here})
            assert first.service.is_ready, "no other picker is known"
            for number in range(5000):
                first.place(f"s{number}", "ab"[number % 2])
            first.share()
            peers = {"gone": f"{HOST}:1", "first": here, "second": there}
            second.exchange.follow(peers)
            assert not second.service.is_ready
            await asyncio.sleep(0.2)  # the first picker hears of the second one later
            assert not second.service.is_ready
            first.exchange.follow(peers)
            await _until(lambda: second.service.is_ready)
            assert [second.home(f"s{number}") for number in range(5000)] == ["a", "b"] * 2500

    monkeypatch.setattr(shared_memory, "JOIN_TIMEOUT", 60.0)
    asyncio.run(run())


def test_memory_is_copied_although_another_picker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        first.place("s", "a")
        hung = socket.create_server((HOST, 0))
        async with first.listening() as here, second.listening() as there:
            peers = {"hung": f"{HOST}:{hung.getsockname()[1]}", "first": here, "second": there}
            first.exchange.follow(peers)
            second.exchange.follow(peers)
            await _until(lambda: second.service.is_ready)
            assert second.home("s") == "a"
        hung.close()

    monkeypatch.setattr(shared_memory, "_FIRST_TIMEOUT", 0.3)
    monkeypatch.setattr(shared_memory, "JOIN_TIMEOUT", 60.0)
    asyncio.run(run())


def test_memory_with_other_hashes_is_not_copied() -> None:
    message = shared_memory.encode("second", AffinityBatch({}, ()))

    async def status(request: bytes) -> grpc.StatusCode:
        first = _Picker("first")
        async with first.listening() as here:
            first.exchange.follow({"second": f"{HOST}:1"})
            async with grpc.aio.insecure_channel(here) as channel:
                call = channel.unary_stream("/lbctl.picker.Affinity/Table")(request)
                return await call.code()

    assert asyncio.run(status(message)) == grpc.StatusCode.OK
    other = message.replace(str(shared_memory.hash_version()).encode(), b"1")
    assert asyncio.run(status(other)) == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.slow
def test_pickers_without_sessions_keep_their_streams(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with _exchanging() as (first, second):
            await asyncio.sleep(1.5)
            first.place("s", "a")
            first.share()
            await _until(lambda: second.home("s") == "a")

    monkeypatch.setattr(bounded_calls, "FIRST_TIMEOUT", 0.3)
    asyncio.run(run())
    assert "cannot be reached" not in caplog.text


def test_entries_wait_until_the_other_picker_knows_the_sender() -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        async with first.listening() as here, second.listening() as there:
            first.exchange.follow({"second": there})
            first.place("s", "a")
            first.share()
            await asyncio.sleep(0.3)
            second.exchange.follow({"first": here})
            await _until(lambda: second.home("s") == "a")

    asyncio.run(run())


def test_joining_picker_picks_no_replica() -> None:
    picker = _Picker("first")
    assert picker.service.pick(PickerQuestion(Caller("chat"), {}, b"", 0)).names == ()
    picker.service.joined()
    assert picker.service.pick(PickerQuestion(Caller("chat"), {}, b"", 0)).names != ()


def test_picker_is_ready_if_no_other_picker_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        picker = _Picker("here")
        picker.exchange.follow({"gone": f"{HOST}:1"})
        await _until(lambda: picker.service.is_ready)
        picker.exchange.close()

    monkeypatch.setattr(shared_memory, "JOIN_TIMEOUT", 0.3)
    asyncio.run(run())


def test_counts_reach_a_picker_of_an_older_version(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        async with first.listening() as here, second.listening(shares=False) as there:
            second.exchange.follow({"first": here})
            first.exchange.follow({"second": there})
            await _until(lambda: "runs an older version of lbctl" in caplog.text)
            first.own = {"chat": {"a": Count(1, 1)}}
            await _until(lambda: second.received.get("first") == first.own)

    asyncio.run(run())


@pytest.mark.parametrize("sender", ["stranger", "second"])
def test_memory_of_a_stranger_or_with_other_hashes_is_ignored(
    sender: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = _Picker("first"), _Picker(sender)
    first.shared.follow({"second": f"{HOST}:1"})
    second.place("s", "a")
    (batch,) = second.affinity.batches(second.affinity.take_changes())
    if sender == "second":
        monkeypatch.setattr(shared_memory, "hash_version", lambda: 1)
    message = shared_memory.encode(sender, batch)
    monkeypatch.undo()
    for _ in range(2):
        assert first.shared.merge(message) == 0
    assert first.home("s") is None
    assert caplog.text.count("does not share its memory") == (sender == "second")


def test_stranger_cannot_copy_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        first, stranger = _Picker("first"), _Picker("stranger")
        first.place("s", "a")
        async with first.listening() as here:
            first.exchange.follow({"second": f"{HOST}:1"})
            stranger.exchange.follow({"first": here})
            await _until(lambda: stranger.service.is_ready)
            stranger.exchange.close()
        assert stranger.home("s") is None

    monkeypatch.setattr(shared_memory, "JOIN_TIMEOUT", 0.5)
    asyncio.run(run())


_HEAD = b'{"from":"x","hash":1,"replicas":{"1":["chat","a"]}}'


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\xff\n", b"{}\n", _HEAD + b"\n" + bytes(24 * 2001),
        b"[" * 100_000, _HEAD + b"\n" + bytes(23), _HEAD + b"\n" + bytes(16),
        _HEAD + b"\n" + bytes(16) + b"\xfe" + 7 * b"\xff", _HEAD + b"\n" + bytes(20) + b"\x01" + bytes(3),
        _HEAD.replace(b'"x"', b'"' + b"x" * 65 + b'"') + b"\n", _HEAD.replace(b"1,", b'"1",') + b"\n",
        _HEAD.replace(b'"a"', b'"a","b"') + b"\n", _HEAD.replace(b'"1":', b'"one":') + b"\n",
    ],
)  # fmt: skip
def test_invalid_memory_message_is_rejected(message: bytes) -> None:
    assert shared_memory.parse(message) is None


def test_entries_of_unknown_replicas_are_ignored() -> None:
    first = _Picker("first")
    first.service.merge_affinity(AffinityBatch({1: ("chat", "x"), 2: ("other", "a")}, (7, 1, 5, 8, 2, 5)), False)
    assert len(first.affinity) == 0
