"""Routes that return 503 because the API only partly expresses their protection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lbctl.base.hosts import is_ip
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import DnsDiscovery
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.assess import capability_at
from lbctl.targets.gateway_api.capabilities import CAPABILITIES
from lbctl.targets.manifests.closing import Gap, key_pair, loopback, several_certificates, unverifiable
from lbctl.targets.target import Unsupported


def gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield the protections that the API cannot express for objects of the view."""
    yield from loopback(view)
    yield from _client_certificates(view, objects)
    yield from unverifiable(pool for pool in view.pools.values() if not isinstance(pool.discovery, DnsDiscovery))
    if not _is_unsupported(view, "pool.tls.client_certificate"):
        yield from several_certificates([pool for pool in view.pools.values() if pool.tls is not None], objects)


def without_host_names(view: View) -> View:
    """Return the view without replicas that have host names, because slices cannot contain these.

    The removed replicas' share goes to the remaining replicas.
    """
    pools, weights = {}, {}
    for name, pool in view.pools.items():
        pairs = zip(pool.replicas, view.weights[name], strict=True)
        kept = [pair for pair in pairs if is_ip(pair[0].address.host)]
        pools[name] = replace(pool, replicas=tuple(replica for replica, _ in kept))
        weights[name] = tuple(weight for _, weight in kept)
    return replace(view, pools=pools, weights={**view.weights, **weights})


def _is_unsupported(view: View, feature: str) -> bool:
    """Return whether `assess` has already handled the feature, because this version of the API does not support it."""
    return isinstance(capability_at(CAPABILITIES[feature], view.proxy.version), Unsupported)


def _client_certificates(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    feature = "listener.client_certificate"
    for listener in () if _is_unsupported(view, feature) else view.listeners:
        tls = listener.tls
        if tls is None or tls.client_ca is None:
            continue
        path = ("listeners", listener.name, "tls")
        if objects.gateway is not None:
            reason, key, hint = "lbctl does not render this Gateway", "client_ca", "set `gateway_class`"
        elif tls.client_certificate != "required":
            reason = "the API does not define optional client certificates"
            key, hint = "client_certificate", "client_certificate: required"
        elif tls.client_crl is not None:
            reason, key, hint = (
                "the API does not define revocation lists",
                "client_crl",
                "use short-lived certificates",
            )
        else:
            continue
        yield Gap(feature, "listener", listener.name, (*path, key), reason, hint)


def verifies_clients(view: View, listener: Listener) -> bool:
    """Return whether the rendered Gateway verifies the certificates of the listener's clients."""
    tls, objects = listener.tls, view.proxy.kubernetes
    if objects is None or objects.gateway is not None:
        return False
    if tls is None or tls.client_ca is None or _is_unsupported(view, "listener.client_certificate"):
        return False
    return tls.client_certificate == "required" and tls.client_crl is None


def client_certificate(view: View) -> tuple[str, str] | None:
    """Return the certificate and the key with which the Gateway of a closed view connects to its replicas.

    Return None if another component presents client certificates, because replicas may even need different ones.
    """
    feature, objects = "pool.tls.client_certificate", view.proxy.kubernetes
    if _is_unsupported(view, feature) or objects is None or feature in objects.assume:
        return None
    return next((pair for pool in view.pools.values() if (pair := key_pair(pool))), None)
