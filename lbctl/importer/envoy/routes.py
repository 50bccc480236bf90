"""Converts virtual hosts and their routes. Envoy uses the first matching route."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer import provider
from lbctl.importer.draft import REDIRECTS
from lbctl.importer.envoy import policy
from lbctl.importer.envoy.clusters import aggregate, pool
from lbctl.importer.envoy.context import EnvoyImport
from lbctl.importer.envoy.filters import Filters
from lbctl.importer.envoy.protection import of_the_listener, own
from lbctl.importer.envoy.view import EMPTY, ConfigView
from lbctl.importer.matching import REFUSES_ALL, Match, apart, carve, covers, hides, identity, overlaps, within
from lbctl.importer.values import is_whole

_REDIRECTS = {
    "MOVED_PERMANENTLY": 301, "FOUND": 302, "SEE_OTHER": 303, "TEMPORARY_REDIRECT": 307, "PERMANENT_REDIRECT": 308
}  # fmt: skip
_METHOD, _AUTHORITY = ":method", ":authority"
_DOMAIN = re.compile(r"(\*\.)?[A-Za-z0-9.-]+(:\d+)?")


@dataclass(frozen=True, slots=True)
class RouteWithHost:
    """An Envoy route with its context."""

    match: Match
    view: ConfigView
    """The route, or an empty string for a filter's response."""
    host: ConfigView
    """The route's virtual host."""
    answer: ConfigView = EMPTY
    """Earlier route that handles some of the same requests, under conditions that a match cannot express. Empty if
    there is none."""
    is_lost: bool = False
    """Whether the match expresses only part of the condition."""
    hidden: tuple[ConfigView, ...] = ()
    """Later routes that handle requests meant for a closed route."""


def routes(context: EnvoyImport, listener: Path, config: ConfigView, filters: Filters) -> None:
    """Add the routes in a route configuration."""
    entries = [entry for host in config.get("virtual_hosts") for entry in _decided(context, _entries(context, host))]
    paths = [path for match, view in filters.answers if (path := _answer(context, listener, match, view))]
    for entry in entries:
        path = _route(context, listener, config, entry)
        paths.append(path)
        _protect(context, listener, path, entry, filters)
        if entry.answer and entry.view.get("route"):
            why = (
                "an earlier route answers or protects some of the same requests, and `match` cannot express which ones"
            )
            context.draft.ledger.omit(entry.answer.statement, f"{why}: the route refuses all requests", path)
            status = entry.answer.get("direct_response", "status").number
            context.draft.close(path, why, by_hand="auth" if status in {401, 403} else "")
        if entry.is_lost:
            why = "`match` cannot express the whole condition of this route"
            context.omit(entry.view.get("match"), f"{why}: {REFUSES_ALL}", path)
            context.draft.close(path, why, by_hand="match")
        for item in entry.hidden:
            context.omit(
                item, "this later route handles the requests that do not meet the closed route's condition", path
            )
        if filters.limits and not context.draft.answers(path):
            context.put((*path, "rate_limit"), list(filters.limits), *filters.limit_views)
    _others(context, listener, config, entries)


def _protect(context: EnvoyImport, listener: Path, path: Path, entry: RouteWithHost, filters: Filters) -> None:
    """Apply the filters that may reject requests to a route, unless the route disables them."""
    for item, lay, why in filters.protections:
        config = own((entry.view, entry.host), item)
        if config.get("disabled").text == "true":
            context.imply("the route turns this protection off", config)
        elif lay is not None and not config and (lay is of_the_listener or not _answers(context, path)):
            lay(path)
        else:
            context.omit(config or item, f"{why}: the route refuses all requests", path if config else listener)
            context.draft.close(path, why, by_hand="auth")
    for item in filters.disabled:
        config = own((entry.view, entry.host), item)
        if config and config.get("disabled").text != "true":
            why = "the route enables a filter that is disabled by default"
            context.omit(config, f"{why}: the route refuses all requests", path)
            context.draft.close(path, why, by_hand="auth")


def _answers(context: EnvoyImport, path: Path) -> bool:
    """Return whether the proxy itself sends a response that only authorized clients are allowed to see."""
    respond = context.draft.get((*path, "respond")) or {}
    return "status" in respond and int(respond["status"]) < 400


