"""Pools with their own headers: hosted APIs, and replicas that require a key.

The replicas' key replaces the client's header of the same name, and nothing else changes. A hosted API receives less
information about the client: the client's credentials are meant for this gateway, and its address and tenant must not
be disclosed. Each proxy removes these headers, even if the route forwards them to self-hosted replicas, and then sets
the pool's headers.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.ir.pools import Pool, TcpCheck, Upstream, UpstreamHeader
from lbctl.ir.routes import Forward
from lbctl.ir.secrets import CREDENTIAL_HEADERS
from lbctl.ir.snapshot import View
from lbctl.targets.client_identity import CLAIMS

_OF_PROXIES = ("x-forwarded-for", "x-forwarded-proto")


@dataclass(frozen=True, slots=True)
class HostedPool:
    """A pool with its own headers, and the headers removed from its requests."""

    pool: str
    upstream: Upstream
    """Replacements for parts of requests to the pool."""
    headers: tuple[UpstreamHeader, ...]
    """Headers to set, except headers whose file could not be read."""
    removed: tuple[str, ...]
    """Lowercase names of the headers to remove, sorted, including headers that are then set."""


def hosted_pool(view: View, name: str) -> HostedPool | None:
    """Return the pool if it has its own headers; None if it gets the client's headers."""
    pool = view.pools[name]
    upstream = pool.sent
    if upstream is None:
        return None
    own = {header.name for header in upstream.headers}
    readable = {header for header, _ in view.upstream_headers[name]}
    headers = tuple(header for header in upstream.headers if header.name in readable)
    return HostedPool(name, upstream, headers, tuple(sorted(own | (_withheld(view) if pool.upstream else set()))))


def _withheld(view: View) -> set[str]:
    names = {*CREDENTIAL_HEADERS, *CLAIMS, *_OF_PROXIES}
    for listener in view.listeners:
        names.update(listener.address_headers)
    for route in view.routes.values():
        if route.auth is not None and isinstance(route.action, Forward):
            names.update([route.auth.forward_tenant] if route.auth.forward_tenant else [])
            names.update(route.auth.api_keys.headers if route.auth.api_keys else ())
    return {name.lower() for name in names}


def check_key(view: View, pool: Pool) -> tuple[str, str] | None:
    """Return the name and value of the key header in the pool's HTTP and gRPC checks; None without a key.

    The key is meant for the engines and is not sent to agents.
    """
    if pool.credentials is None or pool.agent is not None:
        return None
    if pool.active is None or isinstance(pool.active.probe, TcpCheck):
        return None
    values = view.upstream_headers.get(pool.name, ())
    return next((item for item in values if item[0] == pool.credentials.name), None)
