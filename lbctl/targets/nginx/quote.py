"""Quotes a user's text so that nginx reads it literally.

Inside `"…"`, only the backslash and the quote are special to nginx's parser. In directives that expand variables, `$`
is special too and cannot be escaped, so it is replaced by a variable that contains it. The model rejects control
characters other than line feed and tab. A token is a single line, so these two become nginx's own `\\n` and `\\t`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lbctl.base.diagnostics import Path
from lbctl.targets.token import Token

DOLLAR = "${lb_dollar}"
"""Variable that contains a dollar sign. The template defines it with `geo`."""
NO_VARIABLE = "\x01"
"""Placeholder for `$lb_` in a user's text during rendering, because it does not refer to one of lbctl's variables
there."""
MAX_TOKEN_CHARACTERS = 3000
"""Maximum length of a token in characters.

nginx reads its file through a 4 KiB buffer and rejects tokens that do not fit.
"""

_SAFE = re.compile(r"[A-Za-z0-9_./:@,=*+\[\]-]+")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})
_GROUP_NAME = re.compile(r"\(\?P?<[A-Za-z_][A-Za-z0-9_]*>")


def plain(text: str, source: Path = ()) -> Token:
    """Return a parameter in which nginx does not expand variables: a name, the path of a CA, the key of a map."""
    return Token(text if _SAFE.fullmatch(text) else _no_variables(_quoted(text)), source)


def map_key(text: str) -> Token:
    """Return a string that a map compares literally, even if it is a keyword or symbol such as `default` or `~`."""
    return plain(f"\\{text}")


def value(text: str, source: Path = ()) -> Token:
    """Return a parameter in which nginx expands variables."""
    return Token(text if _SAFE.fullmatch(text) else _quoted(text).replace("$", DOLLAR), source)


def script(text: str, source: Path = ()) -> Token:
    """Return lbctl's own text, in which `$name` is a variable."""
    return Token(_quoted(text), source)


def embed(text: str) -> str:
    """Return a user's text as part of a `script`, with every dollar sign replaced by the variable that contains it."""
    return text.replace("$", DOLLAR)


def literal(text: str) -> str:
    """Return a regular expression that matches `text` and nothing else."""
    return "".join(c if c.isalnum() or c in "_/" or ord(c) > 126 else f"\\{c}" for c in text)


def whole(pattern: str) -> str:
    """Return an expression that matches if `pattern` (RE2) matches the whole subject; a dot matches line feeds too.

    Group names are dropped, because nginx would set a variable for each.
    """
    return f"^(?s:{_without_names(pattern)})\\z"


def chunks(text: str) -> Iterable[str]:
    """Return `text` split into parts, each of which fits into a token when quoted."""
    parts, size = [""], 0
    for character in text:
        width = len(_quoted(character).replace("$", DOLLAR).encode()) - 2
        if size + width > MAX_TOKEN_CHARACTERS:
            parts.append("")
            size = 0
        parts[-1] += character
        size += width
    return parts


def _no_variables(text: str) -> str:
    return text.replace("$lb_", f"${NO_VARIABLE}lb_").replace("${lb_", f"${{{NO_VARIABLE}lb_")


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _without_names(pattern: str) -> str:
    parts, position, in_class = [], 0, False
    while position < len(pattern):
        group_name = None if in_class else _GROUP_NAME.match(pattern, position)
        if group_name:
            parts.append("(?:")
            position = group_name.end()
            continue
        end = position + _width(pattern, position)
        character = pattern[position:end]
        in_class = character == "[" or (in_class and character != "]")
        parts.append(character)
        position = end
    return "".join(parts)


def _width(pattern: str, position: int) -> int:
    """Return the length of the unit at `position`: an escape, a `\\Q…\\E`, or a single character."""
    if pattern.startswith("\\Q", position):
        end = pattern.find("\\E", position)
        return len(pattern) - position if end < 0 else end + 2 - position
    return 2 if pattern[position] == "\\" else 1
