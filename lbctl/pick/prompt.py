"""The beginning of a prompt as blocks, each with the hash of everything before it, as engines cache it.

Two requests whose first n blocks are equal have equal first n hashes, whatever follows, and whether or not their bodies
were cut off. Hashes have 64 bits and a secret of the process (`hash`), so no client can make a prompt with the hash of
another one.
"""

from __future__ import annotations

from typing import NamedTuple

from lbctl.ir.pools import Prefix

_OTHER_PART = 1000
"""The tokens that a part of a message counts which is no text: an image, a sound."""
_BYTES_PER_TOKEN = 4
_MARK = 0.4
"""What a digit or a sign counts in tokens, beside its byte: tokenizers join letters, and few of these."""
_WHITESPACE = b" \n\t\r"
_NO_MARKS = bytes(code for code in range(256) if code > 127 or chr(code).isalpha() or code in _WHITESPACE)
MAX_PROMPT_TOKENS = 131_072
"""The most tokens that a prompt counts: a longer one is a false length, or more than models read."""
_PARTS_OF_PROMPTS = ("system", "instructions", "prompt", "input", "messages")
"""The members of a body that make a prompt, in the order in which engines put them together."""
_MAX_VALUES, _MAX_LEVELS = 4096, 8
"""How many values of a prompt are looked at (a token id is one), and how deep; what engines read has six levels."""
Document = dict[str, object]


def chain(document: Document, seed: str, rules: Prefix) -> tuple[int, ...]:
    """Return the hash of each whole block of the prompt's beginning, with all that precedes it.

    `seed` distinguishes prompts that share no cache: those of other pools, tenants, models and adapters.
    """
    text, block, value = _beginning(document, rules.block * rules.blocks), rules.block, hash(seed)
    hashes = []
    for start in range(0, len(text) - block + 1, block):
        value = hash((value, text[start : start + block]))
        hashes.append(value)
    return tuple(hashes)


def tokens(document: Document | None, body_length: int) -> float:
    """Estimate the prompt's length, at most `MAX_PROMPT_TOKENS`; `document` is None where the body was not read whole.

    Bytes of UTF-8 are counted: a Chinese or Japanese character has three, and takes nearly a token. Whitespace counts
    nothing, because it is part of the word that follows; code and data have more tokens to a byte than prose.
    """
    texts = _texts(document) if document is not None else None
    if texts is None or not texts.complete:
        return min(body_length / _BYTES_PER_TOKEN, MAX_PROMPT_TOKENS)
    return min(_tokens_of("".join(texts.found)) + _OTHER_PART * texts.others, MAX_PROMPT_TOKENS)


def _tokens_of(text: str) -> float:
    data = text.encode("utf-8", "replace").translate(None, _WHITESPACE)
    return len(data) / _BYTES_PER_TOKEN + _MARK * len(data.translate(None, _NO_MARKS))


def _beginning(document: Document, limit: int) -> bytes:
    texts = _texts(document, limit, inner=True)
    return "".join(texts.found).encode("utf-8", "replace")[:limit]


class _Texts(NamedTuple):
    """The texts of a prompt, in order."""

    found: list[str]
    others: int
    """The parts that are no text."""
    complete: bool
    """Whether all of the prompt was looked at."""


def _texts(document: Document, most: int | None = None, *, inner: bool = False) -> _Texts:
    """Return the texts of the prompt; once they have `most` characters, no more are looked for.

    With `inner`, a part that is no text is its URL or data, and roles are among the texts: what a cache distinguishes.
    """
    found: list[str] = []
    others, length = 0, 0
    left = [(document[key], 0) for key in reversed(_PARTS_OF_PROMPTS) if key in document]
    for _ in range(_MAX_VALUES):
        if not left or left[-1][1] > _MAX_LEVELS or (most is not None and length >= most):
            break
        value, depth = left.pop()
        text = None
        if isinstance(value, str):
            text = value
        elif isinstance(value, list):
            left.extend([(item, depth + 1) for item in reversed(value[:_MAX_VALUES])])
        elif isinstance(value, dict):
            text, is_other = _own_text(value, inner)
            others += is_other
            if "content" in value:
                left.append((value["content"], depth + 1))
        elif inner and value is not None:
            text = f"{value} "
        elif isinstance(value, int):
            text = "word"  # a token id: as many letters as a token has
        if text is not None:
            found.append(text if most is None else text[:most])
            length += len(found[-1])
    return _Texts(found, others, not left)


def _own_text(value: Document, inner: bool) -> tuple[str | None, bool]:
    """Return the text of a message, or of a part of one, without its content; and whether it is a part of no text."""
    text, is_other = value.get("text"), False
    if "content" in value:
        text = None
    elif not isinstance(text, str):
        is_other = "type" in value
        text = _data_of(value) if inner and is_other else None
    if not inner:
        return text, is_other
    role, kind = (name if isinstance(name := value.get(key), str) else "" for key in ("role", "type"))
    return f"\x00{role}{kind}\x00{text or ''}", is_other


def _data_of(part: Document) -> str:
    try:
        return repr(part)
    except RecursionError:
        return ""
