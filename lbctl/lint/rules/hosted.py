"""Rules about hosted APIs: checks that cost tokens, telemetry without data, and secrets sent in clear text."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.hosts import is_loopback
from lbctl.ir.pools import HttpCheck, Pool
from lbctl.lint.fleet_view import FleetView, telemetries
from lbctl.lint.rule import RuleFinding, rule


@rule("LB230")
def hosted_api_is_checked(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report active HTTP checks of hosted APIs (LB230)."""
    for pool in _hosted(fleet):
        if pool.active is not None and isinstance(pool.active.probe, HttpCheck):
            message = "every proxy instance sends this check to the API without a key"
            hint = "use active: {tcp: {}}, or remove the check"
            yield RuleFinding(("pools", pool.name, "health", "active", "http"), message, hint)


@rule("LB231")
def hosted_api_has_telemetry(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report telemetry sources for hosted APIs (LB231)."""
    for pool in _hosted(fleet):
        for path, _ in telemetries(pool):
            yield RuleFinding(path, "a hosted API does not expose metrics", "remove telemetry")


@rule("LB232")
def hosted_api_starts_slowly(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report slow start for hosted APIs (LB232)."""
    for pool in _hosted(fleet):
        path = ("pools", pool.name, "slow_start")
        if fleet.written(path) is not None:
            yield RuleFinding(path, "the servers of a hosted API are already warm", "remove slow_start")


@rule("LB233")
def secret_in_clear_text(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report secrets sent to hosted APIs without TLS (LB233)."""
    for pool in _hosted(fleet):
        sends = any(header.file for header in pool.upstream.headers) if pool.upstream else False
        remote = not pool.replicas or any(not _is_here(item.address.host) for item in pool.replicas)
        if sends and remote and pool.tls is None:
            yield RuleFinding(("pools", pool.name, "upstream"), "the secret is sent in cleartext", "tls: {ca: system}")


def _hosted(fleet: FleetView) -> Iterator[Pool]:
    return (pool for pool in fleet.pools if pool.upstream is not None)


def _is_here(host: str) -> bool:
    """Return whether the host is this machine; `host` is empty for a socket."""
    return not host or is_loopback(host)
