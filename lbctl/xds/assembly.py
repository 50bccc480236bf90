"""One kind of proxy's part of a snapshot as resources: what it sees, what is made of that, whether the parts agree."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from lbctl.base.diagnostics import Path
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, View, drained_of, view, weights_of
from lbctl.targets import target
from lbctl.targets.assess import assess, close
from lbctl.targets.envoy import ads, clusters, listeners, resources
from lbctl.targets.envoy.plan import Plan, Upstream, plan
from lbctl.targets.load import Loaded
from lbctl.xds import sound
from lbctl.xds.pieces import Piece, Pieces
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, TYPES, Resource, Resources

KIND = "envoy"
Place = tuple[str | None, str | None]
"""Region and zone of a proxy, as far as they matter."""
NOWHERE: Place = (None, None)


@dataclass(frozen=True, slots=True)
class Assembly:
    """`shared`: what such proxies get wherever they stand; `apart`: clusters whose replicas stand in another order for
    each place, not in `shared`; `upstreams`: all clusters with replicas."""

    shared: Resources
    upstreams: tuple[Upstream, ...]

    @property
    def apart(self) -> tuple[Upstream, ...]:
        return tuple(item for item in self.upstreams if item.pool.locality)


class Closing:
    """Which routes of a fleet must not be served, because an Envoy cannot protect them: found once for each kind of
    proxy, since no live state changes it."""

    def __init__(self, loaded: Loaded) -> None:
        self._sources = loaded.compiled.sources
        self._found: dict[object, Mapping[str, frozenset[str]]] = {}

    def close(self, whole: View) -> View:
        names = tuple(item.name for item in whole.listeners)
        key = (whole.proxy.version, names, frozenset(whole.routes), frozenset(whole.pools))
        if key not in self._found:
            self._found[key] = assess(target(KIND), whole.proxy.version, whole, self._sources).closed
        return close(whole, self._found[key])


def assemble(snapshot: Snapshot, proxy: Proxy, pieces: Pieces, closing: Closing) -> Assembly:
    """What is unsound of it is in `pieces.problems`."""
    seen = closing.close(view(snapshot, proxy))
    wanted = plan(seen)
    apart = tuple(item for item in wanted.upstreams if item.pool.locality)
    made = [
        *_traffic(pieces, seen, wanted),
        *_clusters(pieces, wanted),
        *(members(pieces, item, NOWHERE, snapshot.addresses) for item in wanted.upstreams if not item.pool.locality),
        *_collectors(pieces, seen, snapshot.addresses),
        *_secrets(pieces, seen, snapshot.secrets.files),
    ]
    there = {(item.resource.type_url, item.resource.name) for item in made} | {(EDS, item.name) for item in apart}
    there |= {(SDS, item.name) for item in ads.secrets(seen)}
    needs = ((need, item.resource.path) for item in made for need in item.needs)
    pieces.problems.extend(sound.missing(needs, there))
    by_type: dict[str, dict[str, Resource]] = {}
    for item in made:
        by_type.setdefault(item.resource.type_url, {}).setdefault(item.resource.name, item.resource)
    return Assembly(Resources(by_type), wanted.upstreams)


def reweighed(whole: Assembly, pools: Container[str], snapshot: Snapshot, pieces: Pieces) -> Assembly:
    """The same with the weights and drains that `pools` have now; nothing else of the fleet has changed."""
    upstreams = tuple(_now(item, snapshot) if item.pool.name in pools else item for item in whole.upstreams)
    changed = {
        item.name: members(pieces, item, NOWHERE, snapshot.addresses).resource
        for item in upstreams
        if item.pool.name in pools and not item.pool.locality
    }
    return Assembly(with_members(whole.shared, changed), upstreams)


def with_members(whole: Resources, changed: Mapping[str, Resource]) -> Resources:
    """The same with other endpoints for these clusters."""
    if not changed:
        return whole
    by_type = {kind: whole.of(kind) for kind in TYPES}
    return Resources({**by_type, EDS: {**by_type[EDS], **changed}})


def _now(item: Upstream, snapshot: Snapshot) -> Upstream:
    out = snapshot.out.get(item.pool.name, frozenset())
    return replace(item, weights=weights_of(item.pool, snapshot), drained=drained_of(item.pool, snapshot), out=out)


def members(pieces: Pieces, item: Upstream, near: Place, addresses: Mapping[str, tuple[str, ...]]) -> Piece:
    """The replicas of a cluster, in the order in which a proxy in that place is to take them."""
    known = tuple((host, addresses.get(host)) for host in ads.named_hosts(item.pool)) if addresses else ()
    path = ("pools", item.pool.name)
    layout = pieces.layout(
        item.name,
        (near, item.placement, item.drained, item.out, known, item.pool),
        lambda: ads.layout(item, Proxy("", KIND, (), region=near[0], zone=near[1]), addresses),
        path,
    )
    return pieces.take(EDS, item.name, (layout, item.weights), partial(layout.weighed, item.weights), path)


def _traffic(pieces: Pieces, seen: View, wanted: Plan) -> Iterator[Piece]:
    pools = {name: pieces.routed(pool) for name, pool in seen.pools.items()}
    routed = pieces.same("routing", ads.routing(seen, pools))
    named = Plan((), (), pieces.same("names", wanted.names))
    for item in routed.listeners:
        path: Path = ("listeners", item.name)
        yield pieces.take(LDS, item.name, (item, routed), partial(ads.listener, routed, item), path)
        make = partial(resources.table, routed, item, named)
        yield pieces.take(RDS, item.name, (item, named.names, routed), make, path)


def _clusters(pieces: Pieces, wanted: Plan) -> Iterator[Piece]:
    for upstream in wanted.upstreams:
        shape = ads.shape(upstream)
        yield pieces.take(CDS, shape.name, (shape,), partial(ads.cluster, shape), ("pools", shape.pool.name))
    for item in wanted.fallbacks:
        yield pieces.take(CDS, item.name, (item,), partial(clusters.fallback, item), ("pools", item.pool.name))


def _collectors(pieces: Pieces, seen: View, addresses: Mapping[str, tuple[str, ...]]) -> Iterator[Piece]:
    """Where the traces of listeners go."""
    for item in seen.listeners:
        if item.tracing is None:
            continue
        name, where, path = listeners.tracing_cluster(item), item.tracing.otlp, ("listeners", item.name, "tracing")
        yield pieces.take(CDS, name, (where,), partial(ads.collector, name, where), path)
        if ads.has_members(where):
            make = partial(ads.collector_members, name, where, addresses)
            yield pieces.take(EDS, name, (where, addresses.get(where.host)), make, path)


def _secrets(pieces: Pieces, seen: View, files: Mapping[str, bytes]) -> Iterator[Piece]:
    for item in ads.secrets(seen):
        absent = [(file, path) for file, path in item.files if file not in files]
        pieces.problems.extend(sound.unreadable(file, path) for file, path in absent)
        if not absent:
            found = tuple(files[file] for file, _ in item.files)
            yield pieces.take(SDS, item.name, found, partial(ads.secret, item.name, *found), item.files[0][1])
