from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from lbctl.base.bounded import TooLargeError, lines, size, whole, whole_of


async def _pieces(items: Iterable[bytes]) -> AsyncIterator[bytes]:
    for item in items:
        yield item


def _lines(items: Iterable[bytes], most: int) -> list[bytes]:
    async def collect() -> list[bytes]:
        return [line async for line in lines(_pieces(items), most)]

    return asyncio.run(collect())


def test_answer_is_joined_up_to_its_bound() -> None:
    assert asyncio.run(whole(_pieces([b"ab", b"", b"cd"]), 4)) == whole_of([b"abcd"], 4) == b"abcd"
    for pieces in ([b"abc", b"de"], [b"abcde"]):
        with pytest.raises(TooLargeError, match="a response larger than 4 B"):
            whole_of(pieces, 4)


def test_lines_are_found_wherever_the_pieces_end() -> None:
    text = b"one\n\n \r\ntwo\nthree"
    for length in range(1, len(text) + 1):
        pieces = [text[start : start + length] for start in range(0, len(text), length)]
        assert _lines(pieces, 5) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("pieces", [[b"a\nbcdefg"], [b"a\nbc", b"def", b"g\n"], [b"abcdef\n"]])
def test_long_line_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(TooLargeError, match="a line larger than 5 B"):
        _lines(pieces, 5)


def test_sizes_are_written_in_their_largest_unit() -> None:
    assert [size(item) for item in (1, 1024, 65_536, 1 << 20, 65_535)] == ["1 B", "1 KiB", "64 KiB", "1 MiB", "65535 B"]
