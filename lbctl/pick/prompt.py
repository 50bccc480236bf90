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


class PromptTexts(NamedTuple):
    """The texts of a prompt, in order."""

    counted: list[str]
    """Texts from which the prompt's length is estimated."""
    distinguished: list[str]
    """Texts that a cache distinguishes, as far as needed: also roles, and the URL or data of a part without text."""
    others: int
    """The number of parts without text."""
    complete: bool
    """Whether all of the prompt was looked at."""


def texts(document: Document, limit: int) -> PromptTexts:
    """Return the texts of the prompt, those for a cache until they have `limit` characters."""
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
            text = "word" if isinstance(value, int) else None  # a token id: as many letters as a token has
        if text is not None:
            counted.append(text)
        if own is not None and length < limit:
            distinguished.append(own[:limit])
            length += len(distinguished[-1])
    return PromptTexts(counted, distinguished, others, not left)


def chain(found: PromptTexts, seed: str, rules: Prefix) -> tuple[int, ...]:
    """Return the hash of each whole block of the prompt's beginning, with all that precedes it.

    `seed` distinguishes prompts that share no cache: those of other pools, tenants, models and adapters.
    """
    block, value = rules.block, hash(seed)
    beginning = "".join(found.distinguished).encode("utf-8", "replace")[: block * rules.blocks]
    hashes = []
    for start in range(0, len(beginning) - block + 1, block):
        value = hash((value, beginning[start : start + block]))
        hashes.append(value)
    return tuple(hashes)


def tokens(found: PromptTexts | None, body_length: int) -> float:
    """Estimate the prompt's length, at most `MAX_PROMPT_TOKENS`; `found` is None where the body was not read whole.

    Bytes of UTF-8 are counted: a Chinese or Japanese character has three, and takes nearly a token. Whitespace counts
    nothing, because it is part of the word that follows; code and data have more tokens to a byte than prose.
    """
    if found is None or not found.complete:
        return min(body_length / _BYTES_PER_TOKEN, MAX_PROMPT_TOKENS)
    return min(_tokens_of("".join(found.counted)) + _OTHER_PART * found.others, MAX_PROMPT_TOKENS)


def _tokens_of(text: str) -> float:
    data = text.encode("utf-8", "replace").translate(None, _WHITESPACE)
    return len(data) / _BYTES_PER_TOKEN + _MARK * len(data.translate(None, _NO_MARKS))


def _part(value: Document, is_needed: bool) -> tuple[str | None, str | None, bool]:
    """Return three facts about a message, or about a part of one, without its content.

    These are its text, the text that a cache distinguishes (None if it `is_needed` no longer), and whether it is a part
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
