"""Pools, which contain replicas that serve the same model, and how a proxy treats them.

Durations are in milliseconds.
"""

from __future__ import annotations

from lbctl.ir.pools.balance import (
    DEFAULT_SESSION_KEYS,
    Affinity,
    Algorithm,
    Balance,
    HashKey,
    Locality,
    PickPolicy,
    Prefix,
    QueuePolicy,
    SessionHeader,
    SessionKey,
    TokenLimit,
)
from lbctl.ir.pools.connections import (
    CircuitBreaker,
    Connections,
    PoolTls,
    Upstream,
    UpstreamHeader,
    header_values,
)
from lbctl.ir.pools.discovery import Discovery, DnsDiscovery, FileDiscovery, KubernetesDiscovery, LabelSource
from lbctl.ir.pools.health import (
    THRESHOLD_PARAMETER,
    ActiveCheck,
    AgentCheck,
    DeepCheck,
    GrpcCheck,
    HttpCheck,
    LoadShedding,
    PassiveCheck,
    TcpCheck,
)
from lbctl.ir.pools.pool import Model, Pool, Protocol, Replica
from lbctl.ir.pools.slow_start import SlowStart, relief, relieved
from lbctl.ir.pools.telemetry import MetricsSource, Telemetry, Weighting

__all__ = [
    "DEFAULT_SESSION_KEYS",
    "THRESHOLD_PARAMETER",
    "ActiveCheck",
    "Affinity",
    "AgentCheck",
    "Algorithm",
    "Balance",
    "CircuitBreaker",
    "Connections",
    "DeepCheck",
    "Discovery",
    "DnsDiscovery",
    "FileDiscovery",
    "GrpcCheck",
    "HashKey",
    "HttpCheck",
    "KubernetesDiscovery",
    "LabelSource",
    "LoadShedding",
    "Locality",
    "MetricsSource",
    "Model",
    "PassiveCheck",
    "PickPolicy",
    "Pool",
    "PoolTls",
    "Prefix",
    "Protocol",
    "QueuePolicy",
    "Replica",
    "SessionHeader",
    "SessionKey",
    "SlowStart",
    "TcpCheck",
    "Telemetry",
    "TokenLimit",
    "Upstream",
    "UpstreamHeader",
    "Weighting",
    "header_values",
    "relief",
    "relieved",
]
