"""The variables that an nginx configuration defines with harmless strings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set

from lbctl.importer.compare.sources.nginx_values import (
    accepts,
    is_harmless,
    is_network,
    is_of_nginx,
    is_reserved,
    named_captures,
    value_of,
)
from lbctl.importer.nginx.includes import unread
from lbctl.importer.statement import Statement, walk

_NAME = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_NOT_HARMLESS = frozenset(
    {"document_root", "hostname", "pid", "realpath_root", "request_body_file", "request_filename"}
)
_SETS = re.compile(r'\s*(?:(?:set|auth_request_set) "\$(\w+)"|(?:map|geo|split_clients) .*"\$(\w+)" \{)')
"""Beginning of a line that defines a variable, in the comparison's own format."""
_SHARE = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,2})?%|\*")
_RANGE = re.compile(r"[0-9.]{7,15}-[0-9.]{7,15}")
_Definition = tuple[str, tuple[str, ...], bool]
"""Variable, its source strings, and whether its block has a form that can be run."""


def known_variables(http: Sequence[Statement]) -> frozenset[str]:
    """Return the variables that can be used.

    All their strings depend only on the request and on other known variables.
    """
    definitions = [each for item in walk(http) for each in _definitions(item)]
    known = {name for name, _, _ in definitions if not is_reserved(name)} - _NOT_HARMLESS
    while unknown := {
        name
        for name, texts, well_formed in definitions
        if name in known and not (well_formed and all(is_harmless(text, known) for text in texts))
    }:
        known -= unknown
    return frozenset(known)


def undefined(known: Set[str], lines: Sequence[str]) -> list[str]:
    """Return the known variables that are not defined by any of these lines, sorted.

    A variable may be set only in a part that is closed, and nginx does not start if another part uses it.
    """
    defined = {name for text in lines for name in named_captures(text)}
    defined |= {(match[1] or match[2]).lower() for text in lines if (match := _SETS.match(text)) is not None}
    return sorted(name for name in known - defined if not is_of_nginx(name))


def _definitions(item: Statement) -> Iterator[_Definition]:
    for token in item.tokens:
        yield from ((name, (), True) for name in named_captures(token))
    values = [value_of(token) for token in item.args]
    match = _NAME.fullmatch(values[0 if item.name in {"set", "auth_request_set"} else -1]) if values else None
    if match is None:
        return
    if item.name in {"set", "auth_request_set"}:
        yield match[1].lower(), tuple(values[1:]), len(values) == 2
    elif item.is_block and item.name in _FORMS:
        entries = [each for each in item.block if each.name != "include"]
        entries += [inner for each in item.block if each.name == "include" for inner in _included(each)]
        texts = [value_of(token) for each in entries for token in each.args]
        sources = len(values) == 2 or (item.name == "geo" and len(values) == 1)
        sources = sources and not any(unread(item.block))
        yield match[1].lower(), (*values[:-1], *texts), sources and all(map(_FORMS[item.name], entries))


def _included(item: Statement) -> Iterable[Statement]:
    for each in item.block:
        yield from _included(each) if each.name == "include" else (each,)


def _is_map(entry: Statement) -> bool:
    if entry.is_block or value_of(entry.name) == "include":
        return False
    if entry.name in {"hostnames", "volatile"}:
        return not entry.args
    return accepts("regex", [value_of(entry.name)], ()) and len(entry.args) == 1


def _is_geo(entry: Statement) -> bool:
    name, values = value_of(entry.name), [value_of(token) for token in entry.args]
    if name in {"ranges", "proxy_recursive"}:
        return not values and not entry.is_block
    if name in {"proxy", "delete"}:
        return len(values) == 1 and is_network(values[0])
    return len(values) == 1 and (name == "default" or is_network(name) or _RANGE.fullmatch(name) is not None)


def _is_share(entry: Statement) -> bool:
    return not entry.is_block and len(entry.args) == 1 and _SHARE.fullmatch(value_of(entry.name)) is not None


_FORMS = {"map": _is_map, "split_clients": _is_share, "geo": _is_geo}
