"""Selects a replica for each request with the picker.

HAProxy queries the picker over SPOE and applies its choice with `use-server`. The picker is an SPOE agent on its HTTP
port. Requests query it only while it passes HAProxy's check. Requests wait at most `pick.timeout`, plus `max_wait` if a
pool has a queue. If a query is not answered, HAProxy sends none for a second. Then a single request queries again.
After any failure, HAProxy's own algorithm chooses. HAProxy also excludes replicas that must not be picked: it sends
nothing to a server in maintenance, and ignores names that match none of its servers.

An SPOE engine has only one timeout. A listener has a single engine, with the longest timeout of its queries, because
HAProxy would not find the file of a second engine (`engines`). Listeners with the same timeout share an engine. For
each pool of a route, one group has a single message, and a second group also sends the beginning of the body. Queued
requests wait for the response to this query. If the picker fails, HAProxy closes its connections, so that the waiting
requests continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import PickPolicy, Pool, Prefix
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets import picker
from lbctl.targets.haproxy import limits, locality_tiers, quote, residency, sections, slots
from lbctl.targets.haproxy.quote import line
from lbctl.targets.response_bodies import OVERLOADED
from lbctl.targets.target import File
from lbctl.targets.token import Token, write

SPOE = "picker.spoe"
"""The file that contains the engines. The file's name does not end in .cfg, because HAProxy reads all .cfg files in a
directory as its own configuration."""
_BACKEND = "picker"
_MAX_BODY_BYTES = 64 * 1024
"""Maximum number of bytes from the beginning of a body that the picker receives."""
_AROUND_PROMPT = 8 * 1024
"""Allowance for body bytes outside the beginning of the prompt, such as preceding fields."""
_MAX_HEADER_BYTES = 4096
"""Maximum number of bytes from the beginning of a header that the picker receives."""
_REPLICA, _REFUSED, _FULL = "txn.picker.replica", "txn.picker.refused", "txn.picker.full"
"""Variables from the picker's response: the replica, or the seconds after which a rejected client should retry. The
last one is set if the queue of the pool rejects the request."""
_OVERLOADED = quote.json_answer(OVERLOADED)
_ERROR, _WAITED = "txn.picker.error", "txn.picker.waited"
"""Variables that HAProxy sets: the reason why the picker did not respond, and the milliseconds that the request waited
for an engine with queues."""
QUEUE_TIME = "txn.t_queue"
"""Milliseconds that a request has waited for a replica, at the picker and in HAProxy, for the access log."""
_PAUSE = "proc.pick_pause"
"""Time until which requests do not query the picker, in milliseconds since 1970; unset while the picker responds."""
_UNANSWERED = f"{{ var({_ERROR}) -m int 1 2 255: }}"
"""Reasons caused by the picker: a timeout, no connection, or an SPOP error, but not a client that has disconnected."""
_ABANDONED = f"{{ var({_ERROR}) -m int 4 5 }}"
"""The reason if the client disconnects: 5, and from HAProxy 3.1 on also 4. In older versions, 4 refers to fragments,
which the picker does not support."""
_NOT_PAUSED, _WAS_PAUSED = f"!{{ var({_PAUSE}),sub(txn.start) gt 0 }}", f"{{ var({_PAUSE}) -m found }}"
SLOT_RULE = f"http-request set-var(txn.pick) str({slots.PREFIX}"
"""Beginning of the rules that find the server slot of a picked replica, one rule per slot."""
_ASKS = "{ var(txn.pick_id) -m found }"
_JSON_BODY = "{ method POST } { req.fhdr(content-type) -m beg -i application/json } !{ req.hdr(upgrade) -m found }"
_IDLE = 60_000
"""Milliseconds for which a connection to the picker may be idle. HAProxy closes idle connections earlier."""
_AGENT_IDLE = 30_000
"""Milliseconds without messages after which HAProxy closes a connection to the picker; longer if requests wait
longer."""
_CHECK = "check inter 500ms fall 1 rise 1 observe layer4 error-limit 1 on-error mark-down"
_CHECK_WITH_QUEUES = _CHECK.replace("fall 1", "fall 2") + " on-marked-down shutdown-sessions"
"""The check for a picker with queues. Waiting requests continue without a replica after two failed checks rather than
one, because all of them would go to replicas that are full."""


def _text(value: str) -> bytes:
    """Return a short text in SPOP encoding."""
    return bytes((len(value),)) + value.encode()


def _frame(kind: int, *items: bytes) -> str:
    """Return an SPOP frame, including its length, in hexadecimal. `items` contains alternating names and values."""
    body = bytes((kind, 0, 0, 0, 1, 0, 0)) + b"".join(items)
    return (len(body).to_bytes(4, "big") + body).hex()


_STRING, _TRUE, _MAX_FRAME_SIZE = b"\x08", b"\x11", b"\x03\xfc\xf0\x06"
_SIZE = (_text("max-frame-size"), _MAX_FRAME_SIZE)
HELLO = _frame(
    1, _text("supported-versions"), _STRING + _text("2.0"), *_SIZE, _text("capabilities"), _STRING + _text(""),
    _text("healthcheck"), _TRUE,
)  # fmt: skip
"""The check for HAProxy 3.0 and older. In these versions, `option spop-check` allocates `tune.bufsize` bytes on the
stack, so a value of 8 MiB crashes HAProxy with a segmentation fault."""
ACCEPTED = _frame(
    101, _text("version"), _STRING + _text("2.0"), *_SIZE, _text("capabilities"), _STRING + _text("pipelining")
)
"""The picker's response to `HELLO`."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The backend of the picker."""

    name: Token
    """The name of the section."""
    defaults: Token
    """The name of the backend's section `defaults`."""
    server: Token
    """Its `server` line."""
    timeout: Token
    """Timeout of a check and of a connection attempt."""
    idle: Token
    """Maximum time without a message on a connection."""
    hello: Token
    """The check for HAProxy 3.0 and older, in hexadecimal."""
    accepted: Token
    """The expected response to this check."""


