"""The destinations of routes: existing Services of discovered pools, and ServiceEntries for all other replicas.

Each destination has a DestinationRule. Istio reads it from the destination's namespace. If a route may use a pool's
replicas only in some regions, these replicas form a separate ServiceEntry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import KubernetesDiscovery, Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Route
from lbctl.ir.shares import in_regions
from lbctl.ir.snapshot import View, pools_of
from lbctl.targets.hosted import hosted_pool
from lbctl.targets.istio import pool_findings
from lbctl.targets.istio.changes import new_host
from lbctl.targets.istio.destination_rule import needs_secret, traffic_policy
from lbctl.targets.istio.failover import failover
from lbctl.targets.istio.service_entry import PORT, Member, spec
from lbctl.targets.manifests.names import NameGrammar, Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.manifests.pool_classes import Group
from lbctl.targets.target import Prerequisite

GROUP = "networking.istio.io/v1"
_NAME = NameGrammar("ServiceEntry", 63, dots=False, starts_with_letter=True)
"""The name of a ServiceEntry is also a label of its host."""
_RULE = object_name("DestinationRule")
_SECRET = object_name("Secret")
_DOMAIN = "lbctl.internal"
"""Domain of the hosts in ServiceEntries. Only Istio knows these hosts; they do not exist in DNS."""


class Destinations:
    """The destinations of all routes of a view."""

    def __init__(self, view: View, objects: KubernetesObjects) -> None:
        self._view = view
        self._objects = objects
        groups = {_group(route, view.pools[pool]) for route in view.routes.values() for pool in pools_of(route)}
        self._members = {group: self._ready(group) for group in sorted(groups)}
        by_parts = names(_NAME, [self._parts(group) for group in self._members])
        self._names = {group: by_parts[self._parts(group)] for group in self._members}
        self._budgets = _budgets(view)
        self._secrets = self._secret_names()

    def of(self, route: Route, shares: Mapping[str, int]) -> list[Tree]:
        """Return the `route` of a rule that splits requests among pools by `shares`, in their order.

        Istio scales weights. If the route changes the host, its rule must do so unless a pool has its own host.
        """
        has_host = any(self._view.pools[pool].upstream for pool in shares)
        host = new_host(route) if has_host else None
        return [
            {
                "destination": self._destination(route, pool),
                **({"weight": weight} if len(shares) > 1 else {}),
                **self._headers(pool, host),
            }
            for pool, weight in shares.items()
        ]

    def mirror(self, route: Route, pool: str) -> Tree:
        """Return the destination of a route's mirrored requests."""
        return self._destination(route, pool)

    def add(self, objects: Objects) -> None:
        """Add the ServiceEntries and the DestinationRules."""
        foreign = self._foreign_names()
        services: set[str] = set()
        for group, members in self._members.items():
            pool, host = self._view.pools[group[0]], self._host(group)
            ranks = failover(pool, [replica for replica, _ in members])
            source, name, namespace = ("pools", pool.name), self._names[group], self._objects.namespace
            if not isinstance(pool.discovery, KubernetesDiscovery):
                entry = spec(host, pool, members, ranks)
                objects.add(GROUP, "ServiceEntry", name, "pool", source, spec=entry)
            elif group in foreign:
                name, namespace = foreign[group], pool.discovery.namespace
            if host in services:
                continue
            services.add(host)
            policy = traffic_policy(pool, host, ranks, self._budgets.get(pool.name), self._secrets.get(pool.name))
            rule = {"host": host, "trafficPolicy": policy}
            objects.add(GROUP, "DestinationRule", name, "pool", source, namespace=namespace, spec=rule)

    def _foreign_names(self) -> dict[Group, str]:
        """Map each pool whose Service is in another namespace to its rule. Other fleets may also have rules there."""
        discoveries = {group: self._view.pools[group[0]].discovery for group in self._members}
        wanted = {
            group: (self._objects.namespace, *self._parts(group))
            for group, discovery in discoveries.items()
            if isinstance(discovery, KubernetesDiscovery) and discovery.namespace != self._objects.namespace
        }
        by_parts = names(_RULE, wanted.values())
        return {group: by_parts[parts] for group, parts in wanted.items()}

    def diagnostics(self) -> Iterator[Diagnostic]:
        """Yield the settings of pools that Istio cannot express, and the errors that prevent rendering."""
        yield from pool_findings.diagnostics(self._view, self._objects, self._members)

    def prerequisites(self) -> Iterator[Prerequisite]:
        """Yield the Secrets that contain certificates for connections to replicas.

        Secrets listed in `secrets` already exist.
        """
        for pool in self._own_secrets():
            name, tls = self._secrets[pool.name], pool.tls
            assert tls is not None
            words = ("kubectl", "-n", self._objects.pods_namespace, "create", "secret")
            pair = [("tls.crt", tls.certificate), ("tls.key", tls.key)]
            if tls.ca is None:
                files = [("--cert", tls.certificate), ("--key", tls.key)]
                yield Prerequisite((*words, "tls", name), _given(files))
            else:
                files = [(f"--from-file={key}", file) for key, file in (*pair, ("ca.crt", tls.ca))]
                yield Prerequisite((*words, "generic", name), _given(files))

    def needed(self) -> Iterator[tuple[str, str, str]]:
        """Yield (kind, namespace, name) of the Secrets whose names lbctl chooses."""
        for pool in self._own_secrets():
            yield "Secret", self._objects.pods_namespace, self._secrets[pool.name]

    def _destination(self, route: Route, pool: str) -> Tree:
        discovery = self._view.pools[pool].discovery
        port = PORT
        if isinstance(discovery, KubernetesDiscovery):
            port = discovery.referenced_port or PORT
        return {"host": self._host(_group(route, self._view.pools[pool])), "port": {"number": port}}

    def _host(self, group: Group) -> str:
        discovery = self._view.pools[group[0]].discovery
        if isinstance(discovery, KubernetesDiscovery):
            return f"{discovery.service}.{discovery.namespace}.svc.cluster.local"
        return f"{self._names[group]}.{self._objects.namespace}.{_DOMAIN}"

    def _headers(self, pool: str, host: str | None) -> Tree:
        """Return the changes to a pool's requests: for a hosted API, or for another host."""
        hosted = hosted_pool(self._view, pool) if self._view.pools[pool].upstream else None
        if hosted is None:
            return {"headers": {"request": {"set": {":authority": host}}}} if host is not None else {}
        constants = {header.name: header.text.replace("%", "%%") for header in hosted.headers if header.file is None}
        removed = [name for name in hosted.removed if name not in constants]
        change: Tree = {"set": {":authority": hosted.upstream.host, **constants}}
        if removed:
            change["remove"] = removed
        return {"headers": {"request": change}}

    def _parts(self, group: Group) -> Parts:
        pool, regions = group
        return (self._view.proxy.name, pool, *regions)

    def _ready(self, group: Group) -> list[Member]:
        """Return the replicas in these regions that are not drained, with their weights."""
        name, regions = group
        pairs = zip(self._view.pools[name].replicas, self._view.weights[name], strict=True)
        drained = self._view.drained[name]
        return [
            (replica, weight)
            for replica, weight in pairs
            if in_regions(replica, regions) and replica.name not in drained
        ]

    def _secret_names(self) -> dict[str, str]:
        """Map each pool to the name of the Secret that contains its certificates."""
        pools = [pool for pool in self._view.pools.values() if pool.tls is not None and needs_secret(pool.tls)]
        owner = secret_owner(self._view, self._objects)
        parts = {pool.name: (*owner, pool.name, "client" if _certificate(pool) else "ca") for pool in pools}
        by_parts = names(_SECRET, parts.values())
        given = dict(self._objects.secrets)
        return {pool.name: given.get(_certificate(pool)) or by_parts[parts[pool.name]] for pool in pools}

    def _own_secrets(self) -> Iterator[Pool]:
        """Yield the pools with a Secret whose name lbctl chooses."""
        given = dict(self._objects.secrets)
        return (pool for name in self._secrets if _certificate(pool := self._view.pools[name]) not in given)


