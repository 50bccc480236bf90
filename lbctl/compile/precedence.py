"""The rules of a route, one for each of its hosts. `ir.matching.order` defines which of all rules comes first."""

from __future__ import annotations

from lbctl.compile.convert import pairs, prefix
from lbctl.ir.listeners import PathMatch, Rule
from lbctl.model.route import Match, Route


def rules_of(name: str, route: Route) -> list[Rule]:
    """Return one rule for each host of the route."""
    match = route.match
    return [
        Rule(
            route=name,
            host=host,
            path=_path(match),
            methods=tuple(sorted(set(match.methods))),
            headers=pairs(match.headers),
            models=tuple(sorted(set(match.model))),
        )
        for host in sorted(set(match.hosts)) or [""]
    ]


def _path(match: Match) -> PathMatch:
    if match.path is not None:
        return PathMatch("exact", match.path)
    if match.path_regex is not None:
        return PathMatch("regex", match.path_regex)
    return PathMatch("prefix", prefix(match.path_prefix or "/"))