@dataclass(frozen=True, slots=True)
class _Query:
    """The requests of one route to one pool."""

    route: Route
    pool: Pool
    policy: PickPolicy
    name: str
    """Name of the query's group and message."""

    @property
    def with_body(self) -> str:
        """Name of the group and message that also send the beginning of the body."""
        return f"{self.name}-body"


def policy(name: str, view: View) -> PickPolicy | None:
    """Return the policy that the picker applies to this pool; None if the pool does not use the picker."""
    return view.pools[name].balance.pick if view.picker is not None else None


def files(view: View) -> Iterator[File]:
    """Yield the file that contains the engines, if any pool uses the picker."""
    queries = _queries(view)
    if not queries:
        return
    by_timeout: dict[int, list[_Query]] = {}
    for query in queries:
        for timeout in _timeouts(query, view):
            by_timeout.setdefault(timeout, []).append(query)
    engines = [_engine(timeout, members, view) for timeout, members in by_timeout.items()]
    yield File(SPOE, write("haproxy", "picker.spoe.j2", {"engines": engines, "backend": _backend_name(view)})[0])


def backend(view: View) -> Backend | None:
    """Return the backend of the picker; None if no pool uses the picker."""
    queries = _queries(view)
    if not queries:
        return None
    address = quote.address(picker.http_address(view))
    check = _CHECK_WITH_QUEUES if any(query.policy.queue for query in queries) else _CHECK
    timeout = max(query.policy.timeout for query in queries)
    longest = max(query.policy.longest_wait for query in queries)
    defaults = Token(f"{_backend_name(view).text}-defaults")
    server = line("server picker", address, check)
    times = quote.duration(timeout), quote.duration(_IDLE + longest)
    return Backend(_backend_name(view), defaults, server, *times, Token(HELLO), Token(ACCEPTED))


def body_bytes(view: View) -> int:
    """Return the number of body bytes that must fit into a buffer.

    The buffer also has room for the message's other arguments.
    """
    return max((_body_bytes(query.policy) for query in _queries(view)), default=0)


def engines(listener: Listener, view: View) -> Iterator[Token]:
    """Yield the filter of a frontend that uses the picker.

    HAProxy looks for the file that such a filter names in the directory of `default-path`, and for all later files in
    the directory where it was started (`readcfgfile` of HAProxy 2.6).
    """
    if queries := _queries_of(listener, view):
        path = quote.word(sections.beside(SPOE, view.proxy))
        yield line(f"filter spoe engine {_engine_name(_timeout(queries))} config", path)


