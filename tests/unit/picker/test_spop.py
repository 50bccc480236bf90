"""The picker answers queries of HAProxy by SPOP, on the port where other proxies use HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.admission import QuestionKey
from lbctl.picker.connection import MalformedError, Reply
from lbctl.picker.http_api import HttpApi, RequestEnds
from lbctl.picker.http_protocol import HttpRequest
from lbctl.picker.messages import PickerAnswer, PickerQuestion
from lbctl.picker.process import connections
from lbctl.picker.service import PickService
from lbctl.picker.spop import MAX_FRAME_BYTES, SpopApi, SpopProtocol
from tests.support import spop
from tests.support.spop import string

KEY = "k" * 43
NAME = "01234567-89ab-cdef-0123-456789abcdef"
TARGET = "/pick/chat?regions=eu,us&region=eu&zone=a%25&busy=1"
ACCEPTED = b"\x65\x00\x00\x00\x01\x00\x00\x07version\x08\x032.0"
END = '<134>1 2026-11-23T18:40:00+00:00 - haproxy 77 - [lbctl@0 proxy="ha" end="--" retries="0" pick="{}"] x'


class _Recorder(PickService):
    """A picker that remembers its queries."""

    def __init__(self, *, is_ready: bool = True) -> None:
        super().__init__(lambda: 1000.0, Random(1))
        self.queries: list[PickerQuestion] = []
        replicas = tuple(
            Candidate(name, f"10.0.0.{number}:80", region=region)
            for number, (name, region) in enumerate((("a", "eu"), ("b", "eu"), ("c", "asia")), 1)
        )
        if is_ready:
            self.set_table("chat", PoolTable("chat", PickPolicy((SessionKey(header="x-session-id"),)), replicas))

    def pick(self, question: PickerQuestion) -> PickerAnswer:
        self.queries.append(question)
        return super().pick(question)


class _Picker:
    """A picker with its key, and one connection by SPOP."""

    def __init__(self, *, is_ready: bool = True, key: str = KEY) -> None:
        self.service = _Recorder(is_ready=is_ready)
        self.key = QuestionKey()
        self.key.set(key)
        self.api = SpopApi(self.service, self.key)
        self.protocol = SpopProtocol(self.api)

    def send(self, data: bytes) -> Reply:
        """Return the reply to a frame."""
        reply = self.protocol.respond(bytearray(data))
        assert isinstance(reply, Reply)
        assert reply.length == len(data)
        return reply

    def query(self, *arguments: tuple[str, bytes], key: bytes | None = None, target: str = "/pick/chat") -> str:
        """Return the replica for a query; empty if the response has none."""
        given = string(KEY) if key is None else key
        pairs = [("key", given), ("proxy", string("ha")), ("target", string(target)), *arguments]
        response = self.send(spop.notify(pairs)).data
        replica = spop.replica_of(response)
        assert response == spop.ack(replica or None)
        return replica


def _accepted(*, is_ready: bool = True, key: str = KEY) -> _Picker:
    picker = _Picker(is_ready=is_ready, key=key)
    picker.send(spop.hello())
    return picker


# ── The first frame ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("versions", ["2.0", "1.0, 2.0", "2.0,3.0", " 2.0 "])
@pytest.mark.parametrize(
    ("size", "agreed"),
    [
        (256, 256), (16_380, 16_380), (MAX_FRAME_BYTES, MAX_FRAME_BYTES),
        (MAX_FRAME_BYTES + 1, MAX_FRAME_BYTES), (2**32 - 1, MAX_FRAME_BYTES),
    ],
)  # fmt: skip
def test_hello_is_accepted_with_the_smaller_frame_size(versions: str, size: int, agreed: int) -> None:
    reply = _Picker().send(spop.hello(versions, size))
    assert reply.data[4:].startswith(ACCEPTED)
    assert b"\x0emax-frame-size\x03" + spop.varint(agreed) + b"\x0ccapabilities\x08\x0apipelining" in reply.data
    assert reply.keep


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ({"supported-versions": string("1.0")}, "only version 2.0 is supported"),
        ({"supported-versions": string("")}, "only version 2.0 is supported"),
        ({"supported-versions": string("12.0,2.01")}, "only version 2.0 is supported"),
        ({"supported-versions": b"\x03\x02"}, "only version 2.0 is supported"),
        ({"supported-versions": b""}, "only version 2.0 is supported"),
        ({"max-frame-size": b""}, "max-frame-size is missing or too small"),
        ({"max-frame-size": b"\x03" + spop.varint(255)}, "max-frame-size is missing or too small"),
        ({"max-frame-size": string("16380")}, "max-frame-size is missing or too small"),
        ({"max-frame-size": b"\x11"}, "max-frame-size is missing or too small"),
        ({"max-frame-size": b"\x00"}, "max-frame-size is missing or too small"),
    ],
)
def test_hello_is_rejected_with_a_reason(items: dict[str, bytes], reason: str) -> None:
    values = {"supported-versions": string("2.0"), "max-frame-size": b"\x03" + spop.varint(16_380), **items}
    payload = b"".join(spop.name(name) + value for name, value in values.items() if value)
    picker = _Picker()
    with pytest.raises(MalformedError, match=f"^{reason}$"):
        picker.send(spop.frame(spop.HELLO, payload))
    with pytest.raises(MalformedError, match="this frame is not expected here"):
        picker.query()


@pytest.mark.parametrize(
    ("is_ready", "begin"), [(True, ACCEPTED), (False, b"\x66\x00\x00\x00\x01\x00\x00\x0bstatus-code\x03\x63")]
)
def test_health_check_passes_once_there_are_tables(begin: bytes, *, is_ready: bool) -> None:
    reply = _Picker(is_ready=is_ready).send(spop.hello(check=True))
    assert reply.data[4:].startswith(begin)
    assert not reply.keep


def test_connection_is_accepted_before_there_are_tables() -> None:
    picker = _accepted(is_ready=False)
    assert picker.query() == ""
    assert picker.service.open_picks == 0


# ── The order of frames ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [0, spop.NOTIFY, 4, 101, 102, 103, 255])
def test_only_a_hello_begins_a_connection(kind: int) -> None:
    picker = _Picker()
    with pytest.raises(MalformedError, match="this frame is not expected here"):
        picker.send(spop.frame(kind, spop.notify([("key", string(KEY)), ("target", string("/pick/chat"))])[11:]))
    assert picker.service.queries == []


@pytest.mark.parametrize("frame", [spop.hello(), spop.hello(check=True), spop.frame(0, b""), spop.frame(101, b"")])
def test_accepted_connection_gets_no_second_hello(frame: bytes) -> None:
    with pytest.raises(MalformedError, match="this frame is not expected here"):
        _accepted().send(frame)


@pytest.mark.parametrize("is_accepted", [False, True])
def test_disconnect_is_answered_and_ends_the_connection(*, is_accepted: bool) -> None:
    picker = _accepted() if is_accepted else _Picker()
    reply = picker.send(spop.frame(spop.DISCONNECT, b"\x0bstatus-code\x03\x02\x07message\x08\x07timeout"))
    assert reply.data[4:].startswith(b"\x66\x00\x00\x00\x01\x00\x00\x0bstatus-code\x03\x00\x07message\x08")
    assert not reply.keep


def test_rejection_has_the_code_of_an_invalid_frame() -> None:
    rejection = _Picker().protocol.rejection(MalformedError("not a frame"))
    assert rejection[4:] == b"\x66\x00\x00\x00\x01\x00\x00\x0bstatus-code\x03\x04\x07message\x08\x0bnot a frame"


# ── The length of a frame ────────────────────────────────────────────────────────────────────────────────────────────


def test_frame_is_awaited_until_it_is_complete() -> None:
    data = spop.hello()
    needed = [_Picker().protocol.respond(bytearray(data[:size])) for size in range(1, len(data))]
    assert needed == [4, 4, 4, *[len(data)] * (len(data) - 4)]
    assert _Picker().protocol.respond(bytearray(MAX_FRAME_BYTES.to_bytes(4, "big"))) == MAX_FRAME_BYTES + 4


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_long_frame_is_rejected_by_its_length_alone(size: int) -> None:
    with pytest.raises(MalformedError, match="the frame is too long"):
        _Picker().protocol.respond(bytearray(size.to_bytes(4, "big")))


def test_longest_frame_is_answered() -> None:
    picker = _accepted()
    rest = len(spop.notify([("key", string(KEY)), ("target", string("/pick/chat")), ("body", string(b"x" * 2_288))]))
    body = b"x" * (MAX_FRAME_BYTES + 4 - rest + 2_288 - 1)
    data = spop.notify([("key", string(KEY)), ("target", string("/pick/chat")), ("body", string(body))])
    assert len(data) == MAX_FRAME_BYTES + 4
    assert spop.replica_of(picker.send(data).data) in {"a", "b", "c"}
    with pytest.raises(MalformedError, match="the frame is too long"):
        picker.send(spop.notify([("key", string(KEY)), ("body", string(b"x" * MAX_FRAME_BYTES))]))


# ── The key ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "key", [b"\x00", b"\x11", b"\x03\x00", string(""), string(KEY[:-1]), string(KEY + "k"), string(b"\xff" * 43)]
)
def test_query_with_another_key_makes_no_pick(key: bytes) -> None:
    picker = _accepted()
    assert picker.query(key=key) == ""
    assert (picker.service.queries, picker.service.open_picks, picker.key.refused) == ([], 0, 1)
    assert picker.query() in {"a", "b", "c"}
    assert picker.key.refused == 1


def test_query_without_a_key_makes_no_pick() -> None:
    picker = _accepted()
    for arguments in ([], [("target", string("/pick/chat"))], [("header", string("key")), ("value", string(KEY))]):
        assert picker.send(spop.notify(arguments)).data == spop.ack(None)
    assert (picker.service.queries, picker.key.refused) == ([], 3)


def test_picker_without_a_key_answers_every_query() -> None:
    assert _accepted(key="").query(key=b"\x00") in {"a", "b", "c"}


# ── The arguments of a query ─────────────────────────────────────────────────────────────────────────────────────────


def test_query_by_spop_is_read_as_the_same_by_http() -> None:
    picker, body = _accepted(), b'{"prompt":"hello"}'
    picker.query(
        ("id", string(NAME)), ("length", string("5000")), ("tenant", string("acme")),
        ("headers", string("x-session-id")), ("value", string("s1")), ("body", b"\x09" + spop.varint(len(body)) + body),
        target=TARGET,
    )  # fmt: skip
    headers = {
        "x-lbctl-proxy": "ha", "x-lbctl-pick-id": NAME, "x-lbctl-body-length": "5000", "x-lbctl-tenant": "acme",
        "x-lbctl-pick-key": KEY, "x-session-id": "s1", "content-length": str(len(body)),
    }  # fmt: skip
    _by_http(picker, "POST", TARGET, headers, body)
    first, second = picker.service.queries
    assert first.headers == {"x-session-id": ["s1"]}
    assert first == second._replace(headers=first.headers)
    assert (first.caller.tenant, sorted(first.caller.regions), first.caller.place.zone) == ("acme", ["eu", "us"], "a%")


def _by_http(picker: _Picker, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> None:
    request = HttpRequest(method, target, {name: [value] for name, value in headers.items()}, body)
    assert HttpApi(picker.service, bytes, key=picker.key).handle(request).status == 200


def test_session_header_keeps_its_replica() -> None:
    picker = _accepted()
    for number in range(20):
        session = ("headers", string("x-session-id")), ("value", string(f"s{number}"))
        assert len({picker.query(*session) for _ in range(3)}) == 1


@pytest.mark.parametrize("value", [b"\x00", string("")])
def test_header_that_a_client_lacks_is_left_out(value: bytes) -> None:
    picker = _accepted()
    picker.query(("headers", string("x-session-id x-user")), ("value", value), ("value", string("u")))
    assert picker.service.queries[0].headers == {"x-user": ["u"]}


@pytest.mark.parametrize("names", [b"\x00", string(""), string("x-user"), string("x-user x-team x-other x-more")])
def test_headers_without_a_name_or_a_value_are_left_out(names: bytes) -> None:
    picker = _accepted()
    assert picker.query(("headers", names), ("value", string("u")), ("value", string("t"))) in {"a", "b", "c"}
    named = {"x-user": ["u"], "x-team": ["t"]}
    count = min(2, len(names[2:].split()))
    assert picker.service.queries[0].headers == dict(list(named.items())[:count])


def test_regions_of_the_target_limit_the_replicas() -> None:
    picker = _accepted()
    assert {picker.query(target="/pick/chat?regions=asia&region=asia") for _ in range(20)} == {"c"}
    assert {picker.query(target="/pick/chat?regions=eu&region=eu") for _ in range(20)} == {"a", "b"}


@pytest.mark.parametrize(
    ("arguments", "length"),
    [
        ([("length", string("5000")), ("body", string("{}"))], 5_000),
        ([("length", string("5000"))], 5_000),
        ([("length", b"\x00"), ("body", string("{}"))], 2),
        ([("length", string("-1")), ("body", string("{}"))], 2),
        ([("length", string("9" * 16)), ("body", string("{}"))], 2),
        ([("length", string(b"\xff")), ("body", b"\x00")], 0),
        ([("body", b"\x03\x02")], 0),
        ([], 0),
    ],
)
def test_body_without_a_valid_length_counts_its_beginning(arguments: Sequence[tuple[str, bytes]], length: int) -> None:
    picker = _accepted()
    assert picker.query(*arguments)
    assert picker.service.queries[0].body_length == length


def test_pick_ends_by_the_id_of_its_query() -> None:
    picker = _accepted()
    picker.query(("id", string(NAME)))
    assert picker.service.proxy_of(NAME) == "ha"
    RequestEnds(picker.service).received(END.format(NAME).encode())
    assert picker.service.open_picks == 0


@pytest.mark.parametrize(
    "name", [b"\x00", b"\x03\x01", string(""), string("x" * 36), string(NAME + "0"), string(NAME.upper())]
)
def test_id_that_is_not_a_uuid_names_no_pick(name: bytes) -> None:
    picker = _accepted()
    assert picker.query(("id", name))
    assert picker.service.queries[0].id == ""
    assert picker.service.open_picks == 1


@pytest.mark.parametrize("target", ["/pick/other", "/pick/", "", "/", "/pick/chat/", "/pick/%ff", "/pick/%"])
def test_query_for_an_unknown_pool_has_no_replica(target: str) -> None:
    picker = _accepted()
    assert picker.query(target=target) == ""
    assert picker.service.open_picks == 0


def test_values_that_are_not_utf_8_are_answered() -> None:
    picker, bad = _accepted(), string(b"\xff\xfe")
    pairs = [(name, bad) for name in ("id", "length", "tenant", "headers", "value", "body", "proxy", "unknown")]
    assert picker.query(*pairs) in {"a", "b", "c"}
    assert spop.replica_of(picker.send(spop.notify([("key", string(KEY)), ("target", bad)])).data) == ""


# ── On a connection ──────────────────────────────────────────────────────────────────────────────────────────────────


_Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def _query(number: int, session: str = "s") -> bytes:
    session_header = ("headers", string("x-session-id")), ("value", string(session))
    return spop.notify(
        [("key", string(KEY)), ("target", string("/pick/chat")), *session_header], stream=300 + number, number=number
    )


@asynccontextmanager
async def _listening(picker: _Picker, *, is_local: bool = True) -> AsyncIterator[_Connect]:
    """Listen as the picker does, and yield a function that connects."""
    factory = connections(HttpApi(picker.service, bytes, key=picker.key), spop=picker.api if is_local else None)
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1")
    async with server, asyncio.timeout(60):
        yield lambda: asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


def test_queries_of_one_segment_are_answered_in_order() -> None:
    async def run() -> None:
        async with _listening(picker) as connect:
            reader, writer = await connect()
            writer.write(spop.hello() + b"".join(map(_query, range(5))))
            assert (await _frame(reader))[4] == 101
            for number in range(5):
                response = await _frame(reader)
                assert response == spop.ack(spop.replica_of(response), 300 + number, number)
            writer.close()

    picker = _Picker()
    asyncio.run(run())
    assert len(picker.service.queries) == 5


def test_query_that_comes_byte_by_byte_is_answered() -> None:
    async def run() -> None:
        async with _listening(picker) as connect:
            reader, writer = await connect()
            for byte in spop.hello() + _query(1):
                writer.write(bytes((byte,)))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await _frame(reader))[4] == 101
            response = await _frame(reader)
            assert response == spop.ack(spop.replica_of(response), 301, 1)
            writer.close()

    picker = _Picker()
    asyncio.run(run())
    assert len(picker.service.queries) == 1


def test_http_and_spop_on_one_port_name_the_same_replica() -> None:
    async def run() -> None:
        async with _listening(picker) as connect:
            reader, writer = await connect()
            writer.write(spop.hello())
            await _frame(reader)
            for number in range(10):
                writer.write(_query(number, f"s{number}"))
                replica = spop.replica_of(await _frame(reader))
                http, request = await connect()
                head = f"GET /pick/chat HTTP/1.1\r\nx-lbctl-pick-key: {KEY}\r\nx-session-id: s{number}\r\n"
                request.write(f"{head}connection: close\r\n\r\n".encode())
                assert f"x-lbctl-pick: {replica}\r\n".encode() in await http.read()
                request.close()
            writer.close()

    picker = _Picker()
    asyncio.run(run())
    assert picker.key.refused == 0


@pytest.mark.parametrize(
    "bad",
    [spop.hello(), b"\x00\x00\x00\x00", spop.frame(spop.NOTIFY, b"\xf0"), b"\x00\x10\x00\x01", b"GET / HTTP/1.1\r\n"],
)
def test_malformed_frame_ends_the_connection_after_its_answers(bad: bytes) -> None:
    async def run() -> bytes:
        async with _listening(_Picker()) as connect:
            reader, writer = await connect()
            writer.write(spop.hello() + _query(1) + bad + _query(2))
            frames = [await _frame(reader) for _ in range(3)]
            assert [frame[4] for frame in frames] == [101, 103, 102]
            assert await reader.read() == b""
            writer.close()
            return frames[2]

    assert b"\x0bstatus-code\x03\x04" in asyncio.run(run())


@pytest.mark.parametrize("sent", [spop.hello(check=True), spop.hello() + spop.frame(spop.DISCONNECT, b"")])
def test_connection_is_closed_after_a_check_or_disconnect(sent: bytes) -> None:
    async def run() -> int:
        async with _listening(picker) as connect:
            reader, writer = await connect()
            writer.write(sent + _query(1))
            received = await reader.read()
            writer.close()
            return len(received)

    picker = _Picker()
    assert asyncio.run(run())
    assert picker.service.queries == []


@pytest.mark.parametrize("sent", [b"\x00", spop.hello() + _query(1)[:-1]])
def test_incomplete_frame_is_disconnected(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    async def run() -> None:
        async with _listening(picker) as connect:
            reader, writer = await connect()
            writer.write(sent)
            with suppress(ConnectionResetError):
                while await reader.read(1_000):
                    pass
            writer.close()

    monkeypatch.setattr("lbctl.picker.connection.QUESTION_TIMEOUT", 0.5)
    picker = _Picker()
    asyncio.run(run())
    assert picker.service.queries == []


def test_listener_for_other_machines_has_no_spop() -> None:
    async def run() -> bytes:
        async with _listening(picker, is_local=False) as connect:
            reader, writer = await connect()
            writer.write(spop.hello() + _query(1) + b"\r\n\r\n")
            received = await reader.read()
            writer.close()
            return received

    picker = _Picker()
    assert asyncio.run(run()).startswith(b"HTTP/1.1 500 ")
    assert picker.service.queries == []
