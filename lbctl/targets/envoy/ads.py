"""Builds the messages that a control plane sends. Route tables, endpoints and TLS secrets are separate resources.

Each message is built from reduced input (`routing`, `routed`, `cluster_inputs`). A cache compares only that input, and
the builder does not read anything else. As a result, a new weight does not change a cluster, a new replica does not
change a listener, and a new traffic share changes only the route table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from envoy.config.accesslog.v3 import accesslog_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.extensions.filters.network.connection_limit.v3 import connection_limit_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from lbctl.base.diagnostics import Path
from lbctl.base.hosts import is_ip
from lbctl.ir import written_credentials
from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import from_capacity
from lbctl.targets.envoy import access_log, auth, clusters, resources
from lbctl.targets.envoy.cluster_names import Fallback, PlannedCluster
from lbctl.targets.envoy.endpoints import EndpointLayout, Hosts, Placement
from lbctl.targets.envoy.protos import BY_ADS, extension
from lbctl.targets.envoy.resources import Delivery
from lbctl.targets.envoy.tls import SECRETS, authority_name, clients_name, pair_name

_NO_PROXY = Proxy("", "envoy", ())


def routing(view: View, pools: Mapping[str, Pool]) -> View:
    """Return the view, reduced to the inputs of listeners and route tables.

    `pools` contains each pool as reduced by `routed`.
    """
    proxy = replace(_NO_PROXY, include=view.proxy.include)
    return replace(view, proxy=proxy, pools=pools, weights={}, drained={}, out={}, upstream_headers={}, picker_key="")


def routed(pool: Pool) -> Pool:
    """Return the pool, reduced to the inputs of listeners and route tables.

    The inputs are the pool's protocol, model, balancing, hosted API and replica priorities. With client affinity, they
    also include the name and address of each replica.
    """
    if pool.affinity or pool.session:
        replicas = tuple(Replica(item.name, item.address, priority=item.priority) for item in pool.replicas)
    else:
        replicas = tuple(
            Replica("", Address(), priority=priority) for priority in sorted({r.priority for r in pool.replicas})
        )
    return Pool(
        pool.name,
        replicas,
        protocol=pool.protocol,
        model=pool.model,
        balance=pool.balance,
        affinity=pool.affinity,
        session=pool.session,
        upstream=pool.upstream,
        credentials=pool.credentials,
    )


def cluster_inputs(upstream: PlannedCluster) -> PlannedCluster:
    """Return the upstream reduced to the inputs of its cluster, that is, without weights and drained replicas."""
    return replace(upstream, weights=(), drained=frozenset(), out=frozenset())


def listener(view: View, item: Listener) -> listener_pb2.Listener:
    """Return the listener.

    The listener's route table and TLS secrets are separate resources, which the proxy requests by name.
    """
    message = resources.listener(view, item, replace(_DELIVERY, routes=partial(_routes_and_log, view)))
    if item.max_connections is not None:
        limit = connection_limit_pb2.ConnectionLimit(
            stat_prefix=item.name, max_connections={"value": item.max_connections}
        )
        limit_filter = listener_components_pb2.Filter(**extension("envoy.filters.network.connection_limit", limit))
        for chain in message.filter_chains:
            chain.filters.insert(0, limit_filter)
    return message


def cluster(upstream: PlannedCluster) -> cluster_pb2.Cluster:
    """Return the cluster. The endpoints are a separate resource, which the proxy requests by name."""
    return resources.cluster(upstream, _DELIVERY)


def fallback(item: Fallback) -> cluster_pb2.Cluster:
    """Return the aggregate cluster of a pool and its fallback."""
    return clusters.fallback(item, SECRETS)


def collector(name: str, address: Address) -> cluster_pb2.Cluster:
    """Return the cluster of a trace collector. If the address is a host name, the endpoints are delivered by EDS."""
    message = clusters.collector(name, address)
    if not _needs_no_lookup(address):
        message.ClearField("load_assignment")
        _endpoints(message, name)
    return message


def has_members(address: Address) -> bool:
    """Return whether a collector's endpoints are delivered by EDS rather than included in its cluster."""
    return not _needs_no_lookup(address)


def collector_members(
    name: str, address: Address, addresses: Mapping[str, tuple[str, ...]]
) -> endpoint_pb2.ClusterLoadAssignment:
    """Return the endpoints of a trace collector that is addressed by host name.

    `addresses` maps a host name to its IP addresses.
    """
    pool = Pool(name, (Replica(name, address),))
    assignment_layout = EndpointLayout(name, pool, frozenset(), _NO_PROXY, Placement(), _resolver(addresses))
    return assignment_layout.weighed((from_capacity(1.0),))


def layout(upstream: PlannedCluster, proxy: Proxy, addresses: Mapping[str, tuple[str, ...]]) -> EndpointLayout:
    """Return the layout of a cluster's endpoints for this proxy.

    `addresses` maps a host name to its IP addresses, because Envoy accepts only IP addresses over EDS.
    """
    hosts = _resolver(addresses)
    return EndpointLayout(
        upstream.name, upstream.pool, upstream.drained, proxy, upstream.placement, hosts, upstream.out
    )


