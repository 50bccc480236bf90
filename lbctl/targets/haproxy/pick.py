"""A replica for each request, named by the picker: a Lua action that asks it, and `use-server`.

The action has the time that the fleet gives it, the connection included. Whatever goes wrong, HAProxy chooses by its
own algorithm. The picker is left alone for a second after it was not there or too slow; then one request asks again.
What must not be picked is kept out here too: HAProxy gives a server in maintenance nothing, and a name that is not
among the servers of the backend is no choice. A HAProxy without Lua loads the same file, warns, and picks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import PickPolicy, Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets import picker
from lbctl.targets.haproxy import locality_tiers, quote, residency, sections, slots
from lbctl.targets.haproxy.quote import line
from lbctl.targets.target import File
from lbctl.targets.token import Token, write

SCRIPT = "pick.lua"
_MAX_BODY_BYTES = 64 * 1024
"""Bytes of the beginning of a body that the picker gets at most."""
_WITH_LUA, _END = Token(".if feature(LUA)"), Token(".endif")
_WITHOUT_LUA = Token('.warning "this HAProxy is built without Lua: pools with the algorithm pick use otherwise"')
_JSON_BODY = "{ method POST } { req.fhdr(content-type) -m beg -i application/json } !{ req.hdr(upgrade) -m found }"


@dataclass(frozen=True, slots=True)
class LuaPick:
    """What is asked for the requests of one route to one pool, as the Lua script has it."""

    target: Token
    """The path and query."""
    timeout: int
    """Milliseconds until the proxy chooses by itself."""
    headers: tuple[Token, ...]
    """The headers that may name a session."""
    body: int
    """1 if the beginning of the body is sent."""
    tenant: int
    """1 if requests of the route may have a tenant."""
    backend: Token
    """The beginning of the names of the backend's slots; empty where it has none."""


def policy(name: str, view: View) -> PickPolicy | None:
    """Return how the picker chooses for this pool; None where it does not."""
    return view.pools[name].balance.pick if view.picker is not None else None


def files(view: View) -> Iterator[File]:
    """Yield the Lua script, if any pool is picked."""
    questions = [_question(route, pool, view) for route, pool in _picked(view)]
    if not questions:
        return
    address = picker.http_address(view)
    values = {
        "questions": questions,
        "host": quote.lua(address.host),
        "port": address.port,
        "proxy": quote.lua(view.proxy.name),
        "pause": picker.PAUSE,
        "keys": quote.lua(sections.beside(sections.SECRETS, view.proxy)) if view.picker_key else None,
        "key": quote.lua(sections.PICKER_ROW),
        "key_header": quote.lua(f"{picker.KEY_HEADER}: "),
        "slots": int(any(slots.names(part) for part in locality_tiers.all_parts(view))),
    }
    yield File(SCRIPT, write("haproxy", "pick.lua.j2", values)[0])


def global_lines(view: View) -> Iterator[Token]:
    """Yield the lines of the global section that load the script.

    All threads share it: HAProxy 2.6 looks for a script for each thread outside the directory of the configuration.
    """
    picked = _picked(view)
    if picked:
        path = ("pools", picked[0][1].name, "balance", "pick")
        yield Token("set-var proc.pick_pause int(0)")
        yield from (_WITH_LUA, line("lua-load", SCRIPT, source=path), Token(".else"), _WITHOUT_LUA, _END)


def body_bytes(view: View) -> int:
    """Return how much of a body must fit into a buffer."""
    prefixes = [pool.balance.pick.prefix for _, pool in _picked(view) if pool.balance.pick]
    return max((min(_MAX_BODY_BYTES, item.block * item.blocks) for item in prefixes if item), default=0)


def lines(route: Route, view: View) -> Iterator[Token]:
    """Yield the lines by which requests of the route ask the picker, once their pool is chosen."""
    for number, (asking, pool) in enumerate(_picked(view), 1):
        if asking.name != route.name or pool.balance.pick is None:
            continue
        path = ("pools", pool.name, "balance", "pick")
        name = quote.name(pool.name).text
        condition = f"if route_{quote.name(route.name).text} {{ var(txn.pool) -m str -- {name} }}"
        yield _WITH_LUA
        if pool.balance.pick.reads_bodies:
            forever = quote.duration(None).text
            yield line(f"http-request wait-for-body time {forever}", condition, _JSON_BODY, source=path)
        yield line(f"http-request lua.lbctl_pick {number}", condition, source=path)
        whole = residency.backend_name(pool, route.regions)
        is_picked = "{ var(txn.pick) -m found }"
        yield line(f"http-request set-var(txn.backend) str({whole})", condition, is_picked, source=path)
        yield _END


def is_used(listener: Listener, view: View) -> bool:
    """Return whether requests of the listener are picked, so that the picker has to know when they end."""
    routes = {rule.route for rule in listener.rules}
    return any(route.name in routes for route, _ in _picked(view))


def use_server(pool: Pool, view: View) -> Iterator[Token]:
    """Yield the line of a backend that follows the picker."""
    if policy(pool.name, view) is not None:
        path = ("pools", pool.name, "balance", "pick")
        yield line("use-server %[var(txn.pick)] if { var(txn.pick) -m found }", source=path)


def _picked(view: View) -> Sequence[tuple[Route, Pool]]:
    """Return the routes with their pools that are picked, in one order."""
    return [
        (route, view.pools[name])
        for route in view.routes.values()
        if isinstance(route.action, Forward)
        for name in route.action.pools
        if policy(name, view) is not None
    ]


def _question(route: Route, pool: Pool, view: View) -> LuaPick:
    settings = pool.balance.pick
    assert settings is not None
    backend = residency.backend_name(pool, route.regions)
    slotted = _slots_by_backend(view).get(backend)
    return LuaPick(
        target=quote.lua(picker.question(pool, route, view.proxy)),
        timeout=settings.timeout,
        headers=tuple(map(quote.lua, settings.session_headers)),
        body=int(settings.reads_bodies),
        tenant=int(route.auth is not None),
        backend=quote.lua(f"{slots.PREFIX}{backend}." if slotted else ""),
    )


def _slots_by_backend(view: View) -> Mapping[str, tuple[str, ...]]:
    return {part.name: slots.names(part) for part in locality_tiers.all_parts(view)}
