"""Renders a view as objects of the Gateway API and Envoy Gateway, and finds everything that they cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import KubernetesDiscovery, Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.assess import without_fallbacks
from lbctl.targets.envoy_gateway import (
    backends,
    client_policy,
    closing,
    extension_policy,
    request_changes,
    route_filters,
    security_policy,
    traffic_policy,
)
from lbctl.targets.envoy_gateway.capabilities import CAPABILITIES
from lbctl.targets.envoy_gateway.context import Context
from lbctl.targets.manifests import gateway, grants, http_route
from lbctl.targets.manifests.closing import Gap, closed_view, is_verifiable
from lbctl.targets.manifests.findings import (
    assumed_port,
    assumptions,
    models,
    rewritten_hosts,
    same_services,
    service_errors,
    unused_secrets,
)
from lbctl.targets.manifests.objects import Objects
from lbctl.targets.manifests.tls import Certificates
from lbctl.targets.target import Bundle, File, Prerequisite

MAIN = "envoy-gateway.yaml"
_CLASS = "eg"
"""Class of the Gateway if the fleet does not name one: the class in the documentation of Envoy Gateway."""
_PERMANENT_REDIRECT = (1, 8)
"""First version whose Gateway API supports status 308."""
_NO_PLACE = "the fleet has no entry of the kind envoy-gateway, and the rendered objects need a namespace"
_ENTRY = "proxies: {edge: {kind: envoy-gateway, kubernetes: {namespace: NAMESPACE}}}"
_BACKENDS_DISABLED = (
    "Envoy Gateway ignores Backends unless its configuration contains `extensionApis: {enableBackend: true}`"
)
_PICKER_CERTIFICATES = (
    "the picker requires a client certificate, so Envoy Gateway needs `backendTLS.clientCertificateRef` in the "
    "EnvoyProxy of the Gateway or of its class. Without it, the gateway uses `otherwise`"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The objects of a view, and the findings about everything that they cannot express."""

    context: Context
    """Contains a view without the routes that cannot be protected."""
    backends: backends.Backends
    rendered: Objects
    diagnostics: tuple[Diagnostic, ...]

    @property
    def has_errors(self) -> bool:
        """Whether the objects are unusable."""
        return any(item.severity == "error" for item in self.diagnostics)


def plan(view: View) -> Plan | Diagnostic:
    """Prepare a view for rendering. Return an error if its proxy does not state where the objects belong."""
    objects = view.proxy.kubernetes
    if objects is None:
        return Diagnostic("LB170", _NO_PLACE, hint=_ENTRY)
    if objects.gateway is None and objects.gateway_class is None:
        objects = replace(objects, gateway_class=_CLASS)
    view = without_fallbacks(view)
    errors = [
        *assumptions(view, objects, CAPABILITIES),
        *gateway.diagnostics(view, objects),
        *backends.errors(view),
        *(item for pool in view.pools.values() for item in service_errors(pool, objects, is_referenced=True)),
        *http_route.errors(view),
    ]
    closed, closing_warnings = closed_view(view, objects, _gaps(view, objects))
    closed, empty = backends.without_empty_mirrors(closed)
    changed = request_changes.adapted(closed, objects)
    tables, conflicts = http_route.tables(changed, permanent_redirects=closed.proxy.version >= _PERMANENT_REDIRECT)
    tables = backends.without_empty_pools(closed, tables)
    references = backends.Backends(closed, objects)
    rendered = Objects(closed.proxy.name, objects.namespace)
    sections = gateway.sections(closed, objects)
    placed = http_route.add_routes(rendered, changed, tables, sections, references)
    context = Context(closed, objects, sections, placed, _certificates(closed, objects))
    _add(rendered, context, references)
    found = [
        *errors,
        *conflicts,
        *closing_warnings,
        *empty,
        *http_route.warnings(changed, tables, longest_first=True),
        *references.diagnostics(),
        *traffic_policy.diagnostics(context),
        *client_policy.diagnostics(context),
        *security_policy.diagnostics(context),
        *extension_policy.diagnostics(context),
        *route_filters.diagnostics(context),
        *same_services(closed.pools.values()),
        *(item for pool in closed.pools.values() for item in assumed_port(pool)),
        *rewritten_hosts(closed),
        *unused_secrets(view, objects),
        *models(closed, objects),
        *grants.diagnostics(closed, objects),
    ]
    return Plan(context, references, rendered, tuple(dict.fromkeys(found)))


