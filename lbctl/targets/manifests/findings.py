"""Findings that all kinds of gateways share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from lbctl.base.diagnostics import Diagnostic, Path, did_you_mean, show
from lbctl.ir.pools import KubernetesDiscovery, Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Forward
from lbctl.ir.snapshot import View
from lbctl.targets.assess import MODEL, capability_at
from lbctl.targets.features import BY_ID, FEATURES
from lbctl.targets.reading import MODEL_HEADER
from lbctl.targets.target import Capability, Rendered, Version


def warning(feature: str, message: str, path: Path, hint: str = "") -> Diagnostic:
    """Return a warning with the code of a feature."""
    return Diagnostic(BY_ID[feature].code, message, path=path, hint=hint, severity="warning")


def assumptions(view: View, objects: KubernetesObjects, capabilities: Mapping[str, Capability]) -> Iterator[Diagnostic]:
    """Yield the errors about features in `assume` that protect nothing, or that the kind supports."""
    protecting = [item.id for item in FEATURES if item.protects]
    assumable = [
        name for name in protecting if name == MODEL or not _is_complete(capabilities[name], view.proxy.version)
    ]
    for index, name in enumerate(objects.assume):
        path = ("proxies", view.proxy.name, "kubernetes", "assume", index)
        if name not in protecting:
            message = f"{name} is not a feature that protects routes"
            close = did_you_mean(name, assumable) if name not in BY_ID else ""
            hint = close or f"one of {', '.join(assumable)}"
            yield Diagnostic("LB173", message, path=path, hint=hint)
        elif name not in assumable:
            message = f"{view.proxy.kind} supports {BY_ID[name].title}, so another component need not provide it"
            yield Diagnostic("LB173", message, path=path, hint="remove it")


def _is_complete(capability: Capability, version: Version) -> bool:
    effective = capability_at(capability, version)
    return isinstance(effective, Rendered) and not effective.in_part


def same_services(
    pools: Iterable[Pool], differences: Callable[[Pool, Pool], str] = lambda _first, _other: ""
) -> Iterator[Diagnostic]:
    """Yield the pools whose Service is also another pool's, so that the gateway does not tell them apart.

    Different settings for TLS are an error, because connections to one of the pools would not be protected as
    configured. `differences` returns a text about other settings that only one of two pools can have.
    """
    owners: dict[tuple[str, str], Pool] = {}
    for pool in pools:
        discovery = pool.discovery
        if not isinstance(discovery, KubernetesDiscovery):
            continue
        first = owners.setdefault((discovery.namespace, discovery.service), pool)
        path = ("pools", pool.name)
        if pool.tls != first.tls:
            message = f"pool {first.name} has the same Service with other TLS settings, and a Service has one policy"
            place = (*path, *(("tls",) if pool.tls is not None else ("discovery", "kubernetes", "service")))
            yield Diagnostic("LB171", message, path=place, hint="use the same `tls`, or a Service for each pool")
        elif first is not pool:
            message = f"pool {first.name} has the same Service, so both pools have the same replicas and policies"
            place = (*path, "discovery", "kubernetes", "service")
            yield warning(
                "pool.discovery.kubernetes", message + differences(first, pool), place, "use a Service for each pool"
            )


def unused_secrets(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the certificate files that `secrets` names, and that no listener or pool of the proxy has."""
    listed = [item.certificate for listener in view.listeners if listener.tls for item in listener.tls.certificates]
    listed += [pool.tls.certificate for pool in view.pools.values() if pool.tls and pool.tls.certificate]
    for file, _ in objects.secrets:
        if file not in listed:
            message = f"no listener or pool of this proxy has the certificate {show(file)}, so this Secret is not used"
            path = ("proxies", view.proxy.name, "kubernetes", "secrets", file)
            yield warning("listener.tls", message, path, did_you_mean(file, listed) or "correct or remove it")


def assumed_port(pool: Pool) -> Iterator[Diagnostic]:
    """Yield a warning if the number of a Service's port is only known from its pods."""
    discovery = pool.discovery
    if not isinstance(discovery, KubernetesDiscovery):
        return
    if discovery.service_port is None and discovery.port.isdecimal():
        message = (
            f"the number of the Service's port is not set, so the routes refer to {discovery.port}, the pods' port"
        )
        path = ("pools", pool.name, "discovery", "kubernetes", "port")
        yield warning("pool.discovery.kubernetes", message, path, "service_port: NUMBER")


def models(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the open routes that depend on the header with the model, unless the fleet assumes that it is set."""
    names_of_routes = dict.fromkeys(rule.route for listener in view.listeners for rule in listener.rules if rule.models)
    for name in names_of_routes if MODEL not in objects.assume else ():
        if isinstance(view.routes[name].action, Forward):
            message = f"gateways do not read bodies: the model is read from the header {MODEL_HEADER}"
            hint = f"let clients or another component set {MODEL_HEADER}"
            yield warning(MODEL, message, ("routes", name, "match", "model"), hint)


def service_errors(pool: Pool, objects: KubernetesObjects, *, is_referenced: bool) -> Iterator[Diagnostic]:
    """Yield the errors about the Service of a discovered pool. `is_referenced`: whether routes refer to it by port."""
    discovery = pool.discovery
    if not isinstance(discovery, KubernetesDiscovery):
        return
    place = ("pools", pool.name, "discovery", "kubernetes")
    if discovery.referenced_port is None and is_referenced:
        message = "the routes refer to a Service by the number of its port, which is not set"
        hint = "service_port: NUMBER"
        yield Diagnostic("LB171", message, path=(*place, *(["port"] if discovery.port else [])), hint=hint)
    if pool.tls is not None and discovery.namespace != objects.namespace:
        message = f"a BackendTLSPolicy applies only in its own namespace, but the Service is in {discovery.namespace}"
        hint = f"use a separate entry with `namespace: {discovery.namespace}`"
        yield Diagnostic("LB171", message, path=(*place, "namespace"), hint=hint)


def rewritten_hosts(view: View) -> Iterator[Diagnostic]:
    """Yield the new hosts of requests that have a port."""
    for route in view.routes.values():
        if route.rewrite is not None and route.rewrite.host is not None and ":" in route.rewrite.host:
            message = "the Gateway API cannot set a port in the Host header, so only the name is set"
            yield warning("route.rewrite", message, ("routes", route.name, "rewrite", "host"), "remove the port")
