"""Which rule comes first: the Gateway API's order, the most specific wins wherever it stands in the file.

Host exact, longest wildcard, none; path exact, regex, longest prefix; with a method; with a model, exact before prefix;
more headers; then the route's name. https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule
"""

from __future__ import annotations

from lbctl.compile.convert import pairs, prefix
from lbctl.ir.listeners import PathMatch, Rule
from lbctl.model.route import Match, Route

_PATH_RANK = {"exact": 0, "regex": 1, "prefix": 2}


def rules_of(name: str, route: Route) -> list[Rule]:
    """One rule for each host of the route."""
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


def order(rule: Rule) -> tuple[object, ...]:
    """Sorts the rules of one listener."""
    return (
        *_host(rule.host),
        _PATH_RANK[rule.path.kind],
        -len(rule.path.value) if rule.path.kind == "prefix" else 0,
        0 if rule.methods else 1,
        *_models(rule.models),
        -len(rule.headers),
        rule.route,
        rule.host,
    )


def _host(host: str) -> tuple[int, int]:
    if not host:
        return 2, 0
    return (1, -len(host)) if host.startswith("*.") else (0, 0)


def _models(models: tuple[str, ...]) -> tuple[int, int]:
    if not models:
        return 2, 0
    longest = max(len(item) for item in models)
    return (1, -longest) if all(item.endswith("*") for item in models) else (0, 0)


def _path(match: Match) -> PathMatch:
    if match.path is not None:
        return PathMatch("exact", match.path)
    if match.path_regex is not None:
        return PathMatch("regex", match.path_regex)
    return PathMatch("prefix", prefix(match.path_prefix or "/"))
