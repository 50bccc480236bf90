"""Routes that return 503 because a kind of gateway can express their protection only in part.

`targets.assess` closes routes whose protection it cannot express at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.base.hosts import is_ip
from lbctl.ir.pools import Pool, PoolTls
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.assess import Assessment, assumption, close
from lbctl.targets.features import BY_ID

_CLOSES = "; the affected routes return 503 on this proxy"


@dataclass(frozen=True, slots=True)
class Gap:
    """A protection that the kind cannot express for one object."""

    feature: str
    scope: Literal["listener", "route", "pool"]
    name: str
    path: Path
    reason: str
    hint: str


def closed_view(view: View, objects: KubernetesObjects, gaps: Iterable[Gap]) -> tuple[View, list[Diagnostic]]:
    """Return the view without the routes that cannot be protected, and a warning for each gap."""
    names: dict[str, set[str]] = {"listener": set(), "route": set(), "pool": set()}
    warnings: list[Diagnostic] = []
    kind = view.proxy.kind
    for gap in gaps:
        if gap.feature in objects.assume:
            warnings.append(assumption(kind, view.proxy, BY_ID[gap.feature]))
            continue
        names[gap.scope].add(gap.name)
        message = f"{kind} does not support this: {gap.reason}{_CLOSES}"
        code = BY_ID[gap.feature].code
        warnings.append(Diagnostic(code, message, path=gap.path, hint=gap.hint, severity="warning"))
    closed = {scope: frozenset(found) for scope, found in names.items()}
    return close(view, Assessment((), closed)), warnings


def loopback(view: View) -> Iterator[Gap]:
    """Yield the listeners that are only reachable from the same machine."""
    for listener in view.listeners:
        if listener.bind.on_loopback and not listener.bind.path:
            reason = f"a Gateway has no listen addresses, so clients on other machines could reach {listener.bind}"
            hint = f'bind: "0.0.0.0:{listener.bind.port}", or omit the listener in `listeners` of the entry'
            yield Gap("listener.bind", "listener", listener.name, ("listeners", listener.name, "bind"), reason, hint)


def unverifiable(pools: Iterable[Pool]) -> Iterator[Gap]:
    """Yield the pools whose certificates a BackendTLSPolicy cannot verify as the fleet requires."""
    for pool in pools:
        if pool.tls is None or is_verifiable(pool.tls):
            continue
        reason, hint = "a BackendTLSPolicy needs the host name in the certificates", "server_name: HOST"
        if pool.tls.ca is None:
            reason, hint = "a BackendTLSPolicy always verifies certificates, but `ca` is not set", "ca: FILE"
        yield Gap("pool.tls", "pool", pool.name, ("pools", pool.name, "tls"), reason, hint)


def is_verifiable(tls: PoolTls) -> bool:
    """Return whether a BackendTLSPolicy can express how the replicas' certificates are verified."""
    return tls.ca is not None and tls.server_name is not None and not is_ip(tls.server_name)


def several_certificates(pools: Sequence[Pool], objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield the pools that need a different client certificate than the Gateway would present to them."""
    pairs = {key_pair(pool) for pool in pools}
    for pool in pools:
        if key_pair(pool) is None or (len(pairs) == 1 and objects.gateway is None):
            continue
        reason = "a Gateway supports one client certificate for all of its replicas"
        if objects.gateway is not None:
            reason = "lbctl does not render this Gateway, which must contain the client certificate"
        hint = "use the same certificate for all pools with TLS, and `gateway_class`"
        path = ("pools", pool.name, "tls", "certificate")
        yield Gap("pool.tls.client_certificate", "pool", pool.name, path, reason, hint)


def key_pair(pool: Pool) -> tuple[str, str] | None:
    """Return the certificate and key that the pool's replicas require of their clients."""
    if pool.tls is None or pool.tls.certificate is None or pool.tls.key is None:
        return None
    return pool.tls.certificate, pool.tls.key