def _decided(context: EnvoyImport, entries: list[RouteWithHost]) -> Iterator[RouteWithHost]:
    """Yield the routes in one virtual host, and additional routes where a fleet would not use the first match."""
    added = overlaps([entry.match for entry in entries])
    placed = [(entry.match, index) for index, entry in enumerate(entries)] + added
    for match, index in placed:
        entry, hiding = entries[index], [item for item in entries[:index] if hides(match, item.match)]
        answers = [item.view for item in hiding if not item.view.get("route")]
        is_lost = entry.is_lost or any(item.is_lost for item in hiding)
        if not (is_lost or entry.answer or answers):
            _misroute_hidden(context, entry, hiding)
        yield replace(entry, match=match, answer=entry.answer or (answers[0] if answers else EMPTY), is_lost=is_lost)


def _misroute_hidden(context: EnvoyImport, entry: RouteWithHost, earlier: Sequence[RouteWithHost]) -> None:
    """Report earlier routes whose requests a fleet sends to this route's pool because it prefers expressions."""
    target = entry.view.get("route", "cluster").text
    for other in earlier:
        if entry.view.get("route") and other.view.get("route", "cluster").text != target:
            message = (
                f"{_subject(entry.view)} that also match an earlier route go to this route's cluster, not to the "
                "earlier route's cluster"
            )
            context.draft.ledger.misroute(entry.view.statement, message)


def _entries(context: EnvoyImport, host: ConfigView) -> list[RouteWithHost]:
    domains = _domains(context, host)
    if domains is None:
        context.omit(host, "`match.hosts` accepts full host names and names with a leading `*.` only", ())
        return []
    entries, answers = list[RouteWithHost](), list[tuple[Match, ConfigView]]()
    for item in host.get("routes"):
        known, is_whole = _known(item.get("match"))
        if not (is_whole or (item.get("route") and known)):
            _unreadable(context, item)
            if not item.get("route") or _protects(item):
                answers.append(({**domains, **(_path(item.get("match")) or {})}, item))
            continue
        entry = RouteWithHost({**domains, **known}, item, host, is_lost=not is_whole)
        if any(covers(each.match, entry.match) and not each.is_lost for each in entries):
            context.omit(item, "an earlier route handles these requests", ())
            continue
        answer = next((view for part, view in answers if not apart([part, entry.match])), EMPTY)
        entries.append(replace(entry, answer=answer))
    return _behind_specific(context, entries)


def _behind_specific(context: EnvoyImport, entries: list[RouteWithHost]) -> list[RouteWithHost]:
    """Return the routes, with each closed route moved after later routes that are more specific.

    This way, a closed route does not receive requests for those routes.
    """
    result = list[RouteWithHost]()
    for entry in reversed(entries):
        if not entry.is_lost:
            result.insert(0, entry)
            continue
        matches = [item.match for item in result]
        specific = [] if _protects(entry.view) else within(entry.match, matches)
        parts, is_clear = carve(entry.match, specific, matches)
        kept = [replace(result[index], match=match) for match, index in parts] if is_clear else []
        hidden = [
            item.view for item in result if covers(entry.match, item.match) and not (kept and item.match in specific)
        ]
        if kept:
            message = f"{_subject(entry.view)} may use more specific routes: `match` cannot express the condition"
            context.draft.ledger.misroute(entry.view.statement, message)
        reached = dict[str, RouteWithHost]()
        for item in (*kept, replace(entry, hidden=tuple(hidden)), *result):
            reached.setdefault(identity(item.match), item)
        result = [*reached.values()]
    return [
        entry
        for index, entry in enumerate(result)
        if not any(covers(each.match, entry.match) for each in result[:index])
    ]


def _unreadable(context: EnvoyImport, item: ConfigView) -> None:
    """Report a route if none of its conditions can be expressed.

    If the route were closed instead, it would handle all requests for its host.
    """
    context.omit(item, "`match` cannot express this condition: matching requests use the next route", ())
    if item.get("route") and not _protects(item):
        message = f"{_subject(item)} use the next route: `match` cannot express the condition"
        context.draft.ledger.misroute(item.statement, message)


def _subject(item: ConfigView) -> str:
    name = item.get("name").text or item.get("route", "cluster").text
    return f"requests for the route to {name}" if name else "requests for this route"


def _protects(item: ConfigView) -> bool:
    """Return whether a route has its own filters that may reject requests, so that other routes must not serve them."""
    return any(view.get("disabled").text != "true" for _, view in item.get("typed_per_filter_config").fields())


def _domains(context: EnvoyImport, host: ConfigView) -> Match | None:
    domains = [item.text for item in host.get("domains")]
    context.imply("`match.hosts` compares the host", host.get("domains"), host.get("name"))
    if "*" in domains:
        return {}
    unreadable = [domain for domain in domains if not _DOMAIN.fullmatch(domain)]
    if unreadable:
        message = (
            f"requests for the hosts {' '.join(unreadable)} use another virtual host: `match.hosts` cannot "
            "express these names"
        )
        context.draft.ledger.misroute(host.statement, message)
    hosts = [re.sub(r":\d+$", "", name).lower() for name in domains if name not in unreadable]
    return {"hosts": list(dict.fromkeys(hosts))} if hosts else None


