"""Istio's Gateways with their servers, or the existing Gateway that VirtualServices are bound to.

Istio merges all VirtualServices of a Gateway that match the same server and host, oldest first. The server for a host
with its own certificate is therefore a separate Gateway, which only the most specific VirtualServices are bound to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import Certificate, Listener
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.istio.destinations import secret_owner
from lbctl.targets.manifests import gateway
from lbctl.targets.manifests.closing import Gap
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.names import NameGrammar, Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.target import Prerequisite

GROUP = "networking.istio.io/v1"
_LABELS = (("istio", "ingressgateway"),)
"""Pod labels of Istio's default gateway."""
_SERVER = NameGrammar("server", 57, dots=False)
"""Grammar of names that a protocol can be appended to."""
_SECRET = object_name("Secret")
_MIN_TLS = {"1.2": "TLSV1_2", "1.3": "TLSV1_3"}


@dataclass(frozen=True, slots=True)
class Section:
    """A server of a Gateway."""

    listener: str
    host: str
    """Empty: any host."""
    gateway: str
    """Name of the section's Gateway in VirtualServices."""
    tree: Tree


def sections(view: View, objects: KubernetesObjects) -> list[Section]:
    """Return the servers of the Gateways, by listener. For an existing Gateway, they are only references."""
    if objects.gateway is not None:
        name = "/".join(filter(None, (objects.gateway_namespace, objects.gateway)))
        return [Section(item.name, "", name, {}) for item in view.listeners]
    wanted = [(listener, part) for listener in view.listeners for part in gateway.section_parts(listener)]
    servers = names(_SERVER, [(listener.name, *number) for listener, (number, _, _) in wanted])
    gateways = names(object_name("Gateway"), [_gateway(view, listener, number) for listener, (number, _, _) in wanted])
    secrets = _secrets(view, objects)
    return [
        Section(
            listener.name,
            host,
            gateways[_gateway(view, listener, number)],
            _server(servers[listener.name, *number], listener, host, objects, secrets.get(_key(listener, certificate))),
        )
        for listener, (number, host, certificate) in wanted
    ]


def _gateway(view: View, listener: Listener, number: Parts) -> Parts:
    return (view.proxy.name, listener.name, *number) if number else (view.proxy.name,)


def _server(name: str, listener: Listener, host: str, objects: KubernetesObjects, secret: str | None) -> Tree:
    protocol = "HTTP" if listener.tls is None else "HTTPS"
    port = {"name": f"{protocol.lower()}-{name}", "number": listener.bind.port, "protocol": protocol}
    tree: Tree = {"name": name, "port": port, "hosts": [f"{objects.namespace}/{host or '*'}"]}
    if listener.tls is not None:
        tree["tls"] = {
            "mode": _mode(listener),
            "minProtocolVersion": _MIN_TLS[listener.tls.min_version],
            "credentialName": secret,
        }
    return tree


def _mode(listener: Listener) -> str:
    assert listener.tls is not None
    if listener.tls.client_ca is None:
        return "SIMPLE"
    return "MUTUAL" if listener.tls.client_certificate == "required" else "OPTIONAL_MUTUAL"


def labels(objects: KubernetesObjects) -> Tree:
    """Return the labels of the pods that run the rendered Gateways."""
    return dict(objects.gateway_labels or _LABELS)


def is_default(objects: KubernetesObjects) -> bool:
    """Return whether these are the labels of Istio's default gateway, which other applications may share."""
    return labels(objects) == dict(_LABELS)


def add_gateways(objects: Objects, view: View, kubernetes: KubernetesObjects, listed: Sequence[Section]) -> None:
    """Add the Gateways."""
    if kubernetes.gateway is not None:
        return
    for name in dict.fromkeys(section.gateway for section in listed):
        own = [section for section in listed if section.gateway == name]
        for section in own:
            objects.sources[id(section.tree)] = ("listeners", section.listener)
        spec = {"selector": labels(kubernetes), "servers": [section.tree for section in own]}
        objects.add(GROUP, "Gateway", name, "listener", ("proxies", view.proxy.name), spec=spec)


# ── Secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_Key = tuple[str, ...]
"""The files of a Secret: certificate, key, and the clients' CA bundle and revocation lists."""


def _key(listener: Listener, certificate: Certificate | None) -> _Key:
    tls = listener.tls
    if tls is None or certificate is None:
        return ()
    clients = (tls.client_ca, tls.client_crl) if tls.client_ca is not None else ()
    return (certificate.certificate, certificate.key, *filter(None, clients))


