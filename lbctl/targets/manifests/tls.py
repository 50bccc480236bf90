"""TLS to replicas as BackendTLSPolicies, and CA bundles for replicas and clients as ConfigMaps.

CA bundles are public, so lbctl renders them. An unreadable bundle becomes a prerequisite, like a Secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lbctl.base.system_ca import PLACES
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.manifests.gateway import GROUP, create_tls_secret
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.target import Prerequisite

_POLICY = object_name("BackendTLSPolicy")
_CONFIG_MAP = object_name("ConfigMap")
_SECRET = object_name("Secret")
_MAX_TARGETS = 16
"""Maximum number of Services in a BackendTLSPolicy."""


@dataclass(frozen=True, slots=True)
class _Bundle:
    """A CA bundle that a ConfigMap contains."""

    file: str
    component: str
    owner: tuple[str, str]
    """Path of the listener or pool in the fleet."""


class Certificates:
    """The ConfigMaps, policies and Secrets that a closed view needs for TLS, except the listeners' own certificates."""

    def __init__(
        self,
        view: View,
        objects: KubernetesObjects,
        *,
        listeners: Sequence[Listener],
        pools: Sequence[Pool],
        client: tuple[str, str] | None,
    ) -> None:
        """Describe the TLS settings of a view.

        `listeners` verify client certificates. The certificates of `pools` are verified with a CA bundle. `client` is
        the certificate and key that the Gateway uses for connections to replicas.
        """
        self._view = view
        self._objects = objects
        self._bundles = dict(_bundles(view.proxy.name, listeners, pools))
        self._names = names(_CONFIG_MAP, self._bundles)
        self._client = client

    def gateway_tls(self) -> Tree:
        """Return the Gateway's settings for client certificates and for its own client certificate."""
        ports = [
            {"port": listener.bind.port, "tls": {"validation": {"caCertificateRefs": [self.of_listener(listener)]}}}
            for listener in self._view.listeners
            if (self._view.proxy.name, listener.name, "clients") in self._bundles
        ]
        tls: Tree = {"frontend": {"default": {}, "perPort": ports}} if ports else {}
        return tls | self.client_tls()

    def client_tls(self) -> Tree:
        """Return the Gateway's settings for its own client certificate, which it presents to replicas."""
        if self._client is None:
            return {}
        return {"backend": {"clientCertificateRef": {"kind": "Secret", "name": self._client_secret(self._client)}}}

    def of_listener(self, listener: Listener) -> Tree:
        """Return the reference to the CA bundle that verifies a listener's client certificates."""
        return self._reference((self._view.proxy.name, listener.name, "clients"))

    def of_pool(self, pool: Pool) -> Tree:
        """Return the CA that verifies a pool's certificates, as part of a policy or backend."""
        if pool.tls is not None and pool.tls.ca in PLACES:
            return {"wellKnownCACertificates": "System"}
        return {"caCertificateRefs": [self._reference((self._view.proxy.name, pool.name, "ca"))]}

    def add(self, objects: Objects, targets: Mapping[str, Sequence[Tree]]) -> None:
        """Add the ConfigMaps, and the policies with the targets of each pool."""
        for key, bundle in self._bundles.items():
            text = self._view.ca_bundles.get(bundle.file)
            if text:
                objects.add("v1", "ConfigMap", self._names[key], bundle.component, bundle.owner, data={"ca.crt": text})
        policies = {
            (self._view.proxy.name, pool, *([str(index)] if index > 1 else [])): part
            for pool, listed in targets.items()
            for index, part in enumerate(_parts(listed), start=1)
        }
        for parts, name in names(_POLICY, policies).items():
            pool = self._view.pools[parts[1]]
            assert pool.tls is not None
            validation = {**self.of_pool(pool), "hostname": pool.tls.server_name}
            spec = {"targetRefs": policies[parts], "validation": validation}
            objects.add(GROUP, "BackendTLSPolicy", name, "pool", ("pools", pool.name), spec=spec)

    def prerequisites(self) -> Iterator[Prerequisite]:
        """Yield the Gateway's Secret, and the ConfigMaps whose file is missing here."""
        for key, bundle in self._bundles.items():
            if not self._view.ca_bundles.get(bundle.file):
                words = ("kubectl", "-n", self._objects.namespace, "create", "configmap", self._names[key])
                yield Prerequisite(words, (("--from-file=ca.crt", bundle.file),))
        if self._client is not None and self._client[0] not in dict(self._objects.secrets):
            yield create_tls_secret(self._objects, self._client_secret(self._client), *self._client)

    def needed(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, name) of the ConfigMaps, and of the Gateway's Secret if lbctl chooses its name."""
        yield from (("ConfigMap", name) for name in self._names.values())
        if self._client is not None and self._client[0] not in dict(self._objects.secrets):
            yield "Secret", self._client_secret(self._client)

    def _reference(self, key: Parts) -> Tree:
        return {"name": self._names[key], "group": "", "kind": "ConfigMap"}

    def _client_secret(self, pair: tuple[str, str]) -> str:
        given = dict(self._objects.secrets)
        if pair[0] in given:
            return given[pair[0]]
        parts = (self._view.proxy.name, "client")
        return names(_SECRET, [parts])[parts]


def _parts(targets: Sequence[Tree]) -> list[Sequence[Tree]]:
    return [targets[start : start + _MAX_TARGETS] for start in range(0, len(targets), _MAX_TARGETS)]


def _bundles(proxy: str, listeners: Sequence[Listener], pools: Sequence[Pool]) -> Iterator[tuple[Parts, _Bundle]]:
    for listener in listeners:
        if listener.tls is not None and listener.tls.client_ca is not None:
            bundle = _Bundle(listener.tls.client_ca, "listener", ("listeners", listener.name))
            yield (proxy, listener.name, "clients"), bundle
    for pool in pools:
        if pool.tls is not None and pool.tls.ca is not None and pool.tls.ca not in PLACES:
            yield (proxy, pool.name, "ca"), _Bundle(pool.tls.ca, "pool", ("pools", pool.name))
