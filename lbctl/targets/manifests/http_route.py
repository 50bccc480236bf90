"""The rules of listeners as HTTPRoutes: one for each listener and host, with every rule that can match there.

Gateways select routes by their most specific host name, and most of them never consider another. A host's HTTPRoute
therefore repeats the rules of wider hosts, and is attached only where it is the most specific one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.base.hosts import is_ip
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import host_covers, overlaps
from lbctl.ir.routes import PREFLIGHT, Forward, Redirect, Route
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID
from lbctl.targets.manifests import filters
from lbctl.targets.manifests.durations import duration
from lbctl.targets.manifests.gateway import GROUP, Section
from lbctl.targets.manifests.matches import METHODS, matches_of, tree_of, with_method, with_pin
from lbctl.targets.manifests.names import NameGrammar, Parts, names
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.manifests.precedence import (
    MAX_ADDED,
    Conflict,
    InexpressibleError,
    Match,
    TooManyMatchesError,
    closed,
)

MAX_RULES, MAX_MATCHES, MAX_RULE_MATCHES = 16, 128, 64
"""Maximum number of rules and of matches in an HTTPRoute, and of matches in a rule."""
_MAX_PARENTS = 32
"""Maximum number of Gateway listeners that an HTTPRoute can be attached to."""
_MAX_HEADERS = 16
"""Maximum number of headers in a match."""
_RULE_NAME = NameGrammar("rule", 253, separator=".")
_ROUTE_NAME = NameGrammar("HTTPRoute", 248)
"""Grammar of names that a number can be appended to."""
_SAFE = ("GET", "HEAD")
_SIMPLER = "use fewer conditions on headers, methods and hosts for the same paths"


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a gateway handles a rule's requests. Each rule of an HTTPRoute expresses one way."""

    name: Parts
    route: Route
    rule: Rule
    matches: tuple[Match, ...]
    shares: dict[str, int] = field(default_factory=dict)
    """Maps each pool to its share, for requests that are forwarded."""
    redirect: int = 0
    """Status of a redirect, or 0 for no redirect. Without shares or a redirect, `Backends.response` decides."""


@dataclass(frozen=True, slots=True)
class HostTable:
    """A listener's rules for one host, in the order in which lbctl compares them."""

    listener: Listener
    host: str
    """Empty: any host."""
    ways: tuple[tuple[Way, tuple[Match, ...]], ...]
    """Each way with the matches that select it in an HTTPRoute."""


@dataclass(frozen=True, slots=True)
class PlacedRule:
    """A rule of a rendered HTTPRoute, to which policies can be attached."""

    way: Way
    listener: Listener
    http_route: str
    """Name of the HTTPRoute."""
    name: str
    """Name of the rule, which policies state as `sectionName`."""
    copies: int = 1
    """Number of the rule's matches times the number of Gateway listeners that it is attached to."""


class Backends(Protocol):
    """The parts of a rule that differ between the kinds of gateways."""

    def references(self, route: Route, shares: Mapping[str, int]) -> list[Tree]:
        """Return the backends of a rule that splits requests among pools by `shares`."""

    def mirror_reference(self, route: Route, pool: str) -> Tree:
        """Return the backend for mirrored requests."""

    def response(self, listener: Listener, way: Way) -> Tree:
        """Return the part of a rule for requests without a pool: closed routes, and the gateway's own responses."""

    def filters(self, listener: Listener, way: Way) -> list[Tree]:
        """Return further filters of a rule with shares."""


def path_of(route: Route) -> Path:
    """Return the path of a route in the fleet file."""
    return "routes", route.name.removesuffix(PREFLIGHT)


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tables(view: View, *, permanent_redirects: bool) -> tuple[list[HostTable], list[Diagnostic]]:
    """Return the rules of each listener and host, and the errors about rules that no HTTPRoute can express.

    `permanent_redirects`: whether the API supports status 308.
    """
    found: list[HostTable] = []
    errors: dict[tuple[object, ...], Diagnostic] = {}
    for listener in view.listeners:
        for host in sorted({rule.host for rule in listener.rules}):
            try:
                rules = [rule for rule in listener.rules if host_covers(rule.host, host)]
                ways = [way for rule in rules for way in ways_of(view, rule, permanent_redirects=permanent_redirects)]
                found.append(HostTable(listener, host, tuple(_closed(ways))))
            except RuleConflict as conflict:
                error = conflict.diagnostic
                errors.setdefault((error.code, error.path, error.message), error)
            except TooManyMatchesError:
                message = f"the rules for {host or 'any host'} overlap in more than {MAX_ADDED} ways"
                error = Diagnostic("LB172", message, path=("listeners", listener.name), hint=_SIMPLER)
                errors.setdefault((error.code, error.path, error.message), error)
    return found, list(errors.values())


