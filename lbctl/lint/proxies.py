"""What the fleet's own proxies cannot say of it: one finding for each code and place, with the kinds that it is of.

What no proxy does by itself, because it takes a control plane (telemetry, live weights, deep health), is left out:
`lbctl serve` does it, and `render` tells whoever goes without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.lint.crowds import crowds
from lbctl.targets import KINDS, target
from lbctl.targets.features import BY_ID
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import prepare
from lbctl.targets.target import CONTROL_PLANE

_BY_SERVE = frozenset(BY_ID[name].code for name in CONTROL_PLANE)


@dataclass(frozen=True, slots=True)
class Loss:
    """`kinds`: of the proxies that cannot say what stands at the finding's place."""

    kinds: tuple[str, ...]
    finding: Diagnostic


def losses(loaded: Loaded) -> Iterator[tuple[str, Diagnostic]]:
    """Kind, and each place of which a proxy of the fleet cannot say something; like proxies once."""
    seen: set[object] = set()
    for proxy in loaded.compiled.topology.proxies if loaded.compiled.topology.listeners else ():
        like = (proxy.kind, proxy.version, proxy.listeners, proxy.region, proxy.zone)
        if like not in seen:
            seen.add(like)
            yield from ((proxy.kind, item) for item in _of(loaded, proxy) if item.code not in _BY_SERVE)


def whatever_the_proxy(loaded: Loaded) -> Iterator[Diagnostic]:
    """All that `render` may say for any kind of proxy, in its oldest version, also what takes a control plane."""
    names = tuple(item.name for item in loaded.compiled.topology.listeners)
    for kind in KINDS if names else ():
        yield from _of(loaded, Proxy(kind, kind, target(kind).versions[0], listeners=names))


def merged(found: Iterable[tuple[str, Diagnostic]]) -> list[Loss]:
    """One for each code and place; replicas of a pool that are all concerned are one."""
    by_kind: dict[str, list[Diagnostic]] = {}
    for kind, item in found:
        by_kind.setdefault(kind, []).append(item)
    places: dict[object, list[tuple[str, Diagnostic]]] = {}
    for kind in sorted(by_kind, key=KINDS.index):
        for item in crowds(by_kind[kind]):
            places.setdefault((item.code, item.position), []).append((kind, item))
    return [Loss(tuple(dict.fromkeys(kind for kind, _ in items)), _one(items)) for items in places.values()]


def folded(found: Sequence[Loss]) -> Iterator[Diagnostic]:
    """One for each code and the same kinds, at its first place."""
    groups: dict[object, list[Diagnostic]] = {}
    for loss in found:
        groups.setdefault((loss.finding.code, loss.kinds), []).append(loss.finding)
    for places in groups.values():
        first = min(places, key=lambda item: (item.position is None, item.position))
        others = len(places) - 1
        more = f" (and in {others} more place{'s' if others > 1 else ''})" if others else ""
        yield replace(first, message=f"{first.message}{more}")


def summary(found: Sequence[Loss]) -> Iterator[str]:
    """A line for each kind of proxy: how much it cannot say."""
    for kind in KINDS:
        places = [loss.finding for loss in found if kind in loss.kinds]
        if places:
            codes = len({item.code for item in places})
            things = f"{codes} thing{'s' if codes > 1 else ''} of this fleet"
            yield f"{kind} cannot say {things}, in {len(places)} place{'s' if len(places) > 1 else ''}"


def _one(items: Sequence[tuple[str, Diagnostic]]) -> Diagnostic:
    """What several kinds of proxies have to say of one place."""
    first = items[0][1]
    told = [(kind, item.message.removeprefix(f"{kind} cannot say this: ")) for kind, item in items]
    message = _by_kind(told)
    if len({text for _, text in told}) == 1:
        plain = told[0][1] == first.message
        message = first.message if plain else f"{_kinds(told)} cannot say this: {told[0][1]}"
    hints = [(kind, item.hint.removeprefix("instead: ")) for kind, item in items if item.hint]
    hint = first.hint if len({text for _, text in hints}) < 2 else f"instead: {_by_kind(hints)}"
    return replace(first, message=message, hint=hint)


def _by_kind(told: Sequence[tuple[str, str]]) -> str:
    """`nginx, haproxy: one thing; envoy: another`."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for kind, text in told:
        own = text[len(kind) + 1 :] if text.lower().startswith(f"{kind} ") else text
        groups.setdefault(own, []).append((kind, text))
    return "; ".join(f"{_kinds(group)}: {text}" for text, group in groups.items())


def _kinds(told: Sequence[tuple[str, str]]) -> str:
    return ", ".join(dict.fromkeys(kind for kind, _ in told))


def _of(loaded: Loaded, proxy: Proxy) -> Iterator[Diagnostic]:
    snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
    prepared = prepare(target(proxy.kind), loaded.compiled, proxy, snapshot)
    yield from prepared.losses
    for item in prepared.target.remarks(prepared.view):
        yield loaded.compiled.sources.placed(item)
