"""Builds the resources of each proxy from a snapshot once, validates them, and shares them between proxies.

Two proxies with the same listeners and the same part of the limits have everything in common except the zone order. If
no pool uses locality, they have that in common too. A resource whose inputs are equal in two snapshots stays the same
object: a new weight rebuilds only the endpoints of the affected pool.

This module does not send anything. If an Envoy would reject any resource, the whole snapshot is rejected and the
previous one stays in use.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.ir import written_credentials
from lbctl.ir.proxies import Proxy, xds_proxies
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.targets import xds_kinds
from lbctl.targets.load import Loaded
from lbctl.xds.build import nack_locator
from lbctl.xds.build.build_cache import BuildCache
from lbctl.xds.build.proxy_resources import (
    NO_LOCALITY,
    Closing,
    Locality,
    ProxyResources,
    assemble,
    members,
    reweighed,
    with_members,
)
from lbctl.xds.resource import CDS, Resource, Resources

REFUSED = "LB921"
_OTHER_REGION = ""
"""Placeholder for a region without replicas. It is not None, because a zone with the same name in another region is not
local."""
_NACK_HINT = (
    "this part is sent again only when it changes; if the cause was elsewhere and is now fixed, run: lbctl reload"
)


class UnsoundError(Exception):
    """The built resources would be rejected, or contain unresolved references.

    Each of `problems` has its position in the YAML.
    """

    def __init__(self, problems: Iterable[Diagnostic]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class CachedSnapshot:
    """One built snapshot, created by a `Builder`. A proxy's resources are built when they are first requested."""

    def __init__(self, loaded: Loaded, snapshot: Snapshot, previous: CachedSnapshot | None) -> None:
        """Reuse all parts of `previous`, the previous snapshot, that are still valid."""
        self.loaded = loaded
        self.snapshot = snapshot
        self.version = ""
        self._served: dict[Hashable, Resources] = {}
        self._assemblies: dict[Hashable, ProxyResources] = {}
        self._cache: BuildCache = BuildCache(previous._cache if previous else None)
        self._closing: Closing = previous._closing if previous and previous.loaded is loaded else Closing(loaded)
        if previous is not None and _differ_in_weights_only(previous, self):
            self._reweigh(previous)

    def _reweigh(self, previous: CachedSnapshot) -> None:
        pools = _changed_pools(previous.snapshot, self.snapshot)
        assemblies = tuple(previous._assemblies.items())
        names = {item.name for _, whole in assemblies for item in whole.upstreams if item.pool.name in pools}
        self._cache = BuildCache.without_endpoints(names, previous._cache)
        self._assemblies = {kind: reweighed(whole, pools, self.snapshot, self._cache) for kind, whole in assemblies}
        self._raise_problems()

    def settle(self, version: str) -> None:
        """Set the version and release the previous snapshot, once every eager build has finished."""
        self.version = version
        self._cache.release_previous()

    def resources(self, proxy: Proxy) -> Resources:
        """Return all resources of this proxy. Proxies with equal resources get the same object.

        Raises UnsoundError if any of them is invalid.
        """
        kind = _kind(proxy, self.snapshot.topology)
        whole = self._assembly(kind, proxy)
        locality = self._locality(proxy) if whole.locality_dependent else NO_LOCALITY
        served = self._served.get((kind, locality))
        if served is None:
            served = self._served[kind, locality] = self._for_locality(whole, locality)
        return served

    def nack_diagnostic(self, type_url: str, name: str, message: str) -> Diagnostic:
        """Return LB921: Envoy's error about a resource, at the position in the YAML that it was built from."""
        resource = self._find(type_url, name)
        path = nack_locator.place(resource, message) if resource else ()
        diagnostic = Diagnostic(
            REFUSED,
            f"Envoy rejects the configuration sent for this: {self.redacted(message)}",
            path=path,
            hint=_NACK_HINT,
        )
        return self.loaded.compiled.sources.with_position(diagnostic)

    def redacted(self, message: str) -> str:
        """Return a NACK message without secrets. Envoy quotes messages, and these can contain keys."""
        secrets = self.snapshot.secrets
        keys = {item.key for tenant_keys in secrets.api_keys.values() for item in tenant_keys if item.key}
        keys |= {item.value for item in secrets.headers.values()}
        keys |= written_credentials.of_topology(self.snapshot.topology)
        keys |= {self.snapshot.picker_key} - {""}
        redacted = message
        for key in sorted(keys, key=len, reverse=True):
            redacted = redacted.replace(key, "…")
        return nack_locator.short(redacted)

    def _assembly(self, kind: Hashable, proxy: Proxy) -> ProxyResources:
        assembly = self._assemblies.get(kind)
        if assembly is None:
            assembly = assemble(self.snapshot, proxy, self._cache, self._closing)
            self._raise_problems()
            self._assemblies[kind] = assembly
        return assembly

    def _for_locality(self, whole: ProxyResources, locality: Locality) -> Resources:
        clusters = whole.shared.of(CDS)
        locality_dependent = (
            members(self._cache, item, locality, self.snapshot.addresses, clusters[item.name].version).resource
            for item in whole.locality_dependent
        )
        changed = {item.name: item for item in locality_dependent}
        self._raise_problems()
        return with_members(whole.shared, changed)

    def _raise_problems(self) -> None:
        problems = self._cache.take_problems()
        if problems:
            diagnostics = Diagnostics()
            diagnostics.extend(map(self.loaded.compiled.sources.with_position, problems))
            raise UnsoundError(diagnostics)

    def _locality(self, proxy: Proxy) -> Locality:
        """Return the part of the proxy's locality that affects the distance to a replica."""
        regions, zones = self._localities
        zone = proxy.zone if proxy.zone in zones else None
        if proxy.region is None or proxy.region in regions:
            return proxy.region, zone
        return _OTHER_REGION if zone else None, zone

    @cached_property
    def replica_locations(self) -> bytes:
        """Return the localities of replicas; they affect the version even if no configured proxy is near them."""
        pools = [item for item in self.snapshot.topology.pools if item.locality]
        locations = [[(item.name, item.region, item.zone) for item in pool.replicas] for pool in pools]
        return repr(locations).encode() if locations else b""

    @cached_property
    def content_elsewhere(self) -> bytes:
        """Return the content for proxies other than Envoys; it determines the version if no Envoy is served."""
        live = self.snapshot
        weights = {pool: dict(sorted(by_replica.items())) for pool, by_replica in sorted(live.weights.items())}
        held = [{pool: sorted(names) for pool, names in sorted(each.items())} for each in (live.drained, live.out)]
        return repr((live.topology, weights, held, live.picker, live.picker_withheld)).encode()

    @cached_property
    def _localities(self) -> tuple[frozenset[str | None], frozenset[str | None]]:
        replicas = [item for pool in self.snapshot.topology.pools if pool.locality for item in pool.replicas]
        return frozenset(item.region for item in replicas), frozenset(item.zone for item in replicas)

    def _find(self, type_url: str, name: str) -> Resource | None:
        candidates = (item.of(type_url).get(name) for item in tuple(self._served.values()))
        return next((item for item in candidates if item is not None), None)


