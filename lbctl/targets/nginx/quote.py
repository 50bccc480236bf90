"""A user's text in nginx's grammar, so that it means exactly itself.

Inside `"…"` only the backslash and the quote are special to nginx's reader; where a directive expands variables, `$` is
too, and has no escape: there a variable of our own holds it. Control characters other than line feed and tab are the
model's to refuse; a token is one line, so those two are written as nginx's own `\\n` and `\\t`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lbctl.base.diagnostics import Path
from lbctl.targets.token import Token

DOLLAR = "${lb_dollar}"
"""The variable that holds a dollar sign: a `geo` of the template."""
LONGEST = 3000
"""Characters of one token: nginx reads its file through a buffer of 4 KiB and refuses a token that does not fit."""

_SAFE = re.compile(r"[A-Za-z0-9_./:@,=*+\[\]-]+")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})
_GROUP_NAME = re.compile(r"\(\?P?<[A-Za-z_][A-Za-z0-9_]*>")


def plain(text: str, source: Path = ()) -> Token:
    """For a parameter in which nginx expands nothing: a name, a path of a CA, the key of a map."""
    return Token(text if _SAFE.fullmatch(text) else _quoted(text), source)


def value(text: str, source: Path = ()) -> Token:
    """For a parameter in which nginx expands variables."""
    return Token(text if _SAFE.fullmatch(text) else _quoted(text).replace("$", DOLLAR), source)


def script(text: str, source: Path = ()) -> Token:
    """Text of lbctl's own, in which `$name` means the variable."""
    return Token(_quoted(text), source)


def embed(text: str) -> str:
    """A user's text as part of a `script`: its dollars are no variables there."""
    return text.replace("$", DOLLAR)


def literal(text: str) -> str:
    """A regular expression that matches `text` and nothing else."""
    return "".join(c if c.isalnum() or c in "_/" or ord(c) > 126 else f"\\{c}" for c in text)


def whole(pattern: str) -> str:
    """`pattern` (RE2) for all of the subject, in which a line may end like anywhere else. Group names are dropped: in
    nginx each would set a variable."""
    return f"^(?s:{_without_names(pattern)})\\z"


def chunks(text: str) -> Iterable[str]:
    """`text` in parts that fit a token each, quoted."""
    size = LONGEST // 10  # a dollar takes ten characters
    if len(text.encode()) <= size:
        return [text]
    return [text[i : i + size] for i in range(0, len(text), size)]


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _without_names(pattern: str) -> str:
    out, at, in_class = [], 0, False
    while at < len(pattern):
        named = None if in_class else _GROUP_NAME.match(pattern, at)
        if named:
            out.append("(?:")
            at = named.end()
            continue
        end = at + _width(pattern, at)
        part = pattern[at:end]
        in_class = part == "[" or (in_class and part != "]")
        out.append(part)
        at = end
    return "".join(out)


def _width(pattern: str, at: int) -> int:
    """How many characters from `at` on belong together: an escape, a `\\Q…\\E`, else one."""
    if pattern.startswith("\\Q", at):
        end = pattern.find("\\E", at)
        return len(pattern) - at if end < 0 else end + 2 - at
    return 2 if pattern[at] == "\\" else 1
