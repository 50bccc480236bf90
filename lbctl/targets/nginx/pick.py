"""Selects a replica for each request with the picker.

nginx queries the picker with a subrequest, and each replica is an upstream. nginx sends the query before it reads a
body. If the picker needs the body, the request first passes through a location that reads the body because of `mirror`.
This location has no content, so its error page leads to the location that sends the query. If anything fails, the
request goes to the pool's own upstream. After a failure, the picker receives no queries for one second, because it is a
server in an upstream with `max_fails=1`. If a picked replica does not accept the connection, the request does not fail:
it goes to the pool, unless part of it was sent. The picker learns this when the request ends.

nginx does not check the picker. If the pool has a queue, the first query therefore does not wait: the picker responds
with 401 if the request must wait, and the same subrequest then queries again, for as long as the request may wait. If
the picker rejects the request, the subrequest ends with 403, and the client gets 429.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Path
from lbctl.ir.pools import DEFAULT_SESSION_KEYS, PickPolicy, Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets import picker
from lbctl.targets.nginx import busy, names, quote
from lbctl.targets.nginx.blocks import LogFormat, UpstreamBlock
from lbctl.targets.nginx.location_blocks import Forwarding, PickSubrequest
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.target import File
from lbctl.targets.token import Token

_REPLICA, _ID = "$lb_pick_replica", "$lb_pick_answered"
LEFT = (Token("$lb_pick_left"), Token(_ID))
"""Variable (with value) for the ID of the pick in the pool that a request leaves for its fallback."""
_MOVED = "$lb_pick_moved"
"""Variable that is true if a different replica serves the request because the picked replica was busy."""
_UNREACHED = Token("$lb_pick_unreached")
BODY = (Token("$lb_prompt"), Token("$lb_json_body"))
"""Variable (with value) for the part of a JSON body that the picker needs."""
_BEGINNING = "$lb_body_beginning"
"""Variable that contains the beginning of a body of any type."""
_DEFAULT_HEADERS = tuple(key.header for key in DEFAULT_SESSION_KEYS if key.header)
_KEY_FILE = "nginx-picker-key.conf"
_MAX_BODY_BYTES = 65_535
"""Maximum number of body bytes that the picker receives. This number is the maximum repetition count in an expression,
and about as much as the picker reads."""
REACHED, UNREACHED = (_UNREACHED, Token("false")), (_UNREACHED, Token("true"))
"""Variable (with value) for the report at the end of a request: whether the picked replica was not reached."""


@dataclass(frozen=True, slots=True)
class Picked:
    """The upstream for a request to one pool, as chosen by its pick."""

    variable: str
    """Variable that contains the upstream's name: the picked replica's upstream, or else the pool's."""
    upstream: UpstreamBlock
    """Upstream of the pool, named after the variable."""


def picked(
    context: RenderContext, pool: Pool, upstream: UpstreamBlock, replicas: tuple[tuple[str, UpstreamBlock], ...]
) -> Picked:
    """Return the upstream for a pick. `replicas` contains the name and upstream of each replica that may be picked."""
    variable = f"$lb_up_{upstream.name.text.replace('.', '_').replace('-', '_')}_{_number(context, upstream)}"
    if not context.has_map(variable):
        path = ("pools", pool.name, "balance", "pick")
        entries = ((quote.map_key(name), quote.plain(single.name.text, path)) for name, single in replicas)
        context.map(_REPLICA, variable, ((Token("default"), quote.plain(upstream.name.text)), *entries))
        if pool.protocol == "grpc" and pool.balance.pick is not None and pool.balance.pick.reads_bodies:
            context.warn(
                "pool.balance.pick.body",
                path,
                "the picker considers only session headers and the load for gRPC, because nginx forwards gRPC "
                "messages without buffering",
                "set `prefix: off` and use only headers in `session` to get the same behaviour from every proxy",
            )
        _check_headers(context, pool)
    return Picked(variable, replace(upstream, name=Token(variable)))