class RuleConflict(Exception):  # noqa: N818 -- it names the two routes
    """The conditions of two rules, or of a rule and its pins, cannot be combined in one match."""

    def __init__(self, route: Route, message: str) -> None:
        super().__init__(route, message)
        hint = "use exact paths or prefixes instead of regular expressions"
        self.diagnostic = Diagnostic("LB172", message, path=(*path_of(route), "match"), hint=hint)


def _order_conflict(first: Route, second: Route) -> RuleConflict:
    if first.name == second.name:
        return RuleConflict(first, "this route's pin conditions cannot be combined")
    message = (
        f"requests that match both this route and route {second.name} would go to {second.name}: the Gateway API "
        "compares rules in a different order, and these conditions cannot be combined"
    )
    return RuleConflict(first, message)


def ways_of(view: View, rule: Rule, *, permanent_redirects: bool) -> Iterator[Way]:
    """Yield the ways of a rule, in order.

    Raises RuleConflict if a pin's condition cannot be combined with the rule's conditions. `permanent_redirects`:
    whether redirects may use status 308.
    """
    route = view.routes[rule.route]
    route = replace(route, name=rule.closed_route or route.name)
    matches = matches_of(rule)
    action = route.action
    if isinstance(action, Redirect):
        if permanent_redirects:
            yield from _redirects(route, rule, matches)
        else:
            yield Way((route.name,), route, rule, matches, redirect=301)
        return
    if not isinstance(action, Forward):
        suffix = ["options"] if route.name.endswith(PREFLIGHT) else []
        yield Way((route.name.removesuffix(PREFLIGHT), *suffix), route, rule, matches)
        return
    for index, pin in enumerate(action.pins, start=1):
        try:
            pinned = [with_pin(match, pin) for match in matches]
        except InexpressibleError:
            raise _order_conflict(route, route) from None
        selected = tuple(match for match in pinned if match is not None)
        if selected:
            yield Way((route.name, f"pin-{index}"), route, rule, selected, {pin.pool: 1})
    if matches:
        yield Way((route.name,), route, rule, matches, {share.pool: share.weight for share in action.shares})


def _redirects(route: Route, rule: Rule, matches: Sequence[Match]) -> Iterator[Way]:
    """Yield the redirects of a rule: 301 for safe methods, and 308, which keeps the method, for all others."""
    safe = tuple(both for method in _SAFE for match in matches if (both := with_method(match, method)))
    other = tuple(match for match in matches if match.method not in _SAFE)
    for index, (part, status) in enumerate(((safe, 301), (other, 308)), start=1):
        if part:
            yield Way((route.name, str(index)), route, rule, part, redirect=status)


def _closed(ways: Sequence[Way]) -> list[tuple[Way, tuple[Match, ...]]]:
    """Return each required way with its matches. Raises RuleConflict and TooManyMatchesError."""
    try:
        matches = closed([way.matches for way in ways])
    except Conflict as conflict:
        raise _order_conflict(ways[conflict.first].route, ways[conflict.second].route) from None
    for way, own in zip(ways, matches, strict=True):
        if _replaces_prefix(way) and any(match.path.kind == "regex" for match in own):
            message = "the API cannot replace a path prefix if another route matches the path by a regular expression"
            raise RuleConflict(way.route, message)
    return [(way, tuple(own)) for way, own in zip(ways, matches, strict=True) if own]


def errors(view: View) -> Iterator[Diagnostic]:
    """Yield the rule conditions that the API cannot express."""
    for listener in view.listeners:
        for rule in listener.rules:
            match = (*path_of(view.routes[rule.route]), "match")
            if is_ip(rule.host):
                message = f"the Gateway API cannot match the address {rule.host} as a host"
                yield Diagnostic("LB171", message, path=(*match, "hosts"), hint="use a host name")
            unknown = sorted(set(rule.methods) - METHODS)
            if unknown:
                message = f"the Gateway API cannot match the method {unknown[0]}"
                hint = f"its methods are {', '.join(sorted(METHODS))}"
                yield Diagnostic("LB171", message, path=(*match, "methods"), hint=hint)


