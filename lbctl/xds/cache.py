"""A snapshot as what each proxy is sent: built once, checked before anybody sees it, shared by all who see the same.

Two proxies with the same listeners and the same part of the limits share all but the order of zones, and where no pool
looks at zones, that too. From one edition to the next every piece that is made from equal parts stays the same object:
a new weight costs its own pool, and a look at the others.

Nothing here is sent. What an Envoy would refuse is refused here, as a whole: the last edition stays.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.targets import target
from lbctl.targets.load import Loaded
from lbctl.xds import refusals
from lbctl.xds.assembly import KIND, NOWHERE, Assembly, Closing, Place, assemble, members, reweighed, with_members
from lbctl.xds.pieces import Pieces
from lbctl.xds.resource import Resource, Resources

REFUSED = "LB921"
_ONCE = "it is not sent again before it changes; if the cause was elsewhere and has gone: lbctl reload"


class UnsoundError(Exception):
    """What was built would be refused, or lead nowhere. `problems`: each with its place in the YAML."""

    def __init__(self, problems: Iterable[Diagnostic]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Edition:
    """One snapshot, built. Made by a `Builder`; what a proxy gets is made when it is first asked for."""

    def __init__(self, loaded: Loaded, snapshot: Snapshot, last: Edition | None) -> None:
        """`last`: the edition before, of which all that is still right is taken over."""
        self.loaded = loaded
        self.snapshot = snapshot
        self.version = ""
        self._served: dict[Hashable, Resources] = {}
        self._assemblies: dict[Hashable, Assembly] = {}
        self._pieces: Pieces = Pieces(last._pieces if last else None)
        self._closing: Closing = last._closing if last and last.loaded is loaded else Closing(loaded)
        if last is not None and _weights_apart(last, self):
            self._reweigh(last)

    def _reweigh(self, last: Edition) -> None:
        pools = _moved(last.snapshot, self.snapshot)
        known = tuple(last._assemblies.items())
        names = {item.name for _, whole in known for item in whole.upstreams if item.pool.name in pools}
        self._pieces = Pieces.all_but(names, last._pieces)
        self._assemblies = {kind: reweighed(whole, pools, self.snapshot, self._pieces) for kind, whole in known}
        self._refuse_unsound()

    def settle(self, version: str) -> None:
        """All that has to be made at once is made."""
        self.version = version
        self._pieces.forget_before()

    def resources(self, proxy: Proxy) -> Resources:
        """All that this proxy is to have; the same object for all that are to have the same. UnsoundError"""
        kind = _kind(proxy, self.snapshot.topology)
        whole = self._assembly(kind, proxy)
        near = self._near(proxy) if whole.apart else NOWHERE
        found = self._served.get((kind, near))
        if found is None:
            found = self._served[kind, near] = self._for_place(whole, near)
        return found

    def place(self, type_url: str, name: str, words: str) -> Diagnostic:
        """LB921: what an Envoy says about a resource, at the place in the YAML that this was made from."""
        resource = self._find(type_url, name)
        path = refusals.place(resource, words) if resource else ()
        found = Diagnostic(REFUSED, f"Envoy refuses what was sent for this: {self.told(words)}", path=path, hint=_ONCE)
        return self.loaded.compiled.sources.placed(found)

    def told(self, words: str) -> str:
        """What of an Envoy's words may be shown: it quotes messages, and keys stand in them."""
        keys = {item.key for known in self.snapshot.secrets.api_keys.values() for item in known if item.key}
        told = words
        for key in sorted(keys, key=len, reverse=True):
            told = told.replace(key, "…")
        return refusals.short(told)

    def _assembly(self, kind: Hashable, proxy: Proxy) -> Assembly:
        found = self._assemblies.get(kind)
        if found is None:
            found = assemble(self.snapshot, proxy, self._pieces, self._closing)
            self._refuse_unsound()
            self._assemblies[kind] = found
        return found

    def _for_place(self, whole: Assembly, near: Place) -> Resources:
        apart = (members(self._pieces, item, near, self.snapshot.addresses).resource for item in whole.apart)
        found = {item.name: item for item in apart}
        self._refuse_unsound()
        return with_members(whole.shared, found)

    def _refuse_unsound(self) -> None:
        problems = self._pieces.take_problems()
        if problems:
            found = Diagnostics()
            found.extend(map(self.loaded.compiled.sources.placed, problems))
            raise UnsoundError(found)

    def _near(self, proxy: Proxy) -> Place:
        """A region or zone in which no replica is, is none."""
        regions, zones = self._places
        return proxy.region if proxy.region in regions else None, proxy.zone if proxy.zone in zones else None

    @cached_property
    def whereabouts(self) -> bytes:
        """Where replicas stand is part of the version, though no proxy of the files may be near any."""
        pools = [item for item in self.snapshot.topology.pools if item.locality]
        told = [[(item.name, item.region, item.zone) for item in pool.replicas] for pool in pools]
        return repr(told).encode() if told else b""

    @cached_property
    def told_elsewhere(self) -> bytes:
        """Where no Envoy is served, other proxies are: what they are told is the version."""
        live = self.snapshot
        weights = {pool: dict(sorted(found.items())) for pool, found in sorted(live.weights.items())}
        held = [{pool: sorted(names) for pool, names in sorted(each.items())} for each in (live.drained, live.out)]
        return repr((live.topology, weights, held)).encode()

    @cached_property
    def _places(self) -> tuple[frozenset[str | None], frozenset[str | None]]:
        replicas = [item for pool in self.snapshot.topology.pools if pool.locality for item in pool.replicas]
        return frozenset(item.region for item in replicas), frozenset(item.zone for item in replicas)

    def _find(self, type_url: str, name: str) -> Resource | None:
        found = (item.of(type_url).get(name) for item in tuple(self._served.values()))
        return next((item for item in found if item is not None), None)