def _check_headers(context: RenderContext, pool: Pool) -> None:
    """Warn about headers that the picker needs but nginx drops.

    The default keys include one such header, for old clients.
    """
    policy = pool.balance.pick
    if policy is None:
        return
    path: Path = ("pools", pool.name)
    if policy.session_headers != _DEFAULT_HEADERS:
        for index, key in enumerate(policy.session):
            place = (*path, "balance", "pick", "session", index)
            _check_header(context, "pool.balance.pick", place, key.header, "do not identify a session")
    if policy.queue is not None:
        by, priority = (*path, "queue", "by"), (*path, "queue", "priority", "header")
        _check_header(context, "pool.queue", by, policy.queue.header, "do not distinguish requests")
        _check_header(context, "pool.queue", priority, policy.queue.priority_header, "do not change the priority")
    for limit in policy.token_limits:
        if limit.route in context.view.routes:
            limited, effect = ("routes", limit.route, "rate_limit"), "do not distinguish requests"
            _check_header(context, "route.rate_limit.prompt_tokens", limited, limit.header, effect)


def _check_header(context: RenderContext, feature: str, path: Path, name: str, effect: str) -> None:
    if name and names.header(name) is None:
        message = f"nginx drops headers named {name}: they {effect}"
        context.warn(feature, path, message, "use a name that consists of letters, digits and hyphens")


def _number(context: RenderContext, upstream: UpstreamBlock) -> int:
    """Return a number that distinguishes the variables of upstreams whose names differ only in punctuation."""
    numbers = context.upstream_numbers
    return numbers.setdefault(upstream.name.text, len(numbers))


def falling_back(
    context: RenderContext, directives: Forwarding, chosen: Picked, route_number: int, location: str
) -> Forwarding:
    """Return the directives for a picked request.

    If the replica does not accept a request, the request continues in `location`. `location`, which lacks its `@`,
    routes to the pool. A request whose query failed, for which nginx generates a 500, also continues there.
    """
    name, prefix = quote.plain(location), f"{chosen.variable}_r{route_number}"
    for status, otherwise in (("502", directives.on_502), ("504", directives.on_504)):
        variable = f"{prefix}_{status}"
        if not context.has_map(variable):
            single = names.own("pick", context.view.proxy)
            pattern = quote.plain(rf"~^{single}\d+_[^:]*:lb_503\z")
            entries = ((Token("default"), Token(otherwise.text.removeprefix("@"))), (pattern, name))
            context.map(f"{chosen.variable}:$lb_on_{status}", variable, entries, volatile=True)
    unasked = f"{prefix}_500"
    if not context.has_map(unasked):
        context.map(
            "$upstream_addr", unasked, ((Token("default"), Token("lb_502")), (Token('""'), name)), volatile=True
        )
    return replace(
        directives,
        on_500=Token(f"@{unasked}"),
        on_502=Token(f"@{prefix}_502"),
        on_504=Token(f"@{prefix}_504"),
    )


def reads_body(pool: Pool) -> bool:
    """Return whether the body of a request to the pool is read before the picker is queried."""
    return pool.protocol != "grpc" and pool.balance.pick is not None and pool.balance.pick.reads_bodies


def question_path(route_number: int, pool: str) -> str:
    """Return the path of the internal location that sends queries for a route's requests to a pool."""
    return f"/.lbctl/pick/{route_number}/{pool}"


