"""Builds the resources for one kind of proxy from a snapshot, and checks that their references resolve."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from lbctl.base.diagnostics import Path
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, View, drained_of, view, weights_of
from lbctl.targets import picker, target
from lbctl.targets.assess import Assessment, assess, close
from lbctl.targets.envoy import ads, external, hosted, listeners, picking, resources, tls
from lbctl.targets.envoy.cluster_names import ClusterPlan, PlannedCluster, plan
from lbctl.targets.load import Loaded
from lbctl.xds.build import validate
from lbctl.xds.build.build_cache import BuildCache, BuiltResource
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, TYPES, Resource, Resources

Locality = tuple[str | None, str | None]
"""A proxy's region and zone; None for a region or zone that no replica shares."""
NO_LOCALITY: Locality = (None, None)


@dataclass(frozen=True, slots=True)
class ProxyResources:
    """The resources for one kind of proxy.

    `shared` contains the resources that do not depend on the proxy's locality. `upstreams` contains all clusters that
    have replicas.
    """

    shared: Resources
    upstreams: tuple[PlannedCluster, ...]

    @property
    def locality_dependent(self) -> tuple[PlannedCluster, ...]:
        """Clusters whose endpoint order depends on the proxy's locality; `shared` does not contain their endpoints."""
        return tuple(item for item in self.upstreams if item.pool.locality)


