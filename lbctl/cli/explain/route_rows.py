"""The rows of `lbctl explain route`, which describe how each proxy handles one request.

Proxies that agree share a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lbctl.base.diagnostics import Diagnostic
from lbctl.cli.diff.text import conditions
from lbctl.cli.explain.policy import policy
from lbctl.compile.fleet import Compiled
from lbctl.compile.sources import origin
from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Criterion, Request, criteria
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import PREFLIGHT, Forward, Redirect, Respond, Route
from lbctl.ir.shares import of_replicas
from lbctl.ir.snapshot import Snapshot, View, pools_of
from lbctl.targets import target
from lbctl.targets.assess import CLOSED
from lbctl.targets.features import BY_ID, FEATURES
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import Prepared, prepare
from lbctl.targets.reading import Message
from lbctl.targets.route_trace import Explained, PoolChoice, RuleCandidate, choice, explain
from lbctl.targets.target import Unsupported

Row = dict[str, Any]
_MISSED = 8
"""Maximum number of non-matching routes shown, starting with the closest match."""
_PROTECTING = frozenset({"LB499", BY_ID["listener.bind"].code, *(item.code for item in FEATURES if item.protects)})


def grouped(rows: list[tuple[str, Row]]) -> list[Row]:
    """Merge the rows of proxies that agree."""
    groups: list[Row] = []
    for proxy, row in rows:
        same = next((item for item in groups if {**item, "on": None} == {**row, "on": None}), None)
        if same is None:
            groups.append({"on": [proxy], **row})
        else:
            same["on"].append(proxy)
    return groups


def row_of(loaded: Loaded, listener: Listener, proxy: Proxy, message: Message) -> tuple[str, Row]:
    """Return the proxy's kind and version, and how it handles the request."""
    compiled = loaded.compiled
    prepared = prepare(target(proxy.kind), compiled, proxy, Snapshot(compiled.topology, secrets=loaded.secrets))
    explained = explain(listener, message, proxy.kind, proxy.version)
    name = f"{proxy.kind} {'.'.join(map(str, proxy.version[:2]))}"
    row: Row = {"read": _read(explained.request), "status": None, "why": None, "route": None}
    row |= {"also": [_beaten(item) for item in explained.matched[1:]], "missed": _missed(explained)}
    if explained.refusal is not None:
        return name, row | {"status": explained.refusal.status, "why": explained.refusal.message}
    if explained.winner is None or explained.request is None:
        return name, row | {"status": 404, "why": "no route matches"}
    return name, row | _won(compiled, prepared, listener, explained, explained.request)


def _won(compiled: Compiled, prepared: Prepared, listener: Listener, explained: Explained, request: Request) -> Row:
    assert explained.winner is not None
    name = explained.winner.route
    route = next(item for item in compiled.topology.routes if item.name == name)
    place = origin(compiled.sources, ("routes", name.removesuffix(PREFLIGHT)))
    row: Row = {
        "route": name,
        "at": str(place),
        "match": conditions(explained.winner),
        "conditions": [_criterion(item) for item in criteria(explained.winner, request)],
    }
    view = prepared.target.served(prepared.view)
    served_listener = next((item for item in view.listeners if item.name == listener.name), listener)
    rule = served_listener.rules[listener.rules.index(explained.winner)]
    row["order"] = _order(compiled, prepared, listener, explained)
    served = view.routes.get(name)
    if rule.route != name or served is None or served.action == CLOSED:
        owners = {("listeners", listener.name), ("routes", name), *(("pools", pool) for pool in pools_of(route))}
        found = map(compiled.sources.with_position, prepared.target.diagnostics(prepared.view))
        losses = [
            item for item in (*prepared.losses, *found) if item.path[:2] in owners or item.path[:1] == ("defaults",)
        ]
        protection_losses = [str(item) for item in losses if item.code in _PROTECTING]
        return row | {
            "status": 503,
            "why": "rejected, because this proxy cannot protect the route",
            "losses": protection_losses,
        }
    return row | _action(compiled, view, listener, route, request)


def _order(compiled: Compiled, prepared: Prepared, listener: Listener, explained: Explained) -> list[str]:
    """Return warnings if the proxy may prefer a different matching rule."""
    if len(explained.matched) < 2:
        return []
    matched = [listener.rules.index(item.rule) for item in explained.matched]
    seen = next((item for item in prepared.view.listeners if item.name == listener.name), listener)
    only_matched = replace(seen, rules=tuple(seen.rules[index] for index in sorted(matched)))
    found = prepared.target.diagnostics(replace(prepared.view, listeners=(only_matched,)))
    return [str(compiled.sources.with_position(item)) for item in found if _concerns_order(item, explained)]