def secret_owner(view: View, objects: KubernetesObjects) -> Parts:
    """Return the first parts of Secret names.

    Fleets in other namespaces may also have Secrets in the namespace of the gateway's pods.
    """
    namespace = (objects.namespace,) if objects.pods_namespace != objects.namespace else ()
    return (*namespace, view.proxy.name)


def _group(route: Route, pool: Pool) -> Group:
    """Return the group of a pool's replicas that may serve a route's requests.

    Only replicas in the fleet file have regions.
    """
    return pool.name, () if isinstance(pool.discovery, KubernetesDiscovery) else route.regions


def _budgets(view: View) -> dict[str, float]:
    """Return the retry budget of each pool: its routes' smallest, because Istio has one budget per destination."""
    by_destination: dict[Parts, float] = {}
    for route in view.routes.values():
        for pool in pools_of(route) if route.retry.budget is not None else ():
            assert route.retry.budget is not None
            key = _destination_key(view.pools[pool])
            by_destination[key] = min(route.retry.budget, by_destination.get(key, route.retry.budget))
    keys = {name: _destination_key(pool) for name, pool in view.pools.items()}
    return {name: by_destination[key] for name, key in keys.items() if key in by_destination}


def _destination_key(pool: Pool) -> Parts:
    """Return the settings that pools with a common DestinationRule share."""
    discovery = pool.discovery
    if isinstance(discovery, KubernetesDiscovery):
        return (discovery.namespace, discovery.service or "")
    return (pool.name,)


def _certificate(pool: Pool) -> str:
    return (pool.tls.certificate or "") if pool.tls is not None else ""


def _given(files: Sequence[tuple[str, str | None]]) -> tuple[tuple[str, str], ...]:
    return tuple((option, file) for option, file in files if file is not None)
