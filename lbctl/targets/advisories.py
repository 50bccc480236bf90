"""Published proxy vulnerabilities that lbctl's rendered configuration can trigger, by kind, with the fixed versions.

A distribution may fix a vulnerability without changing the version number, so a finding is not proof. The sources are
nginx's security advisories and CVE records, HAProxy's announcements, and Envoy's release notes (`changelogs/` in its
repository). If a CVE record names an earlier fixed version than the release notes, the release notes take precedence.
An Envoy branch without a fix has reached its end of life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lbctl.ir.snapshot import View

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Advisory:
    """A published vulnerability of a proxy."""

    name: str
    """CVE number."""
    about: str
    """Affected feature, as a noun phrase."""
    fixed: tuple[Version, ...]
    """First fixed version of each branch, newest last."""
    reached: Callable[[View], bool]
    """Returns whether the rendered configuration of a view uses the affected feature."""
    since: Version = ()
    """First affected version; if empty, all versions before the fix are affected."""

    def affects(self, version: Version) -> bool:
        """Return whether this version is affected.

        In a branch without a fix, every version older than the newest fixed version is affected.
        """
        own = next((item for item in self.fixed if item[:2] == version[:2]), self.fixed[-1])
        return self.since <= version < own


def _always(_view: View) -> bool:
    return True


def _has_tls(view: View) -> bool:
    return any(item.tls is not None for item in view.listeners)


def _has_grpc(view: View) -> bool:
    return any(pool.protocol == "grpc" for pool in view.pools.values())


def _has_tls_to_replicas(view: View) -> bool:
    return any(pool.tls is not None for pool in view.pools.values())


def _has_http2(view: View) -> bool:
    return any(item.http2 for item in view.listeners)


def _has_tls_and_http2(view: View) -> bool:
    return any(item.http2 and item.tls is not None for item in view.listeners)


def _reads_peer_certificates(view: View) -> bool:
    return _has_tls_to_replicas(view) or any(
        item.tls is not None and item.tls.client_ca is not None for item in view.listeners
    )


def _picks(view: View) -> bool:
    return any(pool.balance.pick is not None for pool in view.pools.values())


def _asks_a_service(view: View) -> bool:
    external = any(route.auth is not None and route.auth.external is not None for route in view.routes.values())
    return external or _picks(view)


def _reads_json(view: View) -> bool:
    by_body = any(rule.models for item in view.listeners for rule in item.rules)
    return by_body or any(route.auth is not None and route.auth.jwt is not None for route in view.routes.values())


_JUNE: tuple[Version, ...] = ((1, 35, 13), (1, 36, 9), (1, 37, 5), (1, 38, 3))
"""Envoy's security releases of June 2026."""
_AUGUST: tuple[Version, ...] = ((1, 36, 10), (1, 37, 6), (1, 38, 4), (1, 39, 1))
"""Envoy's security releases of August 2026."""
_BY_KIND: Mapping[str, tuple[Advisory, ...]] = {
    "nginx": (
        Advisory("CVE-2026-1642", "TLS to replicas", ((1, 28, 2), (1, 29, 5)), _has_tls_to_replicas),
        Advisory("CVE-2026-42055", "gRPC to replicas", ((1, 30, 3), (1, 31, 2)), _has_grpc),
        Advisory("CVE-2026-93479", "maps with regular expressions", ((1, 30, 6), (1, 31, 7)), _always, (1, 30)),
        Advisory("CVE-2026-118899", "request bodies over TLS 1.3", ((1, 30, 7), (1, 31, 9)), _has_tls, (1, 13)),
        Advisory("CVE-2026-123007", "HTTP/2 flow control", ((1, 30, 7), (1, 31, 9)), _has_tls_and_http2, (1, 9, 5)),
        Advisory("CVE-2026-123633", "HTTP/2 streams", ((1, 30, 7), (1, 31, 9)), _has_tls_and_http2),
    ),
    "haproxy": (
        Advisory(
            "CVE-2025-11230",
            "JSON in request bodies and tokens",
            ((2, 6, 23), (2, 8, 16), (3, 0, 12), (3, 1, 9), (3, 2, 6)),
            _reads_json,
        ),
    ),
    "envoy": (
        Advisory("CVE-2026-26311", "reset streams", ((1, 34, 13), (1, 35, 9), (1, 36, 5), (1, 37, 1)), _always),
        Advisory(
            "CVE-2026-47774",
            "cookies over HTTP/2",
            ((1, 35, 11), (1, 36, 7), (1, 37, 3), (1, 38, 1)),
            _has_http2,
        ),
        Advisory("CVE-2026-47205", "picker queries", _JUNE[1:], _picks, (1, 36)),
        Advisory("CVE-2026-47778", "names in certificates", _JUNE, _has_tls_to_replicas),
        Advisory("CVE-2026-48042", "nested JSON", _JUNE, _reads_json),
        Advisory("CVE-2026-50572", "rejections by external authorization services", _AUGUST, _asks_a_service),
        Advisory("CVE-2026-73547", "CONNECT with external authorization services", _AUGUST, _asks_a_service),
        Advisory("CVE-2026-73513", "trailers of gRPC replicas", _AUGUST, _has_grpc),
        Advisory("CVE-2026-73550", "Host headers over HTTP/2", _AUGUST, _has_http2),
        Advisory(
            "CVE-2026-35189",
            "certificates of clients and replicas",
            ((1, 36, 11), (1, 37, 7), (1, 38, 5), (1, 39, 2)),
            _reads_peer_certificates,
        ),
    ),
}


def known_faults(kind: str, version: Version, view: View) -> Iterator[Advisory]:
    """Yield the vulnerabilities of this proxy version that its rendered configuration can trigger."""
    return (item for item in _BY_KIND.get(kind, ()) if item.affects(version) and item.reached(view))


def described(faults: list[Advisory], version: Version) -> tuple[str, str]:
    """Return a finding and a hint that list the vulnerabilities and fixes, the fix in this version's branch first."""
    finding = ", ".join(f"{item.name} ({item.about})" for item in faults)
    branches = {version[:2]: version for version in sorted(version for item in faults for version in item.fixed)}
    has_own = all(any(fix[:2] == version[:2] for fix in item.fixed) for item in faults)
    shown = sorted({*sorted(branches)[-2:], *([version[:2]] if has_own else ())})
    fixes = ", ".join(".".join(map(str, branches[branch])) for branch in shown)
    return finding, f"upgrade to a version with the fixes ({fixes}), unless your distribution has patched this version"