def warnings(view: View, found: Sequence[HostTable], *, longest_first: bool = False) -> Iterator[Diagnostic]:
    """Yield the route settings that HTTPRoutes can express only in part, and the rules that exceed the API's limits.

    `longest_first`: whether the gateway compares expressions before prefixes, and longer expressions first. Otherwise,
    their order is unknown.
    """
    yield from _regex_warnings(found, longest_first=longest_first)
    for table in found:
        for way, matches in table.ways:
            if any(len(match.headers) > _MAX_HEADERS for match in matches):
                message = f"a Gateway API match can contain at most {_MAX_HEADERS} headers"
                hint = "use fewer headers, including in routes that match the same requests"
                yield Diagnostic("LB172", message, path=(*path_of(way.route), "match"), hint=hint)
            if way.shares:
                yield from filters.diagnostics(view, table.listener, way.route, list(way.shares))


def _regex_warnings(found: Sequence[HostTable], *, longest_first: bool) -> Iterator[Diagnostic]:
    """Yield a warning for each route whose regular expression overlaps a path of a later route that may come first.

    The API leaves it to the class how two expressions, or an expression and a prefix, are ordered.
    """
    feature = BY_ID["route.match"]
    may_take = _is_longer if longest_first else _may_take
    for table in found:
        for index, (way, _) in enumerate(table.ways):
            if way.rule.path.kind != "regex":
                continue
            others = [
                other.route.name
                for other, theirs in table.ways[index + 1 :]
                if other.route.name != way.route.name and any(may_take(match, way.rule) for match in theirs)
            ]
            if others:
                message = (
                    "the Gateway API leaves the order of a regular expression and an overlapping path to the class: "
                    f"in some classes, route {' or '.join(dict.fromkeys(others))} gets these requests"
                )
                hint = "use an exact path or a prefix, or check the class"
                if longest_first:
                    message = f"the gateway compares longer expressions first, so route {others[0]} gets the requests "
                    message += "that match both"
                    hint = "use an exact path or a prefix"
                path = (*path_of(way.route), "match", "path_regex")
                yield Diagnostic(feature.code, message, path=path, hint=hint, severity="warning")


def _may_take(match: Match, expression: Rule) -> bool:
    """Return whether a class may give a match precedence over an expression.

    Equal expressions keep the order of the rules.
    """
    is_other = match.path.kind == "prefix" or (match.path.kind == "regex" and match.path != expression.path)
    return is_other and overlaps(Rule("", path=expression.path), Rule("", path=match.path))


def _is_longer(match: Match, expression: Rule) -> bool:
    """Return whether a match has a longer expression than a rule that it overlaps with."""
    is_other = match.path.kind == "regex" and len(match.path.value) > len(expression.path.value)
    return is_other and overlaps(Rule("", path=expression.path), Rule("", path=match.path))


# ── Objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_routes(
    objects: Objects, view: View, found: Sequence[HostTable], sections: Sequence[Section], backends: Backends
) -> list[PlacedRule]:
    """Add the HTTPRoutes. Return their rules, in order."""
    placed: list[PlacedRule] = []
    pieces = {
        (view.proxy.name, table.listener.name, *filter(None, [table.host])): (
            table,
            _pieces(view, objects, table, sections, backends, found),
        )
        for table in found
    }
    for parts, name in _route_names(view, {parts: len(items) for parts, (_, items) in pieces.items()}).items():
        table, items = pieces[parts]
        for index, (rules, parents) in enumerate(items, start=1):
            hostnames = {"hostnames": [table.host]} if table.host else {}
            spec = {"parentRefs": parents, **hostnames, "rules": [rule.tree for rule in rules]}
            numbered = name if index == 1 else f"{name}-{_number(index, len(items))}"
            objects.add(GROUP, "HTTPRoute", numbered, "route", ("listeners", table.listener.name), spec=spec)
            placed += [
                PlacedRule(rule.way, table.listener, numbered, rule.name, rule.matches * len(parents)) for rule in rules
            ]
    return placed


def _route_names(view: View, counts: Mapping[Parts, int]) -> dict[Parts, str]:
    """Return the name of the first HTTPRoute of each host.

    Further HTTPRoutes get a number, so that the name determines the order of objects of the same age. A name that would
    clash with such a numbered name gets a digest.
    """
    assert view.proxy.kubernetes is not None
    numbered = [(*parts, _number(index, count)) for parts, count in counts.items() for index in range(2, count + 1)]
    made = names(_ROUTE_NAME, [*counts, *numbered])
    return {parts: made[parts] for parts in counts}


def _number(index: int, count: int) -> str:
    """Return the number of an HTTPRoute with leading zeros, so that names sort by number."""
    return f"{index:0{len(str(count))}}"


