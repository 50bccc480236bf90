"""Every setting of the resolved fleet as one line: where it stands in the YAML, its value in the contract's grammar.

Two fleets mean the same where their facts are the same: what is written otherwise, in another order or as a default
written out has the same facts. `diff` compares them, `explain` shows them beside the line that they came from. Values
are for people; what keys and certificates hold is never among them.
"""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.base.diagnostics import Path
from lbctl.ir.facts import listeners, pools, proxies, routes
from lbctl.ir.facts.words import Fact, text
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Control, Proxy
from lbctl.ir.routes import Route
from lbctl.ir.topology import Topology

Facts = dict[Path, str]
"""By the Topology's own paths, in which a replica goes by its name."""


def of_listener(listener: Listener) -> Facts:
    """Without its rules: those are the routes'."""
    return _facts(("listeners", listener.name), listeners.listener(listener))


def of_route(route: Route, rules: Iterable[Rule]) -> Facts:
    """`rules`: those of one listener that lead to it; they are the same on each."""
    return _facts(("routes", route.name), (*routes.match(list(rules)), *routes.route(route)))


def of_pool(pool: Pool) -> Facts:
    """Without its replicas."""
    return _facts(("pools", pool.name), pools.pool(pool))


def of_replica(pool: str, replica: Replica) -> Facts:
    """`capacity` is what the file's `weight`, or `gpu` and `gpu_count`, come to."""
    return _facts(("pools", pool, "replicas", replica.name), pools.replica(replica))


def of_proxy(proxy: Proxy) -> Facts:
    return _facts(("proxies", proxy.name), proxies.proxy(proxy))


def of_control(control: Control) -> Facts:
    return _facts(("control",), proxies.control(control))


def of_fleet(topology: Topology) -> Facts:
    """All but the replicas'."""
    rules = rules_by_route(topology)
    found: Facts = {}
    for listener in topology.listeners:
        found |= of_listener(listener)
    for route in topology.routes:
        found |= of_route(route, rules.get(route.name, ()))
    for pool in topology.pools:
        found |= of_pool(pool)
    for proxy in topology.proxies:
        found |= of_proxy(proxy)
    return found | of_control(topology.control)


def rules_by_route(topology: Topology) -> dict[str, tuple[Rule, ...]]:
    """Route → its rules, of any one of its listeners: they are the same on each."""
    found: dict[str, tuple[Rule, ...]] = {}
    for listener in topology.listeners:
        here: dict[str, list[Rule]] = {}
        for rule in listener.rules:
            here.setdefault(rule.route, []).append(rule)
        found.update({name: tuple(rules) for name, rules in here.items()})
    return found


def _facts(root: Path, found: Iterable[Fact]) -> Facts:
    return {(*root, *path): text(value) for path, value in found if value is not None}
