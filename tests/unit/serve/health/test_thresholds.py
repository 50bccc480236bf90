"""Thresholds of active checks, and the part of HTTP/2 that they read."""

from __future__ import annotations

import asyncio

import pytest

from lbctl.control.check_thresholds import CheckResult, CheckState, initial_state, next_state
from lbctl.ir.pools import ActiveCheck, HttpCheck
from lbctl.serve.health import http2

_CHECK = ActiveCheck(HttpCheck(), unhealthy_threshold=3, healthy_threshold=2)
_GOOD, _BAD = CheckResult(), CheckResult("status 503")


def _after(state: CheckState, results: list[CheckResult]) -> list[bool]:
    outs = []
    for number, result in enumerate(results):
        state = next_state(state, _CHECK, result, 100.0 + number)
        outs.append(state.out)
    return outs


def test_replica_is_out_after_consecutive_failures() -> None:
    results = [_GOOD, _BAD, _BAD, _GOOD, _BAD, _BAD, _BAD, _GOOD, _BAD, _GOOD, _GOOD]
    assert _after(initial_state(0.0, trusted=True), results) == [False] * 6 + [True] * 4 + [False]


def test_first_result_decides_alone() -> None:
    assert _after(initial_state(0.0, trusted=True), [_BAD, _GOOD, _GOOD]) == [True, True, False]
    assert _after(initial_state(0.0, trusted=False), [_GOOD]) == [False]
    assert _after(initial_state(0.0, trusted=False), [_BAD, _GOOD]) == [True, True]


def test_state_keeps_reason_and_time_of_the_change() -> None:
    state = initial_state(5.0, trusted=True)
    for number, result in enumerate([_GOOD, _BAD, _BAD, CheckResult("no answer within 3 s"), _GOOD]):
        state = next_state(state, _CHECK, result, 100.0 + number)
    assert (state.out, state.since, state.reason, state.at) == (True, 103.0, "no answer within 3 s", 104.0)
    state = next_state(state, _CHECK, _GOOD, 105.0)
    assert (state.out, state.since, state.reason) == (False, 105.0, "")
    assert initial_state(7.0, trusted=False).reason == "not checked yet"


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"\x88", 200),
        (b"\x8e", 500),
        (b"\x3f\xe1\x1f\x88", 200),
        (b"\x20\x48\x03503", 503),
        (b"\x08\x03204", 204),
        (b"\x48\x82\x64\x02", 302),
        (b"\x48\x83\x6d\xf7\xff", 599),
    ],
)
def test_status_is_decoded_in_every_encoding(block: bytes, status: int) -> None:
    assert http2._status(block) == status


@pytest.mark.parametrize("first", range(10))
def test_every_huffman_digit_is_decoded(first: int) -> None:
    codes = [f"{digit:05b}" if digit < 3 else f"{0b011001 + digit - 3:06b}" for digit in range(10)]
    bits = codes[first] + codes[9 - first] + codes[7]
    text = int(bits.ljust(24, "1")[: -(-len(bits) // 8) * 8], 2).to_bytes(-(-len(bits) // 8))
    assert http2._huffman(text) == f"{first}{9 - first}7"


@pytest.mark.parametrize(
    "sent",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\xc5", b"\xff" * 20, b"\x00\x00\x04"],
    ids=["http1", "no status", "rubbish", "cut"],
)
def test_invalid_response_is_an_error(sent: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        await http2._read_response(reader, None)  # type: ignore[arg-type]

    with pytest.raises((http2.BrokenAnswerError, asyncio.IncompleteReadError)):
        asyncio.run(read())
