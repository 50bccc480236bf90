"""Renders a view as Istio objects, and finds everything that they cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.hosts import is_ip
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.assess import CLOSED, without_fallbacks
from lbctl.targets.istio import access, gateway, virtual_service
from lbctl.targets.istio.capabilities import CAPABILITIES
from lbctl.targets.istio.destinations import Destinations
from lbctl.targets.manifests.closing import Gap, closed_view, loopback
from lbctl.targets.manifests.findings import assumptions, models, unused_secrets
from lbctl.targets.manifests.http_route import path_of
from lbctl.targets.manifests.objects import Objects
from lbctl.targets.target import Bundle, File

MAIN = "istio.yaml"
_ENTRY = "proxies: {edge: {kind: istio, kubernetes: {namespace: NAMESPACE}}}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The tables of a view, and the findings about everything that the objects cannot express."""

    whole: View
    """The view, including the routes that Istio cannot protect."""
    view: View
    """The view without these routes."""
    objects: KubernetesObjects
    tables: list[virtual_service.HostTable]
    destinations: Destinations
    diagnostics: tuple[Diagnostic, ...]


def plan(view: View) -> Plan | Diagnostic:
    """Prepare a view for rendering. Return an error if its proxy does not state where the objects belong."""
    objects = view.proxy.kubernetes
    if objects is None:
        message = "the fleet has no entry of the kind istio, and the rendered objects need a namespace"
        return Diagnostic("LB170", message, hint=_ENTRY)
    view = without_fallbacks(view)
    closed, closing = closed_view(view, objects, _gaps(view, objects))
    tables, conflicts = virtual_service.tables(closed)
    destinations = Destinations(closed, objects)
    found = [
        *assumptions(view, objects, CAPABILITIES),
        *gateway.diagnostics(view, objects),
        *_hosts(view),
        *conflicts,
        *closing,
        *virtual_service.diagnostics(closed, tables),
        *destinations.diagnostics(),
        *unused_secrets(view, objects),
        *models(closed, objects),
        *access.diagnostics(view, objects),
    ]
    return Plan(view, closed, objects, tables, destinations, tuple(dict.fromkeys(found)))


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
    needed = (*gateway.prerequisites(prepared.view, prepared.objects), *prepared.destinations.prerequisites())
    ways = [way for table in prepared.tables for way in table.ways]
    notes = (
        (f"all routes of {prepared.view.proxy.name} return 503, as the warnings explain",)
        if ways and all(way.route.action == CLOSED for way in ways)
        else ()
    )
    return Bundle(_objects(prepared).files(MAIN), prepared.diagnostics, notes=notes, prerequisites=needed)


def object_names(view: View) -> frozenset[tuple[str, str, str]]:
    """Return (kind, namespace, name) of the objects of a view, and of the Secrets that they need."""
    prepared = plan(view)
    if isinstance(prepared, Diagnostic) or any(item.severity == "error" for item in prepared.diagnostics):
        return frozenset()
    needed = (*gateway.needed(prepared.view, prepared.objects), *prepared.destinations.needed())
    return frozenset(_objects(prepared).names()) | {*needed}


def _objects(prepared: Plan) -> Objects:
    view, kubernetes = prepared.view, prepared.objects
    objects = Objects(view.proxy.name, kubernetes.namespace)
    sections = gateway.sections(view, kubernetes)
    gateway.add_gateways(objects, view, kubernetes, sections)
    virtual_service.add_virtual_services(objects, view, prepared.tables, sections, prepared.destinations)
    prepared.destinations.add(objects)
    access.add_policy(objects, prepared.whole, kubernetes)
    return objects


def _gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield the protections that Istio can express only in part."""
    yield from loopback(view)
    yield from gateway.gaps(view, objects)
    yield from access.gaps(view, objects)
    for pool in view.pools.values():
        path = ("pools", pool.name, "upstream")
        if pool.upstream is None:
            continue
        if any(header.file is not None for header in pool.upstream.headers):
            reason, hint = "the objects would contain the secret headers in plain text", "use a proxy that reads files"
            yield Gap("pool.upstream", "pool", pool.name, (*path, "headers"), reason, hint)
        elif pool.upstream.path_prefix:
            reason, hint = "a rule changes paths for all of its pools", "use `rewrite` in the route"
            yield Gap("pool.upstream", "pool", pool.name, (*path, "path_prefix"), reason, hint)


def _hosts(view: View) -> Iterator[Diagnostic]:
    """Yield the routes for IP addresses, because VirtualService hosts are names."""
    for listener in view.listeners:
        for rule in listener.rules:
            if is_ip(rule.host):
                message = f"Istio cannot match the address {rule.host} as a host"
                path = (*path_of(view.routes[rule.route]), "match", "hosts")
                yield Diagnostic("LB171", message, path=path, hint="use a host name")
