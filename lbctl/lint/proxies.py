"""Finds features that the fleet's own proxies do not support, with one finding per code and position.

Features that require a control plane on every proxy (telemetry, live weights, deep health) are omitted, because `lbctl
serve` provides them and `render` reports them. Other features that `serve` provides for the proxies that it drives are
omitted too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy, unnamed
from lbctl.ir.snapshot import Snapshot
from lbctl.lint.collapse import collapse, template, with_places
from lbctl.targets import KINDS, TARGETS, key_hashes, target
from lbctl.targets.features import BY_ID
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import prepare, refused_keys
from lbctl.targets.target import CONTROL_PLANE

_CHECKS = frozenset(
    {"pool.health.http", "pool.health.http.body", "pool.health.grpc", "pool.health.tcp", "pool.health.agent"}
)
"""Features related to active health checks."""
_ANY_KIND = "; if the fleet has no proxies of these kinds, list its proxies under `proxies`"
_GRANT = "LB174"
"""Code reported for objects in another namespace when such references are supported."""
_CONTROL_PLANE_CODES = frozenset(BY_ID[name].code for name in CONTROL_PLANE)


@dataclass(frozen=True, slots=True)
class UnsupportedFinding:
    """A feature that some kinds of proxies do not support."""

    kinds: tuple[str, ...]
    """Kinds of proxies that do not support the feature."""
    finding: Diagnostic


def unsupported_findings(loaded: Loaded) -> Iterator[tuple[str, Diagnostic]]:
    """Yield (kind, finding) for each feature that the fleet's proxies do not support.

    Equal proxies are checked once. Without `proxies`, only API keys rejected by some kinds of proxies are reported.
    """
    if not loaded.compiled.topology.proxies:
        yield from refused_key_findings(loaded)
    checked: set[object] = set()
    for proxy in loaded.compiled.topology.proxies if loaded.compiled.topology.listeners else ():
        relevant = (proxy.kind, proxy.version, proxy.listeners, proxy.region, proxy.zone, _is_driven(proxy))
        if relevant not in checked:
            checked.add(relevant)
            yield from (
                (proxy.kind, finding)
                for finding in _findings_of(loaded, proxy)
                if finding.code not in _CONTROL_PLANE_CODES and not _done_by_serve(loaded, proxy, finding)
            )


def refused_key_findings(loaded: Loaded) -> Iterator[tuple[str, Diagnostic]]:
    """Yield (kind, finding) for each route with API keys that are rejected by one of the fleet's proxies.

    A fleet without `proxies` may be rendered for any kind.
    """
    topology = loaded.compiled.topology
    of_any_kind = (unnamed(topology, kind, target(kind).versions[0]) for kind in KINDS)
    snapshot = Snapshot(topology, secrets=loaded.secrets)
    for proxy in topology.proxies or of_any_kind:
        chosen = target(proxy.kind)
        for keys in refused_keys(chosen, loaded.compiled, proxy, snapshot):
            finding = loaded.compiled.sources.with_position(key_hashes.warning(chosen.title, keys))
            yield proxy.kind, finding if topology.proxies else replace(finding, hint=f"{finding.hint}{_ANY_KIND}")


def _is_driven(proxy: Proxy) -> bool:
    return proxy.config is not None and proxy.reload is not None


def _done_by_serve(loaded: Loaded, proxy: Proxy, finding: Diagnostic) -> bool:
    """Return whether `lbctl serve` provides this feature instead of the proxy.

    For proxies that it does not drive, `serve` performs active checks only for pools that use the picker, because the
    picker is part of `serve`.
    """
    provided = target(proxy.kind).done_by_control_plane
    if not _is_driven(proxy):
        picked = [pool.name for pool in loaded.compiled.topology.pools if pool.balance.pick is not None]
        is_picked = finding.path[:1] == ("pools",) and finding.path[1] in picked
        provided &= _CHECKS if is_picked else frozenset()
    return finding.code in {BY_ID[name].code for name in provided}


def findings_of_all_kinds(loaded: Loaded) -> Iterator[Diagnostic]:
    """Yield all findings of `render` for the oldest version of each kind of proxy, including control plane features."""
    names = tuple(listener.name for listener in loaded.compiled.topology.listeners)
    for kind in KINDS if names else ():
        yield from _findings_of(loaded, Proxy(kind, kind, target(kind).versions[0], listeners=names))


def merge_kinds(findings: Iterable[tuple[str, Diagnostic]]) -> list[UnsupportedFinding]:
    """Merge findings by code and position. Findings about several of a pool's replicas are merged into one."""
    by_kind: dict[str, list[Diagnostic]] = {}
    for kind, finding in findings:
        by_kind.setdefault(kind, []).append(finding)
    groups: dict[object, list[tuple[str, Diagnostic]]] = {}
    for kind in sorted(by_kind, key=TARGETS.index):
        for finding in collapse(by_kind[kind]):
            groups.setdefault((finding.code, finding.position), []).append((kind, finding))
    return [
        UnsupportedFinding(tuple(dict.fromkeys(kind for kind, _ in group)), _merged_finding(group))
        for group in groups.values()
    ]


