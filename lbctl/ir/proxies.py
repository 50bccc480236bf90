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
"""Metadata key of an Envoy node that contains the address of its admin interface."""
ISTIO_NAMESPACE = "istio-system"
"""Namespace of Istio's default gateway, and the default root namespace of a mesh."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Reload of a running proxy."""

    command: tuple[str, ...]
    """Program with its arguments."""
    min_interval: int = 30_000
    """Minimum time between two reloads, in milliseconds."""


@dataclass(frozen=True, slots=True)
class KubernetesObjects:
    """Where the objects of a proxy rendered for Kubernetes are placed, and which objects they refer to."""

    namespace: str
    gateway_class: str | None = None
    """Class of the Gateway to render; None: no Gateway is rendered."""
    gateway: str | None = None
    """Name of the existing Gateway that the routes are attached to; None: they belong to the rendered Gateway."""
    gateway_namespace: str | None = None
    """Namespace of the existing Gateway; None: `namespace`."""
    gateway_labels: tuple[tuple[str, str], ...] = ()
    """(label, value) of the pods that run the rendered Gateway, sorted; empty: the default."""
    pods_namespace: str = ISTIO_NAMESPACE
    """Namespace of the pods that run the Gateway."""
    assume: tuple[str, ...] = ()
    """IDs of the features that another component provides, in the order of the file."""
    picker: str = "lbctl-picker"
    """Name of the picker's Service."""
    secrets: tuple[tuple[str, str], ...] = ()
    """(certificate file, name of the Secret), sorted."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, or a group of identical instances."""

    name: str
    """The name, unique in the fleet."""
    kind: str
    """Kind of proxy, as in the registry of targets."""
    version: tuple[int, ...]
    """Three numbers, for example (1, 25, 1)."""
    listeners: tuple[str, ...] = ()
    """Empty: all listeners."""
    instances: int = 1
    """Number of instances that share the limits of the fleet."""
    region: str | None = None
    """Region of its preferred replicas; None if the files do not state it."""
    zone: str | None = None
    """Zone of its preferred replicas; None if the files do not state it."""
    config: str | None = None
    """Path of its main configuration file; None: `serve` does not write one."""
    reload: Reload | None = None
    """None: `serve` does not reload it."""
    runtime_api: str | None = None
    """Path or address of HAProxy's Runtime API; None: not used."""
    user: str | None = None
    """User of the HAProxy process; None: the default for the location of its configuration."""
    group: str | None = None
    """Group of the HAProxy process; None: the default for the location of its configuration."""
    chroot: str | None = None
    """Directory that HAProxy is confined to; None: the default for the location of its configuration."""
    agent_check: Address | None = None
    """First address of the agent that HAProxy queries for weights; None: no agent."""
    slots: int | None = None
    """Number of spare server slots of each HAProxy backend.

    None: half of the replicas, at least 4, for pools with affinity.
    """
    nodes: tuple[str, ...] = ()
    """Patterns of the xDS node IDs that get this proxy's resources."""
    node_san: str | None = None
    """Pattern of the SAN in a node's client certificate."""
    admin: Address | None = None
    """Address of Envoy's admin interface; None: disabled."""
    metrics: Address | None = None
    """Address of the proxy's own metrics; None: disabled."""
    form: Literal["whole", "fragment"] = "whole"
    """`whole`: the proxy's complete configuration. `fragment`: one file that another configuration includes."""
    include: tuple[OwnLines, ...] = ()
    """The operator's own lines, in the order of place, owner and index."""
    kubernetes: KubernetesObjects | None = None
    """Settings of its Kubernetes objects; None for a proxy that runs with its own configuration files."""

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
        """Whether limits are variables of the process, which HAProxy's `global` section declares and the API sets."""
        return self.runtime_api is not None and not self.is_fragment

    def own_lines(self, place: str, owner: str = "") -> tuple[OwnLines, ...]:
        """Return the own lines for a place, in the order of the fleet."""
        return tuple(item for item in self.include if (item.place, item.owner) == (place, owner))


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS of one of the control plane's own endpoints; all values are paths of PEM files."""

    certificate: str
    """Path of the endpoint's certificate chain."""
    key: str
    """The path of its private key."""
    client_ca: str | None = None
    """CA bundle for required client certificates; None: no client certificate is required."""
    client_crl: str | None = None
    """Revocation lists for client certificates; None: revocation is not checked."""


