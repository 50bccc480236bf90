"""The Gateway with its listeners, or the existing Gateway that routes are attached to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.hosts import is_ip
from lbctl.ir.listeners import Certificate, Listener
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.names import NameGrammar, Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.target import Prerequisite

GROUP = "gateway.networking.k8s.io/v1"
MAX_SECTIONS = 64
"""Maximum number of listeners of a Gateway."""
_SECTION = NameGrammar("listener", 253, separator=".")
_SECRET = object_name("Secret")
_ANY_ADDRESS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Section:
    """A listener of the Gateway: a port and a host name. One of lbctl's listeners may need several."""

    listener: str
    """Name of lbctl's listener."""
    host: str
    """Empty: any host."""
    parent: Tree
    """Reference with which an HTTPRoute is attached to the listener."""
    tree: Tree
    """The listener as part of the Gateway."""


def sections(view: View, objects: KubernetesObjects) -> list[Section]:
    """Return the listeners of the Gateway, in order. For an existing Gateway, they are only references by port."""
    if objects.gateway is not None:
        namespace = {"namespace": objects.gateway_namespace} if objects.gateway_namespace else {}
        parent: Tree = {"name": objects.gateway, **namespace}
        return [Section(item.name, "", {**parent, "port": item.bind.port}, {}) for item in view.listeners]
    wanted = [(listener, part) for listener in view.listeners for part in section_parts(listener)]
    by_key = names(_SECTION, [(listener.name, *number) for listener, (number, _, _) in wanted])
    secrets = secret_names(view, objects)
    found = []
    for listener, (number, host, certificate) in wanted:
        name = by_key[listener.name, *number]
        parent = {"name": gateway_name(view), "sectionName": name}
        secret = secrets[certificate.certificate, certificate.key] if certificate else None
        found.append(Section(listener.name, host, parent, _tree(name, listener, host, secret)))
    return sorted(found, key=lambda item: str(item.parent["sectionName"]))


def gateway_name(view: View) -> str:
    """Return the name of the rendered Gateway."""
    parts = (view.proxy.name,)
    return names(object_name("Gateway"), [parts])[parts]


def section_parts(listener: Listener) -> Iterator[tuple[Parts, str, Certificate | None]]:
    """Yield (number in the name, host, certificate) of each section of a listener; first the section for any host."""
    certificates = listener.tls.certificates if listener.tls else ()
    yield (), "", certificates[0] if certificates else None
    if len(certificates) < 2:
        return
    by_host = {host: item for item in reversed(certificates) for host in item.hosts}
    hosts = dict.fromkeys(host for item in certificates for host in item.hosts)
    for index, host in enumerate(hosts, start=1):
        yield (str(index),), host, by_host[host]


def _tree(name: str, listener: Listener, host: str, secret: str | None) -> Tree:
    tree: Tree = {"name": name, "port": listener.bind.port, "protocol": "HTTP" if secret is None else "HTTPS"}
    if host:
        tree["hostname"] = host
    if secret is not None:
        tree["tls"] = {"mode": "Terminate", "certificateRefs": [{"kind": "Secret", "name": secret}]}
    return {**tree, "allowedRoutes": {"namespaces": {"from": "Same"}}}


def add_gateway(objects: Objects, view: View, listed: Sequence[Section], gateway_class: str, tls: Tree) -> None:
    """Add the Gateway. `tls` contains its settings for clients' certificates and for connections to replicas."""
    for section in listed:
        objects.sources[id(section.tree)] = ("listeners", section.listener)
    spec: Tree = {"gatewayClassName": gateway_class, "listeners": [section.tree for section in listed]}
    if tls:
        spec["tls"] = tls
    objects.add(GROUP, "Gateway", gateway_name(view), "listener", ("proxies", view.proxy.name), spec=spec)


# ── Secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def secret_names(view: View, objects: KubernetesObjects) -> dict[tuple[str, str], str]:
    """Map each key pair (certificate, key) of the view's listeners to the name of its Secret."""
    wanted: dict[tuple[str, str], Parts] = {}
    for listener in view.listeners:
        certificates = listener.tls.certificates if listener.tls else ()
        for index, item in enumerate(certificates, start=1):
            number = [str(index)] if len(certificates) > 1 else []
            wanted.setdefault((item.certificate, item.key), (view.proxy.name, listener.name, *number))
    by_parts = names(_SECRET, [*wanted.values(), *reserved_secrets(view, (view.proxy.name,))])
    given = dict(objects.secrets)
    return {pair: given.get(pair[0]) or by_parts[parts] for pair, parts in wanted.items()}


def reserved_secrets(view: View, owner: Parts) -> Iterator[Parts]:
    """Yield the name parts that Secrets of the Gateway, pools and routes may use, but Secrets of listeners must not."""
    yield (*owner[:-1], f"{owner[-1]}-client")
    yield from ((*owner, pool, part) for pool in view.pools for part in ("ca", "client", "credential"))
    yield from ((*owner, route, part) for route in view.routes for part in ("api-keys", "users"))


def create_tls_secret(objects: KubernetesObjects, name: str, certificate: str, key: str) -> Prerequisite:
    """Return a Secret with a key pair."""
    words = ("kubectl", "-n", objects.namespace, "create", "secret", "tls", name)
    return Prerequisite(words, (("--cert", certificate), ("--key", key)))


def prerequisites(view: View, objects: KubernetesObjects) -> Iterator[Prerequisite]:
    """Yield the listeners' Secrets. Secrets that the fleet names already exist."""
    for (certificate, key), name in sorted(_needed(view, objects).items(), key=lambda item: item[1]):
        yield create_tls_secret(objects, name, certificate, key)


def needed_secrets(view: View, objects: KubernetesObjects) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the listeners' Secrets that lbctl names."""
    return (("Secret", name) for name in _needed(view, objects).values())


def _needed(view: View, objects: KubernetesObjects) -> dict[tuple[str, str], str]:
    given = dict(objects.secrets)
    secrets = secret_names(view, objects) if objects.gateway is None else {}
    return {pair: name for pair, name in secrets.items() if pair[0] not in given}


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def diagnostics(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the settings of listeners that a Gateway of the Gateway API cannot express."""
    yield from listener_diagnostics(view, objects)
    if objects.gateway_labels:
        message = f"{view.proxy.kind} selects a gateway's pods by class, not by labels"
        place = ("proxies", view.proxy.name, "kubernetes", "gateway_labels")
        yield Diagnostic("LB170", message, path=place, hint="remove it")
    count = sum(1 for listener in view.listeners for _ in section_parts(listener))
    if objects.gateway is None and count > MAX_SECTIONS:
        message = f"a Gateway can have at most {MAX_SECTIONS} listeners, but the certificates' hosts need {count}"
        path = ("proxies", view.proxy.name, "listeners")
        yield Diagnostic(
            "LB172", message, path=path, hint="use fewer hosts, or several entries with some listeners each"
        )


def listener_diagnostics(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the settings of listeners that no Gateway can express."""
    by_port: dict[int, Listener] = {}
    for listener in view.listeners:
        path = ("listeners", listener.name, "bind")
        if listener.bind.path:
            yield Diagnostic("LB171", "a Gateway cannot listen on a unix socket", path=path, hint='bind: "0.0.0.0:80"')
            continue
        first = by_port.setdefault(listener.bind.port, listener)
        if first is not listener:
            message = (
                f"port {listener.bind.port} is already the port of listener {first.name}, and a Gateway has one address"
            )
            yield Diagnostic("LB171", message, path=path, hint="use another port, or separate entries in `proxies`")
        if listener.bind.host not in _ANY_ADDRESS and not listener.bind.on_loopback:
            message = f"a Gateway has no listen addresses: {listener.bind.host} is ignored, and only the port is used"
            hint = 'use "0.0.0.0", and restrict access at the gateway\'s Service'
            yield warning("listener.bind", message, path, hint)
        for index, item in enumerate(listener.tls.certificates if listener.tls and objects.gateway is None else ()):
            if any(map(is_ip, item.hosts)):
                message = "a Gateway listener cannot have an address as its host"
                place = ("listeners", listener.name, "tls", "certificates", index, "hosts")
                yield Diagnostic("LB171", message, path=place, hint="use host names")
