"""The beginning of a prompt as blocks, each with the hash of everything before it, as engines cache it.

Two requests whose first n blocks are equal have equal first n hashes, whatever follows, and whether or not their bodies
were cut off. The hashes are the same in every process, so that pickers can compare them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice

from lbctl.ir.pools import Prefix

_OTHER_PART = 1000
"""The tokens that a part of a message counts which is no text: an image, a sound."""
_BYTES_PER_TOKEN = 4
_MARK = 0.4
"""What a digit or a sign counts in tokens, beside its byte: tokenizers join letters, and few of these."""
_WHITESPACE = b" \n\t\r"
_NO_MARKS = bytes(code for code in range(256) if code > 127 or chr(code).isalpha() or code in _WHITESPACE)
MOST_TOKENS = 131_072
"""The most tokens that a prompt counts: a longer one is a false length, or more than models read."""
_MAX_TEXTS = 4096
"""How many texts of a prompt are looked at; a list of token ids is one text each."""
Document = dict[str, object]


def chain(document: Document, seed: str, rules: Prefix) -> tuple[int, ...]:
    """Return the hash of each whole block of the prompt's beginning, with all that precedes it.

    `seed` distinguishes prompts that share no cache: those of other pools, models and adapters.
    """
    text = _beginning(document, rules.block * rules.blocks)
    digest = hashlib.blake2b(seed.encode("utf-8", "replace"), digest_size=8)
    hashes = []
    for end in range(rules.block, len(text) + 1, rules.block):
        digest.update(text[end - rules.block : end])
        hashes.append(int.from_bytes(digest.digest(), "big"))
    return tuple(hashes)


def tokens(document: Document | None, body_length: int) -> float:
    """Estimate the prompt's length, at most `MOST_TOKENS`; `document` is None where the body was not read whole.

    Bytes of UTF-8 are counted: a Chinese or Japanese character has three, and takes nearly a token. Whitespace counts
    nothing, because it is part of the word that follows; code and data have more tokens to a byte than prose.
    """
    if document is None:
        return min(body_length / _BYTES_PER_TOKEN, MOST_TOKENS)
    length = 0.0
    others = 0
    for number, text in enumerate(_texts(document)):
        if number >= _MAX_TEXTS:
            return min(body_length / _BYTES_PER_TOKEN, MOST_TOKENS)
        if text is None:
            others += 1
        else:
            length += _tokens_of(text)
    return min(length + _OTHER_PART * others, MOST_TOKENS)


def _tokens_of(text: str) -> float:
    data = text.encode("utf-8", "replace").translate(None, _WHITESPACE)
    return len(data) / _BYTES_PER_TOKEN + _MARK * len(data.translate(None, _NO_MARKS))


def _beginning(document: Document, limit: int) -> bytes:
    parts: list[bytes] = []
    length = 0
    for text in islice(_texts(document, inner=True), _MAX_TEXTS):
        part = (text or "")[:limit].encode("utf-8", "replace")
        parts.append(part)
        length += len(part)
        if length >= limit:
            break
    return b"".join(parts)[:limit]


def _texts(document: Document, inner: bool = False) -> Iterator[str | None]:
    """Yield the texts of the prompt in order, None for a part that is no text.

    With `inner`, such a part is its URL or data, and roles are among the texts: what a cache distinguishes.
    """
    for key in ("system", "instructions", "prompt", "input", "messages"):
        if key in document:
            yield from _content(document[key], inner)


def _content(value: object, inner: bool) -> Iterator[str | None]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _content(item, inner)
    elif isinstance(value, dict):
        yield from _message(value, inner)
    elif inner and value is not None:
        yield f"{value} "
    elif isinstance(value, int):
        yield "word"  # a token id: as many letters as a token has


def _message(value: Document, inner: bool) -> Iterator[str | None]:
    """Yield the texts of a message, or of a part of one."""
    if inner:
        yield f"\x00{value.get('role', '')}{value.get('type', '')}\x00"
    if "content" in value:
        yield from _content(value["content"], inner)
    elif isinstance(value.get("text"), str):
        yield str(value["text"])
    elif "type" in value:
        yield repr(value) if inner else None
