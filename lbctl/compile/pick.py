"""Resolves `balance.pick`, `queue` and `prompt_tokens`, which determine how the picker chooses replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.compile.convert import address, group_by, maybe, pairs
from lbctl.compile.headers import is_reserved
from lbctl.ir import pools as ir
from lbctl.ir.address import Address
from lbctl.ir.proxies import picker_http, picker_http_remote
from lbctl.ir.routes import Forward, Route
from lbctl.model import pool as model
from lbctl.model.node import descend

_LAST_PORT = 65535
_BIND: Path = ("control", "picker", "bind")


def pick(ctx: Context, path: Path, section: model.Pick) -> ir.PickPolicy:
    """Resolve the `pick` section of the balance at `path`. Reports LB302."""
    if section.bound <= 1:
        place = (*path, "pick", "bound")
        ctx.error(
            "LB302",
            f"a bound of {section.bound:g} leaves no room for any difference in load",
            place,
            "use a number above 1, for example 1.25",
        )
    prefix = maybe(section.prefix, lambda item: ir.Prefix(item.block, item.blocks))
    return ir.PickPolicy(_session(section), prefix, section.bound, int(section.timeout))


def queue(ctx: Context, path: Path, section: model.Queue) -> ir.QueuePolicy:
    """Resolve the queue for the pool at `path`.

    Reports LB119 for a header that belongs to the proxy or controls the message, and LB320 for weights that have no
    effect.
    """
    path = (*path, "queue")
    by, header = group_by(section.by)
    if section.weights and (by != "tenant" or section.order != "fair"):
        message = "weights of tenants have an effect only with `by: tenant` and `order: fair`"
        ctx.error("LB320", message, (*path, "weights"), "remove weights, or change `by` and `order`", key=True)
    priority_header = section.priority.header if section.priority else ""
    for name, place in ((header, ("by", "header")), (priority_header, ("priority", "header"))):
        if name and is_reserved(name):
            message = f"{name} is a message-framing header or a header of the proxy itself"
            ctx.error("LB119", message, (*path, *place), "use another header")
    return ir.QueuePolicy(
        max_wait=int(section.max_wait),
        max_requests=section.max_requests,
        order=section.order,
        by=by,  # type: ignore[arg-type]
        header=header,
        weights=tuple(sorted(section.weights.items())),
        priority_header=priority_header,
        priority_tenants=pairs(section.priority.tenants) if section.priority else (),
    )


def _session(section: model.Pick) -> tuple[ir.SessionKey, ...]:
    if section.session is not None:
        return tuple(dict.fromkeys(_session_key(key) for key in section.session))
    return tuple(key for key in ir.DEFAULT_SESSION_KEYS if key.header or section.prefix is not None)


def token_limits(routes: Iterable[Route]) -> dict[str, tuple[ir.TokenLimit, ...]]:
    """Map pools to the prompt-token limits of the routes that lead to them. `routes` is sorted by name."""
    limits: dict[str, tuple[ir.TokenLimit, ...]] = {}
    for route in routes:
        pools = route.action.pools if route.prompt_limits and isinstance(route.action, Forward) else ()
        for pool in pools:
            limits[pool] = (*limits.get(pool, ()), *route.prompt_limits)
    return limits


def check_prompt_limits(ctx: Context) -> None:
    """Report LB517 for each prompt-token limit on a route to a pool that does not use the picker."""
    pools = ((name, pool) for name, pool in ctx.fleet.pools.items() if ("pools", name) not in ctx.source.pruned)
    unpicked = {name for name, pool in pools if pool.balance.algorithm != "pick"}
    for name, route in ctx.fleet.routes.items():
        pool = next((pool for pool in (*route.pools, route.fallback) if pool in unpicked), None)
        for index, limit in enumerate(route.rate_limit if pool is not None else ()):
            if limit.prompt_tokens is not None:
                message = f"the picker enforces this limit, but the pool {pool} does not use the algorithm pick"
                path = ("routes", name, "rate_limit", index, "prompt_tokens")
                ctx.error("LB517", message, path, "balance: {algorithm: pick}", key=True)


def check_picker(ctx: Context) -> None:
    """Report addresses on which the picker cannot listen.

    Reports LB307 for a Unix socket or the last port, because proxies query the next port. If a pool uses the picker,
    reports LB112 for an address where one of the two ports is already in use.
    """
    bind = ctx.fleet.control.picker.bind
    if bind.path or bind.port >= _LAST_PORT:
        found = f"{address(bind)} is a unix socket" if bind.path else f"there is no port after {address(bind)}"
        message = f"the picker needs its port and the next port, which proxies query over HTTP: {found}"
        ctx.error(
            "LB307",
            message,
            _BIND,
            f"use an IP address with a port from 1 to {_LAST_PORT - 1}, for example 127.0.0.1:18001",
        )
    elif any(pool.balance.algorithm == "pick" for pool in ctx.fleet.pools.values()):
        _check_clashes(ctx, address(bind))


def _check_clashes(ctx: Context, bind: Address) -> None:
    """Report LB112 at the picker's address or, if that is the default address, at the other address."""
    places = {"the picker": bind, "the picker's HTTP": picker_http(bind)}
    remote = picker_http_remote(bind)
    places |= {"the picker's HTTP endpoint for other machines": remote} if remote is not None else {}
    is_written = descend(ctx.source.root, _BIND) is not None
    for path, owner, other in _others(ctx, bind):
        user = next((name for name, place in places.items() if _overlap(place, other)), None)
        if user is not None and is_written:
            hint = f"the picker needs port {bind.port} and the next one for itself"
            ctx.error("LB112", f"{other} is already the address of {owner}", _BIND, hint)
        elif user is not None:
            ctx.error("LB112", f"{places[user]} is already the address of {user}", path, "use a separate address")


