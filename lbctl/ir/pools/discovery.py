"""Sources of replicas that the files do not list. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lbctl.ir.address import Address


class Discovery:
    """A source of replicas; each kind is a subclass."""

    __slots__ = ()
    kind: ClassVar[str]
    """The source, and its key under `discovery`."""
    compiled: ClassVar[bool] = False
    """Whether the compiler reads the replicas, so that a topology contains them without `serve`."""


@dataclass(frozen=True, slots=True)
class DnsDiscovery(Discovery):
    """Replicas that a DNS name resolves to."""

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
    """GPU type of each replica; None if the files do not state it."""
    resolvers: tuple[Address, ...] = ()
    """DNS servers to query; empty: the machine's resolvers."""
    capacity: float = 1.0
    """The capacity of each replica, from `gpu`."""


@dataclass(frozen=True, slots=True)
class FileDiscovery(Discovery):
    """Replicas listed in a file in Prometheus' file_sd format."""

    kind: ClassVar[str] = "file"
    """The name of the source."""
    compiled: ClassVar[bool] = True
    """The compiler reads the file."""
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
    """Name of the service; empty for an InferencePool."""
    port: str = ""
    """The name of the service's port, or the number of the pods' port; empty: the service's only port."""
    kubeconfig: str | None = None
    """Path of the kubeconfig, relative to the fleet file; None: the service account of the current pod."""
    kubeconfig_file: str | None = None
    """Path of the kubeconfig on this machine."""
    context: str | None = None
    """Context of the kubeconfig; None: its current context."""
    gpu_from: LabelSource | None = None
    """Label that contains the GPU type; None: all replicas have the same capacity."""
    zone_from: LabelSource | Literal["endpoint"] | None = None
    """Source of the zone: a label, or the EndpointSlice; None: replicas have no zone."""
    max_replicas: int = 1024
    """Maximum number of endpoints used from a response."""
    gpus: tuple[tuple[str, float], ...] = ()
    """(type, throughput), sorted: the fleet's own figures, which take precedence over the GPU table."""
    control_files: tuple[str, ...] = field(default=(), compare=False)
    """Files and directories of the control plane. The fleet must not use them as a kubeconfig."""
    service_port: int | None = None
    """Number of the service's port; None if the files do not state it."""
    selector: tuple[tuple[str, str], ...] = ()
    """(label, value) of the service's pods, sorted; empty if the files do not state them."""
    inference_pool: str = ""
    """Name of the InferencePool; empty for a service."""

    @property
    def reference(self) -> str:
        """Return `NAMESPACE/SERVICE` or `NAMESPACE/inferencepool/NAME`."""
        return f"{self.namespace}/{self.service or f'inferencepool/{self.inference_pool}'}"

    @property
    def referenced_port(self) -> int | None:
        """Return the number that a Kubernetes object uses to refer to the service's port; None if it is unknown."""
        return self.service_port or (int(self.port) if self.port.isdecimal() else None)