@dataclass(frozen=True, slots=True)
class Store:
    """The store that several control planes share."""

    url: str
    """URL without a password."""
    key_prefix: str = "lbctl"
    """Prefix for all keys."""
    user: str | None = None
    """User name; None: the store's default user."""
    password_file: str | None = None
    """Path of the file that contains the password; None: no password."""
    ca: str | None = None
    """Path of the CA bundle for the store's certificate; None: the system's CAs."""
    certificate: str | None = None
    """Path of the client certificate; None: no client certificate."""
    key: str | None = None
    """The path of its private key."""
    key_file: str | None = None
    """Path of the file that contains the keys for signing stored values; None: values are not signed."""
    lease: int = 10_000
    """Milliseconds after which another member may become leader."""


@dataclass(frozen=True, slots=True)
class Control:
    """The control plane's endpoints and limits."""

    xds_bind: Address = Address("127.0.0.1", ports.XDS)
    """Address of the xDS endpoint."""
    xds_tls: ServerTls | None = None
    """TLS of the xDS endpoint; None: plain connections."""
    unmatched_nodes: Literal["nothing", "all"] = "nothing"
    """Resources that an xDS node gets if it matches no proxy."""
    api_bind: Address = Address("127.0.0.1", ports.API)
    """Address of the API."""
    api_token_file: str | None = None
    """Path of the file that contains the API's tokens; None: `serve` creates a token in its state directory."""
    api_tls: ServerTls | None = None
    """TLS of the API; None: plain connections."""
    logs_bind: Address = Address("127.0.0.1", ports.LOGS)
    """Address that the proxies send their traffic log to, by syslog."""
    logs_written: bool = False
    """Whether the files have the section `logs`, so that rendered proxies send their traffic log there."""
    picker_bind: Address = Address("127.0.0.1", ports.PICKER)
    """Address on which the picker accepts connections from proxies."""
    picker_key_file: str | None = None
    """Path of the file that contains the key that proxies send to the picker; None: `serve` creates one if it can."""
    dashboard_history: int = 3_600_000
    """Time range of the dashboard's charts, in milliseconds."""
    state: str = "/var/lib/lbctl"
    """Directory of the state store."""
    store: Store | None = None
    """Store shared by several control planes; None: the state directory."""
    member: str | None = None
    """Name of this control plane among the members; None: the host's name."""
    max_shrink: float = 50.0
    """Maximum percentage of replicas that one reload may remove."""

    def picker_tls(self, bind: Address) -> ServerTls | None:
        """Return the TLS settings of a picker that serves gRPC at `bind`; None for plain connections.

        Beyond loopback, the picker uses the TLS settings of xDS.
        """
        return None if bind.on_loopback else self.xds_tls


def picker_http(bind: Address) -> Address:
    """Return the HTTP and UDP address of a picker that serves gRPC at `bind`: the next port, on loopback."""
    local = bind.from_here
    return Address(local.host if local.on_loopback else "127.0.0.1", bind.port + 1)


def picker_asked(bind: Address) -> Address:
    """Return the address where Envoys query a picker that serves gRPC at `bind`: the next port on the same host."""
    return Address(bind.from_here.host, bind.port + 1)


def picker_http_remote(bind: Address) -> Address | None:
    """Return the HTTP address of a picker at `bind` for Envoys on other machines; None if it serves loopback only."""
    asked = picker_asked(bind)
    return None if asked.on_loopback else asked


@dataclass(frozen=True, slots=True)
class XdsProxies:
    """The proxies of a fleet that get their configuration from the xDS server."""

    named: tuple[Proxy, ...]
    """The proxies that the fleet names."""
    unnamed: Proxy | None
    """Proxy for nodes that match no entry; None if such nodes get no resources."""

    @property
    def all(self) -> tuple[Proxy, ...]:
        """Return the named proxies, then the unnamed one."""
        return (*self.named, self.unnamed) if self.unnamed else self.named


def xds_proxies(topology: Topology, kinds: Mapping[str, tuple[int, ...]]) -> XdsProxies:
    """Return the proxies that get their configuration from the xDS server.

    `kinds` maps each kind of proxy that uses xDS to its oldest version.
    """
    named = tuple(proxy for proxy in topology.proxies if proxy.kind in kinds)
    if topology.proxies and topology.control.unmatched_nodes == "nothing":
        return XdsProxies(named, None)
    kind, oldest = next(iter(kinds.items()))
    return XdsProxies(named, unnamed(topology, kind, oldest))


def unnamed(topology: Topology, kind: str, version: tuple[int, ...]) -> Proxy:
    """Return a proxy of this kind and version whose name is not used in the fleet."""
    taken = any(proxy.name == kind for proxy in topology.proxies)
    return Proxy(f"-{kind}" if taken else kind, kind, version)
