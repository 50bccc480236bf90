"""Virtual hosts and their routes, as routes; Envoy takes the first one that matches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.base.records import dataclass
from lbctl.importer import provider
from lbctl.importer.draft import REDIRECTS
from lbctl.importer.envoy import policy
from lbctl.importer.envoy.clusters import aggregate, pool
from lbctl.importer.envoy.context import EnvoyImport
from lbctl.importer.envoy.filters import Filters
from lbctl.importer.envoy.protection import of_the_listener, own
from lbctl.importer.envoy.view import EMPTY, ConfigView
from lbctl.importer.matching import Match, apart, covers, hides, overlaps

_REDIRECTS = {
    "MOVED_PERMANENTLY": 301, "FOUND": 302, "SEE_OTHER": 303, "TEMPORARY_REDIRECT": 307, "PERMANENT_REDIRECT": 308
}  # fmt: skip
_METHOD, _AUTHORITY = ":method", ":authority"


@dataclass(frozen=True, slots=True)
class RouteWithHost:
    """A route of Envoy with what surrounds it."""

    match: Match
    """Which requests."""
    view: ConfigView
    """The route; empty for what a filter answers."""
    host: ConfigView
    """Its virtual host."""
    answer: ConfigView = EMPTY
    """An earlier route that answers some of its requests, and no match says which; empty for none."""


def routes(context: EnvoyImport, listener: Path, config: ConfigView, filters: Filters) -> None:
    """Add the routes of a route configuration."""
    entries = [entry for host in config.get("virtual_hosts") for entry in _decided(list(_entries(context, host)))]
    paths = [path for match, view in filters.answers if (path := _answer(context, listener, match, view))]
    for entry in entries:
        path = _route(context, listener, config, entry)
        paths.append(path)
        _protect(context, listener, path, entry, filters)
        if entry.answer and entry.view.get("route"):
            why = "an earlier route answers some of its requests, and no match expresses which ones"
            context.draft.ledger.omit(entry.answer.statement, f"{why}: the route refuses its requests", path)
            status = entry.answer.get("direct_response", "status").number
            context.draft.close(path, why, by_hand="auth" if status in {401, 403} else "")
        if filters.limits and not context.draft.answers(path):
            context.put((*path, "rate_limit"), list(filters.limits), *filters.limit_views)
    _others(context, listener, config, entries)


def _protect(context: EnvoyImport, listener: Path, path: Path, entry: RouteWithHost, filters: Filters) -> None:
    """Lay the filters that may refuse requests into a route, unless it switches them off."""
    for item, lay, why in filters.protections:
        config = own((entry.view, entry.host), item)
        if config.get("disabled").text == "true":
            context.imply("the route has no such protection", config)
        elif lay is not None and not config and (lay is of_the_listener or not _answers(context, path)):
            lay(path)
        else:
            context.omit(config or item, f"{why}: the route refuses its requests", path if config else listener)
            context.draft.close(path, why, by_hand="auth")
    for item in filters.disabled:
        config = own((entry.view, entry.host), item)
        if config and config.get("disabled").text != "true":
            why = "it enables a filter for itself"
            context.omit(config, f"{why}: the route refuses its requests", path)
            context.draft.close(path, why, by_hand="auth")


def _answers(context: EnvoyImport, path: Path) -> bool:
    """Whether the proxy itself answers with what only those would see who are let in."""
    respond = context.draft.get((*path, "respond")) or {}
    return "status" in respond and int(respond["status"]) < 400


def _decided(entries: list[RouteWithHost]) -> Iterator[RouteWithHost]:
    """Yield the routes of one virtual host, and those for requests of which a fleet would not take the first one."""
    added = overlaps([entry.match for entry in entries])
    placed = [(entry.match, index) for index, entry in enumerate(entries)] + added
    for match, index in placed:
        answers = [item for item in entries[:index] if not item.view.get("route") and hides(match, item.match)]
        yield replace(
            entries[index], match=match, answer=entries[index].answer or (answers[0].view if answers else EMPTY)
        )


def _entries(context: EnvoyImport, host: ConfigView) -> Iterator[RouteWithHost]:
    domains = _domains(context, host)
    if domains is None:
        context.omit(host, "a route compares whole hosts, or what follows a leading `*.`", ())
        return
    taken, answers = list[Match](), list[tuple[Match, ConfigView]]()
    for item in host.get("routes"):
        matches = _matches(item.get("match"))
        if matches is None:
            _unreadable(context, item)
            if not item.get("route"):
                answers.append(({**domains, **(_path(item.get("match")) or {})}, item))
            continue
        for match in matches:
            whole = {**domains, **match}
            if any(covers(earlier, whole) for earlier in taken):
                context.omit(item, "an earlier route takes these requests", ())
                continue
            taken.append(whole)
            answer = next((view for part, view in answers if not apart([part, whole])), EMPTY)
            yield RouteWithHost(whole, item, host, answer)


def _unreadable(context: EnvoyImport, item: ConfigView) -> None:
    context.omit(item, "no match of a route expresses this: its requests take the next route", ())
    if item.get("route"):
        message = "this route is lost: no match of a route expresses its condition"
        context.draft.ledger.advise(item.statement, message, "write a route for its requests: they take the next one")


def _domains(context: EnvoyImport, host: ConfigView) -> Match | None:
    domains = [item.text for item in host.get("domains")]
    context.imply("a route compares the host", host.get("domains"), host.get("name"))
    if "*" in domains:
        return {}
    names = [domain for domain in domains if re.fullmatch(r"(\*\.)?[A-Za-z0-9.-]+(:\d+)?", domain)]
    hosts = [re.sub(r":\d+$", "", name).lower() for name in names]
    return {"hosts": list(dict.fromkeys(hosts))} if hosts else None


def _matches(view: ConfigView) -> list[Match] | None:
    """Return the matches of a route, of which one must hold; None if a fleet cannot say it."""
    match = _path(view)
    if match is None or any(view.get(name) for name in ("query_parameters", "tls_context", "filter_state", "cookies")):
        return None
    if _partial(view.get("runtime_fraction")):
        return None
    for item in view.get("headers"):
        name, value = (
            item.get("name").text.lower(),
            item.get("string_match", "exact").text or item.get("exact_match").text,
        )
        if not value or item.get("invert_match").text == "true":
            return None
        if name == _METHOD:
            match["methods"] = [value]
        elif name in {_AUTHORITY, "host"}:
            match["hosts"] = [value.partition(":")[0]]
        elif name == "content-type" or name.startswith(":"):
            return None
        else:
            match.setdefault("headers", {})[name] = value
    for item in view.get("dynamic_metadata"):
        model = item.get("value", "string_match")
        keys = [step.get("key").text for step in item.get("path")]
        name = model.get("exact").text or (f"{model.get('prefix').text}*" if model.get("prefix").text else "")
        if keys[-1:] != ["model"] or not name:
            return None
        match["model"] = [name]
    return [match]


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
    """Whether a runtime fraction is less than all."""
    scale = {"": 100, "HUNDRED": 100, "TEN_THOUSAND": 10_000, "MILLION": 1_000_000}
    value = view.get("default_value")
    numerator = value.get("numerator").number
    return bool(view) and numerator != scale.get(value.get("denominator").text, 100)


# ── One route ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _add(context: EnvoyImport, listener: Path, match: Match, origin: ConfigView) -> Path:
    route: dict[str, Any] = {"match": dict(match)}
    if len(context.draft.fleet["listeners"]) > 1:
        route = {"listeners": [listener[1]]} | route
    return context.draft.add("routes", _label(match, origin, str(listener[1])), origin.statement, route)


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
    context.imply("it is the match of the route", view.get("match"), view.get("name"))
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
        context.omit(view, "a body from a file", path)
        context.draft.close(path, "its answer could not be carried over")
        return
    respond: dict[str, Any] = {"status": view.get("status").number or 200}
    context.put((*path, "respond"), respond | ({"body": body} if body else {}), view)


def _redirect(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    if view.get("https_redirect").text == "true" and len(list(view.fields())) == 1:
        context.put((*path, "respond"), {"redirect": "https"}, view)
        return
    names, location = {name for name, _ in view.fields()}, view.get("path_redirect").text
    code = view.get("response_code").text
    status = _REDIRECTS.get(code or "MOVED_PERMANENTLY", int(code) if code.isdigit() else 0)
    if location and status in REDIRECTS and names <= {"path_redirect", "response_code", "strip_query"}:
        context.draft.redirect(path, status, location, *view.all)
        if view.get("strip_query").text != "true" and "?" not in location:
            context.draft.ledger.omit(view.statement, "the query is not passed on", path)
        return
    context.omit(view, "a fleet redirects to https, or to one address", path)
    context.draft.close(path, "its redirect could not be carried over")


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
            context.omit(view, "its cluster is none of known endpoints: the route refuses its requests", path)
            context.draft.close(path, "its cluster could not be carried over")
            return
        shares[str(target[1])] = shares.get(str(target[1]), 0) + weight
        if len(parts) > 1 and (spare := pool(context, context.clusters.get(parts[1], EMPTY))) is not None:
            context.put((*path, "fallback"), spare[1], cluster)
    if len(shares) == 1:
        context.put((*path, "pool"), next(iter(shares)), view.get("cluster"), view.get("weighted_clusters"))
    else:
        context.put((*path, "split"), shares, view.get("weighted_clusters"))


def _pool(context: EnvoyImport, cluster: ConfigView, action: ConfigView, levels: Sequence[ConfigView]) -> Path | None:
    """Return the pool of a cluster; a hosted API where its requests have a Host and a key of their own."""
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
    """Answer 404 for the rest of a virtual host with names of its own, where another one takes all hosts."""
    wide = any("hosts" not in entry.match for entry in entries)
    for host in config.get("virtual_hosts"):
        own = [entry for entry in entries if entry.host is host and "hosts" in entry.match]
        if wide and own and not any(set(entry.match) == {"hosts"} for entry in own):
            path = _add(context, listener, {"hosts": own[0].match["hosts"]}, host)
            context.draft.put((*path, "respond"), {"status": 404, "body": "not found"})
