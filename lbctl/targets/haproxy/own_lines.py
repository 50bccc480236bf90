"""Checks that own lines for HAProxy stay in their section: none begins a new section or continues on the next line.

HAProxy removes quotes and backslashes from a word before it checks whether the word begins a section. The first word of
a line must therefore be plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lbctl.ir.proxies import Proxy
from lbctl.targets import own_lines
from lbctl.targets.own_lines import Misplaced
from lbctl.targets.token import Token

_SECTIONS = frozenset(
    [
        "acme",
        "backend",
        "cache",
        "crt-store",
        "defaults",
        "fcgi-app",
        "frontend",
        "global",
        "http-errors",
        "listen",
        "log-forward",
        "log-profile",
        "mailers",
        "peers",
        "program",
        "resolvers",
        "ring",
        "traces",
        "userlist",
    ]
)
_SERVERS = frozenset(("server", "server-template"))
_CONDITIONS = (".if", ".elif", ".else", ".endif")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class OwnLine:
    """An own line that is not a comment."""

    keyword: str
    text: str
    number: int
    """Line number, from 1."""


def tokens(proxy: Proxy, place: str, owner: str = "") -> tuple[Token, ...]:
    """Return the own lines for a place, as configuration lines that may read any name that occurs in them."""
    lines_of_place = own_lines.tokens(proxy, place, owner)
    return tuple(replace(item, reads=frozenset(_NAME.findall(item.text))) for item in lines_of_place)


def lines(text: str) -> Iterator[OwnLine]:
    """Yield the lines that are neither empty nor comments."""
    for number, row in enumerate(text.split("\n"), 1):
        stripped = row.strip()
        if stripped and not stripped.startswith("#"):
            yield OwnLine(stripped.split()[0], stripped, number)


def misplaced(place: str, text: str) -> Iterator[Misplaced]:
    """Yield the lines that would leave the section."""
    depth, last = 0, 0
    for line in lines(text):
        last = line.number
        if not _NAME.fullmatch(line.keyword):
            yield Misplaced(line.number, "this line does not begin with a keyword", "write the keyword without quotes")
        elif line.keyword in _SECTIONS:
            yield Misplaced(
                line.number, f"`{line.keyword}` begins a section, but these lines are already within a section"
            )
        elif place == "backend" and line.keyword in _SERVERS:
            message = "the replicas of a pool come from the fleet, so lbctl would remove this server"
            yield Misplaced(line.number, message, "list it in the pool's `replicas`")
        if line.text.endswith("\\"):
            yield Misplaced(
                line.number, "this line ends with a backslash, so it could continue", "write it on a single line"
            )
        if line.keyword in _CONDITIONS:
            depth += {".if": 1, ".endif": -1}.get(line.keyword, 0)
            if depth < 0 or (depth == 0 and line.keyword != ".endif"):
                yield Misplaced(line.number, f"`{line.keyword}` has no matching `.if` in this file")
                return
    if depth:
        yield Misplaced(last, "`.if` without a matching `.endif`")
