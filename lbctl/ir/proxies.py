"""The proxies that a fleet names, and the control plane's own settings."""

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
"""The key of a node's metadata by which an Envoy states where its admin interface listens."""


@dataclass(frozen=True, slots=True)
class Reload:
    """How a running proxy is reloaded."""

    command: tuple[str, ...]
    """The program and its arguments."""
    min_interval: int = 30_000
    """The shortest time between two reloads, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, or a group of identical instances."""

    name: str
    """The name, unique in the fleet."""
    kind: str
    """The kind of proxy, as in the registry of targets."""
    version: tuple[int, ...]
    """Three numbers, as (1, 25, 1)."""
    listeners: tuple[str, ...] = ()
    """Empty: all listeners."""
    instances: int = 1
    """How many instances share the limits of the fleet."""
    region: str | None = None
    """The region of its replicas with preference; None where the files give none."""
    zone: str | None = None
    """The zone of its replicas with preference; None where the files give none."""
    config: str | None = None
    """The path of its main configuration file; None: `serve` writes none."""
    reload: Reload | None = None
    """How it is reloaded; None: `serve` never reloads it."""
    runtime_api: str | None = None
    """The path or address of HAProxy's Runtime API; None: there is none."""
    user: str | None = None
    """The user as whom HAProxy works; None: the default of its place."""
    group: str | None = None
    """The group as which HAProxy works; None: the default of its place."""
    chroot: str | None = None
    """The directory that HAProxy confines itself to; None: the default of its place."""
    agent_check: Address | None = None
    """The first address of the agent that HAProxy asks for weights; None: there is none."""
    slots: int | None = None
    """The number of spare server slots of each HAProxy backend; None: half of the replicas, at least 4, for
    pools with affinity."""
    nodes: tuple[str, ...] = ()
    """Patterns of the xDS node ids that get this proxy's resources."""
    node_san: str | None = None
    """The pattern of the SAN that a node's client certificate must have."""
    admin: Address | None = None
    """The address of Envoy's admin interface; None: there is none."""
    metrics: Address | None = None
    """The address of the proxy's own figures; None: it shows none."""
    form: Literal["whole", "fragment"] = "whole"
    """Whether its configuration is all that the proxy reads, or one file within somebody's own configuration."""
    include: tuple[OwnLines, ...] = ()
    """The operator's own lines, in the order of place, owner and index."""

    @property
    def is_fragment(self) -> bool:
        """Whether its configuration is one file within somebody's own."""
        return self.form == "fragment"

    @property
    def is_written(self) -> bool:
        """Whether `serve` writes its configuration."""
        return self.config is not None and self.reload is not None

    @property
    def sets_variables(self) -> bool:
        """Whether limits are variables of the process: HAProxy's `global` section declares them, the API sets them."""
        return self.runtime_api is not None and not self.is_fragment

    def own_lines(self, place: str, owner: str = "") -> tuple[OwnLines, ...]:
        """Return the own lines of a place, in the order of the fleet."""
        return tuple(item for item in self.include if (item.place, item.owner) == (place, owner))


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS of one of the control plane's own endpoints; paths of PEM files."""

    certificate: str
    """The path of the endpoint's certificate chain."""
    key: str
    """The path of its private key."""
    client_ca: str | None = None
    """Authorities of required client certificates; None: none is required."""
    client_crl: str | None = None
    """Their revocation lists; None: no certificate is revoked."""


@dataclass(frozen=True, slots=True)
class Store:
    """The store that several control planes share."""

    url: str
    """Its URL, without a password."""
    key_prefix: str = "lbctl"
    """What all keys begin with."""
    user: str | None = None
    """The user whose password it is; None: the default one."""
    password_file: str | None = None
    """The path of the file with the password; None: there is none."""
    ca: str | None = None
    """The path of the authorities that the store's certificate is verified with; None: those of the system."""
    certificate: str | None = None
    """The path of the client certificate; None: none is shown."""
    key: str | None = None
    """The path of its private key."""
    key_file: str | None = None
    """The path of the file with the keys that sign what is stored; None: nothing is signed."""
    lease: int = 10_000
    """Milliseconds after which another member may lead."""


