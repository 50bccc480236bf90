"""The backends of rules: existing Services of discovered pools, and `Backend` objects for all other replicas.

Endpoints of a Backend have no weights. Therefore, replicas of equal weight form one Backend, and the weights belong to
the Backends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.hosts import is_ip, is_loopback, parse_ip
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import DnsDiscovery, KubernetesDiscovery, Pool, Replica
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View, pools_of
from lbctl.targets.envoy_gateway import extension_policy, route_filters, traffic_policy
from lbctl.targets.envoy_gateway.context import API_VERSION, DESTINATION_HEADER, GROUP
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.gateway import create_tls_secret
from lbctl.targets.manifests.http_route import HostTable, Way
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.manifests.pool_classes import MAX_BACKENDS, Group, PoolClasses, group_of, shared_weights
from lbctl.targets.manifests.tls import Certificates
from lbctl.targets.target import Prerequisite

_BACKEND = object_name("Backend")
_SECRET = object_name("Secret")
_MAX_ENDPOINTS = 256
"""Maximum number of endpoints of a Backend."""
_MAX_RANKS = 2
"""Number of priorities: a Backend either is a fallback or not."""
_SEPARATE: Tree = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": [DESTINATION_HEADER]}}
"""Filter of a backend. The filter has no effect itself, but Envoy Gateway creates a separate cluster for a backend with
a filter."""
_HOST_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Endpoints:
    """A Backend to render."""

    pool: str
    replicas: tuple[Replica, ...]
    weight: int
    """Relative to the other Backends with the same priority in the group."""
    is_standby: bool


class Backends:
    """The backends of all pools of a closed view."""

    def __init__(self, view: View, objects: KubernetesObjects) -> None:
        self._view = view
        self._objects = objects
        self.classes = PoolClasses(view, is_rendered=_has_replicas, ranks=_MAX_RANKS, by_host_name=True)
        self._mirrored = {
            group_of(route, route.action.mirror.pool)
            for route in view.routes.values()
            if isinstance(route.action, Forward) and route.action.mirror
        }
        self._listed = dict(self._backends())
        self._names = names(_BACKEND, self._listed)
        used = self._used()
        self._rendered = {parts: item for parts, item in self._listed.items() if self._names[parts] in used}
        """The Backends that rules refer to."""
        self._filters = route_filters.filter_names(view)
        rendered = dict.fromkeys(item.pool for item in self._rendered.values())
        certificates = [(view.proxy.name, name, "client") for name in rendered if _has_key(view.pools[name])]
        self._secrets = {parts[1]: name for parts, name in names(_SECRET, certificates).items()}
        """Maps each pool to the name of the Secret with its client certificate."""

    def references(self, route: Route, shares: Mapping[str, int]) -> list[Tree]:
        """Return the backends of a rule that splits requests among pools by `shares`."""
        backends = [(pool, *item) for pool in shares for item in self._of(route, pool)]
        if self._divided(route, shares):
            backends = [item for item in backends if not item[1]]
        separate: Tree = {"filters": [_SEPARATE]} if self._mixes_protocols(shares) else {}
        if len(backends) == 1:
            return [{**backends[0][3], **separate}]
        weights = shared_weights(shares, [(pool, is_standby, weight) for pool, is_standby, weight, _ in backends])
        return [{**tree, "weight": weight, **separate} for (*_, tree), weight in zip(backends, weights, strict=True)]

    def mirror_reference(self, route: Route, pool: str) -> Tree:
        """Return the backend for mirrored requests, which contains all replicas of the pool."""
        mirror = self._parts(group_of(route, pool), "mirror")
        return self._reference(mirror) if mirror in self._listed else self._of(route, pool)[0][2]

    def response(self, listener: Listener, way: Way) -> Tree:
        """Return the filter for the gateway's own response, or for a closed route."""
        return route_filters.response(self._view, self._filters, listener, way)

    def filters(self, listener: Listener, way: Way) -> list[Tree]:  # noqa: ARG002 -- for other kinds
        """Return the filters that change requests for the pools."""
        return route_filters.filters(self._view, self._filters, way)

    def add(self, objects: Objects, certificates: Certificates) -> None:
        """Add the Backends. `certificates` contains the CA bundles of their pools."""
        for parts, item in self._rendered.items():
            source, spec = ("pools", item.pool), self._spec(item, certificates)
            objects.add(API_VERSION, "Backend", self._names[parts], "pool", source, spec=spec)

    def services_of(self, pool: str) -> list[Tree]:
        """Return the references with which a policy selects a pool's Service. Backends need no policy."""
        discovery = self._view.pools[pool].discovery
        if not isinstance(discovery, KubernetesDiscovery) or discovery.namespace != self._objects.namespace:
            return []
        return [{"name": discovery.service, "group": "", "kind": "Service"}]

    def prerequisites(self) -> Iterator[Prerequisite]:
        """Yield the Secrets that contain client certificates for Backends."""
        for pool, name in self._secrets.items():
            tls = self._view.pools[pool].tls
            if tls and tls.certificate and tls.key and tls.certificate not in dict(self._objects.secrets):
                yield create_tls_secret(self._objects, name, tls.certificate, tls.key)

    def needed(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, name) of the Secrets whose names lbctl chooses."""
        given = dict(self._objects.secrets)
        for pool, name in self._secrets.items():
            tls = self._view.pools[pool].tls
            if tls is not None and tls.certificate not in given:
                yield "Secret", name

    @property
    def is_used(self) -> bool:
        """Whether a rule needs Backends, which Envoy Gateway supports only if they are enabled in its configuration."""
        return bool(self._rendered)

    def diagnostics(self) -> Iterator[Diagnostic]:
        """Yield the pool settings that Backends cannot express."""
        yield from self.classes.warnings()
        yield from self._limits()
        losses = (item for route, shares in self._rules() for item in self._clusters(route, shares))
        yield from {(item.code, item.path): item for item in losses}.values()
        for pool in self._view.pools.values():
            priorities = {replica.priority for replica in pool.replicas}
            if len(priorities) > _MAX_RANKS:
                message = "a Backend is either a fallback or not, so only replicas of the first two priorities are used"
                yield warning("pool.replicas.priority", message, ("pools", pool.name, "replicas"))

    def _limits(self) -> Iterator[Diagnostic]:
        for item in self._rendered.values():
            if len(item.replicas) > _MAX_ENDPOINTS:
                message = f"a Backend has at most {_MAX_ENDPOINTS} endpoints, but {len(item.replicas)} replicas have "
                message += "the same weight"
                hint = "use several pools, or `discovery.kubernetes`"
                yield Diagnostic("LB172", message, path=("pools", item.pool, "replicas"), hint=hint)
            if len({is_ip(replica.address.host) for replica in item.replicas}) > 1:
                message = "mirrored requests go to one Backend, which cannot contain both addresses and host names"
                hint = "use only addresses in the mirror's pool"
                yield Diagnostic("LB172", message, path=("pools", item.pool, "replicas"), hint=hint)
        for route in self._view.routes.values():
            if not isinstance(route.action, Forward):
                continue
            for pool in {share.pool for share in route.action.shares} | {pin.pool for pin in route.action.pins}:
                if len(self._of(route, pool)) > MAX_BACKENDS:
                    message = f"a rule of the Gateway API has at most {MAX_BACKENDS} backends"
                    yield Diagnostic("LB172", message, path=("pools", pool, "replicas"), hint="use fewer weights")
            shares = [share.pool for share in route.action.shares]
            if sum(len(self._of(route, pool)) for pool in shares) > MAX_BACKENDS:
                message = f"a rule of the Gateway API has at most {MAX_BACKENDS} backends"
                yield Diagnostic("LB172", message, path=("routes", route.name, "split"), hint="use fewer pools")

    def _rules(self) -> Iterator[tuple[Route, dict[str, int]]]:
        """Yield the shares of pools with replicas, for each way in which a route forwards requests."""
        for route in self._view.routes.values():
            if isinstance(route.action, Forward):
                shares = {share.pool: share.weight for share in route.action.shares}
                for rule in (shares, *({pin.pool: 1} for pin in route.action.pins)):
                    yield route, {name: share for name, share in rule.items() if not _is_empty(self._view, route, name)}

    def _clusters(self, route: Route, shares: Mapping[str, int]) -> Iterator[Diagnostic]:
        """Yield the pool settings that Envoy Gateway loses in the clusters of a rule."""
        reason = self._divided(route, shares)
        picked = extension_policy.picked_pool(self._view, self._objects, shares)
        for pool in shares:
            standbys = [is_standby for is_standby, *_ in self._of(route, pool)]
            if reason:
                yield from _divided_warnings(self._view.pools[pool], standbys, reason, is_picked=picked is not None)
            elif picked is not None and standbys.count(False) > 1:
                message = "while the picker does not respond, Envoy Gateway ignores the weights of the replicas"
                yield warning("pool.balance.pick", message, ("pools", pool, "balance"))

    def _divided(self, route: Route, shares: Mapping[str, int]) -> str:
        """Return the reason why Envoy Gateway creates a cluster for each backend of a rule; empty if they share one."""
        if sum(len(self._of(route, pool)) for pool in shares) < 2:
            return ""
        is_picked = extension_policy.picked_pool(self._view, self._objects, shares) is not None
        if not is_picked and traffic_policy.prefers_zone(self._view.pools[traffic_policy.by_share(shares)[0]]):
            return "with `locality`, Envoy Gateway creates a cluster for each Backend"
        if len({by_name for pool in shares for by_name in self._by_name(route, pool)}) > 1:
            return "Envoy Gateway creates separate clusters for addresses and host names"
        if self._mixes_protocols(shares):
            return "in a split of pools with HTTP/1.1 and HTTP/2, Envoy Gateway creates a cluster for each Backend"
        return ""

    def _mixes_protocols(self, shares: Mapping[str, int]) -> bool:
        """Return whether one cluster cannot contain the pools of a rule, because a cluster has one protocol."""
        return len({self._view.pools[pool].protocol == "http1" for pool in shares}) > 1

    def _by_name(self, route: Route, pool: str) -> Iterator[bool]:
        """Yield, for each backend of a pool, whether it has host names."""
        discovery = self._view.pools[pool].discovery
        if isinstance(discovery, KubernetesDiscovery | DnsDiscovery):
            yield isinstance(discovery, DnsDiscovery)
            return
        for parts in self._class_parts(group_of(route, pool)):
            if parts in self._listed:
                yield not is_ip(self._listed[parts].replicas[0].address.host)

    def _of(self, route: Route, pool: str) -> list[tuple[bool, int, Tree]]:
        """Return (is standby, weight within the pool, reference) of each backend of a pool."""
        discovery = self._view.pools[pool].discovery
        if isinstance(discovery, KubernetesDiscovery):
            namespace = {"namespace": discovery.namespace} if discovery.namespace != self._objects.namespace else {}
            return [(False, 1, {"name": discovery.service, **namespace, "port": discovery.referenced_port or 80})]
        group = group_of(route, pool)
        if isinstance(discovery, DnsDiscovery):
            return [(False, 1, self._reference(self._parts((pool, ()))))]
        listed = [(parts, self._listed[parts]) for parts in self._class_parts(group) if parts in self._listed]
        return [(item.is_standby, item.weight, self._reference(parts)) for parts, item in listed]

    def _used(self) -> set[str]:
        """Return the names of the Backends that rules and their mirrors refer to."""
        trees = [tree for route, shares in self._rules() if shares for tree in self.references(route, shares)]
        forwards = [(route, route.action) for route in self._view.routes.values() if isinstance(route.action, Forward)]
        mirrors = [(route, action.mirror) for route, action in forwards if action.mirror and action.mirror.percent]
        trees += [self.mirror_reference(route, mirror.pool) for route, mirror in mirrors]
        return {str(tree["name"]) for tree in trees if tree.get("kind") == "Backend"}

    def _reference(self, parts: Parts) -> Tree:
        return {"group": GROUP, "kind": "Backend", "name": self._names[parts]}

    def _backends(self) -> Iterator[tuple[Parts, _Endpoints]]:
        """Yield the parts of each Backend's name, with the Backend.

        Drained replicas get no requests and are left out.
        """
        for group, found in self.classes.groups.items():
            drained = self._view.drained[group[0]]
            everyone: list[Replica] = []
            for parts, item in zip(self._class_parts(group), found.classes, strict=True):
                ready = tuple(replica for replica in item.replicas if replica.name not in drained)
                if ready:
                    is_standby = self.classes.is_standby(group, ready[0])
                    yield parts, _Endpoints(group[0], ready, item.weight, is_standby)
                    everyone += [] if is_standby else ready
            if group in self._mirrored and len(found.classes) > 1 and everyone:
                replicas = tuple(sorted(everyone, key=lambda replica: replica.name))
                yield self._parts(group, "mirror"), _Endpoints(group[0], replicas, 1, is_standby=False)
        for name, pool in self._view.pools.items():
            if isinstance(pool.discovery, DnsDiscovery):
                yield self._parts((name, ())), _Endpoints(name, (), 1, is_standby=False)

    def _class_parts(self, group: Group) -> list[Parts]:
        return [self._parts(group, str(index)) for index, _ in enumerate(self.classes.groups[group].classes, start=1)]

    def _parts(self, group: Group, *suffix: str) -> Parts:
        return (self._view.proxy.name, group[0], *group[1], *suffix)

    def _spec(self, item: _Endpoints, certificates: Certificates) -> Tree:
        pool = self._view.pools[item.pool]
        endpoints = [_endpoint(replica) for replica in item.replicas]
        if isinstance(pool.discovery, DnsDiscovery):
            endpoints = [{"fqdn": {"hostname": pool.discovery.name.lower(), "port": pool.discovery.port}}]
        spec: Tree = {"type": "Endpoints", "endpoints": endpoints}
        if pool.protocol != "http1":
            spec["appProtocols"] = [f"{GROUP}/h2c"]
        if item.is_standby:
            spec["fallback"] = True
        if pool.tls is not None:
            spec["tls"] = self._tls(pool, certificates)
        return spec

    def _tls(self, pool: Pool, certificates: Certificates) -> Tree:
        assert pool.tls is not None
        tls: Tree = certificates.of_pool(pool) if pool.tls.ca is not None else {"insecureSkipVerify": True}
        if name := verified_name(pool):
            tls["sni"] = name
        if _has_key(pool):
            secret = dict(self._objects.secrets).get(pool.tls.certificate or "") or self._secrets[pool.name]
            tls["clientCertificateRef"] = {"kind": "Secret", "name": secret}
        tls["alpnProtocols"] = ["http/1.1"] if pool.protocol == "http1" else ["h2"]
        return tls


def _divided_warnings(pool: Pool, standbys: Sequence[bool], reason: str, *, is_picked: bool) -> Iterator[Diagnostic]:
    """Yield the features that a pool loses in a rule with a separate cluster for each of its Backends."""
    path = ("pools", pool.name, "replicas")
    if any(standbys):
        message = f"{reason}, so no Backend takes over for another: only replicas of the first priority are used"
        yield warning("pool.replicas.priority", message, path)
    if standbys.count(False) > 1:
        loss = "while all replicas of a Backend are unhealthy, its share of the requests gets 503"
        yield warning("pool.replicas", f"{reason}, and chooses the Backend first: {loss}", path)
        if is_picked:
            loss = "a replica of another Backend that the picker names is not used"
            place = ("pools", pool.name, "balance")
            yield warning("pool.balance.pick", f"{reason}, and chooses the Backend first: {loss}", place)


def without_empty_mirrors(view: View) -> tuple[View, list[Diagnostic]]:
    """Return the view without request mirroring to pools that have no replica, and a warning for each such pool."""
    routes = dict(view.routes)
    warnings: dict[str, Diagnostic] = {}
    for name, route in view.routes.items():
        for pool in pools_of(route):
            if _is_empty(view, route, pool):
                message = "a Backend needs an endpoint, but the pool has no replica that is not drained: routes to it "
                message += "return 503, and in a split, the other pools get its share"
                warnings.setdefault(pool, warning("pool.replicas", message, ("pools", pool)))
        action = route.action
        if isinstance(action, Forward) and action.mirror and _is_empty(view, route, action.mirror.pool):
            routes[name] = replace(route, action=replace(action, mirror=None))
    return replace(view, routes=routes), list(warnings.values())


def without_empty_pools(view: View, tables: Iterable[HostTable]) -> list[HostTable]:
    """Return the tables without shares for pools that have no replica. A way without shares returns 503."""
    return [
        replace(table, ways=tuple((_without_empty_pools(view, way), matches) for way, matches in table.ways))
        for table in tables
    ]


def _without_empty_pools(view: View, way: Way) -> Way:
    shares = {pool: share for pool, share in way.shares.items() if not _is_empty(view, way.route, pool)}
    return replace(way, shares=shares if any(shares.values()) else {})


def errors(view: View) -> Iterator[Diagnostic]:
    """Yield the replicas that Envoy Gateway cannot reach."""
    for pool in view.pools.values():
        for replica in pool.replicas:
            path = ("pools", pool.name, "replicas", replica.name)
            if replica.address.path or is_loopback(replica.address.host):
                message = f"a Backend cannot contain {replica.address}, which only one machine can reach"
                yield Diagnostic("LB171", message, path=path, hint="use an address that the gateway can reach")
            elif not is_ip(replica.address.host) and not _HOST_NAME.fullmatch(replica.address.host.lower()):
                message = f"a Backend cannot contain {replica.address.host}, which is not a DNS name"
                yield Diagnostic("LB171", message, path=path, hint="use an address or a DNS name")


def verified_name(pool: Pool) -> str:
    """Return the name in the certificates of a pool rendered as Backends; empty if no single name is known."""
    assert pool.tls is not None
    if pool.tls.server_name is not None:
        return pool.tls.server_name if not is_ip(pool.tls.server_name) else ""
    hosts = {replica.address.host.lower() for replica in pool.replicas}
    if isinstance(pool.discovery, DnsDiscovery):
        hosts = {pool.discovery.name.lower()}
    return next(iter(hosts)) if len(hosts) == 1 and not any(map(is_ip, hosts)) else ""


def verifies_by_backend(pool: Pool) -> bool:
    """Return whether Backends contain the pool's TLS settings, including a CA bundle."""
    if pool.tls is None or pool.tls.ca is None or isinstance(pool.discovery, KubernetesDiscovery):
        return False
    return bool(verified_name(pool))


def _has_replicas(pool: Pool) -> bool:
    return not isinstance(pool.discovery, KubernetesDiscovery | DnsDiscovery)


def _has_key(pool: Pool) -> bool:
    """Return whether Backends of the pool have a client certificate."""
    if pool.tls is None or isinstance(pool.discovery, KubernetesDiscovery):
        return False
    return pool.tls.certificate is not None and pool.tls.key is not None


def _is_empty(view: View, route: Route, name: str) -> bool:
    pool = view.pools[name]
    if not _has_replicas(pool):
        return False
    in_regions = (item for item in pool.replicas if not route.regions or item.region in route.regions)
    return all(replica.name in view.drained[name] for replica in in_regions)


def _endpoint(replica: Replica) -> Tree:
    host, port = replica.address.host, replica.address.port
    place: Tree
    if is_ip(host):
        place = {"ip": {"address": str(parse_ip(host)), "port": port}}
    else:
        place = {"fqdn": {"hostname": host.lower(), "port": port}}
    return {**place, **({"zone": replica.zone} if replica.zone is not None else {})}
