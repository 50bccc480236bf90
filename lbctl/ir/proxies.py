"""The proxies that a fleet lists, and the control plane's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lbctl.base import ports
from lbctl.ir.address import Address
from lbctl.ir.own_lines import OwnLines

if TYPE_CHECKING:
    from lbctl.ir.topology import Topology


ADMIN_METADATA = "lbctl_admin"
"""Metadata key in an Envoy node that contains the address of its admin interface."""
ISTIO_NAMESPACE = "istio-system"
"""Namespace of Istio's default gateway, which is also a mesh's default root namespace."""


@dataclass(frozen=True, slots=True)
class Reload:
    """How a running proxy is reloaded."""

    command: tuple[str, ...]
    """Program and its arguments."""
    min_interval: int = 30_000
    """Minimum time between two reloads, in milliseconds."""


@dataclass(frozen=True, slots=True)
class KubernetesObjects:
    """Where the objects of a proxy rendered for Kubernetes are placed, and which objects they refer to."""

    namespace: str
    gateway_class: str | None = None
    """Class of the Gateway to render, or None if no Gateway is rendered."""
    gateway: str | None = None
    """Name of the existing Gateway to which the routes are attached. If None, they belong to the rendered Gateway."""
    gateway_namespace: str | None = None
    """Namespace of the existing Gateway, or None for `namespace`."""
    gateway_labels: tuple[tuple[str, str], ...] = ()
    """(label, value) pairs of the pods that run the rendered Gateway, sorted. If empty, the default is used."""
    pods_namespace: str = ISTIO_NAMESPACE
    """Namespace of the pods that run the Gateway."""
    assume: tuple[str, ...] = ()
    """IDs of the features provided by another component, in the order in the file."""
    picker: str = "lbctl-picker"
    """Name of the picker's Service."""
    secrets: tuple[tuple[str, str], ...] = ()
    """(certificate file, Secret name) pairs, sorted."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, or a group of identical instances."""

    name: str
    """The name, unique in the fleet."""
    kind: str
    """Kind of proxy, as named in the registry of targets."""
    version: tuple[int, ...]
    """Version, as three numbers, for example (1, 25, 1)."""
    listeners: tuple[str, ...] = ()
    """Names of the proxy's listeners. If empty, it has all listeners."""
    instances: int = 1
    """Number of instances that share the fleet's limits."""
    region: str | None = None
    """Region of the proxy's preferred replicas, or None if the files do not specify it."""
    zone: str | None = None
    """Zone of the proxy's preferred replicas, or None if the files do not specify it."""
    config: str | None = None
    """Path of the proxy's main configuration file. If None, `serve` does not write one."""
    reload: Reload | None = None
    """How the proxy is reloaded. If None, `serve` does not reload it."""
    runtime_api: str | None = None
    """Path or address of HAProxy's Runtime API, or None if it is not used."""
    user: str | None = None
    """User that the HAProxy process runs as, or None for the default for its configuration's location."""
    group: str | None = None
    """Group that the HAProxy process runs as, or None for the default for its configuration's location."""
    chroot: str | None = None
    """Directory to which HAProxy is confined, or None for the default for its configuration's location."""
    agent_check: Address | None = None
    """First address of the agent that HAProxy queries for weights, or None if no agent is used."""
    slots: int | None = None
    """Number of spare server slots in each HAProxy backend.

    If None, pools with affinity get half the number of replicas, but at least 4.
    """
    nodes: tuple[str, ...] = ()
    """Patterns for the xDS node IDs that get this proxy's resources."""
    node_san: str | None = None
    """Pattern for the SAN in a node's client certificate."""
    admin: Address | None = None
    """Address of Envoy's admin interface, or None if disabled."""
    metrics: Address | None = None
    """Address at which the proxy serves its own metrics, or None if disabled."""
    form: Literal["whole", "fragment"] = "whole"
    """`whole` if this is the proxy's complete configuration, or `fragment` if it is one file that another configuration
    includes."""
    include: tuple[OwnLines, ...] = ()
    """The operator's own lines, ordered by place, owner and index."""
    kubernetes: KubernetesObjects | None = None
    """Settings for the proxy's Kubernetes objects, or None for a proxy that runs with its own configuration files."""

    @property
    def is_fragment(self) -> bool:
        """Whether the configuration is a file that another configuration includes."""
        return self.form == "fragment"

    @property
    def is_written(self) -> bool:
        """Whether `serve` writes its configuration."""
        return self.config is not None and self.reload is not None

    @property
    def sets_variables(self) -> bool:
        """Whether limits are process variables, declared in HAProxy's `global` section and set through the API."""
        return self.runtime_api is not None and not self.is_fragment

    def own_lines(self, place: str, owner: str = "") -> tuple[OwnLines, ...]:
        """Return the own lines for a place, in the fleet's order."""
        return tuple(item for item in self.include if (item.place, item.owner) == (place, owner))


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS settings for one of the control plane's own endpoints. All values are paths of PEM files."""

    certificate: str
    """Path of the endpoint's certificate chain."""
    key: str
    """Path of the certificate's private key."""
    client_ca: str | None = None
    """CA bundle for required client certificates, or None if no client certificate is required."""
    client_crl: str | None = None
    """Revocation lists for client certificates, or None if revocation is not checked."""