def _others(ctx: Context, picker: Address) -> Iterator[tuple[Path, str, Address]]:
    """Yield the path, owner and address of every other listener that might conflict with the picker.

    The picker listens on `picker` (TCP) and on the next port (TCP and UDP). The traffic log uses UDP only.
    """
    control = ctx.fleet.control
    if control.logs.bind.port == picker_http(picker).port:
        yield ("control", "logs", "bind"), "the traffic log", address(control.logs.bind)
    yield ("control", "xds", "bind"), "xDS", address(control.xds.bind)
    yield ("control", "api", "bind"), "the API", address(control.api.bind)
    for name, listener in ctx.fleet.listeners.items():
        yield ("listeners", name, "bind"), f"listener {name}", address(listener.bind)
    for name, proxy in ctx.fleet.proxies.items():
        for key, page in (("metrics", proxy.metrics), ("admin", proxy.admin)):
            if page is not None:
                yield ("proxies", name, key), f"the {key} of proxy {name}", address(page)
        if proxy.agent_check is not None:
            first, count = address(proxy.agent_check.bind), sum(len(pool.replicas) for pool in ctx.fleet.pools.values())
            for port in range(max(first.port, picker.port), min(first.port + count, picker.port + 2)):
                path = ("proxies", name, "agent_check", "bind")
                yield path, f"the agent checks of proxy {name}", Address(first.host, port)


def _overlap(one: Address, other: Address) -> bool:
    """Return whether two listeners on these addresses would conflict."""
    if one.path or other.path or one.port != other.port:
        return False
    hosts = {one.host, other.host}
    is_ipv6 = [":" in host for host in (one.host, other.host)]
    return len(hosts) == 1 or ("::" in hosts and all(is_ipv6)) or ("0.0.0.0" in hosts and not any(is_ipv6))


def _session_key(key: str | model.BodyKey) -> ir.SessionKey:
    return ir.SessionKey(header=key) if isinstance(key, str) else ir.SessionKey(body=key.body)