def _known(view: ConfigView) -> tuple[Match, bool]:
    """Return a match for a route's condition, and whether it is complete."""
    path = _path(view)
    match, is_whole = dict(path or {}), path is not None
    others = ("query_parameters", "tls_context", "filter_state", "cookies")
    is_whole = is_whole and not any(view.get(name) for name in others) and not _partial(view.get("runtime_fraction"))
    for item in view.get("headers"):
        is_whole = _header(match, item) and is_whole
    for item in view.get("dynamic_metadata"):
        is_whole = _model(match, item) and is_whole
    return match, is_whole


def _header(match: Match, item: ConfigView) -> bool:
    """Add a condition on a header to a match. Returns whether it can be expressed."""
    name = item.get("name").text.lower()
    value = item.get("string_match", "exact").text or item.get("exact_match").text
    is_method_or_host = name in {_METHOD, _AUTHORITY, "host"}
    if not value or item.get("invert_match").text == "true":
        return False
    if name == "content-type" or (name.startswith(":") and not is_method_or_host):
        return False
    if name == _METHOD:
        match["methods"] = [value]
    elif is_method_or_host:
        match["hosts"] = [value.partition(":")[0]]
    else:
        match.setdefault("headers", {})[name] = value
    return True


def _model(match: Match, item: ConfigView) -> bool:
    """Add a condition on the model in the body to a match. Returns whether it can be expressed."""
    model = item.get("value", "string_match")
    keys = [step.get("key").text for step in item.get("path")]
    name = model.get("exact").text or (f"{model.get('prefix').text}*" if model.get("prefix").text else "")
    if keys[-1:] != ["model"] or not name:
        return False
    match["model"] = [name]
    return True


def _path(view: ConfigView) -> Match | None:
    prefix = view.get("prefix").text or view.get("path_separated_prefix").text
    if prefix:
        return {} if prefix == "/" else {"path_prefix": prefix}
    if view.get("path"):
        return {"path": view.get("path").text}
    if view.get("safe_regex", "regex"):
        return {"path_regex": view.get("safe_regex", "regex").text}
    return None


def _partial(view: ConfigView) -> bool:
    """Return whether a runtime fraction is less than 100 %."""
    scale = {"": 100, "HUNDRED": 100, "TEN_THOUSAND": 10_000, "MILLION": 1_000_000}
    value = view.get("default_value")
    numerator = value.get("numerator").number
    return bool(view) and numerator != scale.get(value.get("denominator").text, 100)


# ── One route ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _add(context: EnvoyImport, listener: Path, match: Match, origin: ConfigView) -> Path:
    route: dict[str, Any] = {"match": dict(match)}
    if len(context.draft.fleet["listeners"]) > 1:
        route = {"listeners": [listener[1]]} | route
    name, pool = _label(match, origin, str(listener[1])), origin.get("route", "cluster").text
    return context.draft.add("routes", name, origin.statement, route, pool)


def _label(match: Match, origin: ConfigView, otherwise: str) -> str:
    path = match.get("path") or match.get("path_prefix") or ""
    text = re.sub(r"[^A-Za-z0-9]+", "-", path).strip("-")
    host = (match.get("hosts") or [""])[0].removeprefix("*.").split(".")[0]
    values = "-".join(map(str, (match.get("model") or match.get("headers", {}).values())))
    return origin.get("name").text or "-".join(filter(None, (host, text, values))) or otherwise


def _answer(context: EnvoyImport, listener: Path, match: Match, view: ConfigView) -> Path:
    path = _add(context, listener, match, ConfigView(None, ""))
    context.draft.origins[path] = view.statement
    context.put((*path, "respond"), {"status": 200}, view)
    return path


def _route(context: EnvoyImport, listener: Path, config: ConfigView, entry: RouteWithHost) -> Path:
    path, view = _add(context, listener, entry.match, entry.view), entry.view
    context.draft.ledger.home(view.statement, path)
    if view.get("match", "path_separated_prefix"):
        context.draft.whole_segments.add(path)
    context.imply("this is the route's match", view.get("match"), view.get("name"))
    if view.get("direct_response"):
        _respond(context, path, view.get("direct_response"))
    elif view.get("redirect"):
        _redirect(context, path, view.get("redirect"))
    else:
        _forward(context, path, view.get("route"), (view, entry.host, config))
    if not context.draft.answers(path):
        policy.carry(context, path, [view, entry.host, config], view.get("route"))
    return path


