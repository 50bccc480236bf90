"""Envoy's own checker, and what its words say about where.

Envoy names no lines. It quotes the cluster ('route: unknown cluster 'x''), says which resource it was adding ("adding
listener 'x'"), or prints the message that broke a constraint. So a complaint is mapped by the names in it: of a
listener, a pool, or a route of the bundle; a file that is missing is mapped to whatever names that file first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.targets.target import Bundle, Complaint

_LOGGED = re.compile(r"^\[[^\]]*\]\[\d+\]\[(?P<level>\w+)\]\[[^\]]*\] (?:\[[^\]]*\] )?(?P<words>.*)$")
_SEVERE = frozenset(("critical", "error"))
_PREFIX = re.compile(r"^error initializing configuration '[^']*': ")
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"|(?:listener|cluster|Cluster|route) (\S+?)(?=[:,\s]|$)|(/[^\s:'\"]+)")


def check_command(binary: str, prefix: str, main: str) -> list[str]:
    """Needs neither root nor network; `prefix` stays unused, since Envoy writes nothing while it validates."""
    del prefix
    return [binary, "--mode", "validate", "-l", "error", "-c", main]


def complaints(output: str, bundle: Bundle) -> Iterator[Complaint]:
    """One for each line that Envoy logs as an error; lines that go on with it belong to it."""
    for words in dict.fromkeys(_messages(output)):
        message = _PREFIX.sub("", words)
        path = _path(message, bundle)
        line = next((line for line, owner in bundle.main.sources.items() if owner == path), None)
        yield Complaint(message, bundle.main.name, line, path)


def _messages(output: str) -> Iterator[str]:
    words: list[str] = []
    for text in output.splitlines():
        found = _LOGGED.match(text)
        if found:
            yield from _whole(words)
            words = [found["words"]] if found["level"] in _SEVERE else []
        elif words and text.strip():
            words.append(text.strip())
    yield from _whole(words)


def _whole(words: list[str]) -> Iterator[str]:
    if words:
        yield " ".join(words)


def _path(message: str, bundle: Bundle) -> Path:
    """Of the first name in the message that is one of the bundle's."""
    known = {owner[1]: owner[:2] for owner in bundle.main.sources.values()}
    lines = bundle.main.text.splitlines()
    for found in _QUOTED.finditer(message):
        word = next(item for item in found.groups() if item)
        name = word.split("|")[0]
        if name in known:
            return known[name]
        if word.startswith("/"):
            for line, owner in bundle.main.sources.items():
                if word in lines[line - 1]:
                    return owner
    return ()
