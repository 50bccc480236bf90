"""Writes a draft as the text of a fleet file, with sections in the model's order and comments at their objects."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lbctl.base.diagnostics import Path, Position
from lbctl.importer.draft import ClosedRoute, Draft, is_closed
from lbctl.importer.ledger import Note
from lbctl.importer.secrets import holds_secret, is_random

_WIDTH = 118
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*|[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|%|KiB|MiB|GiB)|[0-9]+/[smh]")
_WORDS_OF_YAML = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_TITLES = {
    "listeners": "Addresses where the proxies accept requests",
    "routes": "Rules that map requests to pools: the most specific route applies, regardless of order",
    "pools": "Replicas that serve the same model",
    "proxies": "Proxies that run this fleet",
}
_HEAD = """\
# yaml-language-server: $schema=./lbctl.schema.json
# Imported from {source} by `lbctl import {kind}`. {counts}.
# Next: `lbctl lint FILE` reports risky settings. `lbctl import {kind} {source} --compare` sends the same requests to
# the configuration and to this fleet, and reports different results.
"""
_ORDER = (
    "kind", "bind", "tls", "proxy_protocol", "client_address", "listeners", "match", "pool", "split", "respond",
    "rewrite", "pin", "mirror", "fallback", "websocket", "timeouts", "retry", "rate_limit", "auth", "headers",
    "model", "protocol", "balance", "affinity", "replicas", "discovery", "drain_deadline", "connections",
    "circuit_breaker", "slow_start", "health", "upstream",
)  # fmt: skip


def text(draft: Draft, kind: str, source: str) -> str:
    """Return the text of the fleet file."""
    lines = [_head(draft, kind, source)]
    notes = _by_place(draft, draft.ledger.notes)
    if notes.get(()):
        lines.append("#\n# Not converted:\n")
        lines += _notes(notes[()], 0)
    lines.append("version: 1\n")
    for section in (*_TITLES, *(key for key in draft.fleet if key not in _TITLES and key != "version")):
        objects = draft.fleet.get(section)
        if objects:
            lines += _section(draft, section, objects, notes)
    return "".join(lines)


def _head(draft: Draft, kind: str, source: str) -> str:
    carried, implied, noted = draft.ledger.counts()
    total = carried + implied + noted
    counts = f"{total} directives: {carried} converted, {implied} implied, {noted} kept as comments"
    name = source if source.isprintable() else ascii(source)
    return _HEAD.format(kind=kind, source=name, counts=counts)


def _by_place(draft: Draft, notes: Iterable[Note]) -> dict[Path, list[Note]]:
    """Group the notes by their object. Notes about removed objects are placed at the head of the file."""
    places: dict[Path, list[Note]] = {}
    for note in sorted(notes, key=lambda item: item.position):
        place = note.place[:2] if draft.get(note.place[:2]) is not None else ()
        places.setdefault(place, []).append(note)
    return places


def _section(draft: Draft, section: str, objects: Mapping[str, Any], notes: Mapping[Path, list[Note]]) -> Iterator[str]:
    title = _TITLES.get(section, section)
    yield f"\n# ── {title} {'─' * max(0, _WIDTH - 6 - len(title))}\n{section}:\n"
    for name, value in objects.items():
        origin = draft.origins.get((section, name))
        yield f"  {_key(name)}:" + (f"      # {place_of(origin.position)}" if origin else "") + "\n"
        yield from _notes(notes.get((section, name), ()), 4)
        if (closed := draft.closed.get((section, name))) is not None and is_closed(value):
            yield from _removed(draft, closed)
        yield from _block(value, 4)


def _notes(notes: Iterable[Note], indent: int) -> Iterator[str]:
    """Yield the comments. Directives with the same reason are grouped."""
    reasons: dict[str, list[Note]] = {}
    for note in notes:
        reasons.setdefault(note.reason, []).append(note)
    start = f"{' ' * indent}# "
    for reason, group in reasons.items():
        if len(group) > 1:
            yield from _wrapped(f"{reason}:", start, start)
        for note in group:
            text = f"{place_of(note.position)} {note.text}" + (f": {reason}" if len(group) == 1 else "")
            yield from _wrapped(text, start if len(group) == 1 else f"{start}  ", f"{start}    ")


def _removed(draft: Draft, closed: ClosedRoute) -> Iterator[str]:
    """Yield the comment with the keys that a closed route needs in order to handle requests again.

    Lines that contain a secret are only counted.
    """
    lines = [line for line in _block(closed.removed, 2) if not _is_secret(draft, line)]
    left_out = sum(_is_secret(draft, line) for line in _block(closed.removed, 2))
    if left_out:
        number = "one line" if left_out == 1 else f"{left_out} lines"
        lines.append(f"  # ({number} with a secret left out)\n")
    if closed.removed.keys() & {"pool", "split"}:
        first = f"{_by_hand(closed)}, then replace" if closed.by_hand else "To open this route, replace"
        yield f"    # {first} `respond` with:\n"
        yield from (f"    # {line}" for line in lines)
        return
    if closed.by_hand:
        yield f"    # {_by_hand(closed)}.\n"
    if lines:
        yield "    # If you open this route, also write:\n"
        yield from (f"    # {line}" for line in lines)


def _is_secret(draft: Draft, line: str) -> bool:
    return draft.ledger.secrets.inside(line) or holds_secret(line) or is_random(line)


def _by_hand(closed: ClosedRoute) -> str:
    """Return, as the start of a sentence, the keys that the operator must write before opening the route."""
    steps = ["complete `match`" if key == "match" else f"write `{key}` here" for key in closed.by_hand]
    text = ", ".join(steps)
    return text[0].upper() + text[1:]


def _wrapped(text: str, first: str, rest: str) -> Iterator[str]:
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return (f"{line}\n" for line in lines)


def place_of(position: Position) -> str:
    """Return the position to use in comments: the file's name without its directory, and the line."""
    return f"{position.file.rpartition('/')[2]}:{position.line}"


def _block(value: Mapping[str, Any], indent: int) -> Iterator[str]:
    spaces = " " * indent
    for key in sorted(value, key=_rank):
        child = value[key]
        flow = f"{spaces}{_key(key)}: {_flow(child)}"
        if not isinstance(child, dict | list) or not child or (len(flow) <= _WIDTH and not _is_long(child)):
            yield f"{flow}\n"
        elif isinstance(child, dict):
            yield f"{spaces}{_key(key)}:\n"
            yield from _block(child, indent + 2)
        elif not any(isinstance(item, dict | list) for item in child):
            yield from _wrapped(flow, "", f"{spaces}  ")
        else:
            yield f"{spaces}{_key(key)}:\n"
            yield from (f"{spaces}  - {_flow(item)}\n" for item in child)


def _is_long(value: Any) -> bool:
    """Return whether a value is easier to read on several lines: a list of maps, or a map with several maps."""
    if isinstance(value, list):
        return len(value) > 1 and any(isinstance(item, dict) for item in value)
    maps = [item for item in value.values() if isinstance(item, dict | list)]
    return len(maps) > 1 or any(_is_long(item) for item in maps)


def _rank(key: str) -> int:
    return _ORDER.index(key) if key in _ORDER else len(_ORDER)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)}: {_flow(value[key])}" for key in sorted(value, key=_rank)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    if isinstance(value, int) or (_PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML):
        return text
    return json.dumps(text)


def _key(name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name) is not None
    return name if plain and name.lower() not in _WORDS_OF_YAML else json.dumps(name)