@dataclass(frozen=True, slots=True)
class Store:
    """The store shared by several control planes."""

    url: str
    """URL without the password."""
    key_prefix: str = "lbctl"
    """Prefix for all keys."""
    user: str | None = None
    """User name, or None for the store's default user."""
    password_file: str | None = None
    """Path of the file that contains the password, or None if no password is used."""
    ca: str | None = None
    """Path of the CA bundle for the store's certificate, or None for the system's CAs."""
    certificate: str | None = None
    """Path of the client certificate, or None if none is used."""
    key: str | None = None
    """Path of the client certificate's private key."""
    key_file: str | None = None
    """Path of the file that contains the keys for signing stored values, or None if values are not signed."""
    lease: int = 10_000
    """Milliseconds after which another member can become the leader."""


@dataclass(frozen=True, slots=True)
class Control:
    """The control plane's endpoints and limits."""

    xds_bind: Address = Address("127.0.0.1", ports.XDS)
    """Address of the xDS endpoint."""
    xds_tls: ServerTls | None = None
    """TLS settings for the xDS endpoint, or None for plain connections."""
    unmatched_nodes: Literal["nothing", "all"] = "nothing"
    """Resources that an xDS node gets if it does not match any proxy."""
    api_bind: Address = Address("127.0.0.1", ports.API)
    """Address of the API."""
    api_token_file: str | None = None
    """Path of the file that contains the API tokens. If None, `serve` creates a token in its state directory."""
    api_tls: ServerTls | None = None
    """TLS settings for the API, or None for plain connections."""
    logs_bind: Address = Address("127.0.0.1", ports.LOGS)
    """Address to which the proxies send their traffic log by syslog."""
    logs_written: bool = False
    """Whether the files contain a `logs` section, so that rendered proxies send their traffic log there."""
    picker_bind: Address = Address("127.0.0.1", ports.PICKER)
    """Address on which the picker accepts connections from proxies."""
    picker_key_file: str | None = None
    """Path of the file that contains the key that proxies send to the picker. If None, `serve` creates one if it
    can."""
    dashboard_history: int = 3_600_000
    """Time range of the dashboard's charts, in milliseconds."""
    state: str = "/var/lib/lbctl"
    """Directory of the state store."""
    store: Store | None = None
    """Store shared by several control planes. If None, the state directory is used."""
    member: str | None = None
    """This control plane's name among the members, or None for the host name."""
    max_shrink: float = 50.0
    """Maximum percentage of replicas that a single reload may remove."""

    def picker_tls(self, bind: Address) -> ServerTls | None:
        """Return the TLS settings for a picker that serves gRPC at `bind`, or None for plain connections.

        Beyond loopback, the picker uses the TLS settings of xDS.
        """
        return None if bind.on_loopback else self.xds_tls


def picker_http(bind: Address) -> Address:
    """Return the HTTP and UDP address of a picker that serves gRPC at `bind`, which is the next port on loopback."""
    local = bind.from_here
    return Address(local.host if local.on_loopback else "127.0.0.1", bind.port + 1)


def picker_asked(bind: Address) -> Address:
    """Return the address at which Envoys query a picker that serves gRPC at `bind`: the next port on the same host."""
    return Address(bind.from_here.host, bind.port + 1)


def picker_http_remote(bind: Address) -> Address | None:
    """Return the HTTP address of a picker at `bind` for Envoys on other machines; None if it serves loopback only."""
    asked = picker_asked(bind)
    return None if asked.on_loopback else asked


@dataclass(frozen=True, slots=True)
class XdsProxies:
    """The proxies in a fleet that get their configuration from the xDS server."""

    named: tuple[Proxy, ...]
    """The proxies named in the fleet."""
    unnamed: Proxy | None
    """Proxy for nodes that do not match any entry, or None if such nodes get no resources."""

    @property
    def all(self) -> tuple[Proxy, ...]:
        """Return the named proxies, then the unnamed one."""
        return (*self.named, self.unnamed) if self.unnamed else self.named


def xds_proxies(topology: Topology, kinds: Mapping[str, tuple[int, ...]]) -> XdsProxies:
    """Return the proxies that get their configuration from the xDS server.

    `kinds` maps each kind of proxy that uses xDS to its oldest supported version.
    """
    named = tuple(proxy for proxy in topology.proxies if proxy.kind in kinds)
    if topology.proxies and topology.control.unmatched_nodes == "nothing":
        return XdsProxies(named, None)
    kind, oldest = next(iter(kinds.items()))
    return XdsProxies(named, unnamed(topology, kind, oldest))


def unnamed(topology: Topology, kind: str, version: tuple[int, ...]) -> Proxy:
    """Return a proxy of this kind and version with a name that is not used in the fleet."""
    taken = any(proxy.name == kind for proxy in topology.proxies)
    return Proxy(f"-{kind}" if taken else kind, kind, version)
