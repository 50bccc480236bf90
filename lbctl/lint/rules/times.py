"""Rules about timeouts of requests and connections."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.lint.fleet_view import GENERATIVE_KINDS, FleetView, sources_of
from lbctl.lint.rule import Edit, RuleFinding, rule

_MIN_IDLE = 120_000
_KEEP_ALIVE = 5_000
"""Milliseconds after which uvicorn closes an idle connection; vLLM, SGLang and most Python servers use it."""
_NOT_UVICORN = frozenset({"tgi", "triton", "tfserving", "torchserve", "llamacpp"})
"""Servers that do not use uvicorn."""


@rule("LB310")
def total_timeout_on_generation(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report a total timeout for a generative model (LB310)."""
    for route, _ in fleet.forwards:
        if route.request_timeout is not None and fleet.streams(route):
            path = ("routes", route.name, "timeouts", "request")
            message = f"every response that takes longer than {route.request_timeout / 1000:g} s is cut off"
            yield RuleFinding(
                path, message, "request: unlimited; the `idle` timeout ends stuck requests", Edit(path, "unlimited")
            )


@rule("LB311")
def short_idle_timeout(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report an idle timeout under two minutes for a generative model (LB311)."""
    for route, _ in fleet.forwards:
        if route.idle_timeout is not None and route.idle_timeout < _MIN_IDLE and fleet.streams(route):
            path = ("routes", route.name, "timeouts", "idle")
            message = f"{route.idle_timeout / 1000:g} s without data is normal before the first token of a long prompt"
            yield RuleFinding(path, message, "idle: 5m", Edit(path, "5m"))


@rule("LB312")
def keep_alive_longer_than_server(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report idle connections that are kept longer than the server's keep-alive timeout (LB312)."""
    for pool in fleet.pools:
        kinds = {source.kind for source in sources_of(pool)}
        idle = pool.connections.idle
        if pool.protocol != "http1" or (idle is not None and idle < _KEEP_ALIVE) or kinds & _NOT_UVICORN:
            continue
        if not (kinds & GENERATIVE_KINDS or fleet.generates(pool.name)):
            continue
        path = ("pools", pool.name, "connections", "idle")
        kept = "forever" if idle is None else f"for {idle / 1000:g} s"
        message = f"idle connections are kept {kept}, but uvicorn closes them after 5 s, so a POST request can fail"
        hint = "idle: 4s, or any value below the server's own keep-alive timeout"
        yield RuleFinding(path, message, hint, Edit(path, "4s"))