class Builder:
    """Keeps the last edition. Not for two threads at once."""

    def __init__(self) -> None:
        self._last: Edition | None = None

    def build(self, loaded: Loaded, snapshot: Snapshot, proxies: Iterable[Proxy] = ()) -> Edition:
        """The edition, with what each Envoy of the fleet and each of `proxies` gets already made and checked.

        UnsoundError where any of it is unsound; then the next build goes on from the last good one.
        """
        edition = Edition(loaded, snapshot, self._last)
        filed = [edition.resources(item) for item in _filed(snapshot.topology)]
        for item in proxies:
            edition.resources(item)
        edition.settle(_version(filed, edition.whereabouts if filed else edition.told_elsewhere))
        self._last = edition
        return edition


def _weights_apart(last: Edition, now: Edition) -> bool:
    """Whether all but weights and drains is as it was."""
    if last.loaded is not now.loaded:
        return False
    live = now.snapshot
    return replace(last.snapshot, weights=live.weights, drained=live.drained, out=live.out) == live


def _moved(before: Snapshot, now: Snapshot) -> frozenset[str]:
    """The pools whose weights or drains differ."""
    pairs = ((before.weights, now.weights), (before.drained, now.drained), (before.out, now.out))
    return frozenset(name for old, new in pairs for name in {*old, *new} if old.get(name) != new.get(name))


def _filed(topology: Topology) -> list[Proxy]:
    """Those that the files name, and the one that nobody named where such a one is served."""
    named = [item for item in topology.proxies if item.kind == KIND]
    if topology.proxies and topology.control.unmatched_nodes == "nothing":
        return named
    return [*named, Proxy("", KIND, target(KIND).versions[0])]


def _kind(proxy: Proxy, topology: Topology) -> Hashable:
    """What of a proxy decides about all that it gets, but for where it stands."""
    named = any(item.name == proxy.name for item in topology.proxies)
    return frozenset(proxy.listeners), proxy.version, 0 if named else proxy.instances


def _version(filed: Iterable[Resources], whereabouts: bytes) -> str:
    """Of the content: equal fleets have equal ones, in whatever process."""
    whole = blake2b(whereabouts, digest_size=8)
    for item in filed:
        whole.update(item.version.encode())
    return whole.hexdigest()
