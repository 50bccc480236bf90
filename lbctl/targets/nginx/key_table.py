"""Maps a request's key to its tenant with a single hash table lookup, whatever the number of keys.

nginx looks up strings case-insensitively, and a fragment cannot enlarge the table's buckets for long keys. For this
reason, the table maps the end of a key to its tenant and the complete key, and another map compares the complete key
with the request's key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lbctl.ir.secrets import ApiKey
from lbctl.targets.nginx import names, quote
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

END = 46
"""Number of characters from the end of a key that are looked up, the maximum for nginx's default buckets."""
_NOTHING = (Token("default"), Token('""'))


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The lines of the file that nginx includes."""

    lines: tuple[str, ...]
    """One line for each distinct key ending, with the keys that have it."""
    refused: int
    """Number of keys that are left out because too many keys have the same ending."""


def table(keys: Iterable[ApiKey]) -> KeyTable:
    """Return the table for these keys, which must all be in plain text."""
    by_end: dict[str, list[ApiKey]] = {}
    for item in keys:
        by_end.setdefault(item.key[-END:].lower(), []).append(item)
    lines, refused = [], 0
    for end, items in by_end.items():
        value = quote.value(" ".join(f"{item.tenant} {item.key}" for item in items))
        if len(value.text) > quote.MAX_TOKEN_CHARACTERS:
            refused += len(items)
        else:
            lines.append(f"{quote.map_key(end).text} {value.text};\n")
    return KeyTable(tuple(lines), refused)


def add_maps(
    context: RenderContext, source: str, variable: str, *, scheme: str, file: Token, size: int
) -> None:  # fmt: skip
    """Add the maps from the header `source` to the tenant in `variable`, empty without a valid key.

    `scheme`: expression for the text in front of a key. `file`: path of the table, which has `size` lines. Expressions
    that cannot match fail immediately, because clients choose the length of the header.
    """
    name = variable.removesuffix("_tenant")
    key, end, found = f"{name}_key", f"{name}_key_end", f"{name}_found"
    given = quote.plain(f"~^{scheme}{names.group(key, '[!-~]++')}\\z")
    context.map(source, key, (_NOTHING, (given, Token(names.captured(key)))))
    last = quote.plain(f"~^.+{names.group(end, f'.{{{END}}}')}\\z")
    context.map(key, end, ((Token("default"), Token(key)), (last, Token(names.captured(end)))))
    context.map(end, found, (_NOTHING,), include=file, included=size)
    same, tenant = names.group(variable, "[^ ]++", "_given"), names.group(variable, "[^ ]++")
    again = names.captured(variable, "_given")[1:]
    pair = quote.plain(f"~^{same} (?:[^ ]++ [^ ]++ )*?{tenant} \\k<{again}>(?: |\\z)")
    context.map(f"{key} {found}", variable, (_NOTHING, (pair, Token(names.captured(variable)))))
