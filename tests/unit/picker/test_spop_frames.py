"""The codec of SPOP reads and writes the bytes of the specification, and rejects all others."""

from __future__ import annotations

import pytest

from lbctl.picker.connection import MalformedError
from lbctl.picker.spop_frames import (
    MAX_VALUES,
    NOTIFY,
    Frame,
    Value,
    ack,
    arguments,
    disconnect,
    hello,
    read,
    values,
)

HAPROXY_HELLO = (
    b"\x01\x00\x00\x00\x01\x00\x00"
    b"\x12supported-versions\x08\x032.0"
    b"\x0emax-frame-size\x03\xfc\xf0\x06"
    b"\x0ccapabilities\x08\x10pipelining,async"
    b"\x0bhealthcheck\x11"
)
NOTIFY_HEAD = b"\x03\x00\x00\x00\x01\xfc\x03\x01"
MESSAGE = b"\x05pick1\x04\x05proxy\x08\x02ha\x02id\x00\x06length\x03\xf0\x00\x04body\x09\x03{}\xff"
NUMBERS = [
    (0, "00"),
    (239, "ef"),
    (240, "f000"),
    (300, "fc03"),
    (2_287, "ff7f"),
    (2_288, "f08000"),
    (264_431, "ffff7f"),
    (264_432, "f0808000"),
    (33_818_863, "ffffff7f"),
    (4_328_786_159, "ffffffff7f"),
    (2**32, "f0f1fefe7e"),
    (2**63, "f0f1fefefefefefefe06"),
    (2**64 - 1, "fff0fefefefefefefe0e"),
]


@pytest.mark.parametrize(("number", "encoded"), NUMBERS)
def test_numbers_are_read_and_written(number: int, encoded: str) -> None:
    twice = bytes.fromhex(encoded) * 2
    frame = read(b"\x03\x00\x00\x00\x01" + twice)
    assert frame == Frame(NOTIFY, number, number, b"")
    assert ack(frame, ()) == bytes((0, 0, 0, 5 + len(twice))) + b"\x67\x00\x00\x00\x01" + twice


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"\x00", None),
        (b"\x01", False),
        (b"\x11", True),
        (b"\x02\xef", 239),
        (b"\x03\xf0\x00", 240),
        (b"\x04\xff\xf0\xfe\xfe\xfe\xfe\xfe\xfe\xfe\x0e", 2**64 - 1),
        (b"\x05\x00", 0),
        (b"\x06\x7f\x00\x00\x01", b"\x7f\x00\x00\x01"),
        (b"\x07" + bytes(15) + b"\x01", bytes(15) + b"\x01"),
        (b"\x08\x00", b""),
        (b"\x08\x03a\x00\xff", b"a\x00\xff"),
        (b"\x09\xf0\x00" + b"x" * 240, b"x" * 240),
    ],
)
def test_values_of_each_type_are_read(encoded: bytes, value: Value) -> None:
    pairs = b"\x01k" + encoded + b"\x01l\x11"
    assert values(pairs) == {b"k": value, b"l": True}
    assert arguments(b"\x01m\x02" + pairs) == [(b"k", value), (b"l", True)]


def test_frames_of_haproxy_are_read() -> None:
    first = read(HAPROXY_HELLO)
    assert first[:3] == (1, 0, 0)
    assert values(first.payload) == {
        b"supported-versions": b"2.0", b"max-frame-size": 16_380, b"capabilities": b"pipelining,async",
        b"healthcheck": True,
    }  # fmt: skip
    query = read(NOTIFY_HEAD + MESSAGE)
    assert query == Frame(3, 300, 1, MESSAGE)
    assert arguments(query.payload) == [(b"proxy", b"ha"), (b"id", None), (b"length", 240), (b"body", b"{}\xff")]


def test_message_may_have_no_argument_or_the_same_twice() -> None:
    assert arguments(b"\x05pick1\x00") == []
    assert arguments(b"\x00\x02\x01h\x08\x01a\x01h\x08\x01b") == [(b"h", b"a"), (b"h", b"b")]


def test_aborted_frame_without_fragments_is_read() -> None:
    assert read(b"\x02\x00\x00\x00\x03\x00\x00") == Frame(2, 0, 0, b"")