def diagnostics(view: View) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of `render` for this view."""
    prepared = plan(view)
    return (prepared,) if isinstance(prepared, Diagnostic) else prepared.diagnostics


def served(view: View) -> View:
    """Return the view that the objects express; the whole view if they cannot be rendered."""
    prepared = plan(view)
    return view if isinstance(prepared, Diagnostic) else prepared.context.view


def render(view: View) -> Bundle:
    """Render a view as one stream of objects and a kustomization."""
    prepared = plan(view)
    if isinstance(prepared, Diagnostic):
        return Bundle((File(MAIN, ""),), (prepared,))
    if prepared.has_errors:
        return Bundle((File(MAIN, ""),), prepared.diagnostics)
    ways = [rule.way for rule in prepared.context.placed]
    has_backends = prepared.backends.is_used or security_policy.has_backends(prepared.context)
    pickers = [*extension_policy.notes(prepared.context)]
    notes = [
        *([_BACKENDS_DISABLED] if has_backends else []), *pickers, *([_PICKER_CERTIFICATES] if pickers else []),
    ]  # fmt: skip
    if ways and not any(way.shares or way.redirect for way in ways):
        notes.append(f"all routes of {view.proxy.name} return 503, as the warnings explain")
    files = prepared.rendered.files(MAIN)
    needed = tuple(_prerequisites(prepared))
    return Bundle(files, prepared.diagnostics, notes=tuple(notes), prerequisites=needed)


def object_names(view: View) -> frozenset[tuple[str, str, str]]:
    """Return (kind, namespace, name) of the objects of a view, and of the Secrets and ConfigMaps that they need."""
    prepared = plan(view)
    if isinstance(prepared, Diagnostic) or prepared.has_errors:
        return frozenset()
    namespace = prepared.context.objects.namespace
    return frozenset(prepared.rendered.names()) | {(kind, namespace, name) for kind, name in _needed(prepared)}


def _gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    yield from closing.gaps(view, objects)
    yield from client_policy.gaps(view, objects)
    yield from security_policy.gaps(view, objects)
    yield from route_filters.gaps(view, objects)


def _add(objects: Objects, context: Context, references: backends.Backends) -> None:
    """Add the objects that routes need and the objects attached to routes."""
    if context.objects.gateway_class is not None:
        tls = context.certificates.client_tls()
        gateway.add_gateway(objects, context.view, context.sections, context.objects.gateway_class, tls)
    references.add(objects, context.certificates)
    verified = [pool for pool in context.view.pools.values() if pool.tls is not None and is_verifiable(pool.tls)]
    context.certificates.add(objects, {pool.name: references.services_of(pool.name) for pool in verified})
    traffic_policy.add(objects, context)
    client_policy.add(objects, context)
    security_policy.add(objects, context)
    extension_policy.add(objects, context)
    route_filters.add(objects, context)
    grants.add_grants(objects, context.view, context.objects)


def _prerequisites(prepared: Plan) -> Iterator[Prerequisite]:
    context = prepared.context
    yield from gateway.prerequisites(context.view, context.objects)
    yield from context.certificates.prerequisites()
    yield from prepared.backends.prerequisites()
    yield from client_policy.prerequisites(context)
    yield from security_policy.prerequisites(context)
    yield from extension_policy.prerequisites(context)
    yield from route_filters.prerequisites(context)


def _needed(prepared: Plan) -> Iterator[tuple[str, str]]:
    context = prepared.context
    yield from gateway.needed_secrets(context.view, context.objects)
    yield from context.certificates.needed()
    yield from prepared.backends.needed()
    yield from client_policy.needed(context)
    yield from security_policy.needed(context)
    yield from route_filters.needed(context)


def _certificates(view: View, objects: KubernetesObjects) -> Certificates:
    verified = [listener for listener in view.listeners if listener.tls is not None and listener.tls.client_ca]
    return Certificates(
        view,
        objects,
        listeners=verified if objects.gateway is None else [],
        pools=[pool for pool in view.pools.values() if _is_verified(pool)],
        client=closing.client_certificate(view, objects),
    )


def _is_verified(pool: Pool) -> bool:
    """Return whether a BackendTLSPolicy or a Backend has the CA bundle of the pool."""
    if isinstance(pool.discovery, KubernetesDiscovery):
        return pool.tls is not None and is_verifiable(pool.tls)
    return backends.verifies_by_backend(pool)
