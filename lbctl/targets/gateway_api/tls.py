"""TLS to replicas as BackendTLSPolicies, and the CA bundles of replicas and clients as ConfigMaps.

CA bundles are public, so lbctl renders them. A bundle that cannot be read is a prerequisite, like a Secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.system_ca import PLACES
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.gateway_api.backends import Backends
from lbctl.targets.gateway_api.closing import client_certificate, is_verifiable, verifies_clients
from lbctl.targets.gateway_api.gateway import GROUP, create_tls_secret
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.target import Prerequisite

_POLICY = object_name("BackendTLSPolicy")
_CONFIG_MAP = object_name("ConfigMap")
_SECRET = object_name("Secret")
_MAX_TARGETS = 16
"""Maximum number of Services of a BackendTLSPolicy."""


@dataclass(frozen=True, slots=True)
class _Bundle:
    """A CA bundle that a ConfigMap contains."""

    file: str
    component: str
    owner: tuple[str, str]
    """Path of the listener or pool in the fleet."""


class Certificates:
    """The ConfigMaps, policies and Secrets that a closed view needs for TLS beyond the listeners' own certificates."""

    def __init__(self, view: View, objects: KubernetesObjects) -> None:
        self._view = view
        self._objects = objects
        self._bundles = dict(_bundles(view))
        self._names = names(_CONFIG_MAP, self._bundles)

    def gateway_tls(self) -> Tree:
        """Return the settings of the Gateway for certificates of clients, and for its own certificate as a client."""
        ports = [
            {"port": listener.bind.port, "tls": {"validation": {"caCertificateRefs": [self._reference(key)]}}}
            for listener in self._view.listeners
            if (key := (self._view.proxy.name, listener.name, "clients")) in self._bundles
        ]
        tls: Tree = {"frontend": {"default": {}, "perPort": ports}} if ports else {}
        if client_certificate(self._view) is not None:
            tls["backend"] = {"clientCertificateRef": {"kind": "Secret", "name": self._client_secret()}}
        return tls

    def add(self, objects: Objects, backends: Backends) -> None:
        """Add the ConfigMaps and the policies."""
        for key, bundle in self._bundles.items():
            text = self._view.ca_bundles.get(bundle.file)
            if text:
                objects.add("v1", "ConfigMap", self._names[key], bundle.component, bundle.owner, data={"ca.crt": text})
        policies = {
            (self._view.proxy.name, pool, *([str(index)] if index > 1 else [])): targets
            for pool in self._view.pools
            for index, targets in enumerate(self._targets(pool, backends), start=1)
        }
        for parts, name in names(_POLICY, policies).items():
            pool = parts[1]
            spec = {"targetRefs": policies[parts], "validation": self._validation(pool)}
            objects.add(GROUP, "BackendTLSPolicy", name, "pool", ("pools", pool), spec=spec)

    def prerequisites(self) -> Iterator[Prerequisite]:
        """Yield the Secret of the Gateway, and the ConfigMaps whose file is missing here."""
        for key, bundle in self._bundles.items():
            if not self._view.ca_bundles.get(bundle.file):
                words = ("kubectl", "-n", self._objects.namespace, "create", "configmap", self._names[key])
                yield Prerequisite(words, (("--from-file=ca.crt", bundle.file),))
        pair = client_certificate(self._view)
        if pair is not None and pair[0] not in dict(self._objects.secrets):
            yield create_tls_secret(self._objects, self._client_secret(), *pair)

    def needed(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, name) of the ConfigMaps, and of the Secret of the Gateway if lbctl chooses its name."""
        yield from (("ConfigMap", name) for name in self._names.values())
        pair = client_certificate(self._view)
        if pair is not None and pair[0] not in dict(self._objects.secrets):
            yield "Secret", self._client_secret()

    def _targets(self, pool: str, backends: Backends) -> list[list[Tree]]:
        tls = self._view.pools[pool].tls
        if tls is None or not is_verifiable(tls):
            return []
        targets = backends.targets_of(pool)
        return [targets[start : start + _MAX_TARGETS] for start in range(0, len(targets), _MAX_TARGETS)]

    def _validation(self, pool: str) -> Tree:
        tls = self._view.pools[pool].tls
        assert tls is not None
        if tls.ca in PLACES:
            return {"wellKnownCACertificates": "System", "hostname": tls.server_name}
        key = (self._view.proxy.name, pool, "ca")
        return {"caCertificateRefs": [self._reference(key)], "hostname": tls.server_name}

    def _reference(self, key: Parts) -> Tree:
        return {"name": self._names[key], "group": "", "kind": "ConfigMap"}

    def _client_secret(self) -> str:
        pair = client_certificate(self._view)
        given = dict(self._objects.secrets)
        if pair is not None and pair[0] in given:
            return given[pair[0]]
        parts = (self._view.proxy.name, "client")
        return names(_SECRET, [parts])[parts]


def _bundles(view: View) -> Iterator[tuple[Parts, _Bundle]]:
    for listener in view.listeners:
        if listener.tls is not None and listener.tls.client_ca is not None and verifies_clients(view, listener):
            bundle = _Bundle(listener.tls.client_ca, "listener", ("listeners", listener.name))
            yield (view.proxy.name, listener.name, "clients"), bundle
    for pool in view.pools.values():
        if pool.tls is not None and is_verifiable(pool.tls) and pool.tls.ca is not None and pool.tls.ca not in PLACES:
            yield (view.proxy.name, pool.name, "ca"), _Bundle(pool.tls.ca, "pool", ("pools", pool.name))
