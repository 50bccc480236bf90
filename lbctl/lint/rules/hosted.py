"""Rules about hosted APIs: what costs tokens, reads nothing, or lets a key be read on its way."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.hosts import is_loopback
from lbctl.ir.pools import HttpCheck, Pool
from lbctl.lint.fleet_view import FleetView, telemetries
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import sample

_API = 'provider: {replicas: [{name: provider, address: "api.example.com:443"}], '
_UPSTREAM = (
    'upstream: {host: api.example.com, headers: {authorization: {prefix: "Bearer ", file: secrets/provider-key}}}'
)
_TLS = "tls: {ca: system}"
_ROUTE = "chat: {match: {path_prefix: /v1/chat}, pool: llama, fallback: provider}\n"


def _fleet(*keys: str) -> str:
    return sample(routes=_ROUTE, pools=f"{_API}{', '.join((_UPSTREAM, *keys))}}}\n")


@rule(
    "LB230",
    "warning",
    "a hosted API is checked by requests",
    what="A pool with `upstream` has an active check by HTTP.",
    why="Each instance of each proxy sends it every few seconds, by night too. It counts against the rate limit of the "
    "key's owner, carries no key, and says nothing of the model. What clients get says whether the API answers.",
    before=_fleet(_TLS, "health: {active: {http: {path: /v1/models}}}"),
    after=_fleet(_TLS, "health: {active: {tcp: {}}}"),
    ignore="The path is free of charge, and answers without a key.",
)
def hosted_api_is_checked(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB230: active checks by HTTP of hosted APIs."""
    for pool in _hosted(fleet):
        if pool.active is not None and isinstance(pool.active.probe, HttpCheck):
            message = "every instance of every proxy sends this check to the API, without a key"
            yield RuleFinding(("pools", pool.name, "health", "active", "http"), message, "active: {tcp: {}}, or none")


@rule(
    "LB231",
    "warning",
    "telemetry of a hosted API",
    what="A pool with `upstream` names sources of telemetry.",
    why="A hosted API does not show its queues and its GPUs: the sources stay without values, or are asked with the "
    "name of somebody else's host.",
    before=_fleet(_TLS, 'telemetry: {sources: [{kind: vllm, url: "http://{host}:9090/metrics"}]}'),
    after=_fleet(_TLS),
    ignore="The API is one of your own, behind a gateway that shows its metrics.",
)
def hosted_api_has_telemetry(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB231: sources of telemetry of hosted APIs."""
    for pool in _hosted(fleet):
        for path, _ in telemetries(pool):
            yield RuleFinding(path, "a hosted API shows no metrics", "leave telemetry out")


@rule(
    "LB232",
    "note",
    "slow start of a hosted API",
    what="A pool with `upstream` sets `slow_start`.",
    why="Behind one name are many machines that are warm; the ramp only keeps requests away from an address that DNS "
    "has just given.",
    before=_fleet(_TLS, "slow_start: {window: 2m}"),
    after=_fleet(_TLS),
    ignore="The API is one of your own, with replicas that start cold.",
)
def hosted_api_starts_slowly(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB232: slow start of hosted APIs."""
    for pool in _hosted(fleet):
        path = ("pools", pool.name, "slow_start")
        if fleet.written(path) is not None:
            yield RuleFinding(path, "the machines behind a hosted API are warm", "leave slow_start out")


@rule(
    "LB233",
    "warning",
    "a key in clear text",
    what="A pool with `upstream` sends secrets beyond this machine, and has no `tls`.",
    why="Everybody on the way reads the key. With `tls` without `ca` whoever answers is given it: that is LB521.",
    before=_fleet(),
    after=_fleet(_TLS),
    ignore="The address is a proxy of your own that encrypts what it passes on.",
)
def secret_in_clear_text(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB233: secrets of hosted APIs that are sent without TLS."""
    for pool in _hosted(fleet):
        sends = any(header.file for header in pool.upstream.headers) if pool.upstream else False
        remote = not pool.replicas or any(not _is_here(item.address.host) for item in pool.replicas)
        if sends and remote and pool.tls is None:
            yield RuleFinding(("pools", pool.name, "upstream"), "its secret is sent in clear text", "tls: {ca: system}")


def _hosted(fleet: FleetView) -> Iterator[Pool]:
    return (pool for pool in fleet.pools if pool.upstream is not None)


def _is_here(host: str) -> bool:
    """Return whether the host is this machine; a socket has none."""
    return not host or is_loopback(host)
