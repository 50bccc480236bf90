"""Checks whether requests in the same session reach the same replica. A single request cannot reveal this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lbctl.importer.compare.differences import ObservedRequest
from lbctl.importer.compare.samples import SampleRequest
from lbctl.importer.draft import addresses

_SESSIONS = 3
_REQUESTS = 3
"""Number of requests sent per session."""
Ask = Callable[[SampleRequest], ObservedRequest]
"""Sends a request to one of the two proxies."""


def named_by_replicas(fleet: Mapping[str, Any]) -> dict[str, str]:
    """Map each replica's address to the header in which replicas name sessions."""
    pools = fleet["pools"].values()
    return {each: pool["affinity"]["header"] for pool in pools if _named(pool) for each in addresses(pool)}


def differences(
    fleet: Mapping[str, Any], route: Mapping[str, Any], sample: SampleRequest, before: Ask, after: Ask
) -> Iterator[str]:
    """Yield a difference if only the configuration keeps each session of a route's pool on one replica."""
    pool = fleet["pools"].get(route.get("pool"), {})
    key = pool.get("balance", {}).get("hash", {}).get("key", {}) if not _named(pool) else pool["affinity"]
    kind = next((name for name in ("header", "cookie", "query") if name in key), "")
    if not kind or len(set(addresses(pool))) < 2 or not _keeps(pool, kind, key[kind], sample, before):
        return
    # A health check during the requests may move a session, so a single difference does not count.
    if not any(_keeps(pool, kind, key[kind], sample, after) for _ in range(2)):
        yield f"requests from one session ({kind} {key[kind]}) reach several replicas"


def _named(pool: Mapping[str, Any]) -> bool:
    return "header" in pool.get("affinity", {})


def _keeps(pool: Mapping[str, Any], kind: str, name: str, sample: SampleRequest, ask: Ask) -> bool:
    for number in range(_SESSIONS):
        first = ask(sample) if _named(pool) else None
        session = dict(first.answer).get(name, "") if first is not None else f"session-{number}"
        replicas = {first.replica} if first is not None else set()
        replicas |= {ask(_with(sample, kind, name, session)).replica for _ in range(_REQUESTS)}
        if len(replicas) != 1 or not session:
            return False
    return True


def _with(sample: SampleRequest, kind: str, name: str, session: str) -> SampleRequest:
    """Return the request as part of a session."""
    if kind == "query":
        return replace(sample, path=f"{sample.path}{'&' if '?' in sample.path else '?'}{name}={session}")
    header = {"cookie": f"{name}={session}"} if kind == "cookie" else {name: session}
    return replace(sample, headers={**sample.headers, **header})
