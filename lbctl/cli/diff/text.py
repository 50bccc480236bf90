"""Formats the difference between two fleets as short sections for people, or as JSON values for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from lbctl.base.diagnostics import Position, dotted
from lbctl.compile.sources import SourceMap, origin
from lbctl.ir.diff import Difference, ObjectChange, ReroutedRequests, SettingChange, TrafficChange
from lbctl.ir.listeners import Rule
from lbctl.ir.matching import path_text
from lbctl.ir.secrets import shown_value

_MAX_LINES = 12
"""Maximum number of lines of one kind below a heading. Any further lines are only counted."""
ABSENT = "(absent)"
"""Placeholder for a setting that is missing on one side."""
_SIGNS = {"added": "+", "removed": "-"}


def lines(difference: Difference, sources: SourceMap) -> Iterator[str]:
    """Yield the difference as lines of text. `sources` is the source map of the new side."""
    sections = (
        _things(difference.objects),
        _traffic(difference.traffic),
        _requests(difference.rerouted),
        _settings(difference, sources),
    )
    for section in sections:
        yield from (line if line.isprintable() else ascii(line)[1:-1] for line in section)
    yield summary(difference)


def summary(difference: Difference) -> str:
    """Return the number of changes of each kind, for example `1 added, 2 settings changed`, or `no difference`."""
    added = sum(item.kind == "added" for item in difference.objects)
    counts = (
        (added, "added", "added"),
        (len(difference.objects) - added, "removed", "removed"),
        (len(difference.settings), "setting changed", "settings changed"),
        (len(difference.rerouted), "group of requests rerouted", "groups of requests rerouted"),
        (len(difference.traffic), "share changed", "shares changed"),
    )
    changes = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
    return ", ".join(changes) or "no difference"


def as_json(difference: Difference, sources: SourceMap) -> dict[str, Any]:
    """Return the difference as JSON values. `sources` is the source map of the new side."""
    return {
        "same": not difference,
        "things": [
            {"change": item.kind, "path": dotted(item.path), "description": item.description}
            for item in difference.objects
        ],
        "traffic": [
            {
                "route": item.route,
                "pool": item.pool,
                "replica": item.replica or None,
                "old": round(item.old, 9),
                "new": round(item.new, 9),
            }
            for item in difference.traffic
        ],
        "requests": [
            {"listener": item.listener, "match": match(item.rule), "old": list(item.old), "new": list(item.new)}
            for item in difference.rerouted
        ],
        "settings": [
            {"path": dotted(item.path), "old": item.old, "new": item.new, "at": _at(item, sources)}
            for item in difference.settings
        ],
    }


def position(item: SettingChange, sources: SourceMap) -> Position | None:
    """Return the new value's position, or None if the files do not contain it.

    `sources` is the source map of the new side.
    """
    return origin(sources, item.path) if item.new is not None else None


def match(rule: Rule) -> dict[str, Any]:
    """Return a rule's conditions as JSON values."""
    return {
        "host": rule.host or None,
        "path": path_text(rule.path),
        "methods": list(rule.methods),
        "headers": {name: shown_value(name, value) for name, value in rule.headers},
        "models": list(rule.models),
    }


def conditions(rule: Rule) -> str:
    """Return the conditions as a single line, for example `POST api.example.com/v1/… with x-tier: gold`."""
    methods = f"{'|'.join(rule.methods)} " if rule.methods else ""
    path = path_text(rule.path)
    path = f" {path}" if rule.path.kind == "regex" and rule.host else path
    extra = [f"{name}: {shown_value(name, value)}" for name, value in rule.headers]
    extra += [f"model {'|'.join(rule.models)}"] if rule.models else []
    return f"{methods}{rule.host}{path}" + (f" with {', '.join(extra)}" if extra else "")


# ── Sections ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _things(things: Sequence[ObjectChange]) -> Iterator[str]:
    for section, items in groupby(things, key=lambda item: "replicas" if len(item.path) > 2 else str(item.path[0])):
        yield section
        names = [("/".join(map(str, item.path[1::2])), item) for item in items]
        width = max(len(name) for name, _ in names)
        yield from _capped([f"  {_SIGNS[item.kind]} {name:<{width}}  {item.description}" for name, item in names])


def _traffic(rows: Sequence[TrafficChange]) -> Iterator[str]:
    """Yield the changed shares, with pools before replicas and the largest changes first."""
    if rows:
        yield "traffic (share of the route's requests, by weight)"
    for route, items in groupby(rows, key=lambda item: item.route):
        moved = largest_first(items)
        names = [f"{item.pool}/{item.replica}" if item.replica else item.pool for item in moved]
        width = max(map(len, names[:_MAX_LINES]))
        yield f"  {route}"
        shares = (f"{_share(item.old)} → {_share(item.new)}  {100 * (item.new - item.old):+.2f}" for item in moved)
        yield from _capped([f"    {name:<{width}}  {share}" for name, share in zip(names, shares, strict=True)], 4)


def largest_first(rows: Iterable[TrafficChange]) -> list[TrafficChange]:
    """Sort the changes to one route, with pools before replicas and the largest changes first."""
    return sorted(rows, key=lambda item: (bool(item.replica), -abs(item.new - item.old), item.pool, item.replica))


def _share(value: float) -> str:
    return f"{100 * value:6.2f}%"


def _requests(rows: Sequence[ReroutedRequests]) -> Iterator[str]:
    if rows:
        yield "rerouted requests"
    yield from _capped(
        [f"  {item.listener}: {conditions(item.rule)}: {_takers(item.old)} → {_takers(item.new)}" for item in rows]
    )


def _takers(routes: tuple[str, ...]) -> str:
    return ", else ".join(name or "404" for name in routes)


def _settings(difference: Difference, sources: SourceMap) -> Iterator[str]:
    if difference.settings:
        yield "settings"
    rows = []
    for item in difference.settings:
        where = _at(item, sources)
        old, new = item.old or ABSENT, item.new or ABSENT
        rows.append(f"  {dotted(item.path)}: {old} → {new}" + (f"  {where}" if where else ""))
    yield from _capped(rows, most=10 * _MAX_LINES)


def _at(item: SettingChange, sources: SourceMap) -> str | None:
    place = position(item, sources)
    return str(place) if place else None


def _capped(rows: Sequence[str], indent: int = 2, most: int = _MAX_LINES) -> Iterator[str]:
    yield from rows[:most]
    if len(rows) > most:
        yield f"{' ' * indent}… and {len(rows) - most} more (-o json shows all)"
