"""The settings of one agent. Durations are in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.ir.address import Address
from lbctl.signals import KINDS
from lbctl.signals.signal import FATAL_XIDS

ENGINE_KINDS = tuple(kind for kind in KINDS if kind not in {"agent", "amd", "dcgm", "nvidia_gpu_exporter"})
"""Kinds of metrics pages that engines have."""
NO_PAGE = "none"
"""The kind of an engine without a metrics page."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """The request of warm-up and probe."""

    path: str = "/v1/completions"
    body: str = ""
    """JSON; empty: one token of the first model that `/v1/models` lists."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of one agent, which watches one engine."""

    engine: str
    """URL of the engine, without a path: `http://127.0.0.1:8000`."""
    kind: str
    """Kind of the engine's metrics page, one of `ENGINE_KINDS` or `NO_PAGE`; empty: detected from the page."""
    bind: Address
    """HTTP listen address."""
    check_bind: Address
    """Listen address for HAProxy agent checks."""
    state: str
    """Directory of the control socket and of the saved faults."""
    devices: tuple[str, ...] | None = None
    """GPUs as in `devices` of a replica; None: all, empty: none."""
    health_path: str = "/health"
    """Path of the engine's health check."""
    health_statuses: tuple[int, ...] = (200,)
    """Statuses of a healthy engine."""
    metrics_path: str = "/metrics"
    """Path of the engine's metrics page, or its URL if it has another port."""
    key_header: str = "authorization"
    """Header with the engine's key."""
    key_prefix: str = ""
    """Text in front of the content of `key_file` in this header."""
    key_file: str = ""
    """File with the key; empty: no key."""
    warmup: int = 0
    """Number of requests to a fresh engine before it is reported as healthy."""
    probe: bool = False
    """Whether an idle engine gets a request of one token every `PROBE_INTERVAL` seconds."""
    request: EngineRequest = EngineRequest()
    drain_deadline: float = 300.0
    """Maximum duration of a drain at SIGTERM."""
    fatal_xids: tuple[int, ...] = FATAL_XIDS
    min_free_memory: int | None = None
    """Bytes; None: not checked."""
    max_slowdown: float = 0.5
    """Share of its clock that a GPU may lose because of heat, 0 to 1."""
    stalled_after: float = 15.0
    """Time without progress, while requests are in flight, after which the engine counts as wedged."""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    """File with the token for HTTP; empty: no token is needed."""
    allow: tuple[str, ...] = ()
    """Client networks; empty: every client that can connect. Required beyond loopback, unless TLS and token are set."""
