"""Rules about Kubernetes gateways: features missing from their class, and entries that share a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import host_covers
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import access
from lbctl.ir.snapshot import Snapshot
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.targets.gateway_api.classes import CLASSES
from lbctl.targets.gateway_api.target import TARGET
from lbctl.targets.istio.gateway import labels
from lbctl.targets.istio.target import TARGET as ISTIO
from lbctl.targets.prepare import prepare


@rule("LB251")
def class_lacks_feature(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report features that a Gateway's class is known not to support (LB251)."""
    snapshot = Snapshot(fleet.topology, secrets=fleet.loaded.secrets)
    for proxy in fleet.topology.proxies:
        name = proxy.kubernetes.gateway_class if proxy.kubernetes is not None else None
        implementation = CLASSES.get(name or "")
        if proxy.kind != TARGET.kind or implementation is None:
            continue
        view = TARGET.served(prepare(TARGET, fleet.loaded.compiled, proxy, snapshot).view)
        for gap in implementation.gaps:
            message = f"the class {name} ({implementation.title}) does not support {gap.text}"
            yield from (RuleFinding(path, message, gap.hint) for path in dict.fromkeys(gap.uses(view)))


@rule("LB252")
def entries_share_host(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report entries that configure the same host on the same gateway (LB252)."""
    for first, second in combinations(fleet.topology.proxies, 2):
        gateway = _gateway(first)
        regions = {first.region, second.region} - {None}
        if gateway is None or gateway != _gateway(second) or len(regions) > 1:
            continue
        ours, theirs = _listeners(fleet, first), _listeners(fleet, second)
        shared = [
            (listener, host)
            for listener in theirs
            for other in ours
            if (host := _common_host(listener, other)) is not None
        ]
        path = ("proxies", second.name)
        ports = {item.bind.port for item in ours}
        same = next(((item.bind.port, host) for item, host in shared if item.bind.port in ports), None)
        if same is not None:
            port, host = same
            message = f"entry {first.name} also configures {host or 'any host'} on port {port} of the same gateway"
            yield RuleFinding(path, message, "use other listeners or another gateway")
        elif shared and _policies(first, ours) != _policies(second, theirs):
            message = f"the access lists in this entry and in entry {first.name} apply to all ports of the same gateway"
            yield RuleFinding(path, message, "use the same lists, or select other pods with `gateway_labels`")


def _gateway(proxy: Proxy) -> tuple[object, ...] | None:
    """Return the identity of an entry's gateway; None if the gateway is used only by this entry."""
    objects = proxy.kubernetes
    if objects is None:
        return None
    if objects.gateway is not None:
        return proxy.kind == ISTIO.kind, objects.gateway_namespace or objects.namespace, objects.gateway
    return (True, objects.pods_namespace, *sorted(labels(objects).items())) if proxy.kind == ISTIO.kind else None


def _listeners(fleet: FleetView, proxy: Proxy) -> list[Listener]:
    return [item for item in fleet.topology.listeners if not proxy.listeners or item.name in proxy.listeners]


def _common_host(one: Listener, other: Listener) -> str | None:
    """Return a host for which both listeners have routes, or None."""
    pairs = ((rule.host, theirs.host) for rule in one.rules for theirs in other.rules)
    return next((max(pair, key=len) for pair in pairs if host_covers(*pair) or host_covers(*reversed(pair))), None)


def _policies(proxy: Proxy, listeners: list[Listener]) -> set[object]:
    """Return the access lists of the entry's listeners; empty if lbctl does not render the entry's Gateway."""
    assert proxy.kubernetes is not None
    return {access(item) for item in listeners} if proxy.kubernetes.gateway is None else set()
