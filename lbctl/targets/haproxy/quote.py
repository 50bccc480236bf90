"""The words of haproxy.cfg: every text of the user's passes through here once, for the grammar it is going to stand in.

HAProxy reads a line like a shell and then reads some words again: a log-format (`%` starts an expression) or the
arguments of a sample (commas, parentheses). Each function below is one of these grammars. Nothing here strips or
repairs: what HAProxy cannot hold (control characters other than the line feeds and tabs of a body) is refused.
"""

from __future__ import annotations

import json
import re

from lbctl.base.diagnostics import Path
from lbctl.ir.address import Address
from lbctl.targets.token import Token, UnquotedError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ARGUMENT = re.compile(r"[A-Za-z0-9!#$%&*+.^_`|~:/\[\]'-]*")
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_ESCAPES = {"\n": '"\\n"', "\t": '"\\t"'}
FOREVER = 24 * 24 * 3_600_000
"""The longest timeout that HAProxy holds, in ms: 24 days of the 24.8 that fit into 31 bits."""


def word(text: str, source: Path = ()) -> Token:
    """One word that means exactly `text`. Single quotes are literal in HAProxy, but for themselves."""
    if not text or _CONTROL.search(text):
        raise UnquotedError(f"not a word of haproxy.cfg: {text!r}")
    return Token("'" + text.replace("'", "'\"'\"'") + "'", source)


def text(value: str, source: Path = ()) -> Token:
    """As `word`, and line feeds and tabs may stand in it: in double quotes, the only place with an escape for them."""
    parts = re.split("([\n\t])", value)
    return Token("".join(_ESCAPES.get(part) or word(part).text for part in parts if part), source)


def formatted(value: str, source: Path = ()) -> Token:
    """A log-format that means exactly `value`; empty: an expression that is always empty, since a word cannot be."""
    return word(value.replace("%", "%%") or "%[str()]", source)


def name(value: str) -> Token:
    """A name of the fleet. The model allows nothing here that HAProxy reads otherwise; this is the second lock."""
    if not _NAME.fullmatch(value):
        raise UnquotedError(f"not a name: {value!r}")
    return Token(value)


def sample(fetch: str, argument: str, *converters: str, place: int | None = None) -> str:
    """A sample with one argument of the user's (a header's or a cookie's name, a JSON path), to be wrapped in `word`.
    `place`: which of several headers of that name, -1 the last."""
    if not _ARGUMENT.fullmatch(argument):
        raise UnquotedError(f"not an argument of a sample: {argument!r}")
    which = "" if place is None else f",{place}"
    return ",".join([f'{fetch}("{argument}"{which})', *converters])


def error(message: str, kind: str) -> str:
    """The body of an answer of the proxy's own, for `return`. Of lbctl's own words alone."""
    body = json.dumps({"error": {"message": message, "type": kind}}, separators=(",", ":"))
    return f"content-type application/json string {word(body).text}"


def address(value: Address, source: Path = ()) -> Token:
    return word(f"unix@{value.path}" if value.path else str(value), source)


def duration(milliseconds: int | None) -> Token:
    """`None` is for ever."""
    return Token(f"{min(FOREVER, FOREVER if milliseconds is None else max(1, milliseconds))}ms")


def line(*parts: str | Token | int, source: Path = ()) -> Token:
    """Words of one line. A plain `str` is HAProxy's own grammar and never a value of the user's."""
    found = source or next((part.source for part in parts if isinstance(part, Token) and part.source), ())
    return Token(" ".join(part.text if isinstance(part, Token) else str(part) for part in parts if part != ""), found)
