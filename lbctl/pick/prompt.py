"""The prefix of a prompt as a chain of block hashes, like the prefix caches of engines, and the prompt's length.

Each hash covers its block and all blocks before it. Two requests whose first n blocks are equal have equal first n
hashes, even if one of the bodies is truncated. Hashes have 64 bits and include a secret of the process (`hash`), so a
client cannot create a prompt with the hash of another prompt.
"""

from __future__ import annotations

from typing import NamedTuple

from lbctl.ir.pools import Prefix

_OTHER_PART = 1000
"""Assumed length of a message part without text, for example an image, in tokens."""
_BYTES_PER_TOKEN = 4
_MARK = 0.4
"""Tokens of a digit or symbol in addition to its byte, because tokenizers merge letters but few of these."""
_WHITESPACE = b" \n\t\r"
_NO_MARKS = bytes(code for code in range(256) if code > 127 or chr(code).isalpha() or code in _WHITESPACE)
MAX_PROMPT_TOKENS = 131_072
"""Upper bound on an estimated prompt length, in tokens."""
_PARTS_OF_PROMPTS = ("system", "instructions", "prompt", "input", "messages")
"""Members of a body that form the prompt, in the order in which engines concatenate them."""
_MAX_VALUES, _MAX_LEVELS = 4096, 8
"""Upper bounds on the number of a prompt's values (a token id is a value) and on their depth. APIs use six levels."""
Document = dict[str, object]


class PromptTexts(NamedTuple):
    """The texts of a prompt, in order."""

    counted: list[str]
    """Texts from which the prompt's length is estimated."""
    distinguished: list[str]
    """Texts by which caches distinguish prompts, up to the limit: also roles, and URLs or data of other parts."""
    others: int
    """Number of parts without text."""
    complete: bool
    """Whether the whole prompt was read."""


def texts(document: Document, limit: int) -> PromptTexts:
    """Return the texts of the prompt. `PromptTexts.distinguished` ends once it has `limit` characters."""
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
            text = "word" if isinstance(value, int) else None  # a token id: a word of average length
        if text is not None:
            counted.append(text)
        if own is not None and length < limit:
            distinguished.append(own[:limit])
            length += len(distinguished[-1])
    return PromptTexts(counted, distinguished, others, not left)


def chain(found: PromptTexts, seed: str, rules: Prefix) -> tuple[int, ...]:
    """Return the hash of each complete block of the prompt's prefix, including all preceding blocks.

    `seed` distinguishes prompts that do not share a cache: prompts of different pools, tenants, models or adapters.
    """
    block, value = rules.block, hash(seed)
    beginning = "".join(found.distinguished).encode("utf-8", "replace")[: block * rules.blocks]
    hashes = []
    for start in range(0, len(beginning) - block + 1, block):
        value = hash((value, beginning[start : start + block]))
        hashes.append(value)
    return tuple(hashes)


def tokens(found: PromptTexts | None, body_length: int) -> float:
    """Return an estimate of the prompt's length in tokens, at most `MAX_PROMPT_TOKENS`.

    `found` is None if the body is incomplete. The estimate counts bytes of UTF-8: a Chinese or Japanese character has
    three and takes nearly a token. Whitespace does not count, because it is part of the next word. Code and data have
    more tokens per byte than prose.
    """
    if found is None or not found.complete:
        return min(body_length / _BYTES_PER_TOKEN, MAX_PROMPT_TOKENS)
    return min(_tokens_of("".join(found.counted)) + _OTHER_PART * found.others, MAX_PROMPT_TOKENS)


def _tokens_of(text: str) -> float:
    data = text.encode("utf-8", "replace").translate(None, _WHITESPACE)
    return len(data) / _BYTES_PER_TOKEN + _MARK * len(data.translate(None, _NO_MARKS))


def _part(value: Document, is_needed: bool) -> tuple[str | None, str | None, bool]:
    """Return three values for a message or a part of a message, without its `content`.

    They are its text, its text in `PromptTexts.distinguished` (None unless it `is_needed`), and whether it is a part
    without text.
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
