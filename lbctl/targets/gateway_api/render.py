"""Renders a view to the objects of the Gateway API, and finds everything that they cannot express."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Path, did_you_mean, show
from lbctl.base.hosts import is_ip, is_loopback
from lbctl.ir.pools import DnsDiscovery, KubernetesDiscovery, Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import PREFLIGHT, Forward
from lbctl.ir.snapshot import View
from lbctl.targets.assess import MODEL, capability_at, without_fallbacks
from lbctl.targets.features import BY_ID, FEATURES
from lbctl.targets.gateway_api import gateway, http_route
from lbctl.targets.gateway_api.backends import MAX_BACKENDS, Backends, is_picked
from lbctl.targets.gateway_api.capabilities import CAPABILITIES
from lbctl.targets.gateway_api.closing import closed_view, without_host_names
from lbctl.targets.gateway_api.matches import METHODS
from lbctl.targets.gateway_api.tls import Certificates
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects
from lbctl.targets.reading import MODEL_HEADER
from lbctl.targets.target import Bundle, File, Rendered

MAIN = "gateway-api.yaml"
_GRANT = "gateway.networking.k8s.io/v1beta1"
"""The only version of a ReferenceGrant that all supported versions of the API have."""
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
    """Prepare a view for rendering. Return the error if its proxy does not state where the objects belong."""
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
    errors = [*_assumptions(view, objects), *gateway.diagnostics(view, objects), *_pool_errors(view, objects)]
    errors += _route_errors(view)
    closed, gaps = closed_view(view, objects)
    left_out = list(_pools(closed))
    closed = without_host_names(closed)
    tables, conflicts = http_route.tables(closed)
    backends = Backends(closed, objects)
    found = [
        *errors,
        *conflicts,
        *gaps,
        *http_route.warnings(closed, tables),
        *backends.warnings(),
        *left_out,
        *_same_services(closed),
        *_unused_secrets(view, objects),
        *_models(closed, objects),
        *_preflights(closed),
    ]
    return Plan(closed, objects, tables, backends, tuple(dict.fromkeys([*found, *_grants(closed, objects)])))


def diagnostics(view: View) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of `render` for this view."""
    prepared = plan(view)
    return (prepared,) if isinstance(prepared, Diagnostic) else prepared.diagnostics


def served(view: View) -> View:
    """Return the view that the objects express; the whole view if they cannot be rendered."""
    prepared = plan(view)
    return view if isinstance(prepared, Diagnostic) else prepared.view


def render(view: View) -> Bundle:
    """Render a view to one stream of objects, and a kustomization."""
    prepared = plan(view)
    if isinstance(prepared, Diagnostic):
        return Bundle((File(MAIN, ""),), (prepared,))
    if any(item.severity == "error" for item in prepared.diagnostics):
        return Bundle((File(MAIN, ""),), prepared.diagnostics)
    closed, kubernetes = prepared.view, prepared.objects
    certificates = Certificates(closed, kubernetes)
    needed = (
        *gateway.prerequisites(closed, kubernetes),
        *certificates.prerequisites(),
        *prepared.backends.prerequisites(),
    )
    ways = [way for table in prepared.tables for way, _ in table.ways]
    notes = (
        (f"all routes of {closed.proxy.name} return 503, as the warnings explain",)
        if ways and not any(way.shares or way.redirect for way in ways)
        else ()
    )
    files = _objects(prepared, certificates).files(MAIN)
    return Bundle(files, prepared.diagnostics, notes=notes, prerequisites=needed)


def object_names(view: View) -> frozenset[tuple[str, str, str]]:
    """Return (kind, namespace, name) of the objects of a view, and of the Secrets and ConfigMaps that they need."""
    prepared = plan(view)
    if isinstance(prepared, Diagnostic) or any(item.severity == "error" for item in prepared.diagnostics):
        return frozenset()
    certificates = Certificates(prepared.view, prepared.objects)
    namespace = prepared.objects.namespace
    needed = [*gateway.needed_secrets(prepared.view, prepared.objects), *certificates.needed()]
    return frozenset(_objects(prepared, certificates).names()) | {(kind, namespace, name) for kind, name in needed}


