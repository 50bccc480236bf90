"""Renders a view as objects of the Gateway API, and finds everything that they cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.base.hosts import is_ip, is_loopback
from lbctl.ir.pools import DnsDiscovery, KubernetesDiscovery, Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import PREFLIGHT, Forward
from lbctl.ir.snapshot import View
from lbctl.targets.assess import without_fallbacks
from lbctl.targets.gateway_api.backends import Backends, has_inference_pool, is_picked, without_copies
from lbctl.targets.gateway_api.capabilities import CAPABILITIES
from lbctl.targets.gateway_api.closing import client_certificate, gaps, verifies_clients, without_host_names
from lbctl.targets.manifests import gateway, grants, http_route
from lbctl.targets.manifests.closing import closed_view, is_verifiable
from lbctl.targets.manifests.findings import (
    assumed_port,
    assumptions,
    entry_of_namespace,
    models,
    needed_protocol,
    rewritten_hosts,
    same_services,
    service_errors,
    unused_secrets,
    warning,
)
from lbctl.targets.manifests.grants import add_grants
from lbctl.targets.manifests.objects import Objects
from lbctl.targets.manifests.pool_classes import MAX_BACKENDS
from lbctl.targets.manifests.services import app_protocol
from lbctl.targets.manifests.tls import Certificates
from lbctl.targets.target import Bundle, File

MAIN = "gateway-api.yaml"
_PERMANENT_REDIRECT = (1, 5)
"""First version of the API that supports status 308."""
_NO_PLACE = "the rendered objects need a namespace and a Gateway"
_ENTRY = "proxies: {edge: {kind: gateway-api, kubernetes: {namespace: NAMESPACE, gateway_class: CLASS}}}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The tables of a view, and the findings about everything that the objects cannot express."""

    view: View
    """The view without the routes that the API cannot protect, and without replicas that have host names."""
    objects: KubernetesObjects
    tables: list[http_route.HostTable]
    backends: Backends
    diagnostics: tuple[Diagnostic, ...]


def plan(view: View) -> Plan | Diagnostic:
    """Prepare a view for rendering. Return an error if its proxy does not state where the objects belong."""
    objects = view.proxy.kubernetes
    if objects is None:
        return Diagnostic("LB170", f"the fleet has no entry of the kind gateway-api, and {_NO_PLACE}", hint=_ENTRY)
    if objects.gateway is None and objects.gateway_class is None:
        path = ("proxies", view.proxy.name, "kubernetes")
        hint = "gateway_class: CLASS, or gateway: NAME"
        return Diagnostic(
            "LB170", "neither the class of a Gateway nor an existing Gateway is set", path=path, hint=hint
        )
    view = without_fallbacks(view)
    errors = [
        *assumptions(view, objects, CAPABILITIES),
        *gateway.diagnostics(view, objects),
        *_tls_versions(view),
        *_pool_errors(view, objects),
    ]
    errors += [*http_route.errors(view), *_picked_splits(view)]
    closed, closing = closed_view(view, objects, gaps(view, objects))
    closed, not_copied = without_copies(closed)
    left_out = list(_pools(closed))
    closed = without_host_names(closed)
    tables, conflicts = http_route.tables(closed, permanent_redirects=closed.proxy.version >= _PERMANENT_REDIRECT)
    backends = Backends(closed, objects)
    found = [
        *errors,
        *conflicts,
        *closing,
        *http_route.warnings(closed, tables),
        *backends.classes.warnings(),
        *left_out,
        *not_copied,
        *same_services(pool for pool in closed.pools.values() if not is_picked(pool)),
        *unused_secrets(view, objects),
        *models(closed, objects),
        *_preflights(closed),
    ]
    return Plan(closed, objects, tables, backends, tuple(dict.fromkeys([*found, *grants.diagnostics(closed, objects)])))