def one_per_code(findings: Sequence[UnsupportedFinding]) -> Iterator[Diagnostic]:
    """Merge findings with the same code, kinds and consequence into one, at the first position."""
    groups: dict[object, list[Diagnostic]] = {}
    for unsupported in findings:
        finding = unsupported.finding
        groups.setdefault((finding.code, unsupported.kinds, template(finding)), []).append(finding)
    for same in groups.values():
        yield with_places(sorted(same, key=lambda finding: (finding.position is None, finding.position)))


def summary(findings: Sequence[UnsupportedFinding]) -> Iterator[str]:
    """Yield a line for each kind of proxy, with the number of features that it does not support."""
    for kind in TARGETS:
        same = [
            unsupported.finding
            for unsupported in findings
            if kind in unsupported.kinds and unsupported.finding.code != _GRANT
        ]
        if same:
            codes = len({finding.code for finding in same})
            count = f"{codes} setting{'s' if codes > 1 else ''} of this fleet"
            yield f"{kind} does not support {count}, in {len(same)} place{'s' if len(same) > 1 else ''}"


def _merged_finding(findings: Sequence[tuple[str, Diagnostic]]) -> Diagnostic:
    """Merge the findings for several kinds of proxies at one position."""
    first = findings[0][1]
    messages = [(kind, finding.message.removeprefix(f"{kind} does not support this: ")) for kind, finding in findings]
    message = _by_kind(messages)
    if len({text for _, text in messages}) == 1:
        is_general = messages[0][1] == first.message
        message = first.message if is_general else f"{_kinds(messages)} does not support this: {messages[0][1]}"
    hints = [(kind, finding.hint.removeprefix("instead, ")) for kind, finding in findings if finding.hint]
    hint = first.hint if len({text for _, text in hints}) < 2 else f"instead: {_by_kind(hints)}"
    return replace(first, message=message, hint=hint)


def _by_kind(messages: Sequence[tuple[str, str]]) -> str:
    """Format messages by kind: `nginx, haproxy: one thing; envoy: another`."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for kind, text in messages:
        message = text[len(kind) + 1 :] if text.lower().startswith(f"{kind} ") else text
        groups.setdefault(message, []).append((kind, text))
    return "; ".join(f"{_kinds(group)}: {text}" for text, group in groups.items())


def _kinds(messages: Sequence[tuple[str, str]]) -> str:
    return ", ".join(dict.fromkeys(kind for kind, _ in messages))


def _findings_of(loaded: Loaded, proxy: Proxy) -> Iterator[Diagnostic]:
    snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
    prepared = prepare(target(proxy.kind), loaded.compiled, proxy, snapshot)
    yield from prepared.losses
    for diagnostic in prepared.target.diagnostics(prepared.view):
        yield loaded.compiled.sources.with_position(diagnostic)
