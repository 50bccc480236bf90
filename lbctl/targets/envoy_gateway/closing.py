"""Routes that return 503 because Envoy Gateway expresses their rate limits or their pools' protection only in part."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.pools import KubernetesDiscovery, Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.envoy_gateway.backends import verified_name
from lbctl.targets.manifests.closing import Gap, key_pair, loopback, several_certificates, unverifiable

GATEWAY_CERTIFICATES = (1, 8)
"""First version in which a Gateway can have a client certificate for its replicas."""


def gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield the pool protections and the rate limits of routes that cannot be expressed."""
    yield from loopback(view)
    discovered = [pool for pool in view.pools.values() if isinstance(pool.discovery, KubernetesDiscovery) and pool.tls]
    yield from unverifiable(discovered)
    yield from _unnamed(pool for pool in view.pools.values() if pool not in discovered)
    if view.proxy.version >= GATEWAY_CERTIFICATES:
        yield from several_certificates(discovered, objects)
    else:
        yield from _old_certificates(discovered)
    yield from _rates(view)


def client_certificate(view: View, objects: KubernetesObjects) -> tuple[str, str] | None:
    """Return the certificate and the key with which the Gateway of a closed view connects to discovered replicas."""
    if "pool.tls.client_certificate" in objects.assume or view.proxy.version < GATEWAY_CERTIFICATES:
        return None
    discovered = (pool for pool in view.pools.values() if isinstance(pool.discovery, KubernetesDiscovery))
    return next((pair for pool in discovered if (pair := key_pair(pool))), None)


def _unnamed(pools: Iterator[Pool]) -> Iterator[Gap]:
    for pool in pools:
        if pool.tls is not None and pool.tls.ca is not None and not verified_name(pool):
            reason = "a Backend needs one host name for the certificates of its replicas"
            yield Gap("pool.tls", "pool", pool.name, ("pools", pool.name, "tls"), reason, "server_name: HOST")


def _old_certificates(pools: list[Pool]) -> Iterator[Gap]:
    for pool in pools:
        if key_pair(pool) is not None:
            reason = "before 1.8, a Gateway does not support client certificates for a Service's pods"
            path = ("pools", pool.name, "tls", "certificate")
            hint = "use a newer version of Envoy Gateway"
            yield Gap("pool.tls.client_certificate", "pool", pool.name, path, reason, hint)


def _rates(view: View) -> Iterator[Gap]:
    """Yield the routes with a rate that a local limit, which counts all requests of a rule together, cannot express."""
    for route in view.routes.values():
        rates = [(index, limit) for index, limit in enumerate(route.rate_limits) if limit.requests]
        by_client = next((index for index, limit in rates if limit.by != "all"), None)
        if by_client is not None:
            reason, index = "local limits count all of a rule's requests together", by_client
            hint = "by: all, or add a policy with a global limit and list this feature in `assume`"
        elif len(rates) > 1:
            reason, index, hint = (
                "a rule supports a single limit for all of its requests",
                rates[1][0],
                "keep one limit",
            )
        else:
            continue
        path = ("routes", route.name, "rate_limit", index)
        yield Gap("route.rate_limit", "route", route.name, path, reason, hint)
