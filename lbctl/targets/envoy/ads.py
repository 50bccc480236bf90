"""The same messages for a control plane: routes, replicas and the keys of TLS come by name, each on its own way.

What a message is made from is made small first (`routing`, `shape`): whoever keeps messages needs to compare no more
than that, and a builder that looked further would find nothing there. So a new weight changes no cluster, a new replica
no listener, and a new share of a split nothing but the table of routes.

What only a bootstrap could say goes another way: the limit of connections is a filter in front of each chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.extensions.filters.network.connection_limit.v3 import connection_limit_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from lbctl.base.diagnostics import Path
from lbctl.base.hosts import is_ip
from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.secrets import CREDENTIAL_HEADERS
from lbctl.ir.snapshot import View
from lbctl.ir.weight import from_capacity
from lbctl.targets.envoy import auth, clusters, resources
from lbctl.targets.envoy.endpoints import Hosts, Layout, Placement
from lbctl.targets.envoy.plan import Upstream
from lbctl.targets.envoy.protos import BY_ADS, extension
from lbctl.targets.envoy.resources import Delivery
from lbctl.targets.envoy.tls import SECRETS, authority_name, pair_name

_NOBODY = Proxy("", "envoy", ())


def routing(view: View, pools: Mapping[str, Pool]) -> View:
    """What listeners and tables of routes are made of; `pools`: what they need of each (`routed`)."""
    return replace(view, proxy=_NOBODY, pools=pools, weights={}, drained={}, out={})


def routed(pool: Pool) -> Pool:
    """How it is spoken to and how a replica is chosen, the ranks of its replicas, and who they are where clients are
    kept with them."""
    if pool.affinity:
        known = tuple(Replica(item.name, item.address, priority=item.priority) for item in pool.replicas)
    else:
        known = tuple(Replica("", Address(), priority=rank) for rank in sorted({r.priority for r in pool.replicas}))
    return Pool(pool.name, known, protocol=pool.protocol, balance=pool.balance, affinity=pool.affinity)


def shape(upstream: Upstream) -> Upstream:
    """What a cluster is made of: all but what its replicas carry at the moment."""
    return Upstream(upstream.name, upstream.pool, (), frozenset(), upstream.placement, upstream.retry_budget)


def listener(view: View, item: Listener) -> listener_pb2.Listener:
    message = resources.listener(view, item, _DELIVERY)
    if item.max_connections is not None:
        limit = connection_limit_pb2.ConnectionLimit(
            stat_prefix=item.name, max_connections={"value": item.max_connections}
        )
        counted = listener_components_pb2.Filter(**extension("envoy.filters.network.connection_limit", limit))
        for chain in message.filter_chains:
            chain.filters.insert(0, counted)
    return message


def cluster(upstream: Upstream) -> cluster_pb2.Cluster:
    return resources.cluster(upstream, _DELIVERY)


def collector(name: str, where: Address) -> cluster_pb2.Cluster:
    message = clusters.collector(name, where)
    if not _told(where):
        message.ClearField("load_assignment")
        _endpoints(message, name)
    return message


def has_members(where: Address) -> bool:
    """Whether a collector there is a name; else its cluster itself says where it is."""
    return not _told(where)


def collector_members(
    name: str, where: Address, addresses: Mapping[str, tuple[str, ...]]
) -> endpoint_pb2.ClusterLoadAssignment:
    pool = Pool(name, (Replica(name, where),))
    one = Layout(name, pool, frozenset(), _NOBODY, Placement(), _known(addresses))
    return one.weighed((from_capacity(1.0),))


def layout(upstream: Upstream, proxy: Proxy, addresses: Mapping[str, tuple[str, ...]]) -> Layout:
    """Where the replicas of a cluster are for this proxy. `addresses`: host name → IPs; Envoy takes no names by this
    way."""
    hosts = _known(addresses)
    return Layout(upstream.name, upstream.pool, upstream.drained, proxy, upstream.placement, hosts, upstream.out)


def named_hosts(pool: Pool) -> tuple[str, ...]:
    """The hosts of its replicas that have to be looked up."""
    return tuple(sorted({item.address.host for item in pool.replicas if not _told(item.address)}))


def holds_credentials(view: View, listener: Listener) -> bool:
    """Whether the listener or its table of routes holds what lets somebody in: Envoy compares API keys as they are, and
    headers that are set or matched are in clear."""
    rules = listener.rules
    return (
        auth.holds_keys(view, listener)
        or any(name in CREDENTIAL_HEADERS for rule in rules for name, _ in rule.headers)
        or any(
            name in CREDENTIAL_HEADERS
            for route in {rule.route for rule in rules}
            for name, _ in view.routes[route].request_headers.set
        )
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A secret, and where the fleet names its files: a certificate and its key, or an authority alone."""

    name: str
    files: tuple[tuple[str, Path], ...]

    @property
    def private(self) -> bool:
        """Whether a private key is in it."""
        return len(self.files) > 1