def named_hosts(pool: Pool) -> tuple[str, ...]:
    """Return the host names of the pool's replicas that must be resolved."""
    return tuple(sorted({item.address.host for item in pool.replicas if not _needs_no_lookup(item.address)}))


def holds_credentials(view: View, listener: Listener) -> bool:
    """Return whether the listener or its route table contains credentials in plain text.

    Envoy compares API keys in plain text, and a header that is set or matched may itself be a credential.
    """
    return auth.holds_keys(view, listener) or written_credentials.in_rules(view, listener.rules)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A TLS secret, its files, and their positions in the fleet file.

    The files are a certificate and its private key, or a CA certificate, optionally with revocation lists.
    """

    name: str
    """Name of the secret."""
    files: tuple[tuple[str, Path], ...]
    """(file, path in the YAML) of each file."""
    make: Callable[..., secret_pb2.Secret]
    """Builds the secret from its name and the contents of the files."""
    private: bool = False
    """Whether the secret contains a private key."""


def secrets(view: View) -> Iterator[Wanted]:
    """Yield every TLS secret that the listeners and pools of a view refer to.

    The same secret may occur several times.
    """
    for item in view.listeners:
        if item.tls:
            base: Path = ("listeners", item.name, "tls")
            for index, pair in enumerate(item.tls.certificates):
                yield _pair(pair.certificate, pair.key, (*base, "certificates", index))
            if item.tls.client_ca:
                yield _clients(item.tls.client_ca, item.tls.client_crl, base)
    for pool in view.pools.values():
        base = ("pools", pool.name, "tls")
        if pool.tls and pool.tls.certificate and pool.tls.key:
            yield _pair(pool.tls.certificate, pool.tls.key, base)
        if pool.tls and pool.tls.ca:
            yield _authority(pool.tls.ca, (*base, "ca"))


def _pair(certificate: str, key: str, path: Path) -> Wanted:
    files = ((certificate, (*path, "certificate")), (key, (*path, "key")))
    return Wanted(pair_name(certificate), files, _key_pair, private=True)


def _authority(authority: str, path: Path) -> Wanted:
    return Wanted(authority_name(authority), ((authority, path),), _validation)


def _clients(authority: str, crl: str | None, path: Path) -> Wanted:
    lists = ((crl, (*path, "client_crl")),) if crl else ()
    return Wanted(clients_name(authority, crl), ((authority, (*path, "client_ca")), *lists), _validation)


def _key_pair(name: str, certificate: bytes, key: bytes) -> secret_pb2.Secret:
    pair = {"certificate_chain": {"inline_bytes": certificate}, "private_key": {"inline_bytes": key}}
    return secret_pb2.Secret(name=name, tls_certificate=pair)


def _validation(name: str, authority: bytes, crl: bytes | None = None) -> secret_pb2.Secret:
    lists = {"crl": {"inline_bytes": crl}} if crl is not None else {}
    return secret_pb2.Secret(name=name, validation_context={"trusted_ca": {"inline_bytes": authority}, **lists})


def _routes(manager: hcm_pb2.HttpConnectionManager, name: str) -> None:
    manager.rds.CopyFrom(hcm_pb2.Rds(route_config_name=name, config_source=BY_ADS))


def _routes_and_log(view: View, manager: hcm_pb2.HttpConnectionManager, name: str) -> None:
    _routes(manager, name)
    manager.access_log.extend([accesslog_pb2.AccessLog(**item) for item in access_log.request_log(view)])


def _endpoints(message: cluster_pb2.Cluster, name: str) -> None:
    message.type = cluster_pb2.Cluster.EDS
    source = cluster_pb2.Cluster.EdsClusterConfig(eds_config=BY_ADS, service_name=name)
    message.eds_cluster_config.CopyFrom(source)


def _replicas(message: cluster_pb2.Cluster, upstream: PlannedCluster) -> None:
    """Configure delivery of the endpoints by EDS.

    RANDOM ignores weights, which may change at any time, so ROUND_ROBIN replaces it. The cluster does not depend on
    whether the current weights differ.
    """
    _endpoints(message, upstream.name)
    if message.lb_policy == cluster_pb2.Cluster.RANDOM:
        message.lb_policy = cluster_pb2.Cluster.ROUND_ROBIN
        clusters.slow_start(message.round_robin_lb_config.slow_start_config, upstream.pool)


def _needs_no_lookup(address: Address) -> bool:
    return bool(address.path) or is_ip(address.host)


def _resolver(addresses: Mapping[str, tuple[str, ...]]) -> Hosts:
    return lambda host: (host,) if is_ip(host) else addresses.get(host, ())


_DELIVERY = Delivery(_routes, _replicas, SECRETS)