def questions(
    route: Route, route_number: int, pool: Pool, view: View, tenant: Token | None
) -> Iterator[PickSubrequest]:
    """Yield the location that queries the picker with the fleet's timeout, and the location in which a request waits.

    A request waits only if the pool has a queue and the picker has just responded that the request must wait. A hanging
    picker therefore does not delay other requests longer than without a queue. `tenant`: the variable that contains the
    request's tenant; None: the route has no tenant.
    """
    policy = pool.balance.pick
    assert policy is not None
    connect = max(1, policy.timeout // 4)
    waiting = quote.plain(f"/.lbctl/wait/{route_number}/{pool.name}") if policy.queue is not None else None
    query = PickSubrequest(
        path=quote.plain(question_path(route_number, pool.name)),
        target=_target(view, picker.question(pool, route, view.proxy)),
        proxy=quote.value(view.proxy.name),
        tenant=tenant,
        key_file=quote.plain(names.included(_KEY_FILE, view.proxy)) if view.picker_key else None,
        headers=tuple(_headers(route, pool, policy)),
        body=BODY[0] if reads_body(pool) else None,
        connect=connect,
        answer=max(1, policy.timeout - connect),
        on_401=waiting,
    )
    yield query
    if waiting is not None:
        target = _target(view, picker.question(pool, route, view.proxy, waits=True))
        yield replace(query, path=waiting, target=target, answer=policy.longest_wait, on_401=None, waits=True)


def _target(view: View, question: str) -> Token:
    return quote.value(f"http://{upstream_name(view).text}{question}")


def _headers(route: Route, pool: Pool, policy: PickPolicy) -> Iterator[tuple[Token, Token]]:
    """Yield the headers that the picker needs, with their variables."""
    if picker.needs_client(pool, route):
        yield Token("x-lbctl-client"), Token("$remote_addr")
    if route.prompt_limits and isinstance(route.action, Forward) and route.action.fallback == pool.name:
        yield Token("x-lbctl-left"), LEFT[0]  # so that the picker charges the prompt only once
    for name in policy.question_headers:
        source = names.header(name)
        if source is not None:
            yield quote.plain(name), Token(source)


def key_file(view: View) -> File | None:
    """Return the file that sends the picker's key, which each querying location includes; None without a key."""
    if view.picker is None or not view.picker_key:
        return None
    return File(_KEY_FILE, f"proxy_set_header {picker.KEY_HEADER} {quote.value(view.picker_key).text};\n", secret=True)


def upstream_name(view: View) -> Token:
    """Return the name of the picker's upstream."""
    return Token(names.own("lb_picker", view.proxy))


def format_name(view: View) -> Token:
    """Return the name of the log format that reports the end of a request to the picker."""
    return Token(names.own("lb_pick", view.proxy))


def log_format(view: View) -> LogFormat:
    """Return the log format that reports the end of a request to the picker."""
    fields = '"pick":"$lb_pick_id","left":"$lb_pick_left_id","status":$lb_log_status,"unreached":$lb_pick_unreached'
    moved = f',"moved":{_MOVED}' if _leaves_busy(view) else ""
    return LogFormat(format_name(view), quote.script(f"{{{fields}{moved}}}"))


def _leaves_busy(view: View) -> bool:
    """Return whether a picked request may leave its replica if the replica is busy."""
    return any(pool.balance.pick and busy.attempts_of_pool(view, pool) for pool in view.pools.values())


def maps(context: RenderContext) -> None:
    """Add the maps for the validated pick IDs and for the content sent to the picker."""
    for source, variable in ((_ID, "$lb_pick_id"), (LEFT[0].text, "$lb_pick_left_id")):
        key = quote.plain(rf"~^{names.group(variable, '[A-Za-z0-9._:-]{1,64}')}\z")
        context.map(source, variable, ((Token("default"), Token('""')), (key, Token(names.captured(variable)))))
    if any(map(reads_body, context.view.pools.values())):
        nothing = (Token("default"), Token('""'))
        key = quote.plain(f"~^{names.group(_BEGINNING, f'(?s).{{1,{_MAX_BODY_BYTES}}}+')}")
        beginning = key, Token(names.captured(_BEGINNING))
        context.map("$request_body", _BEGINNING, (nothing, beginning))
        json = quote.plain("~*^application/json"), Token(_BEGINNING)
        context.map("$content_type", BODY[1].text, (nothing, json))
    if _leaves_busy(context.view):
        moved = (Token("default"), Token("false")), (quote.plain("~, "), Token("true"))
        context.map("$upstream_addr", _MOVED, moved)
    context.map(
        "$lb_pick_id$lb_pick_left_id", "$lb_picked", ((Token("default"), Token("1")), (Token('""'), Token("0")))
    )


def address(view: View) -> Token | None:
    """Return the picker's address; None if no pool uses the picker."""
    return quote.plain(str(picker.http_address(view))) if view.picker is not None else None


def log_server(view: View) -> Token | None:
    """Return the syslog server for reports that picked requests have ended; None if no pool uses the picker."""
    if view.picker is None:
        return None
    return quote.plain(f"syslog:server={picker.http_address(view)},nohostname,tag=lbctl")