def secrets(view: View) -> Iterator[Wanted]:
    """Every secret that listeners and clusters of a view name; some more than once."""
    for item in view.listeners:
        if item.tls:
            base: Path = ("listeners", item.name, "tls")
            for index, pair in enumerate(item.tls.certificates):
                yield _pair(pair.certificate, pair.key, (*base, "certificates", index))
            if item.tls.client_ca:
                yield _authority(item.tls.client_ca, (*base, "client_ca"))
    for pool in view.pools.values():
        base = ("pools", pool.name, "tls")
        if pool.tls and pool.tls.certificate and pool.tls.key:
            yield _pair(pool.tls.certificate, pool.tls.key, base)
        if pool.tls and pool.tls.ca:
            yield _authority(pool.tls.ca, (*base, "ca"))


def _pair(certificate: str, key: str, path: Path) -> Wanted:
    return Wanted(pair_name(certificate), ((certificate, (*path, "certificate")), (key, (*path, "key"))))


def _authority(authority: str, path: Path) -> Wanted:
    return Wanted(authority_name(authority), ((authority, path),))


def secret(name: str, certificate: bytes, key: bytes | None = None) -> secret_pb2.Secret:
    """`certificate`: that of an authority where there is no key."""
    shown = {"inline_bytes": certificate}
    if key is None:
        return secret_pb2.Secret(name=name, validation_context={"trusted_ca": shown})
    pair = {"certificate_chain": shown, "private_key": {"inline_bytes": key}}
    return secret_pb2.Secret(name=name, tls_certificate=pair)


def _routes(manager: hcm_pb2.HttpConnectionManager, name: str) -> None:
    manager.rds.CopyFrom(hcm_pb2.Rds(route_config_name=name, config_source=BY_ADS))


def _endpoints(message: cluster_pb2.Cluster, name: str) -> None:
    message.type = cluster_pb2.Cluster.EDS
    source = cluster_pb2.Cluster.EdsClusterConfig(eds_config=BY_ADS, service_name=name)
    message.eds_cluster_config.CopyFrom(source)


def _replicas(message: cluster_pb2.Cluster, upstream: Upstream) -> None:
    """Weights may come at any time, and RANDOM would not see them. It is the same cluster whether they differ now or
    not."""
    _endpoints(message, upstream.name)
    if message.lb_policy == cluster_pb2.Cluster.RANDOM:
        message.lb_policy = cluster_pb2.Cluster.ROUND_ROBIN
        clusters.slow_start(message.round_robin_lb_config.slow_start_config, upstream.pool)


def _told(where: Address) -> bool:
    return bool(where.path) or is_ip(where.host)


def _known(addresses: Mapping[str, tuple[str, ...]]) -> Hosts:
    return lambda host: (host,) if is_ip(host) else addresses.get(host, ())


_DELIVERY = Delivery(_routes, _replicas, SECRETS)
