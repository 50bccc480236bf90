"""A prompt's length, and its prefix as a chain of block hashes similar to those in engines' prefix caches.

Each hash covers its block and all preceding blocks. If the first n blocks of two requests are equal, then so are their
first n hashes, even if one of the bodies is truncated. Hashes are 64 bits long and depend on a process secret (`hash`),
so that a client cannot construct a prompt whose hash collides with another prompt's.
"""

from __future__ import annotations

import string
from typing import NamedTuple

from lbctl.ir.pools import Prefix

_OTHER_PART = 1000
"""Assumed length, in tokens, of a message part without text, such as an image."""
_BYTES_PER_TOKEN = 4
"""Assumed ratio for bodies that cannot be read."""
_BITS = {
    string.ascii_lowercase: 0b10000010,
    string.ascii_uppercase: 0b10010000,
    string.digits: 0b01111110,
    "_.-=*#~/\\": 0b11100000,
    "\n\r\t": 0b00100101,
    " ": 0,
}
"""Bits that identify classes of ASCII characters. All other ASCII characters have the `_SIGN` bits.

Tokenizers split text where the character class changes, and merge characters of the same class. A character therefore
costs `_BIT` tokens for each of its bits that the preceding character does not have. How the bits were chosen is
described in docs/develop/picking-study.md.
"""
_SIGN = 0b01000001
_BIT, _UPPER_CASE = 0.484, 0.05
"""Tokens per new bit, and additional tokens per uppercase letter."""
_FURTHER_BYTE, _KOREAN = 0.365, 0.12
"""Tokens per UTF-8 byte after a character's first byte, and additional tokens per Korean character."""
_MAX_BYTES_PER_TOKEN = 16
"""Limits the effect of text in which the character class never changes."""
_FURTHER_BYTES = bytes(range(0x80, 0xC0))
"""UTF-8 bytes that are not the first byte of a character."""
_NOT_HAN, _NOT_HANGUL = (bytes({*range(256)} - {*firsts}) for firsts in (range(0xE4, 0xEA), range(0xEA, 0xEE)))
"""All bytes except the first bytes of Chinese and Korean characters. Japanese text also contains Chinese characters."""
_CLASSES = bytes(
    next((bits for characters, bits in _BITS.items() if chr(code) in characters), _SIGN if code < 128 else 0)
    for code in range(256)
)
_SAMPLE, _PIECE = 1536, 128
"""Maximum number of characters examined, and the length of the pieces that make up this sample."""
_UPPER_CASE_BITS = int.from_bytes(b"\x10" * _SAMPLE, "little")
"""Only uppercase letters have both this bit and the bit three positions above it."""
MAX_PROMPT_TOKENS = 131_072
"""Upper bound on an estimated prompt length, in tokens."""
_PARTS_OF_PROMPTS = ("system", "instructions", "prompt", "input", "messages")
"""Members of a body that make up the prompt, in the order in which engines concatenate them."""
_MAX_VALUES, _MAX_LEVELS = 4096, 8
"""Maximum number of values in a prompt (each token ID is a value), and maximum nesting depth of the values. Real APIs
use six levels."""
Document = dict[str, object]


class PromptLength(NamedTuple):
    """Estimated length of a prompt in tokens, broken down by kinds of content that tokenizers treat differently."""

    ascii: float = 0.0
    """ASCII characters, and bodies that could not be read."""
    han: float = 0.0
    """Chinese characters, including those in Japanese text."""
    other: float = 0.0
    """Other non-ASCII characters."""
    parts: float = 0.0
    """Parts without text, such as images."""


EMPTY = PromptLength()


class PromptTexts(NamedTuple):
    """A prompt's texts, in order."""

    counted: list[str]
    """Texts used to estimate the prompt's length."""
    distinguished: list[str]
    """Texts that caches use to distinguish prompts, up to the limit; they include roles, and the URLs or data of other
    parts."""
    others: int
    """Number of parts without text."""
    complete: bool
    """Whether the whole prompt was read."""