def lines(route: Route, listener: Listener, view: View) -> Iterator[Token]:
    """Yield the lines that query the picker for the route's requests, after their pool has been chosen.

    HAProxy assigns the pick's ID before the query, so that the picker learns of the request's end even if the client
    disconnects in the meantime.
    """
    is_up = f"{{ nbsrv({_backend_name(view).text}) gt 0 }}"
    queries = _queries_of(listener, view)
    for query in queries:
        if query.route.name != route.name:
            continue
        path = ("pools", query.pool.name, "balance", "pick")
        yield line("http-request set-var(txn.pick_id) uuid()", _is_of(query), is_up, _NOT_PAUSED, source=path)
        engine = _engine_name(_timeout(queries))
        asks = f"{_is_of(query)} {_ASKS}"
        if view.picker_key:
            secrets = quote.word(sections.beside(sections.SECRETS, view.proxy)).text
            key = f"str({sections.PICKER_ROW}),map_str({secrets})"
            yield line(f"http-request set-var(txn.pick_key) {key}", asks, source=path)
        pause = picker.PAUSE + max(item.policy.timeout for item in queries)
        yield line(f"http-request set-var({_PAUSE}) date(0,ms),add({pause})", asks, _WAS_PAUSED, source=path)
        if query.policy.reads_bodies:
            yield line("http-request set-var(txn.pick_body) bool(true)", asks, _JSON_BODY, source=path)
            with_body = f"{asks} {{ var(txn.pick_body) -m found }}"
            yield line("http-request wait-for-body time", quote.duration(None), with_body, source=path)
            yield line(f"http-request send-spoe-group {engine} {query.with_body}", with_body, source=path)
            asks = f"{asks} !{{ var(txn.pick_body) -m found }}"
        yield line(f"http-request send-spoe-group {engine} {query.name}", asks, source=path)


def answers(listener: Listener, view: View) -> Iterator[Token]:
    """Yield the lines that apply the picker's choice to the listener's requests, or record why it is missing.

    If the response is too late, the picker may still have made a pick that no request uses. The ID of such a pick
    begins with `late-`.
    """
    queries = _queries_of(listener, view)
    if not queries:
        return
    failed, picked = f"{{ var({_ERROR}) -m found }}", f"{{ var({_REPLICA}) -m found }}"
    yield line(f"http-request set-var({_PAUSE}) date(0,ms),add({picker.PAUSE}) if", _ASKS, _UNANSWERED)
    yield line(f"http-request unset-var({_PAUSE}) if", _ASKS, _WAS_PAUSED, f"!{failed}")
    yield line("http-request set-var-fmt(txn.pick_id) 'late-%[var(txn.pick_id)]' if", _ASKS, failed)
    yield line("http-request unset-var(txn.pick_id) if", _ASKS, f"!{failed} !{picked}")
    yield line(f"http-request set-var(txn.pick) var({_REPLICA}) if", _ASKS, picked)
    if may_wait(listener, view):
        yield line(f"http-request set-var({QUEUE_TIME}) var({_WAITED}) if {{ var({_WAITED}) -m found }}")
    for query in queries:
        path = ("pools", query.pool.name, "balance", "pick")
        whole = residency.backend_name(query.pool, query.route.regions)
        for slot in _slots_by_backend(view).get(whole, ()):
            holds = f'{{ str("{slot}"),map_str({slots.MAP}),strcmp({_REPLICA}) eq 0 }}'
            yield line(f"{SLOT_RULE}{slot.removeprefix(slots.PREFIX)})", _is_of(query), picked, holds, source=path)
        yield line(f"http-request set-var(txn.backend) str({whole})", _is_of(query), picked, source=path)


def refusals(listener: Listener, view: View) -> Iterator[Token]:
    """Yield the lines that reject a request if the picker does, because of its queue or a limit on prompt tokens.

    A request whose client disconnected while waiting ends here: HAProxy would otherwise notice only after the request's
    next wait, for a replica.
    """
    if may_wait(listener, view):
        yield line("http-request reject if", _ABANDONED)
    queries = _queries_of(listener, view)
    if not any(picker.may_reject(query.pool, query.route) for query in queries):
        return
    seconds = quote.word(f"%[var({_REFUSED}),add(0)]")  # a number, whatever the answer contains
    refused, full = f"{{ var({_REFUSED}) -m found }}", f"{{ var({_FULL}) -m found }}"
    if any(query.policy.queue for query in queries):
        yield line(f"http-request return status 429 {_OVERLOADED} hdr Retry-After", seconds, "if", refused, full)
    yield line(f"http-request return status 429 {limits.REFUSAL} hdr Retry-After", seconds, "if", refused)


def queue_times(listener: Listener, view: View) -> Iterator[Token]:
    """Yield the lines that add HAProxy's own queue time to the time waited at the picker, for the access log."""
    if may_wait(listener, view):
        own, found = "var(txn.tries),field(1,/)", f"{{ var({QUEUE_TIME}) -m found }}"
        known = f"!{{ {own} -m str -- -1 }}"
        yield line(f"http-after-response set-var({QUEUE_TIME}) {own},add({QUEUE_TIME}) if", found, known)
        yield line(f"http-after-response set-var({QUEUE_TIME}) {own} if !{found}", known)


def may_wait(listener: Listener, view: View) -> bool:
    """Return whether the listener's requests may wait in a picker queue."""
    return any(query.policy.queue for query in _queries_of(listener, view))


def is_used(listener: Listener, view: View) -> bool:
    """Return whether the listener's requests use the picker, which then needs a report of each request's end."""
    return bool(_queries_of(listener, view))


