"""What the fleet's own proxies cannot say of it: one summary for each feature and kind of proxy.

What no proxy does by itself, because it takes a control plane (telemetry, live weights, deep health), is left out:
`lbctl serve` does it, and `render` tells whoever goes without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.targets import target
from lbctl.targets.features import BY_ID
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import prepare
from lbctl.targets.target import CONTROL_PLANE

_BY_SERVE = frozenset(BY_ID[name].code for name in CONTROL_PLANE)


def losses(loaded: Loaded) -> Iterator[tuple[Proxy, Diagnostic]]:
    """Each place of which a proxy of the fleet cannot say something; like proxies once."""
    seen: set[object] = set()
    for proxy in loaded.compiled.topology.proxies if loaded.compiled.topology.listeners else ():
        like = (proxy.kind, proxy.version, proxy.listeners, proxy.region, proxy.zone)
        if like not in seen:
            seen.add(like)
            yield from ((proxy, item) for item in _of(loaded, proxy) if item.code not in _BY_SERVE)


def summed(found: Iterable[tuple[Proxy, Diagnostic]]) -> Iterator[Diagnostic]:
    """One for each code and kind, at its first place."""
    groups: dict[tuple[str, str], list[Diagnostic]] = {}
    for proxy, item in found:
        groups.setdefault((item.code, proxy.kind), []).append(item)
    for places in groups.values():
        first = min(places, key=lambda item: (item.position is None, item.position))
        others = len({item.position for item in places}) - 1
        more = f" (and in {others} more place{'s' if others > 1 else ''})" if others else ""
        yield replace(first, message=f"{first.message}{more}")


def _of(loaded: Loaded, proxy: Proxy) -> Iterator[Diagnostic]:
    snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
    prepared = prepare(target(proxy.kind), loaded.compiled, proxy, snapshot)
    yield from prepared.losses
    for item in prepared.target.remarks(prepared.view):
        yield loaded.compiled.sources.placed(item)