def texts(document: Document, limit: int) -> PromptTexts:
    """Return a prompt's texts. `PromptTexts.distinguished` stops at `limit` characters."""
    counted: list[str] = []
    distinguished: list[str] = []
    others, length = 0, 0
    left = [(document[key], 0) for key in reversed(_PARTS_OF_PROMPTS) if key in document]
    for _ in range(_MAX_VALUES):
        if not left or left[-1][1] > _MAX_LEVELS:
            break
        value, depth = left.pop()
        text = own = None
        if isinstance(value, str):
            text = own = value
        elif isinstance(value, list):
            left.extend([(item, depth + 1) for item in reversed(value[:_MAX_VALUES])])
        elif isinstance(value, dict):
            text, own, is_other = _part(value, length < limit)
            others += is_other
            if "content" in value:
                left.append((value["content"], depth + 1))
        elif value is not None:
            own = f"{value} "
            text = " a" if isinstance(value, int) else None  # a token ID: counted as one word
        if text is not None:
            counted.append(text)
        if own is not None and length < limit:
            distinguished.append(own[:limit])
            length += len(distinguished[-1])
    return PromptTexts(counted, distinguished, others, not left)


def chain(found: PromptTexts, seed: str, rules: Prefix) -> tuple[int, ...]:
    """Return the hash of each complete block of the prompt's prefix; each hash covers all preceding blocks.

    `seed` distinguishes prompts that cannot share a cache: prompts for different pools, tenants, models or adapters.
    """
    block, value = rules.block, hash(seed)
    beginning = "".join(found.distinguished).encode("utf-8", "replace")[: block * rules.blocks]
    hashes = []
    for start in range(0, len(beginning) - block + 1, block):
        value = hash((value, beginning[start : start + block]))
        hashes.append(value)
    return tuple(hashes)


def length(found: PromptTexts | None, body: bytes, body_length: int) -> PromptLength:
    """Return an estimate of the prompt's length. No part of the estimate exceeds `MAX_PROMPT_TOKENS`.

    `body` is the beginning of the body from which `found` was read, and `body_length` is the length of the entire body.
    The rest of the body is assumed to resemble the part that was read.
    """
    text = "".join(found.counted) if found is not None and found.complete else None
    is_whole = len(body) == body_length
    if found is None or text is None or (not is_whole and len(text) < _SAMPLE):
        return PromptLength(min(body_length / _BYTES_PER_TOKEN, MAX_PROMPT_TOKENS))
    counted = _tokens_of(text)
    if is_whole:
        parts = min(_OTHER_PART * found.others, MAX_PROMPT_TOKENS)
        return PromptLength(*counted, parts)
    scale = body_length / len(text.encode("utf-8", "replace"))
    return PromptLength(*[min(tokens * scale, MAX_PROMPT_TOKENS) for tokens in counted])


def _tokens_of(text: str) -> tuple[float, float, float]:
    """Return the number of tokens for ASCII characters, for Chinese characters, and for other characters."""
    sample = _sample(text)
    data = sample.encode("utf-8", "replace")
    firsts = data if len(data) == len(sample) else data.translate(None, _FURTHER_BYTES)
    bits = int.from_bytes(firsts.translate(_CLASSES), "little")
    count, han, other = _BIT * (bits ^ bits & bits << 8).bit_count(), 0.0, 0.0
    count += _UPPER_CASE * (bits & bits >> 3 & _UPPER_CASE_BITS).bit_count()
    if firsts is not data:
        han = 2 * _FURTHER_BYTE * len(firsts.translate(None, _NOT_HAN))
        korean = _KOREAN * len(firsts.translate(None, _NOT_HANGUL))
        other = _FURTHER_BYTE * (len(data) - len(sample)) - han + korean
    count = max(count, len(data) / _MAX_BYTES_PER_TOKEN - han - other)
    if sample is not text:
        scale = len(text) / len(sample)
        return count * scale, han * scale, other * scale
    return count, han, other


def _sample(text: str) -> str:
    """Return evenly spaced pieces of a long text."""
    if len(text) <= _SAMPLE:
        return text
    last = len(text) - _PIECE
    return "".join([text[start : start + _PIECE] for start in range(0, last + 1, last // (_SAMPLE // _PIECE - 1))])


def _part(value: Document, is_needed: bool) -> tuple[str | None, str | None, bool]:
    """Return three values for a message or message part, ignoring its `content`:

    its text, its text for `PromptTexts.distinguished` (None unless it `is_needed`), and whether it is a part without
    text.
    """
    has_content, text = "content" in value, value.get("text")
    if has_content or not isinstance(text, str):
        text = None
    is_other = text is None and not has_content and "type" in value
    if not is_needed:
        return text, None, is_other
    data = _data_of(value) if is_other else text
    return text, f"\x00{_name(value.get('role'))}{_name(value.get('type'))}\x00{data or ''}", is_other


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


def _data_of(part: Document) -> str:
    try:
        return repr(part)
    except RecursionError:
        return ""