def test_frames_of_the_agent_are_written() -> None:
    assert hello(16_380) == (
        b"\x00\x00\x00\x40\x65\x00\x00\x00\x01\x00\x00"
        b"\x07version\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities\x08\x0apipelining"
    )
    assert disconnect(4, "not a frame") == (
        b"\x00\x00\x00\x2a\x66\x00\x00\x00\x01\x00\x00\x0bstatus-code\x03\x04\x07message\x08\x0bnot a frame"
    )
    assert ack(Frame(3, 300, 1, b""), [(b"replica", b"a")]) == (
        b"\x00\x00\x00\x16\x67\x00\x00\x00\x01\xfc\x03\x01\x01\x03\x02\x07replica\x08\x01a"
    )


def test_query_truncated_at_any_byte_is_rejected() -> None:
    whole = NOTIFY_HEAD + MESSAGE
    for size in range(len(whole)):
        with pytest.raises(MalformedError):
            arguments(read(whole[:size]).payload)


def test_hello_truncated_at_any_byte_has_whole_items() -> None:
    items = values(read(HAPROXY_HELLO).payload)
    for size in range(len(HAPROXY_HELLO)):
        try:
            found = values(read(HAPROXY_HELLO[:size]).payload)
        except MalformedError:
            continue
        assert found.items() <= items.items()
        assert len(found) < len(items)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a frame"),
        (b"\x03\x00\x00\x00", "not a frame"),
        (b"\x03\x00\x00\x00\x01\x00", "not a frame"),
        (b"\x03\x00\x00\x00\x01\xf0", "not a frame"),
        (b"\x03\x00\x00\x00\x00\x00\x00", "fragmented frames are not supported"),
        (b"\x03\x01\x00\x00\x02\x00\x00", "fragmented frames are not supported"),
        (b"\x03\x00\x00\x00\x01" + b"\xff" * 10 + b"\x00", "a number is too long"),
        (b"\x03\x00\x00\x00\x01\x00" + b"\xff" * 1_000, "a number is too long"),
    ],
)
def test_malformed_frame_is_rejected_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=f"^{reason}$"):
        read(data)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (b"\x01k", "a value is incomplete"),
        (b"\x01", "a value is incomplete"),
        (b"\xf0", "a value is incomplete"),
        (b"\x05k", "a value is incomplete"),
        (b"\xff\xf0\xfe\xfe\xfe\xfe\xfe\xfe\xfe\x0ek", "a value is incomplete"),
        (b"\x01k\x08\x02a", "a value is incomplete"),
        (b"\x01k\x09\xff", "a value is incomplete"),
        (b"\x01k\x03", "a value is incomplete"),
        (b"\x01k\x06\x7f\x00\x00", "a value is incomplete"),
        (b"\x01k\x07" + bytes(15), "a value is incomplete"),
        (b"\x01k\x0a", "not a known value type"),
        (b"\x01k\xff", "not a known value type"),
        (b"\x01k\x03" + b"\xff" * 11, "a number is too long"),
        (b"\xff" * 1_000, "a number is too long"),
        (b"\x00\x00" * (MAX_VALUES + 1), "too many values"),
    ],
)
def test_malformed_values_are_rejected_with_a_reason(pairs: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=f"^{reason}$"):
        values(pairs)
    with pytest.raises(MalformedError):
        arguments(b"\x01m\x01" + pairs)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "not a message"),
        (b"\x05pick1", "not a message"),
        (b"\xf0", "not a message"),
        (b"\x06pick1", "a value is incomplete"),
        (b"\x05pick1\x01", "a value is incomplete"),
        (b"\x05pick1\xff" + b"\x00\x00" * 254, "a value is incomplete"),
        (b"\x05pick1\x00\x05pick2\x00", "multiple messages in a frame are not supported"),
        (b"\x00\x00" * 500_000, "multiple messages in a frame are not supported"),
    ],
)
def test_malformed_message_is_rejected_with_a_reason(message: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=f"^{reason}$"):
        arguments(message)


def test_message_may_have_as_many_values_as_its_count_allows() -> None:
    assert len(arguments(b"\x05pick1\xff" + b"\x00\x00" * MAX_VALUES)) == MAX_VALUES
