"""Features that known Gateway classes do not implement.

The table contains the extended features that lbctl renders, according to the conformance reports in the Gateway API's
repository at commit 4564255a (2026-08-21) and, for InferencePools, in the Inference Extension's repository. For
rewriting the prefix `/`, see Envoy Gateway's issue 5256. Operators can give a class any name. The table uses the names
that the implementations create by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lbctl.base.diagnostics import Path
from lbctl.ir.listeners import PathMatch
from lbctl.ir.pools import KubernetesDiscovery
from lbctl.ir.routes import Forward, Redirect
from lbctl.ir.snapshot import View

_SINCE_CLIENT_CERTIFICATES = _SINCE_308 = (1, 5)
"""First versions of the API that support these features. lbctl does not render them for earlier versions."""
_OTHER_CLASS = "use another Gateway class, or another kind of proxy"


@dataclass(frozen=True, slots=True)
class Gap:
    """A feature that an implementation does not support."""

    text: str
    """The feature and, if known, the consequence of its absence."""
    hint: str
    uses: Callable[[View], Iterator[Path]]
    """Yields the paths of the settings that need the feature."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """An implementation of the Gateway API."""

    title: str
    """Name and version in the conformance report."""
    gaps: tuple[Gap, ...]


def _request_timeouts(view: View) -> Iterator[Path]:
    """Yield the total timeout of each route to a pool. An HTTPRoute always sets one, even if it is unlimited."""
    for route in view.routes.values():
        if isinstance(route.action, Forward):
            yield "routes", route.name, "timeouts", "request"


def _methods(view: View) -> Iterator[Path]:
    for listener in view.listeners:
        yield from (
            ("routes", rule.closed_route or rule.route, "match", "methods") for rule in listener.rules if rule.methods
        )


def _rewrites(view: View) -> Iterator[Path]:
    for route in view.routes.values():
        if route.rewrite is not None and route.rewrite.path_prefix is not None:
            yield "routes", route.name, "rewrite", "path_prefix"


def _rewrites_of_root(view: View) -> Iterator[Path]:
    at_root = {rule.route for listener in view.listeners for rule in listener.rules if rule.path == PathMatch()}
    yield from (path for path in _rewrites(view) if path[1] in at_root)


def _redirects(view: View) -> Iterator[Path]:
    for route in view.routes.values():
        if isinstance(route.action, Redirect) and view.proxy.version >= _SINCE_308:
            yield "routes", route.name, "respond", "redirect"


def _cleartext_http2(view: View) -> Iterator[Path]:
    for pool in view.pools.values():
        if pool.protocol != "http1" and pool.tls is None:
            yield "pools", pool.name, "protocol"


def _picked_pools(view: View) -> Iterator[Path]:
    for pool in view.pools.values():
        discovery = pool.discovery
        if (
            isinstance(discovery, KubernetesDiscovery)
            and pool.balance.pick is not None
            and not discovery.inference_pool
        ):
            yield "pools", pool.name, "balance", "algorithm"


def _existing_pools(view: View) -> Iterator[Path]:
    for pool in view.pools.values():
        if isinstance(pool.discovery, KubernetesDiscovery) and pool.discovery.inference_pool:
            yield "pools", pool.name, "discovery", "kubernetes", "inference_pool"


def _client_certificates(view: View) -> Iterator[Path]:
    if view.proxy.version >= _SINCE_CLIENT_CERTIFICATES:
        for listener in view.listeners:
            if listener.tls is not None and listener.tls.client_ca is not None:
                yield "listeners", listener.name, "tls", "client_ca"


def _backend_certificates(view: View) -> Iterator[Path]:
    if view.proxy.version >= _SINCE_CLIENT_CERTIFICATES:
        for pool in view.pools.values():
            if pool.tls is not None and pool.tls.certificate is not None:
                yield "pools", pool.name, "tls", "certificate"


_ENVOY_GATEWAY = Implementation(
    "Envoy Gateway 1.9",
    (
        Gap("InferencePools", "use the kind `envoy-gateway`, or install Envoy AI Gateway", _picked_pools),
        Gap("InferencePools", "set `service`, or install Envoy AI Gateway", _existing_pools),
        Gap(
            "a rewrite of the prefix / to a path: it omits the slash between the path and the rest",
            "use the kind `envoy-gateway`",
            _rewrites_of_root,
        ),
    ),
)
_ISTIO = Implementation(
    "Istio 1.30",
    (
        Gap(
            "client certificates on a Gateway's listeners; clients without a certificate may be admitted",
            _OTHER_CLASS,
            _client_certificates,
        ),
        Gap("a client certificate of the Gateway", _OTHER_CLASS, _backend_certificates),
    ),
)
_KGATEWAY = Implementation(
    "kgateway 2.4",
    (
        Gap("InferencePools", "use agentgateway", _picked_pools),
        Gap("InferencePools", "use agentgateway", _existing_pools),
    ),
)
_NGINX_GATEWAY_FABRIC = Implementation(
    "NGINX Gateway Fabric 2.7",
    (
        Gap(
            "total timeouts; by default, it ends a response after 60 s without data",
            "set the timeouts in a ProxySettingsPolicy",
            _request_timeouts,
        ),
    ),
)
_GKE = Implementation(
    "GKE Gateway 1.36",
    (
        Gap(
            "total timeouts; by default, it ends a request after 30 s",
            "set the timeout in a GCPBackendPolicy",
            _request_timeouts,
        ),
        Gap("matching by method", _OTHER_CLASS, _methods),
        Gap("path rewriting", _OTHER_CLASS, _rewrites),
        Gap("redirects with the status 308", "set the `version` of the proxy to 1.4, for the status 301", _redirects),
        Gap("HTTP/2 without TLS to replicas", _OTHER_CLASS, _cleartext_http2),
    ),
)

CLASSES: Mapping[str, Implementation] = {
    "eg": _ENVOY_GATEWAY,
    "istio": _ISTIO,
    "kgateway": _KGATEWAY,
    "nginx": _NGINX_GATEWAY_FABRIC,
    "gke-l7-global-external-managed": _GKE,
    "gke-l7-global-external-managed-mc": _GKE,
    "gke-l7-regional-external-managed": _GKE,
    "gke-l7-regional-external-managed-mc": _GKE,
    "gke-l7-cross-regional-internal-managed-mc": _GKE,
    "gke-l7-rilb": _GKE,
    "gke-l7-rilb-mc": _GKE,
    "gke-l7-gxlb": _GKE,
    "gke-l7-gxlb-mc": _GKE,
}
"""Maps each class name to its implementation."""