def diagnostics(view: View) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of `render` for this view."""
    prepared = plan(view)
    return (prepared,) if isinstance(prepared, Diagnostic) else prepared.diagnostics


def served(view: View) -> View:
    """Return the view that the objects express; the whole view if they cannot be rendered."""
    prepared = plan(view)
    return view if isinstance(prepared, Diagnostic) else prepared.view


def render(view: View) -> Bundle:
    """Render a view as one stream of objects and a kustomization."""
    prepared = plan(view)
    if isinstance(prepared, Diagnostic):
        return Bundle((File(MAIN, ""),), (prepared,))
    if any(item.severity == "error" for item in prepared.diagnostics):
        return Bundle((File(MAIN, ""),), prepared.diagnostics)
    closed, kubernetes = prepared.view, prepared.objects
    certificates = _certificates(closed, kubernetes)
    needed = (*gateway.prerequisites(closed, kubernetes), *certificates.prerequisites())
    ways = [way for table in prepared.tables for way, _ in table.ways]
    notes = list(prepared.backends.pickers.notes())
    if ways and not any(way.shares or way.redirect for way in ways):
        notes.append(f"all routes of {closed.proxy.name} return 503, as the warnings explain")
    files = _objects(prepared, certificates).files(MAIN)
    return Bundle(files, prepared.diagnostics, notes=tuple(notes), prerequisites=needed)


def object_names(view: View) -> frozenset[tuple[str, str, str]]:
    """Return (kind, namespace, name) of the objects of a view, and of the Secrets and ConfigMaps that they need."""
    prepared = plan(view)
    if isinstance(prepared, Diagnostic) or any(item.severity == "error" for item in prepared.diagnostics):
        return frozenset()
    certificates = _certificates(prepared.view, prepared.objects)
    namespace = prepared.objects.namespace
    needed = [*gateway.needed_secrets(prepared.view, prepared.objects), *certificates.needed()]
    return frozenset(_objects(prepared, certificates).names()) | {(kind, namespace, name) for kind, name in needed}


def _certificates(view: View, objects: KubernetesObjects) -> Certificates:
    return Certificates(
        view,
        objects,
        listeners=[listener for listener in view.listeners if verifies_clients(view, listener)],
        pools=[pool for pool in view.pools.values() if pool.tls is not None and is_verifiable(pool.tls)],
        client=client_certificate(view),
    )


def _objects(prepared: Plan, certificates: Certificates) -> Objects:
    closed, kubernetes = prepared.view, prepared.objects
    objects = Objects(closed.proxy.name, kubernetes.namespace)
    sections = gateway.sections(closed, kubernetes)
    if kubernetes.gateway_class is not None:
        gateway.add_gateway(objects, closed, sections, kubernetes.gateway_class, certificates.gateway_tls())
    placed = http_route.add_routes(objects, closed, prepared.tables, sections, prepared.backends)
    prepared.backends.add(objects, closed=any(not rule.way.shares and not rule.way.redirect for rule in placed))
    verified = [pool for pool in closed.pools.values() if pool.tls is not None and is_verifiable(pool.tls)]
    certificates.add(objects, {pool.name: prepared.backends.targets_of(pool.name) for pool in verified})
    add_grants(objects, closed, kubernetes)
    return objects


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pool_errors(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    for pool in view.pools.values():
        path: Path = ("pools", pool.name)
        yield from service_errors(pool, objects, is_referenced=not is_picked(pool))
        yield from _picked_errors(pool, objects)
        for replica in pool.replicas:
            if replica.address.path or is_loopback(replica.address.host):
                message = f"an EndpointSlice cannot contain {replica.address}, which only one machine can reach"
                hint = "use an address that the gateway can reach"
                yield Diagnostic("LB171", message, path=(*path, "replicas", replica.name), hint=hint)


def _picked_errors(pool: Pool, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the requirements of an InferencePool that the pool does not meet."""
    discovery = pool.discovery
    if not is_picked(pool) or not isinstance(discovery, KubernetesDiscovery):
        return
    path = ("pools", pool.name, "discovery", "kubernetes")
    if not discovery.selector:
        message = "an InferencePool selects pods by their labels, which are not set"
        yield Diagnostic("LB171", message, path=path, hint="selector: {app: NAME}")
    if not discovery.port.isdecimal():
        message = "an InferencePool needs the number of the pods' port"
        yield Diagnostic("LB171", message, path=(*path, *(["port"] if discovery.port else [])), hint="port: NUMBER")
    if discovery.namespace != objects.namespace:
        message = f"an InferencePool is in the namespace of its pods, but the routes are in {objects.namespace}"
        hint = entry_of_namespace(discovery.namespace)
        yield Diagnostic("LB171", message, path=(*path, "namespace"), hint=hint)


def _picked_splits(view: View) -> Iterator[Diagnostic]:
    for route in view.routes.values():
        shares = route.action.shares if isinstance(route.action, Forward) else ()
        pools = [view.pools[share.pool] for share in shares]
        picked = [pool.name for pool in pools if is_picked(pool) or has_inference_pool(pool)]
        if picked and len(picked) < len(shares):
            message = f"a rule with InferencePools has no Services, but only pool {picked[0]} is an InferencePool"
            hint = "use an InferencePool (`inference_pool`, or the picker) for all pools of the split, or for none"
            yield Diagnostic("LB172", message, path=("routes", route.name, "split"), hint=hint)
        elif len(picked) > 1:
            message = "some Gateway classes, such as older versions of Istio, use one picker for all pools of a split"
            hint = "check that the class supports several InferencePools in a rule"
            yield warning("pool.balance.pick", message, ("routes", route.name, "split"), hint)
        if len(shares) > MAX_BACKENDS:
            message = f"a rule of the Gateway API has at most {MAX_BACKENDS} backends"
            yield Diagnostic("LB172", message, path=("routes", route.name, "split"), hint="use fewer pools")


