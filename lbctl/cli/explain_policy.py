"""The settings that apply to a request on its way, each with the line of YAML that it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lbctl.base.diagnostics import Path, dotted
from lbctl.compile.fleet import Compiled
from lbctl.compile.origin import origin
from lbctl.ir import settings
from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Respond, Route

Row = dict[str, Any]
_LISTENER = ("allow_from", "deny_from", "max_body", "timeouts")
_ROUTE = (
    "timeouts", "retry", "rate_limit", "allow_from", "deny_from", "auth", "headers", "rewrite", "queue_priority",
    "websocket", "regions",
)  # fmt: skip
_POOL = ("protocol", "affinity", "locality", "connections", "timeouts", "circuit_breaker")


def policy(compiled: Compiled, listener: Listener, route: Route, pools: tuple[str, ...]) -> list[Row]:
    """Return the settings of the listener, of the route, and of the pools that the request may go to.

    `at` is None for a default.
    """
    return [
        {"path": dotted(path), "value": value, "at": str(place) if (place := origin(compiled.sources, path)) else None}
        for path, value in _applicable(compiled, listener, route, pools)
    ]


def _applicable(
    compiled: Compiled, listener: Listener, route: Route, pools: tuple[str, ...]
) -> Iterator[tuple[Path, str]]:
    yield from _select(settings.of_listener(listener), _LISTENER)
    yield from _select(settings.of_route(route, ()), ("headers",) if isinstance(route.action, Respond) else _ROUTE)
    for pool in compiled.topology.pools:
        if pool.name in pools:
            pool_settings = settings.of_pool(pool)
            yield from _select(pool_settings, _POOL)
            yield from (
                (path, value) for path, value in pool_settings.items() if path[2:4] == ("health", "load_shedding")
            )


def _select(values: settings.Settings, keys: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    return ((path, value) for path, value in values.items() if path[2] in keys)