def _secrets(view: View, objects: KubernetesObjects) -> dict[_Key, str]:
    """Map each Secret's files to its name."""
    wanted: dict[_Key, Parts] = {}
    owner = secret_owner(view, objects)
    for listener in view.listeners:
        certificates = listener.tls.certificates if listener.tls else ()
        for index, item in enumerate(certificates, start=1):
            number = [str(index)] if len(certificates) > 1 else []
            wanted.setdefault(_key(listener, item), (*owner, listener.name, *number))
    by_parts = names(_SECRET, [*wanted.values(), *gateway.reserved_secrets(view, owner)])
    given = dict(objects.secrets)
    return {key: given.get(key[0]) or by_parts[parts] for key, parts in wanted.items()}


def _needed(view: View, objects: KubernetesObjects) -> list[tuple[str, _Key]]:
    """Return the names and files of the Secrets that lbctl names. Others exist already."""
    given = dict(objects.secrets)
    secrets = _secrets(view, objects) if objects.gateway is None else {}
    return sorted((name, key) for key, name in secrets.items() if key[0] not in given)


def prerequisites(view: View, objects: KubernetesObjects) -> Iterator[Prerequisite]:
    """Yield the Secrets of the servers."""
    for name, (certificate, key, *clients) in _needed(view, objects):
        words = ("kubectl", "-n", objects.pods_namespace, "create", "secret")
        if not clients:
            yield Prerequisite((*words, "tls", name), (("--cert", certificate), ("--key", key)))
            continue
        files = zip(_ENTRIES, (certificate, key, *clients), strict=False)
        yield Prerequisite((*words, "generic", name), tuple((f"--from-file={entry}", file) for entry, file in files))


def needed(view: View, objects: KubernetesObjects) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, namespace, name) of the Secrets of the servers whose names lbctl chooses."""
    return (("Secret", objects.pods_namespace, name) for name, _ in _needed(view, objects))


_ENTRIES = ("tls.crt", "tls.key", "ca.crt", "ca.crl")
"""Entries of a Secret, in the order of `_Key`."""


def _contradictory_secrets(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the entries of `secrets` that would need different files for several listeners or pools."""
    keys = list(_secrets(view, objects)) if objects.gateway is None else []
    pools = (pool.tls for pool in view.pools.values() if pool.tls is not None and pool.tls.certificate is not None)
    keys += [tuple(filter(None, (tls.certificate, tls.key, tls.ca))) for tls in pools]
    contents: dict[tuple[str, str], str] = {}
    for certificate, name in objects.secrets:
        for key in (key for key in keys if key[0] == certificate):
            for entry, file in zip(_ENTRIES, key, strict=False):
                first = contents.setdefault((name, entry), file)
                if first != file:
                    message = f"the Secret {name} cannot contain both {first} and {file} as {entry}"
                    path = ("proxies", view.proxy.name, "kubernetes", "secrets", certificate)
                    yield Diagnostic(
                        "LB171", message, path=path, hint="remove it: lbctl names a Secret for each of them"
                    )


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield the listeners whose client certificates are verified by a Gateway that lbctl does not render."""
    for listener in view.listeners if objects.gateway is not None else ():
        if listener.tls is not None and listener.tls.client_ca is not None:
            path = ("listeners", listener.name, "tls", "client_ca")
            reason, hint = "lbctl does not render this Gateway", "remove `gateway`"
            yield Gap("listener.client_certificate", "listener", listener.name, path, reason, hint)


def diagnostics(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the settings of listeners that a Gateway cannot express."""
    yield from gateway.listener_diagnostics(view, objects)
    yield from _contradictory_secrets(view, objects)
    place = ("proxies", view.proxy.name, "kubernetes")
    if objects.gateway_class is not None:
        message = "Istio's own Gateways have no class: they select pods by labels"
        yield Diagnostic(
            "LB170", message, path=(*place, "gateway_class"), hint="gateway_labels: {istio: ingressgateway}"
        )
    if objects.gateway_namespace not in (None, objects.namespace):
        message = (
            f"the Gateway is in another namespace: its servers must accept hosts of {objects.namespace}, which only "
            "its owner can configure"
        )
        yield Diagnostic("LB174", message, path=(*place, "gateway"), severity="warning")
    for listener in view.listeners:
        if listener.request_id != "x-request-id":
            message = "Istio's request IDs are in the header x-request-id"
            path = ("listeners", listener.name, "request_id")
            yield warning("listener.request_id", message, path, "request_id: x-request-id")
