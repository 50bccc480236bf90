"""`lbctl explain route`: from one request to its route, its pool and its policy, on each of the fleet's proxies.

Nothing is sent anywhere. Each proxy is evaluated separately, because the proxies do not read every request alike; those
that agree are shown together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import click

from lbctl.base import ports
from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, did_you_mean
from lbctl.base.errors import reason_of
from lbctl.cli.api_client import show as show_value
from lbctl.cli.diff_text import conditions
from lbctl.cli.explain_policy import policy
from lbctl.cli.fleet import load, show
from lbctl.cli.proxy import unnamed
from lbctl.compile.fleet import Compiled
from lbctl.compile.origin import origin
from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Criterion, Request, criteria
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Redirect, Respond, Route
from lbctl.ir.shares import of_replicas
from lbctl.ir.snapshot import Snapshot, pools_of
from lbctl.targets import KINDS, target
from lbctl.targets.assess import CLOSED
from lbctl.targets.features import FEATURES
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import Prepared, prepare
from lbctl.targets.reading import Message
from lbctl.targets.route_trace import Candidate, Choice, Explained, choice, explain

Row = dict[str, Any]
_METHOD = re.compile(r"[A-Z][A-Z_-]*")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+): *(.*)", re.DOTALL)
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_MISSED = 8
"""Routes without a match that are shown, the nearest first."""
_REPLICAS = 4
_PROTECTING = frozenset({"LB499", *(item.code for item in FEATURES if item.protects)})


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """The arguments of the command line.

    `kind` restricts the explanation to one kind of proxy. `listener` replaces the listener at the URL's port.
    """

    method: str
    """The method of the request."""
    url: str
    """The URL of the request."""
    headers: tuple[str, ...]
    """The headers, each as `name: value`."""
    body: str | None
    """The body; None: none is sent."""
    kind: str | None
    listener: str | None
    form: str
    """The form of the result."""


def answer(query: RouteQuery, paths: tuple[str, ...]) -> int:
    """Print the explanation, and return the exit code."""
    parts = _split(query.url)
    diagnostics = Diagnostics()
    message = _message(query, parts, diagnostics)
    loaded = load(paths, diagnostics)
    if loaded is None or message is None or diagnostics.failed:
        show(item for item in diagnostics if item.severity == "error")
        return 1
    listener = _listener(loaded.compiled, query.listener, parts)
    rows = _grouped([_row(loaded, listener, proxy, message) for proxy in _proxies(loaded, listener, query.kind)])
    head = {"method": message.method, "host": message.host, "path": message.path, "listener": listener.name}
    if query.form != "table":
        show_value({"request": head, "proxies": rows}, query.form)
        return 0
    click.echo(f"{message.method} {message.host}{message.path} on listener {listener.name} ({listener.bind})")
    for line in (line for row in rows for line in _lines(row)):
        click.echo(line if line.isprintable() else ascii(line)[1:-1])
    return 0


# ── The request ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise click.UsageError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("", "http", "https") or (parts.scheme and not parts.hostname) or parts.username:
        raise click.UsageError(f"{url!r} is not a URL of a request: as https://api.example.com/v1/chat, or /v1/chat")
    if not parts.scheme and not url.startswith("/"):
        raise click.UsageError(f"{url!r} begins with neither http://, https:// nor /")
    return parts


def _message(query: RouteQuery, parts: SplitResult, diagnostics: Diagnostics) -> Message | None:
    method = query.method.upper()
    if not _METHOD.fullmatch(method) or method == "CONNECT":
        raise click.UsageError(f"{query.method!r} is no method of a request that has a route")
    headers = tuple(_header(item) for item in query.headers)
    hosts = [value for name, value in headers if name == "host"]
    path = _quoted(parts.path or "/")
    if query.url.startswith("//"):
        path, hosts = _quoted(query.url.partition("?")[0].partition("#")[0]), hosts or [""]
    try:
        body = Path(query.body).read_bytes() if query.body is not None else b""
    except OSError as error:
        reason = f"the body cannot be read: {reason_of(error)}"
        diagnostics.add(Diagnostic("LB001", reason, Position(str(query.body))))
        return None
    return Message(method, hosts[0] if hosts else parts.netloc, path, headers, body)


def _quoted(path: str) -> str:
    """Return the path as a client sends it; a byte of the command line that is not UTF-8 is sent as that byte."""
    return quote(path, safe=_PRINTABLE, errors="surrogateescape")


def _header(text: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{text!r} is not a header: write 'name: value'")
    return match[1].lower(), match[2].strip()


def _listener(compiled: Compiled, name: str | None, parts: SplitResult) -> Listener:
    """Return the named listener, the one at the URL's port, or the only one.

    A notice is printed if the only listener has another port. Raises UsageError if no listener can be chosen.
    """
    listeners = {item.name: item for item in compiled.topology.listeners}
    if name is not None:
        if name not in listeners:
            hint = did_you_mean(name, listeners) or f"its listeners: {', '.join(listeners) or 'none'}"
            raise click.UsageError(f"the fleet has no listener {name!r}; {hint}")
        return listeners[name]
    port = parts.port or ports.BY_SCHEME.get(parts.scheme)
    at_port = [item for item in listeners.values() if item.bind.port == port]
    candidates = at_port or list(listeners.values())
    if len(candidates) == 1:
        if port is not None and not at_port:
            notice = f"no listener has port {port}: the only one, {candidates[0].name} ({candidates[0].bind}), is taken"
            click.echo(f"lbctl: {notice}", err=True)
        return candidates[0]
    binds = ", ".join(f"{item.name} ({item.bind})" for item in listeners.values()) or "none"
    raise click.UsageError(f"which listener takes this request? Name it with --listener: {binds}")


def _proxies(loaded: Loaded, listener: Listener, kind: str | None) -> list[Proxy]:
    """Return the fleet's proxies that carry the listener, one of each kind and version.

    A fleet that names no such proxy gets one of each kind. Raises UsageError if proxies are named and none carries the
    listener.
    """
    topology = loaded.compiled.topology
    carrying = [item for item in topology.proxies if not item.listeners or listener.name in item.listeners]
    selected = [item for item in carrying if kind in (None, item.kind)]
    if topology.proxies and not selected and kind is None:
        raise click.UsageError(f"no proxy of the fleet carries the listener {listener.name}")
    if not selected:
        return [unnamed(topology, each) for each in KINDS if kind in (None, each)]
    return list({(item.kind, item.version): item for item in reversed(selected)}.values())


# ── The answer ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _grouped(rows: list[tuple[str, Row]]) -> list[Row]:
    """Join the rows of proxies that agree."""
    groups: list[Row] = []
    for proxy, row in rows:
        same = next((item for item in groups if {**item, "on": None} == {**row, "on": None}), None)
        if same is None:
            groups.append({"on": [proxy], **row})
        else:
            same["on"].append(proxy)
    return groups


def _row(loaded: Loaded, listener: Listener, proxy: Proxy, message: Message) -> tuple[str, Row]:
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
    place = origin(compiled.sources, ("routes", name))
    row: Row = {
        "route": name,
        "at": str(place),
        "match": conditions(explained.winner),
        "conditions": [_criterion(item) for item in criteria(explained.winner, request)],
    }
    served_listener = next((item for item in prepared.view.listeners if item.name == listener.name), listener)
    rule = served_listener.rules[listener.rules.index(explained.winner)]
    served = prepared.view.routes.get(name)
    if rule.route != name or served is None or served.action == CLOSED:
        owners = {("listeners", listener.name), ("routes", name), *(("pools", pool) for pool in pools_of(route))}
        losses = [item for item in prepared.losses if item.path[:2] in owners or item.path[:1] == ("defaults",)]
        protection_losses = [str(item) for item in losses if item.code in _PROTECTING]
        return row | {"status": 503, "why": "closed here: this proxy cannot protect it", "losses": protection_losses}
    return row | _action(compiled, listener, route, request)


def _action(compiled: Compiled, listener: Listener, route: Route, request: Request) -> Row:
    action = route.action
    if isinstance(action, Respond):
        why = f"the proxy itself answers: {action.body!r}"
        return {"status": action.status, "why": why, "policy": policy(compiled, listener, route, ())}
    if isinstance(action, Redirect):
        return {"status": 301 if request.method in ("GET", "HEAD") else 308, "why": "redirected to https"}
    chosen = choice(action, request)
    return {
        "choice": _choice(compiled, route, action, chosen),
        "pools": [_pool(compiled, route, pool, share) for pool, share in chosen.shares.items()],
        "policy": policy(compiled, listener, route, tuple(chosen.shares)),
    }


def _choice(compiled: Compiled, route: Route, action: Forward, chosen: Choice) -> Row:
    key = {"pin": ("pin", chosen.index or 0), "only": ("pool",)}.get(chosen.by, ("split",))
    place = origin(compiled.sources, ("routes", route.name, *key)) or origin(compiled.sources, ("routes", route.name))
    sticky = action.sticky
    explanations = {
        "pin": "a pin decides",
        "kept": f"the cookie {sticky.name if sticky else ''} keeps the variant that the client was given",
        "kept_by_hash": f"the header {sticky.name if sticky else ''} draws, the same value always alike",
        "draw": "drawn" + (f", then kept by the cookie {sticky.name}" if sticky and sticky.kind == "cookie" else ""),
        "only": "the route's only pool",
    }
    additions = [f"a copy of {action.mirror.percent:g}% to {action.mirror.pool}"] if action.mirror else []
    additions += [f"to {action.fallback} when no replica is fit"] if action.fallback else []
    additions += [f"never outside {', '.join(route.regions)}"] if route.regions else []
    return {"by": chosen.by, "words": explanations[chosen.by], "at": str(place), "then": additions}


def _pool(compiled: Compiled, route: Route, name: str, share: float) -> Row:
    pool = next(item for item in compiled.topology.pools if item.name == name)
    parts = of_replicas(pool, regions=route.regions)
    return {
        "pool": name,
        "probability": round(share, 9),
        "algorithm": pool.balance.algorithm,
        "at": str(origin(compiled.sources, ("pools", name))),
        "replicas": {replica: round(part, 9) for replica, part in parts.items()},
    }


def _read(request: Request | None) -> Row | None:
    if request is None:
        return None
    path = request.path.encode("latin-1").decode(errors="replace")
    return {"host": request.host, "path": path, "model": request.model}


def _beaten(item: Candidate) -> Row:
    return {"route": item.rule.route, "match": conditions(item.rule), "decided_by": item.beaten_by}


def _missed(explained: Explained) -> list[Row]:
    """Return the nearest rule of each route that does not match."""
    nearest: dict[str, Candidate] = {}
    for item in explained.missed:
        nearest.setdefault(item.rule.route, item)
    for item in explained.matched:
        nearest.pop(item.rule.route, None)
    shown = list(nearest.values())[:_MISSED]
    return [{"route": item.rule.route, "failed": [_criterion(each) for each in item.failed]} for item in shown]


def _criterion(item: Criterion) -> Row:
    return {"kind": item.kind, "name": item.name or None, "wanted": item.wanted, "found": item.actual}


# ── For people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(row: Row) -> Iterator[str]:
    yield ""
    yield f"{', '.join(row['on'])}:"
    if row["read"]:
        model = f", model {row['read']['model']}" if row["read"]["model"] is not None else ""
        yield f"  read as    host {row['read']['host'] or '(none)'}, path {row['read']['path']}{model}"
    if row["route"]:
        yield f"  route      {row['route']}  {row['at']}"
        yield f"             because of {row['match']}"
    if row["status"]:
        yield f"  answer     {row['status']}: {row['why']}"
    yield from (f"             {text}" for text in row.get("losses", ()))
    for item in row["also"]:
        yield f"  matches    {item['route']} too ({item['match']}); {row['route']} wins by its {item['decided_by']}"
    for item in row["missed"]:
        yield f"  not        {item['route']}: {'; '.join(map(_failed, item['failed']))}"
    if "choice" in row:
        yield f"  pool       {row['choice']['words']}  {row['choice']['at']}"
        yield from (f"             {_probability(item)}" for item in row["pools"])
        yield from (f"             {text}" for text in row["choice"]["then"])
    for number, item in enumerate(row.get("policy", ())):
        yield f"  {'policy' if not number else '':<10} {item['path']}: {item['value']}  {item['at'] or 'default'}"


def _failed(item: Row) -> str:
    name = f"{item['kind']} {item['name']}" if item["name"] else item["kind"]
    actual = "there is none" if item["found"] is None else f"it is {item['found']}"
    return f"wants {name} {item['wanted']}, {actual}"


def _probability(item: Row) -> str:
    parts = sorted(item["replicas"].items(), key=lambda part: (-part[1], part[0]))
    shown = ", ".join(f"{name} {100 * share:.1f}%" for name, share in parts[:_REPLICAS])
    more = f", and {len(parts) - _REPLICAS} more" if len(parts) > _REPLICAS else ""
    return f"{100 * item['probability']:.4g}% {item['pool']}, {item['algorithm']} over {shown or 'discovery'}{more}"