def use_server(pool: Pool, view: View) -> Iterator[Token]:
    """Yield a backend's line that applies the picker's choice."""
    if policy(pool.name, view) is not None:
        path = ("pools", pool.name, "balance", "pick")
        yield line("use-server %[var(txn.pick)] if { var(txn.pick) -m found }", source=path)


def _queries(view: View) -> Sequence[_Query]:
    """Return the routes with their picker pools, in a fixed order."""
    picked = (
        (route, view.pools[name], settings)
        for route in view.routes.values()
        if isinstance(route.action, Forward)
        for name in route.action.pools
        if (settings := policy(name, view)) is not None
    )
    return [_Query(*item, f"pick{number}") for number, item in enumerate(picked, 1)]


def _queries_of(listener: Listener, view: View) -> Sequence[_Query]:
    routes = {rule.route for rule in listener.rules}
    return [query for query in _queries(view) if query.route.name in routes]


def _is_of(query: _Query) -> str:
    """Return the beginning of the condition that selects a query's requests."""
    route, pool = quote.name(query.route.name).text, quote.name(query.pool.name).text
    return f"if route_{route} {{ var(txn.pool) -m str -- {pool} }}"


def _timeout(queries: Sequence[_Query]) -> int:
    """Return the timeout of a listener's engine, in milliseconds.

    If requests may wait in a queue, HAProxy's check of the picker limits the wait of other queries.
    """
    return max(item.policy.longest_wait for item in queries)


def _timeouts(query: _Query, view: View) -> Iterable[int]:
    """Return the timeouts of the engines that a query uses on all listeners."""
    listeners = (item for item in view.listeners if any(rule.route == query.route.name for rule in item.rules))
    timeouts = dict.fromkeys(_timeout(_queries_of(item, view)) for item in listeners)
    return timeouts or (query.policy.timeout,)


def _engine_name(timeout: int) -> str:
    return f"picker-{timeout}ms"


def _engine(timeout: int, queries: Sequence[_Query], view: View) -> dict[str, object]:
    """Return an engine for the template. `queues`: 1 if some of its requests may wait in a queue."""
    return {
        "name": Token(_engine_name(timeout)),
        "hello": quote.duration(max(query.policy.timeout for query in queries)),
        "idle": quote.duration(timeout) if timeout > _AGENT_IDLE else Token(f"{_AGENT_IDLE // 1000}s"),
        "processing": quote.duration(timeout),
        "queues": int(any(query.policy.queue for query in queries)),
        "messages": [message for query in queries for message in _messages(query, view)],
    }


def _messages(query: _Query, view: View) -> Iterator[dict[str, Token]]:
    arguments = tuple(_arguments(query, view))
    yield {"name": Token(query.name), "arguments": line("args", *arguments)}
    if query.policy.reads_bodies:
        body = quote.word(f"body=req.body,bytes(0,{_body_bytes(query.policy)})")
        yield {"name": Token(query.with_body), "arguments": line("args", *arguments, body)}


def _arguments(query: _Query, view: View) -> Iterator[Token]:
    """Yield the arguments of a message in the form that `lbctl.picker.spop` reads."""
    if view.picker_key:
        yield Token("key=var(txn.pick_key)")
    yield quote.word(f'proxy=str("{quote.name(view.proxy.name).text}")')
    yield quote.word(f'target=str("{picker.question(query.pool, query.route, view.proxy)}")')
    yield Token("id=var(txn.pick_id)")
    yield Token("length=req.hdr(content-length)")
    if query.route.auth is not None:
        yield Token("tenant=var(txn.tenant)")
    if picker.needs_client(query.pool, query.route):
        yield Token("client=src")
    headers = query.policy.question_headers
    if headers:
        yield quote.word(f'headers=str("{" ".join(quote.name(header).text for header in headers)}")')
    for header in headers:
        yield quote.word(f"value={quote.sample('req.fhdr', header, f'bytes(0,{_MAX_HEADER_BYTES})', place=1)}")


def _body_bytes(settings: PickPolicy) -> int:
    """Return the number of body bytes that the picker receives: the beginning of the prompt and the JSON around it.

    Without `prefix`, a session key in the body is looked for in as many bytes as with the default `prefix`.
    """
    if not settings.reads_bodies:
        return 0
    prefix = settings.prefix or Prefix()
    return min(_MAX_BODY_BYTES, prefix.block * prefix.blocks + _AROUND_PROMPT)


def _backend_name(view: View) -> Token:
    return Token(sections.own(_BACKEND, view.proxy))


def _slots_by_backend(view: View) -> Mapping[str, tuple[str, ...]]:
    return {part.name: slots.names(part) for part in locality_tiers.all_parts(view)}