class Closing:
    """Decides which routes must not be served because an Envoy cannot protect them.

    Live state does not affect the decision, so it is made once per kind of proxy.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._sources = loaded.compiled.sources
        self._assessments: dict[object, Assessment] = {}

    def close(self, whole: View) -> View:
        """Return the view, closing the routes that this kind of proxy cannot protect."""
        names = tuple(item.name for item in whole.listeners)
        key = (whole.proxy.kind, whole.proxy.version, names, frozenset(whole.routes), frozenset(whole.pools))
        if key not in self._assessments:
            self._assessments[key] = assess(target(whole.proxy.kind), whole.proxy.version, whole, self._sources)
        return close(whole, self._assessments[key])


def assemble(snapshot: Snapshot, proxy: Proxy, cache: BuildCache, closing: Closing) -> ProxyResources:
    """Build all resources for a proxy; problems are added to `cache.problems`."""
    visible = closing.close(view(snapshot, proxy))
    wanted = plan(visible)
    locality_dependent = tuple(item for item in wanted.upstreams if item.pool.locality)
    upstreams = [*_clusters(cache, visible, wanted)]
    versions = {item.resource.name: item.resource.version for item in upstreams}
    built = [
        *_traffic(cache, visible, wanted),
        *upstreams,
        *(
            members(cache, item, NO_LOCALITY, snapshot.addresses, versions.get(item.name, ""))
            for item in wanted.upstreams
            if not item.pool.locality
        ),
        *_collectors(cache, visible, snapshot.addresses),
        *_secrets(cache, visible, snapshot.secrets.files),
    ]
    defined = {(item.resource.type_url, item.resource.name) for item in built} | {
        (EDS, item.name) for item in locality_dependent
    }
    defined |= {(SDS, item.name) for item in ads.secrets(visible)}
    defined |= {(SDS, name) for name in _header_secret_names(visible)}
    needs = ((need, item.resource.path) for item in built for need in item.needs)
    cache.problems.extend(validate.missing(needs, defined))
    by_type: dict[str, dict[str, Resource]] = {}
    for item in built:
        by_type.setdefault(item.resource.type_url, {}).setdefault(item.resource.name, item.resource)
    return ProxyResources(Resources(by_type), wanted.upstreams)


def reweighed(whole: ProxyResources, pools: Container[str], snapshot: Snapshot, cache: BuildCache) -> ProxyResources:
    """Return the resources with the current weights and drains of `pools`. The rest of the fleet must be unchanged."""
    upstreams = tuple(_with_live_state(item, snapshot) if item.pool.name in pools else item for item in whole.upstreams)
    clusters = whole.shared.of(CDS)
    changed = {
        item.name: members(cache, item, NO_LOCALITY, snapshot.addresses, clusters[item.name].version).resource
        for item in upstreams
        if item.pool.name in pools and not item.pool.locality
    }
    return ProxyResources(with_members(whole.shared, changed), upstreams)


def with_members(whole: Resources, changed: Mapping[str, Resource]) -> Resources:
    """Return the resources with the endpoints of these clusters replaced."""
    if not changed:
        return whole
    by_type = {kind: whole.of(kind) for kind in TYPES}
    return Resources({**by_type, EDS: {**by_type[EDS], **changed}})


def _with_live_state(item: PlannedCluster, snapshot: Snapshot) -> PlannedCluster:
    out = snapshot.out.get(item.pool.name, frozenset())
    return replace(item, weights=weights_of(item.pool, snapshot), drained=drained_of(item.pool, snapshot), out=out)


def members(
    cache: BuildCache, item: PlannedCluster, locality: Locality, addresses: Mapping[str, tuple[str, ...]], cluster: str
) -> BuiltResource:
    """Build the endpoints of this cluster version, in the order that a proxy in that locality prefers."""
    resolved = tuple((host, addresses.get(host)) for host in ads.named_hosts(item.pool)) if addresses else ()
    path = ("pools", item.pool.name)
    layout = cache.layout(
        item.name,
        (locality, item.placement, item.drained, item.out, resolved, item.pool),
        lambda: ads.layout(item, Proxy("", "", (), region=locality[0], zone=locality[1]), addresses),
        path,
    )
    make = partial(layout.weighed, item.weights)
    return cache.get(EDS, item.name, (layout, item.weights, cluster), make, path, parent=cluster)


def _traffic(cache: BuildCache, visible: View, wanted: ClusterPlan) -> Iterator[BuiltResource]:
    pools = {name: cache.routed(pool) for name, pool in visible.pools.items()}
    routed = cache.intern("routing", ads.routing(visible, pools))
    named = ClusterPlan((), (), cache.intern("names", wanted.names))
    for item in routed.listeners:
        path: Path = ("listeners", item.name)
        secret = ads.holds_credentials(routed, item)
        yield cache.get(LDS, item.name, (item, routed), partial(ads.listener, routed, item), path, secret=secret)
        make = partial(resources.table, routed, item, named)
        yield cache.get(RDS, item.name, (item, named.names, routed), make, path, secret=secret)


def _clusters(cache: BuildCache, visible: View, wanted: ClusterPlan) -> Iterator[BuiltResource]:
    for upstream in wanted.upstreams:
        shape = ads.cluster_inputs(upstream)
        path: Path = ("pools", shape.pool.name)
        make_cluster, secret = partial(ads.cluster, shape), shape.holds_credentials
        yield cache.get(CDS, shape.name, (shape,), make_cluster, path, secret=secret)
    if picking.asks(visible):
        has_key, rejects = bool(visible.picker_key), picker.rejects(visible)
        key = tls.SECRETS.header(*picking.KEY) if has_key else None
        for name, make in picking.CLUSTERS.items():
            path = ("control", "picker")
            built = partial(make, visible.picker, tls=visible.picker_tls, key=key, rejects=rejects)
            is_secret = has_key and name == picking.CLUSTER
            empty = cache.get(CDS, name, (None, False, False), partial(make, None), path) if is_secret else None
            shown = (visible.picker, visible.picker_tls, has_key, rejects)
            in_clear = empty.resource if empty is not None else None
            yield cache.get(CDS, name, shown, built, path, secret=is_secret, in_clear=in_clear)
    for name, route in external.services(visible.routes.values()).items():
        service = route.auth and route.auth.external
        if service:
            yield cache.get(CDS, name, (service,), partial(external.cluster, name, service), ("routes", route.name))
    for item in wanted.fallbacks:
        yield cache.get(CDS, item.name, (item,), partial(ads.fallback, item), ("pools", item.pool.name))


def _collectors(cache: BuildCache, visible: View, addresses: Mapping[str, tuple[str, ...]]) -> Iterator[BuiltResource]:
    """Yield the clusters to which listeners export traces."""
    for item in visible.listeners:
        if item.tracing is None:
            continue
        name, where, path = listeners.tracing_cluster(item), item.tracing.otlp, ("listeners", item.name, "tracing")
        cluster = cache.get(CDS, name, (where,), partial(ads.collector, name, where), path)
        yield cluster
        if ads.has_members(where):
            make, parent = partial(ads.collector_members, name, where, addresses), cluster.resource.version
            yield cache.get(EDS, name, (where, addresses.get(where.host), parent), make, path, parent=parent)


def _secrets(cache: BuildCache, visible: View, files: Mapping[str, bytes]) -> Iterator[BuiltResource]:
    for item in ads.secrets(visible):
        absent = [(file, path) for file, path in item.files if file not in files]
        cache.problems.extend(validate.unreadable(file, path) for file, path in absent)
        if not absent:
            contents = tuple(files[file] for file, _ in item.files)
            make, path = partial(item.make, item.name, *contents), item.files[0][1]
            yield cache.get(SDS, item.name, contents, make, path, secret=item.private)
    for pool, header, value in hosted.secrets(visible):
        own = ("upstream", "headers", header) if visible.pools[pool].upstream else ("credentials", "file")
        name, path = tls.header_name(pool, header), ("pools", pool, *own)
        yield cache.get(SDS, name, (value,), partial(hosted.secret, name, value), path, secret=True)
    if picking.asks(visible) and visible.picker_key:
        name, path, value = tls.header_name(*picking.KEY), ("control", "picker"), visible.picker_key
        nothing = cache.get(SDS, name, ("",), partial(hosted.secret, name, ""), path).resource
        make_secret = partial(hosted.secret, name, value)
        yield cache.get(SDS, name, (value,), make_secret, path, secret=True, in_clear=nothing)


def _header_secret_names(visible: View) -> Iterator[str]:
    for pool in visible.pools.values():
        headers = pool.sent.headers if pool.sent else ()
        yield from (tls.header_name(pool.name, header.name) for header in headers if header.file)
