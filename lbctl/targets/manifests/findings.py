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
from lbctl.targets.manifests.grants import kind_of
from lbctl.targets.reading import MODEL_HEADER
from lbctl.targets.target import Capability, Rendered, Version


def warning(feature: str, message: str, path: Path, hint: str = "") -> Diagnostic:
    """Return a warning with the code of a feature."""
    return Diagnostic(BY_ID[feature].code, message, path=path, hint=hint, severity="warning")


def assumptions(view: View, objects: KubernetesObjects, capabilities: Mapping[str, Capability]) -> Iterator[Diagnostic]:
    """Yield the errors about features in `assume` that do not protect anything, or that the kind supports."""
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
    """Yield the pools whose Service or InferencePool also belongs to another pool, which gateways cannot distinguish.

    Different TLS settings are an error, because connections to one of the pools would not be protected as configured.
    `differences` describes other settings that only one of two pools can have.
    """
    owners: dict[str, Pool] = {}
    for pool in pools:
        discovery = pool.discovery
        if not isinstance(discovery, KubernetesDiscovery):
            continue
        first = owners.setdefault(discovery.reference, pool)
        path, kind = ("pools", pool.name), kind_of(discovery)
        source = "inference_pool" if discovery.inference_pool else "service"
        if pool.tls != first.tls:
            message = f"pool {first.name} has the same {kind} with other TLS settings, and each {kind} has one policy"
            place = (*path, *(("tls",) if pool.tls is not None else ("discovery", "kubernetes", source)))
            yield Diagnostic("LB171", message, path=place, hint=f"use the same `tls`, or one {kind} for each pool")
        elif first is not pool:
            message = f"pool {first.name} has the same {kind}, so both pools have the same replicas and policies"
            place = (*path, "discovery", "kubernetes", source)
            yield warning(
                "pool.discovery.kubernetes", message + differences(first, pool), place, f"use one {kind} for each pool"
            )


def unused_secrets(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the certificate files in `secrets` that no listener or pool of the proxy uses."""
    listed = [item.certificate for listener in view.listeners if listener.tls for item in listener.tls.certificates]
    listed += [pool.tls.certificate for pool in view.pools.values() if pool.tls and pool.tls.certificate]
    for file, _ in objects.secrets:
        if file not in listed:
            message = f"no listener or pool of this proxy has the certificate {show(file)}, so this Secret is not used"
            path = ("proxies", view.proxy.name, "kubernetes", "secrets", file)
            yield warning("listener.tls", message, path, did_you_mean(file, listed) or "correct or remove it")


def assumed_port(pool: Pool) -> Iterator[Diagnostic]:
    """Yield a warning if a Service's port number is known only from its pods."""
    discovery = pool.discovery
    if not isinstance(discovery, KubernetesDiscovery):
        return
    if discovery.service_port is None and discovery.port.isdecimal():
        message = f"the Service's port number is not set, so the routes refer to {discovery.port}, the pods' port"
        path = ("pools", pool.name, "discovery", "kubernetes", "port")
        yield warning("pool.discovery.kubernetes", message, path, "service_port: NUMBER")


def needed_protocol(pool: Pool) -> Iterator[Diagnostic]:
    """Yield a warning if the gateway uses HTTP/2 only when the owner of the pool's Service marks its port."""
    if pool.protocol != "http1" and isinstance(pool.discovery, KubernetesDiscovery):
        message = "lbctl does not render this Service: its port needs the `appProtocol` kubernetes.io/h2c"
        path = ("pools", pool.name, "protocol")
        yield warning(f"pool.protocol.{pool.protocol}", message, path, "set it in the Service")


def models(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the open routes that depend on the model header, unless the fleet assumes that it is set."""
    names_of_routes = dict.fromkeys(rule.route for listener in view.listeners for rule in listener.rules if rule.models)
    for name in names_of_routes if MODEL not in objects.assume else ():
        if isinstance(view.routes[name].action, Forward):
            message = f"gateways do not read bodies: the model is read from the header {MODEL_HEADER}"
            hint = f"let clients or another component set {MODEL_HEADER}"
            yield warning(MODEL, message, ("routes", name, "match", "model"), hint)


def service_errors(pool: Pool, objects: KubernetesObjects, *, is_referenced: bool) -> Iterator[Diagnostic]:
    """Yield the errors about a discovered pool's Service or InferencePool.

    `is_referenced`: whether routes refer to it.
    """
    discovery = pool.discovery
    if not isinstance(discovery, KubernetesDiscovery):
        return
    place = ("pools", pool.name, "discovery", "kubernetes")
    if discovery.referenced_port is None and is_referenced and not discovery.inference_pool:
        message = "the routes refer to a Service by the number of its port, which is not set"
        hint = "service_port: NUMBER"
        yield Diagnostic("LB171", message, path=(*place, *(["port"] if discovery.port else [])), hint=hint)
    if pool.tls is not None and discovery.namespace != objects.namespace:
        message = "a BackendTLSPolicy applies only in its own namespace, but the "
        message += f"{kind_of(discovery)} is in {discovery.namespace}"
        hint = entry_of_namespace(discovery.namespace)
        yield Diagnostic("LB171", message, path=(*place, "namespace"), hint=hint)


def entry_of_namespace(namespace: str) -> str:
    """Return the hint for a pool that requires a proxy entry for another namespace.

    Without `listeners`, each entry would contain the pools of all entries.
    """
    return (
        f"put its routes on a separate listener, for an entry with `namespace: {namespace}`; set `listeners` in each "
        "entry of `proxies`"
    )


def inference_pools(view: View) -> Iterator[Diagnostic]:
    """Yield an error for each pool that is an InferencePool, for the kinds whose routes refer only to Services."""
    for pool in view.pools.values():
        if isinstance(pool.discovery, KubernetesDiscovery) and pool.discovery.inference_pool:
            message = f"the routes of {view.proxy.kind} refer to Services, but this pool is an InferencePool"
            path = ("pools", pool.name, "discovery", "kubernetes", "inference_pool")
            hint = "service: NAME, or `kind: gateway-api` with a Gateway class that supports InferencePools"
            yield Diagnostic("LB171", message, path=path, hint=hint)


def rewritten_hosts(view: View) -> Iterator[Diagnostic]:
    """Yield the rewritten hosts that contain a port."""
    for route in view.routes.values():
        if route.rewrite is not None and route.rewrite.host is not None and ":" in route.rewrite.host:
            message = "the Gateway API cannot set a port in the Host header, so only the host name is set"
            yield warning("route.rewrite", message, ("routes", route.name, "rewrite", "host"), "remove the port")
