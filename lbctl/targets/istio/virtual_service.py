"""The rules of listeners as VirtualServices: one for each listener and host, with every rule that can match there.

Gateways select a VirtualService by the most specific host name, and never consider another. A host's VirtualService
therefore repeats the rules of wider hosts, and is bound only where it is the most specific one. The first matching rule
wins, as in lbctl. Rules that an earlier rule covers are never needed and are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import covers, host_covers
from lbctl.ir.routes import Forward, Respond
from lbctl.ir.snapshot import View
from lbctl.targets.istio import changes
from lbctl.targets.istio.destinations import Destinations
from lbctl.targets.istio.gateway import GROUP, Section
from lbctl.targets.manifests.durations import duration
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.http_route import RuleConflict, Way, is_attached, path_of, ways_of
from lbctl.targets.manifests.names import NameGrammar, Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.manifests.precedence import HeaderMatch, Match
from lbctl.targets.response_bodies import body_of

_RULE = NameGrammar("rule", 253, separator=".")
_DEFAULT_PORT = 80
"""Port that a redirect to https removes from the host."""


@dataclass(frozen=True, slots=True)
class HostTable:
    """A listener's rules for one host, in the order in which they are compared."""

    listener: Listener
    host: str
    """Empty: any host."""
    ways: tuple[Way, ...]


def tables(view: View) -> tuple[list[HostTable], list[Diagnostic]]:
    """Return the rules of each listener and host, and the errors about rules that cannot be expressed."""
    found: list[HostTable] = []
    errors: dict[Diagnostic, None] = {}
    for listener in view.listeners:
        for host in sorted({rule.host for rule in listener.rules}):
            rules = _uncovered(rule for rule in listener.rules if host_covers(rule.host, host))
            try:
                ways = [way for rule in rules for way in ways_of(view, rule, permanent_redirects=True)]
            except RuleConflict as conflict:
                errors[conflict.diagnostic] = None
            else:
                found.append(HostTable(listener, host, tuple(ways)))
    return found, list(errors)


def _uncovered(rules: Iterator[Rule]) -> list[Rule]:
    """Return the rules for one host that an earlier rule does not cover."""
    kept: list[Rule] = []
    for rule in rules:
        anywhere = replace(rule, host="")
        if not any(covers(replace(earlier, host=""), anywhere) for earlier in kept):
            kept.append(rule)
    return kept


def diagnostics(view: View, found: Sequence[HostTable]) -> Iterator[Diagnostic]:
    """Yield the settings of routes that VirtualServices express only in part."""
    for table in found:
        for way in table.ways:
            if not way.redirect:
                yield from changes.diagnostics(view, way.route, list(way.shares))
            elif table.listener.bind.port != _DEFAULT_PORT:
                message = f"Istio keeps the port {table.listener.bind.port} of the Host header in redirects"
                path = ("routes", way.route.name, "respond", "redirect")
                yield warning("route.redirect", message, path, "redirect on a listener with port 80")


# ── Objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_virtual_services(
    objects: Objects, view: View, found: Sequence[HostTable], sections: Sequence[Section], destinations: Destinations
) -> None:
    """Add the VirtualServices."""
    by_parts = {(view.proxy.name, table.listener.name, *filter(None, [table.host])): table for table in found}
    for parts, name in names(object_name("VirtualService"), by_parts).items():
        table = by_parts[parts]
        hosts = [other.host for other in found if other.listener is table.listener]
        own = [section for section in sections if section.listener == table.listener.name]
        gateways = [section.gateway for section in own if is_attached(table.host, section.host, hosts)]
        spec = {
            "hosts": [table.host or "*"],
            "gateways": list(dict.fromkeys(gateways)),
            "http": _rules(objects, view, table, destinations),
        }
        objects.add(GROUP, "VirtualService", name, "route", ("listeners", table.listener.name), spec=spec)


def _rules(objects: Objects, view: View, table: HostTable, destinations: Destinations) -> list[Tree]:
    built = [
        (way, [_match(match, table.listener, path) for path in alternatives for match in way.matches], new_path)
        for way in table.ways
        for alternatives, new_path in changes.paths(way.rule.path, way.route)
    ]
    counts: Counter[Parts] = Counter()
    numbered: list[Parts] = []
    for way, _, _ in built:
        counts[way.name] += 1
        numbered.append((*way.name, *([str(counts[way.name])] if counts[way.name] > 1 else [])))
    by_key = names(_RULE, numbered)
    trees: list[Tree] = []
    for key, (way, matches, new_path) in zip(numbered, built, strict=True):
        outcome = _outcome(view, table.listener, way, new_path, destinations)
        tree: dict[str, Any] = {"name": by_key[key], "match": matches, **outcome}
        path = path_of(way.route)
        objects.own(path, tree)
        objects.own((*path, "match"), *matches)
        if "retries" in tree and way.route.retry.attempts:
            objects.own((*path, "retry"), tree["retries"])
        if len(way.shares) > 1:
            objects.own((*path, "split"), *tree["route"])
        trees.append(tree)
    return trees


def _match(match: Match, listener: Listener, path: Tree) -> Tree:
    tree: Tree = {"port": listener.bind.port}
    if path:
        tree["uri"] = path
    if match.method:
        tree["method"] = {"exact": match.method}
    if match.headers:
        tree["headers"] = {name: _condition(condition) for name, condition in match.headers}
    return tree


def _condition(condition: HeaderMatch) -> Tree:
    """Return the condition on a header. Envoy rejects an empty prefix, which would match any value."""
    if condition.kind == "prefix" and not condition.value:
        return {"regex": ".*"}
    return {condition.kind: condition.value}


def _outcome(view: View, listener: Listener, way: Way, new_path: str | None, destinations: Destinations) -> Tree:
    """Return the part of a rule that determines how its requests are handled."""
    route, pools = way.route, list(way.shares)
    if way.redirect:
        return {"redirect": {"scheme": "https", "redirectCode": way.redirect}}
    if isinstance(route.action, Respond):
        return _response(view, listener, way, route.action)
    assert isinstance(route.action, Forward)
    tree: Tree = {}
    if change := changes.headers(view, listener, route, pools):
        tree["headers"] = change
    # A hosted API has its own host, which is a header of its destination.
    authority = None if any(view.pools[pool].upstream for pool in pools) else changes.new_host(route)
    rewrite = {**({"uri": new_path} if new_path else {}), **({"authority": authority} if authority else {})}
    if rewrite:
        tree["rewrite"] = rewrite
    tree["route"] = destinations.of(route, way.shares)
    mirror = route.action.mirror
    if mirror is not None and mirror.percent:
        percent = int(mirror.percent) if mirror.percent.is_integer() else mirror.percent
        share = {} if percent == 100 else {"percentage": {"value": percent}}
        tree["mirrors"] = [{"destination": destinations.mirror(route, mirror.pool), **share}]
    if route.request_timeout is not None:
        tree["timeout"] = duration(route.request_timeout)
    return {**tree, "retries": changes.retries(view, route, pools)}


def _response(view: View, listener: Listener, way: Way, action: Respond) -> Tree:
    text = body_of(action, listener, view)
    body = {"body": {"string": text}} if text else {}
    tree: Tree = {"directResponse": {"status": action.status, **body}}
    if change := changes.response_headers(view, listener, way.route, action.content_type if text else ""):
        tree["headers"] = change
    return tree
