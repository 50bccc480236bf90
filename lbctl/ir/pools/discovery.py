"""Sources of replicas that are not listed in the files. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lbctl.ir.address import Address


class Discovery:
    """A source of replicas. Each kind is a subclass."""

    __slots__ = ()
    kind: ClassVar[str]
    """The name of the source, which is also its key under `discovery`."""
    compiled: ClassVar[bool] = False
    """Whether the compiler reads the replicas, so that a topology contains them without `serve`."""


@dataclass(frozen=True, slots=True)
class DnsDiscovery(Discovery):
    """Replicas to which a DNS name resolves."""

    kind: ClassVar[str] = "dns"
    """The name of the source."""
    name: str
    port: int
    """The port of each replica."""
    refresh: int = 10_000
    """Maximum time between two lookups."""
    max_replicas: int = 32
    """Maximum number of addresses used from a response."""
    gpu: str | None = None
    """GPU type of each replica, or None if the files do not specify it."""
    resolvers: tuple[Address, ...] = ()
    """DNS servers to query. If empty, the machine's resolvers are used."""
    capacity: float = 1.0
    """Each replica's capacity, derived from `gpu`."""


@dataclass(frozen=True, slots=True)
class FileDiscovery(Discovery):
    """Replicas listed in a file in Prometheus's file_sd format."""

    kind: ClassVar[str] = "file"
    """The name of the source."""
    compiled: ClassVar[bool] = True
    """Always true, because the compiler reads the file."""
    path: str
    """The path of the file, relative to the fleet file."""


@dataclass(frozen=True, slots=True)
class LabelSource:
    """A label that contains a property of a replica."""

    of: Literal["node", "pod"]
    label: str


@dataclass(frozen=True, slots=True)
class KubernetesDiscovery(Discovery):
    """Replicas that are the endpoints of a Kubernetes service, or the pods of an InferencePool."""

    kind: ClassVar[str] = "kubernetes"
    """The name of the source."""
    namespace: str
    service: str
    """Name of the service. Empty for an InferencePool."""
    port: str = ""
    """Name of the service port, or number of the pod port. If empty, the service's only port is used."""
    kubeconfig: str | None = None
    """Path of the kubeconfig, relative to the fleet file. If None, the current pod's service account is used."""
    kubeconfig_file: str | None = None
    """Path of the kubeconfig on this machine."""
    context: str | None = None
    """Context in the kubeconfig, or None for its current context."""
    gpu_from: LabelSource | None = None
    """Label that contains the GPU type. If None, all replicas have the same capacity."""
    zone_from: LabelSource | Literal["endpoint"] | None = None
    """Source of the zone, which is a label or the EndpointSlice. If None, replicas have no zone."""
    max_replicas: int = 1024
    """Maximum number of endpoints used from a response."""
    gpus: tuple[tuple[str, float], ...] = ()
    """(type, throughput) pairs, sorted, with the fleet's own figures, which take precedence over the GPU table."""
    control_files: tuple[str, ...] = field(default=(), compare=False)
    """The control plane's files and directories, which the fleet must not use as a kubeconfig."""
    service_port: int | None = None
    """Service port number, or None if the files do not specify it."""
    selector: tuple[tuple[str, str], ...] = ()
    """(label, value) pairs of the service's pods, sorted. Empty if the files do not specify them."""
    inference_pool: str = ""
    """Name of the InferencePool. Empty for a service."""

    @property
    def reference(self) -> str:
        """Return `NAMESPACE/SERVICE` or `NAMESPACE/inferencepool/NAME`."""
        return f"{self.namespace}/{self.service or f'inferencepool/{self.inference_pool}'}"

    @property
    def referenced_port(self) -> int | None:
        """Return the number that a Kubernetes object uses to refer to the service port, or None if it is unknown."""
        return self.service_port or (int(self.port) if self.port.isdecimal() else None)