class Builder:
    """Builds snapshots one after another and keeps the last valid one. The object is not thread-safe."""

    def __init__(self) -> None:
        self._previous: CachedSnapshot | None = None

    def build(self, loaded: Loaded, snapshot: Snapshot, proxies: Iterable[Proxy] = ()) -> CachedSnapshot:
        """Build and validate the resources of the fleet's Envoys and of `proxies`, and return the snapshot.

        Raises UnsoundError if any resource is invalid; the next build then continues from the last valid snapshot.
        """
        built = CachedSnapshot(loaded, snapshot, self._previous)
        served = [built.resources(item) for item in xds_proxies(snapshot.topology, xds_kinds()).all]
        for item in proxies:
            built.resources(item)
        built.settle(_version(served, built.replica_locations if served else built.content_elsewhere))
        self._previous = built
        return built


def _differ_in_weights_only(previous: CachedSnapshot, now: CachedSnapshot) -> bool:
    """Return whether the two snapshots differ only in weights and drains."""
    if previous.loaded is not now.loaded:
        return False
    live = now.snapshot
    return replace(previous.snapshot, weights=live.weights, drained=live.drained, out=live.out) == live


def _changed_pools(before: Snapshot, now: Snapshot) -> frozenset[str]:
    """Return the pools whose weights or drains differ."""
    pairs = ((before.weights, now.weights), (before.drained, now.drained), (before.out, now.out))
    return frozenset(name for old, new in pairs for name in {*old, *new} if old.get(name) != new.get(name))


def _kind(proxy: Proxy, topology: Topology) -> Hashable:
    """Return the properties, other than locality, that determine a proxy's resources."""
    named = any(item.name == proxy.name for item in topology.proxies)
    instances = 0 if named else proxy.instances
    return proxy.kind, frozenset(proxy.listeners), proxy.version, proxy.include, instances


def _version(served: Iterable[Resources], replica_locations: bytes) -> str:
    """Return a digest of the content. Equal fleets have equal versions in every process."""
    whole = blake2b(replica_locations, digest_size=8)
    for item in served:
        whole.update(item.version.encode())
    return whole.hexdigest()