def _pieces(
    view: View,
    objects: Objects,
    table: HostTable,
    sections: Sequence[Section],
    backends: Backends,
    found: Sequence[HostTable],
) -> list[tuple[list[_Rule], list[Tree]]]:
    """Return the rules and parents of each HTTPRoute for one host."""
    hosts = [other.host for other in found if other.listener is table.listener]
    own = (section for section in sections if section.listener == table.listener.name)
    parents = [section.parent for section in own if is_attached(table.host, section.host, hosts)]
    starts = range(0, len(parents), _MAX_PARENTS)
    groups = _rules(view, objects, table, backends)
    return [(rules, parents[start : start + _MAX_PARENTS]) for rules in groups for start in starts]


def is_attached(host: str, section: str, hosts: Sequence[str]) -> bool:
    """Return whether the routes of `host` belong to a section of a Gateway. `hosts` are all hosts of the listener.

    The section receives requests for all hosts within it. Only the most specific of the HTTPRoutes for wider hosts
    belongs to the section, because it contains the others' rules.
    """
    if host_covers(section, host):
        return True
    wider = [item for item in hosts if host_covers(item, section)]
    return host in wider and all(host_covers(item, host) for item in wider)


def _divided(ways: Sequence[tuple[Way, tuple[Match, ...]]]) -> list[list[tuple[Way, tuple[Match, ...]]]]:
    """Divide ways into rules within the API's limits, and divide the rules among HTTPRoutes."""
    groups: list[list[tuple[Way, tuple[Match, ...]]]] = [[]]
    for way, matches in ways:
        size = 1 if _replaces_prefix(way) else MAX_RULE_MATCHES
        for start in range(0, len(matches), size):
            piece = matches[start : start + size]
            count = sum(len(other) for _, other in groups[-1])
            if len(groups[-1]) == MAX_RULES or count + len(piece) > MAX_MATCHES:
                groups.append([])
            groups[-1].append((way, piece))
    return groups


@dataclass(frozen=True, slots=True)
class _Rule:
    way: Way
    name: str
    tree: Tree
    matches: int
    """Number of matches."""


def _rules(view: View, objects: Objects, table: HostTable, backends: Backends) -> list[list[_Rule]]:
    """Return the rules of each HTTPRoute for one host."""
    groups = _divided(table.ways)
    counts: Counter[Parts] = Counter()
    numbered: list[Parts] = []
    for way, _ in (item for group in groups for item in group):
        counts[way.name] += 1
        numbered.append((*way.name, *([str(counts[way.name])] if counts[way.name] > 1 else [])))
    by_key = names(_RULE_NAME, numbered)
    keys = iter(numbered)
    return [[_rule(view, objects, table, backends, by_key[next(keys)], item) for item in group] for group in groups]


def _rule(
    view: View, objects: Objects, table: HostTable, backends: Backends, name: str, item: tuple[Way, tuple[Match, ...]]
) -> _Rule:
    way, matches = item
    tree: dict[str, Any] = {"name": name, "matches": [tree_of(match) for match in matches]}
    tree |= _outcome(view, table.listener, way, matches, backends)
    path = path_of(way.route)
    objects.own(path, tree)
    objects.own((*path, "match"), *tree["matches"])
    if way.shares and way.route.request_timeout is not None:
        objects.own((*path, "timeouts", "request"), tree["timeouts"])
    if len(way.shares) > 1:
        objects.own((*path, "split"), *tree["backendRefs"])
    return _Rule(way, name, tree, len(matches))


def _replaces_prefix(way: Way) -> bool:
    """Return whether the way replaces the matched prefix, so that the API allows one match in its rule."""
    return bool(way.shares) and way.route.rewrite is not None and way.route.rewrite.path_prefix is not None


def _outcome(view: View, listener: Listener, way: Way, matches: Sequence[Match], backends: Backends) -> Tree:
    """Return the part of a rule that determines how its requests are handled."""
    if way.redirect:
        return {"filters": [filters.redirect(way.redirect)]}
    if not way.shares:
        return backends.response(listener, way)
    action = way.route.action
    mirror = action.mirror if isinstance(action, Forward) else None
    copies = backends.mirror_reference(way.route, mirror.pool) if mirror else None
    built = filters.of_route(view, listener, way.rule, way.route, list(way.shares), matches[0], copies)
    built += backends.filters(listener, way)
    tree: Tree = {"filters": built} if built else {}
    timeout = way.route.request_timeout
    tree["timeouts"] = {"request": duration(timeout) if timeout is not None else "0s"}
    tree["backendRefs"] = backends.references(way.route, way.shares)
    return tree
