"""Every setting in the resolved fleet, as a path in the YAML and a string in the YAML's syntax.

Two fleets are equivalent if their settings are equal, because a different spelling, a different order or an explicitly
set default yields the same settings. `diff` compares them, and `explain` shows them next to the line from which they
came. The strings are meant for human readers. They never contain the contents of keys and certificates.
"""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.base.diagnostics import Path
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Control, Proxy
from lbctl.ir.routes import Route
from lbctl.ir.settings import listeners, pools, proxies, routes
from lbctl.ir.settings.format import Setting, text
from lbctl.ir.topology import Topology

Settings = dict[Path, str]
"""Maps the Topology's own paths, which identify a replica by its name, to strings."""


def of_listener(listener: Listener) -> Settings:
    """Return the listener's settings without its rules, which are part of the routes."""
    return _settings(("listeners", listener.name), listeners.listener(listener))


def of_route(route: Route, rules: Iterable[Rule]) -> Settings:
    """Return the route's settings.

    `rules` contains one listener's rules that lead to the route. These rules are the same on every listener.
    """
    return _settings(("routes", route.name), (*routes.match(list(rules)), *routes.route(route)))


def of_pool(pool: Pool) -> Settings:
    """Return the pool's settings without its replicas."""
    return _settings(("pools", pool.name), pools.pool(pool))


def of_replica(pool: str, replica: Replica) -> Settings:
    """Return the replica's settings.

    `capacity` is calculated from `weight` in the file, or from `gpu` and `gpu_count`.
    """
    return _settings(("pools", pool, "replicas", replica.name), pools.replica(replica))


def of_proxy(proxy: Proxy) -> Settings:
    """Return the proxy's settings."""
    return _settings(("proxies", proxy.name), proxies.proxy(proxy))


def of_control(control: Control) -> Settings:
    """Return the control plane's settings."""
    return _settings(("control",), proxies.control(control))


def of_fleet(topology: Topology) -> Settings:
    """Return the settings of the whole fleet without its replicas."""
    rules = rules_by_route(topology)
    fleet_settings: Settings = {}
    for listener in topology.listeners:
        fleet_settings |= of_listener(listener)
    for route in topology.routes:
        fleet_settings |= of_route(route, rules.get(route.name, ()))
    for pool in topology.pools:
        fleet_settings |= of_pool(pool)
    for proxy in topology.proxies:
        fleet_settings |= of_proxy(proxy)
    return fleet_settings | of_control(topology.control)


def rules_by_route(topology: Topology) -> dict[str, tuple[Rule, ...]]:
    """Map each route to its rules on any one of its listeners. A route's rules are the same on every listener."""
    rules_of: dict[str, tuple[Rule, ...]] = {}
    for listener in topology.listeners:
        of_listener: dict[str, list[Rule]] = {}
        for rule in listener.rules:
            of_listener.setdefault(rule.route, []).append(rule)
        rules_of.update({name: tuple(rules) for name, rules in of_listener.items()})
    return rules_of


def _settings(root: Path, pairs: Iterable[Setting]) -> Settings:
    return {(*root, *path): text(value) for path, value in pairs if value is not None}