def _objects(prepared: Plan, certificates: Certificates) -> Objects:
    closed, kubernetes = prepared.view, prepared.objects
    objects = Objects(closed.proxy.name, kubernetes.namespace)
    sections = gateway.sections(closed, kubernetes)
    if kubernetes.gateway_class is not None:
        gateway.add_gateway(objects, closed, sections, kubernetes.gateway_class, certificates.gateway_tls())
    has_closed = http_route.add_routes(objects, closed, prepared.tables, sections, prepared.backends)
    prepared.backends.add(objects, closed=has_closed)
    certificates.add(objects, prepared.backends)
    _add_grants(objects, closed, kubernetes)
    return objects


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _assumptions(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    protecting = [item.id for item in FEATURES if item.protects]
    assumable = [name for name in protecting if name == MODEL or not _is_complete(name, view.proxy.version)]
    for index, name in enumerate(objects.assume):
        path = ("proxies", view.proxy.name, "kubernetes", "assume", index)
        if name not in protecting:
            message = f"{name} is not a feature that protects routes"
            close = did_you_mean(name, assumable) if name not in BY_ID else ""
            hint = close or f"one of {', '.join(assumable)}"
            yield Diagnostic("LB173", message, path=path, hint=hint)
        elif name not in assumable:
            message = f"gateway-api supports {BY_ID[name].title}, so another component need not provide it"
            yield Diagnostic("LB173", message, path=path, hint="remove it")


def _is_complete(feature: str, version: tuple[int, ...]) -> bool:
    capability = capability_at(CAPABILITIES[feature], version)
    return isinstance(capability, Rendered) and not capability.in_part


def _pool_errors(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    for pool in view.pools.values():
        path: Path = ("pools", pool.name)
        discovery = pool.discovery
        if isinstance(discovery, KubernetesDiscovery):
            place = (*path, "discovery", "kubernetes")
            if discovery.referenced_port is None and not is_picked(pool):
                message = "the routes refer to a Service by the number of its port, which is not set"
                hint = "service_port: NUMBER"
                yield Diagnostic("LB171", message, path=(*place, *(["port"] if discovery.port else [])), hint=hint)
            if pool.tls is not None and discovery.namespace != objects.namespace:
                message = (
                    f"a BackendTLSPolicy applies only in its own namespace, but the Service is in {discovery.namespace}"
                )
                hint = f"use a separate entry with `namespace: {discovery.namespace}`"
                yield Diagnostic("LB171", message, path=(*place, "namespace"), hint=hint)
        yield from _picked_errors(pool, objects)
        for replica in pool.replicas:
            if replica.address.path or is_loopback(replica.address.host):
                message = f"an EndpointSlice cannot contain {replica.address}, which only one machine can reach"
                hint = "use an address that the gateway can reach"
                yield Diagnostic("LB171", message, path=(*path, "replicas", replica.name), hint=hint)


def _picked_errors(pool: Pool, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield what an InferencePool lacks."""
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
        hint = f"use a separate entry with `namespace: {discovery.namespace}`"
        yield Diagnostic("LB171", message, path=(*path, "namespace"), hint=hint)


def _route_errors(view: View) -> Iterator[Diagnostic]:
    for listener in view.listeners:
        for rule in listener.rules:
            match = (*http_route.path_of(view.routes[rule.route]), "match")
            if is_ip(rule.host):
                message = f"the Gateway API cannot match the address {rule.host} as a host"
                yield Diagnostic("LB171", message, path=(*match, "hosts"), hint="use a host name")
            unknown = sorted(set(rule.methods) - METHODS)
            if unknown:
                message = f"the Gateway API cannot match the method {unknown[0]}"
                hint = f"its methods are {', '.join(sorted(METHODS))}"
                yield Diagnostic("LB171", message, path=(*match, "methods"), hint=hint)
    for route in view.routes.values():
        shares = route.action.shares if isinstance(route.action, Forward) else ()
        picked = [share.pool for share in shares if is_picked(view.pools[share.pool])]
        if picked and len(picked) < len(shares):
            message = f"a rule with InferencePools has no Services, but the picker chooses only in pool {picked[0]}"
            hint = "use the picker for all pools of the split, or for none"
            yield Diagnostic("LB172", message, path=("routes", route.name, "split"), hint=hint)
        elif len(picked) > 1:
            message = "some Gateway classes, such as older versions of Istio, use one picker for all pools of a split"
            hint = "check that the class supports several InferencePools in a rule"
            yield _warning("pool.balance.pick", message, ("routes", route.name, "split"), hint)
        if len(shares) > MAX_BACKENDS:
            message = f"a rule of the Gateway API has at most {MAX_BACKENDS} backends"
            yield Diagnostic("LB172", message, path=("routes", route.name, "split"), hint="use fewer pools")


# ── Warnings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pools(view: View) -> Iterator[Diagnostic]:
    for pool in view.pools.values():
        path: Path = ("pools", pool.name)
        named = [item for item in pool.replicas if not is_ip(item.address.host)]
        for replica in named if not isinstance(pool.discovery, DnsDiscovery) else ():
            message = (
                f"an EndpointSlice contains addresses, but {replica.address.host} is a name: the replica is left out"
            )
            yield _warning("pool.replicas", message, (*path, "replicas", replica.name), "use its IP address")
        yield from _locality(pool)
        yield from _assumed_port(pool)
        if pool.balance.pick is not None and not is_picked(pool):
            message = "an InferencePool selects pods of the cluster, so the Gateway class chooses among these replicas"
            yield _warning("pool.balance.pick", message, (*path, "balance", "algorithm"))
    for route in view.routes.values():
        if route.rewrite is not None and route.rewrite.host is not None and ":" in route.rewrite.host:
            message = "the Gateway API cannot set a port in the Host header, so only the name is set"
            yield _warning("route.rewrite", message, ("routes", route.name, "rewrite", "host"), "remove the port")


def _same_services(view: View) -> Iterator[Diagnostic]:
    """Yield the pools whose Service is also another pool's, so that the gateway does not tell them apart."""
    owners: dict[tuple[str, str], str] = {}
    for pool in view.pools.values():
        discovery = pool.discovery
        if is_picked(pool) or not isinstance(discovery, KubernetesDiscovery):
            continue
        first = owners.setdefault((discovery.namespace, discovery.service), pool.name)
        if first != pool.name:
            message = f"pool {first} has the same Service, so both pools have the same replicas and policies"
            path = ("pools", pool.name, "discovery", "kubernetes", "service")
            yield _warning("pool.discovery.kubernetes", message, path, "use a Service for each pool")


def _unused_secrets(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the certificate files that `secrets` names, and that no listener or pool of the proxy has."""
    listed = [item.certificate for listener in view.listeners if listener.tls for item in listener.tls.certificates]
    listed += [pool.tls.certificate for pool in view.pools.values() if pool.tls and pool.tls.certificate]
    for file, _ in objects.secrets:
        if file not in listed:
            message = f"no listener or pool of this proxy has the certificate {show(file)}, so this Secret is not used"
            path = ("proxies", view.proxy.name, "kubernetes", "secrets", file)
            yield _warning("listener.tls", message, path, did_you_mean(file, listed) or "correct or remove it")


def _assumed_port(pool: Pool) -> Iterator[Diagnostic]:
    discovery = pool.discovery
    if is_picked(pool) or not isinstance(discovery, KubernetesDiscovery):
        return
    if discovery.service_port is None and discovery.port.isdecimal():
        message = (
            f"the number of the Service's port is not set, so the routes refer to {discovery.port}, the pods' port"
        )
        path = ("pools", pool.name, "discovery", "kubernetes", "port")
        yield _warning("pool.discovery.kubernetes", message, path, "service_port: NUMBER")


def _models(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the open routes that depend on the header with the model, unless the fleet assumes that it is set."""
    names_of_routes = dict.fromkeys(rule.route for listener in view.listeners for rule in listener.rules if rule.models)
    for name in names_of_routes if MODEL not in objects.assume else ():
        if isinstance(view.routes[name].action, Forward):
            message = f"gateways do not read bodies: the model is read from the header {MODEL_HEADER}"
            hint = f"let clients or another component set {MODEL_HEADER}"
            yield _warning(MODEL, message, ("routes", name, "match", "model"), hint)


def _preflights(view: View) -> Iterator[Diagnostic]:
    """Yield the open routes for browsers whose preflights lbctl would answer, which the API cannot do."""
    for name in view.routes:
        route = view.routes.get(name.removesuffix(PREFLIGHT))
        if name.endswith(PREFLIGHT) and route is not None and isinstance(route.action, Forward):
            message = "the API has no responses by the gateway itself: CORS preflights of this route get 503"
            path = ("routes", route.name, "headers", "response")
            yield _warning("route.respond", message, path, "let a policy of the Gateway class answer them")


def _locality(pool: Pool) -> Iterator[Diagnostic]:
    if pool.locality is None:
        return
    path = ("pools", pool.name, "locality")
    if isinstance(pool.discovery, KubernetesDiscovery):
        message = "lbctl does not render this Service, so its owner decides about zones"
        yield _warning("pool.locality", message, path, "set trafficDistribution in the Service")
    elif pool.locality.prefer != "zone":
        yield _warning("pool.locality", "a Service can prefer zones, but not regions", (*path, "prefer"))


def _warning(feature: str, message: str, path: Path, hint: str = "") -> Diagnostic:
    return Diagnostic(BY_ID[feature].code, message, path=path, hint=hint, severity="warning")


# ── Other namespaces ─────────────────────────────────────────────────────────────────────────────────────────────────


def _foreign(view: View, objects: KubernetesObjects) -> Iterable[tuple[str, KubernetesDiscovery]]:
    """Yield the pools whose Service is in another namespace."""
    for pool in view.pools.values():
        if isinstance(pool.discovery, KubernetesDiscovery) and pool.discovery.namespace != objects.namespace:
            yield pool.name, pool.discovery


def _grants(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    if objects.gateway_namespace not in (None, objects.namespace):
        message = (
            f"the Gateway is in another namespace: its listeners must allow routes from {objects.namespace} "
            "(allowedRoutes), which only its owner can configure"
        )
        place = ("proxies", view.proxy.name, "kubernetes", "gateway")
        yield Diagnostic("LB174", message, path=place, severity="warning")
    for pool, discovery in _foreign(view, objects):
        message = (
            f"the Service is in another namespace: a ReferenceGrant in {discovery.namespace} lets the routes refer to "
            "it, and applying it needs permissions there"
        )
        path = ("pools", pool, "discovery", "kubernetes", "namespace")
        yield Diagnostic("LB174", message, path=path, severity="warning")


def _add_grants(objects: Objects, view: View, kubernetes: KubernetesObjects) -> None:
    wanted: dict[Parts, tuple[str, KubernetesDiscovery]] = {
        (kubernetes.namespace, view.proxy.name, pool): (pool, discovery)
        for pool, discovery in _foreign(view, kubernetes)
    }
    # Other fleets may also have grants in this namespace.
    by_parts = names(object_name("ReferenceGrant"), wanted)
    for parts, (pool, discovery) in wanted.items():
        spec = {
            "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": kubernetes.namespace}],
            "to": [{"name": discovery.service, "group": "", "kind": "Service"}],
        }
        source = ("pools", pool)
        objects.add(_GRANT, "ReferenceGrant", by_parts[parts], "pool", source, namespace=discovery.namespace, spec=spec)