def _respond(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    body = view.get("body", "inline_string").text
    if view.get("body") and not view.get("body", "inline_string"):
        context.omit(view, "lbctl converts inline response bodies only", path)
        context.draft.close(path, "the response could not be converted")
        return
    respond: dict[str, Any] = {"status": view.get("status").number or 200}
    context.put((*path, "respond"), respond | ({"body": body} if body else {}), view)


def _redirect(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    if view.get("https_redirect").text == "true" and len(list(view.fields())) == 1:
        context.put((*path, "respond"), {"redirect": "https"}, view)
        return
    names, location = {name for name, _ in view.fields()}, view.get("path_redirect").text
    code = view.get("response_code").text
    status = _REDIRECTS.get(code or "MOVED_PERMANENTLY", int(code) if is_whole(code) else 0)
    if location and status in REDIRECTS and names <= {"path_redirect", "response_code", "strip_query"}:
        context.draft.redirect(path, status, location, *view.all)
        if view.get("strip_query").text != "true" and "?" not in location:
            context.draft.ledger.omit(view.statement, "lbctl's redirect drops the query", path)
        return
    context.omit(view, "lbctl can redirect only to https or to a fixed address", path)
    context.draft.close(path, "the redirect could not be converted")


def _forward(context: EnvoyImport, path: Path, view: ConfigView, levels: tuple[ConfigView, ...]) -> None:
    weighted = list(view.get("weighted_clusters", "clusters"))
    names = [(item.get("name").text, item.get("weight").number or 0, item) for item in weighted]
    names = names or [(view.get("cluster").text, 1, EMPTY)]
    shares: dict[str, int] = {}
    for name, weight, item in names:
        cluster = context.clusters.get(name, EMPTY)
        parts = aggregate(cluster)
        target = _pool(context, context.clusters.get(parts[0], EMPTY) if parts else cluster, view, (item, *levels))
        if target is None:
            context.omit(view, "the endpoints of the route's cluster are unknown: the route refuses all requests", path)
            context.draft.close(path, "the route's cluster could not be converted")
            return
        shares[str(target[1])] = shares.get(str(target[1]), 0) + weight
        if len(parts) > 1 and (spare := pool(context, context.clusters.get(parts[1], EMPTY))) is not None:
            context.put((*path, "fallback"), spare[1], cluster)
    if len(shares) == 1:
        context.put((*path, "pool"), next(iter(shares)), view.get("cluster"), view.get("weighted_clusters"))
    else:
        context.put((*path, "split"), shares, view.get("weighted_clusters"))


def _pool(context: EnvoyImport, cluster: ConfigView, action: ConfigView, levels: Sequence[ConfigView]) -> Path | None:
    """Return a cluster's pool. The pool is a hosted API if its requests have their own Host header and key."""
    secrets = policy.credentials(levels)
    hosts = [levels[0].get("host_rewrite_literal"), action.get("host_rewrite_literal")]
    if action.get("auto_host_rewrite").text == "true":
        addresses = [each.get("endpoint", "address", "socket_address", "address") for each in _endpoints(cluster)]
        hosts += addresses if len(addresses) == 1 else []
    hosts.append(cluster.get("transport_socket", "typed_config", "sni"))
    host = next((each.text for each in hosts if each), "")
    if not secrets or not host:
        return pool(context, cluster)
    target = pool(context, cluster, tuple(item.value for item in secrets))
    if target is not None and context.draft.get((*target, "upstream")) is None:
        provider.put(context.draft, target, host, secrets, statements=levels[0].get("host_rewrite_literal").all)
    return target


def _endpoints(cluster: ConfigView) -> list[ConfigView]:
    return [item for group in cluster.get("load_assignment", "endpoints") for item in group.get("lb_endpoints")]


def _others(context: EnvoyImport, listener: Path, config: ConfigView, entries: list[RouteWithHost]) -> None:
    """Return 404 for other paths in a virtual host that has host names, if another virtual host handles all hosts."""
    wide = any("hosts" not in entry.match for entry in entries)
    for host in config.get("virtual_hosts"):
        own = [entry for entry in entries if entry.host is host and "hosts" in entry.match]
        if wide and own and not any(set(entry.match) == {"hosts"} for entry in own):
            path = _add(context, listener, {"hosts": own[0].match["hosts"]}, host)
            context.draft.put((*path, "respond"), {"status": 404, "body": "not found"})
