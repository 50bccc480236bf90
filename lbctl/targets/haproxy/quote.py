"""The tokens of haproxy.cfg: all user text is quoted here, once, for the grammar of its place.

HAProxy splits a line like a shell and then parses some words again: as a log-format (`%` starts an expression) or as
arguments of a sample (commas, parentheses). Each function below implements one of these grammars. Nothing here strips
or repairs text. Text that HAProxy cannot represent (control characters other than a body's line feeds and tabs) is
rejected.

`line` finds the variables and ACLs that a line reads and sets, because it knows HAProxy's syntax for them.
"""

from __future__ import annotations

import re

from lbctl.base.diagnostics import Path
from lbctl.ir.address import Address
from lbctl.targets.response_bodies import error_body
from lbctl.targets.token import Token, UnquotedError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ARGUMENT = re.compile(r"[A-Za-z0-9!#$%&*+.^_`|~:/\[\]'-]*")
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_SETS = re.compile(
    r"(?:http-(?:request|response|after-response)|tcp-request content) set-var(?:-fmt)?\(([\w.]+)\)|acl (\S+)"
)
_VARIABLE = re.compile(r"(?<![\w.])txn\.[\w.]+")
_QUOTED = re.compile("'[^']*'|\"[^\"]*\"")
_ANONYMOUS_ACL = re.compile(r"\{[^}]*\}")
_NO_NAMES: frozenset[str] = frozenset()
_ESCAPES = {"\n": '"\\n"', "\t": '"\\t"'}
FOREVER = 24 * 24 * 3_600_000
"""HAProxy's maximum timeout in milliseconds: 24 of the 24.8 days that fit into 31 bits."""


def word(text: str, source: Path = ()) -> Token:
    """Return a single word that represents exactly `text`.

    In HAProxy, single quotes make everything except themselves literal. Raises UnquotedError for an empty text or a
    text with control characters.
    """
    if not text or _CONTROL.search(text):
        raise UnquotedError(f"not a word of haproxy.cfg: {text!r}")
    return Token("'" + text.replace("'", "'\"'\"'") + "'", source)


def text(value: str, source: Path = ()) -> Token:
    """Return one word that may contain line feeds and tabs. Only double quotes can escape them."""
    parts = re.split("([\n\t])", value)
    return Token("".join(_ESCAPES.get(part) or word(part).text for part in parts if part), source)


def formatted(value: str, source: Path = ()) -> Token:
    """Return a log-format that evaluates to exactly `value`.

    For an empty value, return an expression that is always empty, because a word cannot be empty.
    """
    return word(value.replace("%", "%%") or "%[str()]", source)


def name(value: str) -> Token:
    """Return a name from the fleet.

    The model only allows names that HAProxy reads literally; this check is a second line of defence. Raises
    UnquotedError for any other name.
    """
    if not _NAME.fullmatch(value):
        raise UnquotedError(f"not a name: {value!r}")
    return Token(value)


def sample(fetch: str, argument: str, *converters: str, place: int | None = None) -> str:
    """Return a sample with a user-defined argument (the name of a header or cookie, or a JSON path), for use in `word`.

    `place` selects one of several headers with that name; -1 is the last one. Raises UnquotedError for unsupported
    characters.
    """
    if not _ARGUMENT.fullmatch(argument):
        raise UnquotedError(f"not an argument of a sample: {argument!r}")
    occurrence = "" if place is None else f",{place}"
    return ",".join([f'{fetch}("{argument}"{occurrence})', *converters])


def error(message: str, kind: str) -> str:
    """Return the body of an error response by the proxy itself, for `return`.

    The arguments must be lbctl's own text.
    """
    return json_answer(error_body(message, kind))


def json_answer(body: str) -> str:
    """Return `body` as the body of a response by the proxy itself, for `return`. The body must be lbctl's own text."""
    return f"content-type application/json string {word(body).text}"


def address(value: Address, source: Path = ()) -> Token:
    """Return an address to bind or connect to."""
    return word(f"unix@{value.path}" if value.path else str(value), source)


def duration(milliseconds: int | None) -> Token:
    """Return a timeout of at least 1 ms; None means no limit."""
    return Token(f"{min(FOREVER, FOREVER if milliseconds is None else max(1, milliseconds))}ms")


def line(*parts: str | Token | int, source: Path = ()) -> Token:
    """Return the parts as one line. A plain `str` is HAProxy syntax and never a user's value."""
    first_source = source or next((part.source for part in parts if isinstance(part, Token) and part.source), ())
    text = " ".join(part.text if isinstance(part, Token) else str(part) for part in parts if part != "")
    return Token(text, first_source, *_names(text))


def _names(text: str) -> tuple[frozenset[str], str]:
    """Return the names that a line reads (variables, and ACLs in its condition), and the variable or ACL that it sets.

    The second value is empty if the line sets nothing.
    """
    found = _SETS.match(text)
    name, rest = (found[1] or found[2], text[found.end() :]) if found else ("", text)
    if "txn." not in rest and " if " not in rest:
        return _NO_NAMES, name
    condition = _ANONYMOUS_ACL.sub(" ", _QUOTED.sub(" ", rest)).partition(" if ")[2]
    acls = {word.removeprefix("!") for word in condition.split()} - {"||"}
    return frozenset(_VARIABLE.findall(rest)) | acls, name
