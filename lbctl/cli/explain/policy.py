"""The settings that apply to a request, each with its line in the YAML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lbctl.base.diagnostics import Path, dotted
from lbctl.compile.fleet import Compiled
from lbctl.compile.sources import origin
from lbctl.ir import settings
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Respond, Route
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets import is_kubernetes, target
from lbctl.targets.assess import capability_at
from lbctl.targets.target import Rendered, Since
from lbctl.targets.usage import feature_at

Row = dict[str, Any]
_LISTENER = ("allow_from", "deny_from", "max_body", "timeouts")
_ROUTE = (
    "timeouts", "retry", "rate_limit", "allow_from", "deny_from", "auth", "headers", "rewrite", "queue_priority",
    "websocket", "regions",
)  # fmt: skip
_POOL = ("protocol", "affinity", "locality", "connections", "timeouts", "circuit_breaker", "queue")


def policy(compiled: Compiled, proxy: Proxy, listener: Listener, route: Route, pools: tuple[str, ...]) -> list[Row]:
    """Return the settings for the listener, the route, and the pools that the request can reach.

    Limits that are divided among proxy instances are given per instance. `at` is None for a default. For a Kubernetes
    gateway, only the settings in its objects are returned, because its GatewayClass determines the others.
    """
    served = view(Snapshot(compiled.topology), proxy)
    in_files = dict(_applicable(listener, route, [item for item in compiled.topology.pools if item.name in pools]))
    listeners = {item.name: item for item in served.listeners}
    on_instance = dict(
        _applicable(
            listeners.get(listener.name, listener),
            served.routes.get(route.name, route),
            [served.pools[name] for name in pools if name in served.pools],
        )
    )
    return [
        {
            "path": dotted(path),
            "value": _value(value, on_instance.get(path, value)),
            "at": str(place) if (place := origin(compiled.sources, path)) else None,
        }
        for path, value in in_files.items()
        if not is_kubernetes(proxy.kind) or _is_rendered(proxy, path)
    ]


def _is_rendered(proxy: Proxy, path: Path) -> bool:
    feature = feature_at(path)
    return feature is None or isinstance(
        capability_at(target(proxy.kind).capabilities[feature.id], proxy.version), Rendered | Since
    )


def _value(in_files: str, on_instance: str) -> str:
    return in_files if in_files == on_instance else f"{on_instance} on each instance ({in_files} in total)"


def _applicable(listener: Listener, route: Route, pools: Iterable[Pool]) -> Iterator[tuple[Path, str]]:
    yield from _select(settings.of_listener(listener), _LISTENER)
    yield from _select(settings.of_route(route, ()), ("headers",) if isinstance(route.action, Respond) else _ROUTE)
    for pool in pools:
        pool_settings = settings.of_pool(pool)
        yield from _select(pool_settings, _POOL)
        yield from ((path, value) for path, value in pool_settings.items() if path[2:4] == ("health", "load_shedding"))


def _select(values: settings.Settings, keys: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    return ((path, value) for path, value in values.items() if path[2] in keys)
