"""Where the replicas of a pool come from that the files do not list. Durations are in milliseconds."""

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
    """Whether the compiler reads the replicas, so that a topology has them without `serve`."""


@dataclass(frozen=True, slots=True)
class DnsDiscovery(Discovery):
    """Replicas that a DNS name resolves to."""

    kind: ClassVar[str] = "dns"
    """The name of the source."""
    name: str
    port: int
    """The port of each replica."""
    refresh: int = 10_000
    """The longest time between two lookups."""
    max_replicas: int = 32
    """The number of addresses beyond which an answer is cut off."""
    gpu: str | None = None
    """The GPU of each replica; None where the files give none."""
    resolvers: tuple[Address, ...] = ()
    """The DNS servers that are asked; empty: those of the machine."""
    capacity: float = 1.0
    """The capacity of each replica, from `gpu`."""


@dataclass(frozen=True, slots=True)
class FileDiscovery(Discovery):
    """Replicas listed in a file of Prometheus' file_sd form."""

    kind: ClassVar[str] = "file"
    """The name of the source."""
    compiled: ClassVar[bool] = True
    """The compiler reads the file."""
    path: str
    """The path of the file, relative to the fleet file."""


@dataclass(frozen=True, slots=True)
class LabelSource:
    """A label that says something about a replica."""

    of: Literal["node", "pod"]
    label: str


@dataclass(frozen=True, slots=True)
class KubernetesDiscovery(Discovery):
    """Replicas that are the endpoints of a Kubernetes service."""

    kind: ClassVar[str] = "kubernetes"
    """The name of the source."""
    namespace: str
    service: str
    port: str = ""
    """The name of the service's port, or the number of the pods' port; empty: the service's only port."""
    kubeconfig: str | None = None
    """The path of the kubeconfig, relative to the fleet file; None: the service account of the own pod."""
    kubeconfig_file: str | None = None
    """The path of the kubeconfig on this machine."""
    context: str | None = None
    """The context of the kubeconfig; None: its current one."""
    gpu_from: LabelSource | None = None
    """Where the type of the GPU is written; None: every replica has the same capacity."""
    zone_from: LabelSource | Literal["endpoint"] | None = None
    """Where the zone is written: a label, or the EndpointSlice; None: no replica has a zone."""
    max_replicas: int = 1024
    """The number of endpoints beyond which an answer is cut off."""
    gpus: tuple[tuple[str, float], ...] = ()
    """(type, throughput): the fleet's own figures, which come before those of the GPU table; sorted."""
    control_files: tuple[str, ...] = field(default=(), compare=False)
    """Files and directories of the control plane, which a kubeconfig of the fleet's author may not name."""