def _concerns_order(finding: Diagnostic, explained: Explained) -> bool:
    assert explained.winner is not None
    expected = (BY_ID["route.match"].code, ("routes", explained.winner.route, "match", "path_regex"))
    return (finding.code, finding.path) == expected


def _action(compiled: Compiled, view: View, listener: Listener, route: Route, request: Request) -> Row:
    action = route.action
    if isinstance(action, Respond):
        what = "the list of models" if action.lists_models else repr(action.body)
        why = f"the proxy itself returns {what}"
        return {"status": action.status, "why": why, "policy": policy(compiled, view.proxy, listener, route, ())}
    if isinstance(action, Redirect):
        return {"status": 301 if request.method in ("GET", "HEAD") else 308, "why": "redirected to https"}
    action = _rendered(action, view.proxy)
    chosen = choice(action, request)
    return {
        "choice": _choice(compiled, route, action, chosen),
        "pools": [_pool(compiled, view, route, pool, chosen.shares) for pool in chosen.shares],
        "policy": policy(compiled, view.proxy, listener, route, tuple(chosen.shares)),
    }


def _rendered(action: Forward, proxy: Proxy) -> Forward:
    """Return the action without the parts that the proxy does not support."""
    lacking = {name for name, item in target(proxy.kind).capabilities.items() if isinstance(item, Unsupported)}
    sticky = None if action.sticky and f"route.sticky_split.{action.sticky.kind}" in lacking else action.sticky
    return replace(action, sticky=sticky, fallback=None if "route.fallback" in lacking else action.fallback)


def _choice(compiled: Compiled, route: Route, action: Forward, chosen: PoolChoice) -> Row:
    key = {"pin": ("pin", chosen.index or 0), "only": ("pool",)}.get(chosen.by, ("split",))
    place = origin(compiled.sources, ("routes", route.name, *key)) or origin(compiled.sources, ("routes", route.name))
    sticky = action.sticky
    explanations = {
        "pin": "a pin selects it",
        "kept": f"the cookie {sticky.name if sticky else ''} keeps the client on its pool",
        "kept_by_hash": f"selected by a hash of the header {sticky.name if sticky else ''}",
        "draw": "chosen at random by share"
        + (f", then kept by the cookie {sticky.name}" if sticky and sticky.kind == "cookie" else ""),
        "only": "the route's only pool",
    }
    additions = (
        [f"a copy of {action.mirror.percent:g}% of the requests goes to {action.mirror.pool}"] if action.mirror else []
    )
    additions += [f"falls back to {action.fallback} if no replica is available"] if action.fallback else []
    additions += [f"only in {', '.join(route.regions)}"] if route.regions else []
    return {"by": chosen.by, "reason": explanations[chosen.by], "at": str(place), "then": additions}


def _pool(compiled: Compiled, view: View, route: Route, name: str, shares: Mapping[str, float]) -> Row:
    pool = view.pools[name]
    parts = of_replicas(pool, regions=route.regions)
    return {
        "pool": name,
        "probability": round(shares[name], 9),
        "algorithm": target(view.proxy.kind).balancing(view, shares, name) or "algorithm of the Gateway class",
        "at": str(origin(compiled.sources, ("pools", name))),
        "discovery": pool.discovery.kind if pool.discovery else None,
        "replicas": {replica: round(part, 9) for replica, part in parts.items()},
    }


def _read(request: Request | None) -> Row | None:
    if request is None:
        return None
    path = request.path.encode("latin-1").decode(errors="replace")
    return {"host": request.host, "path": path, "model": request.model}


def _beaten(item: RuleCandidate) -> Row:
    return {"route": item.rule.route, "match": conditions(item.rule), "decided_by": item.beaten_by}


def _missed(explained: Explained) -> list[Row]:
    """Return the closest rule of each non-matching route."""
    nearest: dict[str, RuleCandidate] = {}
    for item in explained.missed:
        nearest.setdefault(item.rule.route, item)
    for item in explained.matched:
        nearest.pop(item.rule.route, None)
    shown = list(nearest.values())[:_MISSED]
    return [{"route": item.rule.route, "failed": [_criterion(each) for each in item.failed]} for item in shown]


def _criterion(item: Criterion) -> Row:
    return {"kind": item.kind, "name": item.name or None, "wanted": item.wanted, "actual": item.actual}