@dataclass(frozen=True, slots=True)
class Control:
    """The control plane's endpoints and limits."""

    xds_bind: Address = Address("127.0.0.1", ports.XDS)
    """Where Envoys connect."""
    xds_tls: ServerTls | None = None
    """TLS of the xDS endpoint; None: plain connections."""
    unmatched_nodes: Literal["nothing", "all"] = "nothing"
    """What an xDS node that matches no proxy gets."""
    api_bind: Address = Address("127.0.0.1", ports.API)
    """Where the API listens."""
    api_token_file: str | None = None
    """The path of the file with the API's tokens; None: `serve` makes one in its state."""
    api_tls: ServerTls | None = None
    """TLS of the API; None: plain connections."""
    logs_bind: Address = Address("127.0.0.1", ports.LOGS)
    """Where the proxies send their traffic log by syslog."""
    logs_written: bool = False
    """Whether the files have the section `logs`, so that rendered proxies send their traffic log there."""
    picker_bind: Address = Address("127.0.0.1", ports.PICKER)
    """Where the picker listens for proxies."""
    picker_key_file: str | None = None
    """The path of the file with the key of questions to the picker; None: `serve` makes one if it can."""
    dashboard_history: int = 3_600_000
    """Milliseconds that the charts of the dashboard go back."""
    state: str = "/var/lib/lbctl"
    """The directory of the state store."""
    store: Store | None = None
    """The store that several control planes share; None: the state directory."""
    member: str | None = None
    """The name of this control plane among them; None: the name of the host."""
    max_shrink: float = 50.0
    """The percentage of replicas that one reload may remove."""

    def picker_tls(self, bind: Address) -> ServerTls | None:
        """Return TLS of the gRPC of a picker at `bind`: that of xDS beyond loopback; None: plain connections."""
        return None if bind.on_loopback else self.xds_tls


def picker_http(bind: Address) -> Address:
    """Return where a picker whose gRPC is at `bind` has HTTP and takes datagrams: the next port, on loopback alone."""
    local = bind.from_here
    return Address(local.host if local.on_loopback else "127.0.0.1", bind.port + 1)


def picker_asked(bind: Address) -> Address:
    """Return where Envoys ask a picker whose gRPC is at `bind`: the next port of its own address."""
    return Address(bind.from_here.host, bind.port + 1)


def picker_http_remote(bind: Address) -> Address | None:
    """Return where a picker at `bind` has HTTP for Envoys of other machines; None where it is asked on loopback."""
    asked = picker_asked(bind)
    return None if asked.on_loopback else asked


@dataclass(frozen=True, slots=True)
class XdsProxies:
    """The proxies of a fleet that the xDS server serves."""

    named: tuple[Proxy, ...]
    """The proxies that the fleet names."""
    unnamed: Proxy | None
    """What a node that no entry names gets; None if it gets nothing."""

    @property
    def all(self) -> tuple[Proxy, ...]:
        """The named proxies, then the unnamed one."""
        return (*self.named, self.unnamed) if self.unnamed else self.named


def xds_proxies(topology: Topology, kinds: Mapping[str, tuple[int, ...]]) -> XdsProxies:
    """Return the proxies that the xDS server serves.

    `kinds` maps each kind that is served by xDS to its oldest version.
    """
    named = tuple(proxy for proxy in topology.proxies if proxy.kind in kinds)
    if topology.proxies and topology.control.unmatched_nodes == "nothing":
        return XdsProxies(named, None)
    kind, oldest = next(iter(kinds.items()))
    return XdsProxies(named, unnamed(topology, kind, oldest))


def unnamed(topology: Topology, kind: str, version: tuple[int, ...]) -> Proxy:
    """A proxy of this kind and version that the fleet does not name; no entry of the fleet has its name."""
    taken = any(proxy.name == kind for proxy in topology.proxies)
    return Proxy(f"-{kind}" if taken else kind, kind, version)