# ── Warnings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tls_versions(view: View) -> Iterator[Diagnostic]:
    for listener in view.listeners:
        if listener.tls is not None and listener.tls.min_version != "1.2":
            message = "the Gateway API has no setting for the minimum TLS version: the Gateway class determines it"
            yield warning("listener.tls", message, ("listeners", listener.name, "tls", "min_version"))


def _pools(view: View) -> Iterator[Diagnostic]:
    for pool in view.pools.values():
        path: Path = ("pools", pool.name)
        named = [item for item in pool.replicas if not is_ip(item.address.host)]
        for replica in named if not isinstance(pool.discovery, DnsDiscovery) else ():
            message = (
                f"an EndpointSlice contains addresses, but {replica.address.host} is a name, so the replica is omitted"
            )
            yield warning("pool.replicas", message, (*path, "replicas", replica.name), "use its IP address")
        yield from _locality(pool)
        yield from _protocol(pool)
        yield from assumed_port(pool) if not is_picked(pool) else ()
        if pool.balance.pick is not None and not is_picked(pool):
            message = "an InferencePool selects pods of the cluster, so the Gateway class selects among these replicas"
            hint = ""
            if has_inference_pool(pool):
                message = "the endpoint picker that the InferencePool names chooses the replicas"
                hint = "to use lbctl's picker, set its Service as `endpointPickerRef` of the InferencePool"
            yield warning("pool.balance.pick", message, (*path, "balance", "algorithm"), hint)
    yield from rewritten_hosts(view)
    yield from _websockets(view)


def _protocol(pool: Pool) -> Iterator[Diagnostic]:
    """Yield a warning if the gateway may not use HTTP/2.

    With TLS, the gateway and the replicas negotiate the protocol.
    """
    if pool.tls is not None:
        return
    if is_picked(pool) and pool.protocol != "http1":
        message = "an InferencePool has a protocol only since version 1.4 of its API, so lbctl does not set it"
        hint = "add `appProtocol: kubernetes.io/h2c` to its spec with a kustomize patch"
        yield warning(f"pool.protocol.{pool.protocol}", message, ("pools", pool.name, "protocol"), hint)
    else:
        yield from needed_protocol(pool)


def _websockets(view: View) -> Iterator[Diagnostic]:
    """Yield the WebSocket routes to Services whose ports lbctl does not mark for WebSockets."""
    for route in view.routes.values():
        if not route.websocket or not isinstance(route.action, Forward):
            continue
        pools = [view.pools[name] for name in sorted(route.action.pools)]
        others = [pool for pool in pools if isinstance(pool.discovery, KubernetesDiscovery) and not is_picked(pool)]
        wanted = {pool.name: app_protocol(pool, websocket=True) for pool in others if pool.protocol == "http1"}
        if wanted:
            name, protocol = next(iter(wanted.items()))
            message = f"lbctl does not render the Service of pool {name}: its port needs the `appProtocol` {protocol}"
            yield warning("route.websocket", message, ("routes", route.name, "websocket"), "set it in the Service")


def _preflights(view: View) -> Iterator[Diagnostic]:
    """Yield the open routes with CORS preflights that lbctl would answer. The API cannot express such answers."""
    for name in view.routes:
        route = view.routes.get(name.removesuffix(PREFLIGHT))
        if name.endswith(PREFLIGHT) and route is not None and isinstance(route.action, Forward):
            message = "a gateway cannot send its own responses with this API: CORS preflights of this route get 503"
            path = ("routes", route.name, "headers", "response")
            yield warning("route.respond", message, path, "let a policy of the Gateway class answer them")


def _locality(pool: Pool) -> Iterator[Diagnostic]:
    if pool.locality is None:
        return
    path = ("pools", pool.name, "locality")
    if isinstance(pool.discovery, KubernetesDiscovery):
        message = "lbctl does not render this Service, so its owner controls the zone preference"
        hint = "set trafficDistribution in the Service"
        if has_inference_pool(pool):
            message, hint = "the endpoint picker of the InferencePool controls the zone preference", ""
        yield warning("pool.locality", message, path, hint)
    elif pool.locality.prefer != "zone":
        yield warning("pool.locality", "a Service can prefer zones, but not regions", (*path, "prefer"))
