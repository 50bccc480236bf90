"""Routes that return 503 because the API expresses their protection only in part.

`targets.assess` closes routes whose protection the API cannot express at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.base.hosts import is_ip
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import DnsDiscovery, Pool, PoolTls
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.assess import Assessment, assumption, capability_at, close
from lbctl.targets.features import BY_ID
from lbctl.targets.gateway_api.capabilities import CAPABILITIES
from lbctl.targets.target import Unsupported

_CLOSES = "; the affected routes return 503 on this proxy"


@dataclass(frozen=True, slots=True)
class _Gap:
    """A protection that the API cannot express for one object."""

    feature: str
    scope: str
    """listener or pool."""
    name: str
    path: Path
    reason: str
    hint: str


def closed_view(view: View, objects: KubernetesObjects) -> tuple[View, list[Diagnostic]]:
    """Return the view without the routes that cannot be protected, and a warning for each gap."""
    names: dict[str, set[str]] = {"listener": set(), "pool": set()}
    warnings: list[Diagnostic] = []
    for gap in _gaps(view, objects):
        if gap.feature in objects.assume:
            warnings.append(assumption("gateway-api", view.proxy, BY_ID[gap.feature]))
            continue
        names[gap.scope].add(gap.name)
        message = f"gateway-api does not support this: {gap.reason}{_CLOSES}"
        code = BY_ID[gap.feature].code
        warnings.append(Diagnostic(code, message, path=gap.path, hint=gap.hint, severity="warning"))
    closed = {"route": frozenset[str](), **{scope: frozenset(found) for scope, found in names.items()}}
    return close(view, Assessment((), closed)), warnings


def without_host_names(view: View) -> View:
    """Return the view without replicas that have host names, which slices cannot contain. Others get their share."""
    pools, weights = {}, {}
    for name, pool in view.pools.items():
        pairs = zip(pool.replicas, view.weights[name], strict=True)
        kept = [pair for pair in pairs if is_ip(pair[0].address.host)]
        pools[name] = replace(pool, replicas=tuple(replica for replica, _ in kept))
        weights[name] = tuple(weight for _, weight in kept)
    return replace(view, pools=pools, weights={**view.weights, **weights})


def _gaps(view: View, objects: KubernetesObjects) -> Iterator[_Gap]:
    yield from _loopback(view)
    yield from _client_certificates(view, objects)
    yield from _tls(view)
    yield from _pool_certificates(view, objects)


def _is_unsupported(view: View, feature: str) -> bool:
    """Return whether `assess` has handled the feature, because the version of the API does not have it."""
    return isinstance(capability_at(CAPABILITIES[feature], view.proxy.version), Unsupported)


def _loopback(view: View) -> Iterator[_Gap]:
    for listener in view.listeners:
        if listener.bind.on_loopback and not listener.bind.path:
            reason = f"a Gateway has no listen addresses, so clients of other machines would reach {listener.bind}"
            hint = f'bind: "0.0.0.0:{listener.bind.port}", or omit the listener in `listeners` of the entry'
            yield _Gap("listener.bind", "listener", listener.name, ("listeners", listener.name, "bind"), reason, hint)


def _client_certificates(view: View, objects: KubernetesObjects) -> Iterator[_Gap]:
    feature = "listener.client_certificate"
    for listener in () if _is_unsupported(view, feature) else view.listeners:
        tls = listener.tls
        if tls is None or tls.client_ca is None:
            continue
        path = ("listeners", listener.name, "tls")
        if objects.gateway is not None:
            reason, key, hint = "lbctl does not render this Gateway", "client_ca", "set `gateway_class`"
        elif tls.client_certificate != "required":
            reason = "the API has no optional client certificates"
            key, hint = "client_certificate", "client_certificate: required"
        elif tls.client_crl is not None:
            reason, key, hint = "the API has no revocation lists", "client_crl", "use short-lived certificates"
        else:
            continue
        yield _Gap(feature, "listener", listener.name, (*path, key), reason, hint)


def _tls(view: View) -> Iterator[_Gap]:
    for pool in view.pools.values():
        if pool.tls is None or isinstance(pool.discovery, DnsDiscovery):
            continue
        if not is_verifiable(pool.tls):
            reason, hint = "a BackendTLSPolicy needs the host name in the certificates", "server_name: HOST"
            if pool.tls.ca is None:
                reason, hint = "a BackendTLSPolicy always verifies certificates, but `ca` is not set", "ca: FILE"
            yield _Gap("pool.tls", "pool", pool.name, ("pools", pool.name, "tls"), reason, hint)


def is_verifiable(tls: PoolTls) -> bool:
    """Return whether a BackendTLSPolicy can express how the replicas' certificates are verified."""
    return tls.ca is not None and tls.server_name is not None and not is_ip(tls.server_name)


def verifies_clients(view: View, listener: Listener) -> bool:
    """Return whether the rendered Gateway verifies the certificates of the listener's clients."""
    tls, objects = listener.tls, view.proxy.kubernetes
    if objects is None or objects.gateway is not None:
        return False
    if tls is None or tls.client_ca is None or _is_unsupported(view, "listener.client_certificate"):
        return False
    return tls.client_certificate == "required" and tls.client_crl is None


def _pool_certificates(view: View, objects: KubernetesObjects) -> Iterator[_Gap]:
    """Yield the pools whose client certificate is not the Gateway's only one."""
    feature = "pool.tls.client_certificate"
    with_tls = [pool for pool in view.pools.values() if pool.tls is not None]
    pairs = {_pair(pool) for pool in with_tls}
    for pool in () if _is_unsupported(view, feature) else with_tls:
        if _pair(pool) is None or (len(pairs) == 1 and objects.gateway is None):
            continue
        reason = "a Gateway has one client certificate for all of its replicas"
        if objects.gateway is not None:
            reason = "lbctl does not render this Gateway, which has the client certificate"
        hint = "use the same certificate for all pools with TLS, and `gateway_class`"
        yield _Gap(feature, "pool", pool.name, ("pools", pool.name, "tls", "certificate"), reason, hint)


def _pair(pool: Pool) -> tuple[str, str] | None:
    if pool.tls is None or pool.tls.certificate is None or pool.tls.key is None:
        return None
    return pool.tls.certificate, pool.tls.key


def client_certificate(view: View) -> tuple[str, str] | None:
    """Return the certificate and the key with which the Gateway of a closed view connects to its replicas.

    If another component presents client certificates, it is None: replicas may even need different ones.
    """
    feature, objects = "pool.tls.client_certificate", view.proxy.kubernetes
    if _is_unsupported(view, feature) or objects is None or feature in objects.assume:
        return None
    return next((pair for pool in view.pools.values() if (pair := _pair(pool))), None)
