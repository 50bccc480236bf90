"""Formats the difference between two fleets as Markdown for a comment on a merge request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from lbctl.base.diagnostics import dotted
from lbctl.cli.diff.text import ABSENT, conditions, largest_first, position, summary
from lbctl.cli.markdown import MarkdownTable, code, document
from lbctl.compile.sources import SourceMap
from lbctl.ir.diff import Difference, ObjectChange, SettingChange, TrafficChange

_KINDS = {"pools": "pool", "routes": "route", "listeners": "listener", "proxies": "proxy"}


def markdown(difference: Difference, sources: SourceMap) -> str:
    """Return the difference as a Markdown document. `sources` is the source map of the new side."""
    tables = (
        MarkdownTable(
            "Added and removed", ("Change", "Object", "Name", "Details"), [*map(_object, difference.objects)]
        ),
        MarkdownTable(
            "Share of each route's requests, by weight",
            ("Route", "Pool or replica", "Before", "After", "Change"),
            [*_traffic(difference.traffic)],
            numeric=frozenset({"Before", "After", "Change"}),
        ),
        MarkdownTable(
            "Rerouted requests",
            ("Listener", "Requests", "Route before", "Route after"),
            [
                (code(item.listener), code(conditions(item.rule)), _routes(item.old), _routes(item.new))
                for item in difference.rerouted
            ],
        ),
        MarkdownTable(
            "Settings",
            ("Setting", "Before", "After", "Source"),
            [_setting(item, sources) for item in difference.settings],
        ),
    )
    return document(summary(difference), tables)


def _object(item: ObjectChange) -> tuple[str, ...]:
    kind = "replica" if len(item.path) > 2 else _KINDS[str(item.path[0])]
    return item.kind, kind, code("/".join(map(str, item.path[1::2]))), code(item.description)


def _traffic(rows: Sequence[TrafficChange]) -> Iterator[tuple[str, ...]]:
    for route, items in groupby(rows, key=lambda item: item.route):
        for item in largest_first(items):
            name = f"{item.pool}/{item.replica}" if item.replica else item.pool
            change = f"{100 * (item.new - item.old):+.2f}"
            yield code(route), code(name), f"{100 * item.old:.2f} %", f"{100 * item.new:.2f} %", change


def _routes(names: Sequence[str]) -> str:
    return ", else ".join(code(name) if name else "404" for name in names)


def _setting(item: SettingChange, sources: SourceMap) -> tuple[str, ...]:
    place = position(item, sources)
    values = (code(value) if value else ABSENT for value in (item.old, item.new))
    return code(dotted(item.path)), *values, code(f"{place.file}:{place.line}") if place else ""
