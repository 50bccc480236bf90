"""Conversion of the blocks of a trace to the text of a prompt, and back.

A token is a word of three letters with a space, so engines and routers count the same number of tokens, whether they
count words or bytes. A block is 512 tokens, as in Mooncake's trace.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from string import ascii_lowercase

BLOCK = 512
"""Tokens."""
TOKEN = 4
"""Bytes."""
_VOCABULARY = 100_000


@lru_cache(maxsize=8192)
def _block(name: int) -> str:
    return _filled(f"{name:x}", BLOCK * TOKEN)


def _filled(name: str, size: int) -> str:
    """Return a repeated phrase of five words of three letters."""
    letters = hashlib.blake2b(name.encode(), digest_size=15).digest()
    words = (letters[start : start + 3] for start in range(0, len(letters), 3))
    phrase = "".join("".join(ascii_lowercase[letter % 26] for letter in word) + " " for word in words)
    return (phrase * (size // len(phrase) + 1))[:size]


def body(tokens: int, answer: int, blocks: tuple[int, ...], own: str) -> bytes:
    """Return the JSON of a chat request. `own`: a text that makes the part of the prompt after its blocks unique."""
    whole = blocks[: tokens // BLOCK]
    rest = tokens * TOKEN - len(whole) * BLOCK * TOKEN
    text = "".join(map(_block, whole)) + _filled(own, rest)
    message = {"role": "user", "content": text}
    return json.dumps({"model": "m", "messages": [message], "max_tokens": answer, "stream": True}).encode()


def read(text: str) -> tuple[int, tuple[int, ...]]:
    """Return the number of tokens of a prompt, and ids of its whole blocks. An id covers all preceding blocks."""
    digest = hashlib.blake2b(digest_size=8)
    size, names = BLOCK * TOKEN, []
    for start in range(0, len(text) - size + 1, size):
        digest.update(text[start : start + size].encode())
        names.append(int.from_bytes(digest.digest(), "big"))
    return max(1, len(text) // TOKEN), tuple(names)


def token(block: int) -> int:
    """Return the id of all tokens of a block. The ids of two different prompts differ from the first different block
    on."""
    return block % _VOCABULARY


def rendered(text: str) -> bytes:
    """Return the tokens of a prompt, as `/v1/chat/completions/render` of vLLM responds."""
    count, blocks = read(text)
    tokens = [b",".join([b"%d" % token(block)] * BLOCK) for block in blocks]
    if rest := count - BLOCK * len(blocks):
        tokens.append(b",".join([b"0"] * rest))
    return b'{"request_id":"r","token_ids":[%b]}' % b",".join(tokens)
