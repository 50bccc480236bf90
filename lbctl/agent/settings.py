"""The settings of one agent. Durations are in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.ir.address import Address
from lbctl.signals import KINDS
from lbctl.signals.signal import FATAL_XIDS

ENGINE_KINDS = tuple(kind for kind in KINDS if kind not in {"agent", "amd", "dcgm", "nvidia_gpu_exporter"})
"""Kinds of engine metrics pages."""
NO_PAGE = "none"
"""The kind of an engine without a metrics page."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """The request for warm-ups and probes."""

    path: str = "/v1/completions"
    body: str = ""
    """JSON body; if empty, one token is requested from the first model in `/v1/models`."""


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
    """Directory for the control socket and the saved faults."""
    devices: tuple[str, ...] | None = None
    """GPUs to watch, as in a replica's `devices`; None: all, empty: none."""
    health_path: str = "/health"
    """Path of the engine's health check."""
    health_statuses: tuple[int, ...] = (200,)
    """Statuses of a healthy engine."""
    metrics_path: str = "/metrics"
    """Path of the engine's metrics page, or its URL if it has another port."""
    key_header: str = "authorization"
    """Header with the engine's key."""
    key_prefix: str = ""
    """Prefix of the key in this header."""
    key_file: str = ""
    """File with the key; empty: no key."""
    warmup: int = 0
    """Number of requests to send to a fresh engine before reporting it as healthy."""
    probe: bool = False
    """Whether an idle engine gets a one-token request every `PROBE_INTERVAL` seconds."""
    request: EngineRequest = EngineRequest()
    drain_deadline: float = 300.0
    """Maximum duration of a drain after SIGTERM."""
    fatal_xids: tuple[int, ...] = FATAL_XIDS
    min_free_memory: int | None = None
    """Bytes; None: not checked."""
    max_slowdown: float = 0.5
    """Fraction of its clock that a GPU may lose because of heat, 0 to 1."""
    stalled_after: float = 15.0
    """Time without progress on requests in flight after which the engine counts as wedged."""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    """File with the token for HTTP; empty: no token is needed."""
    allow: tuple[str, ...] = ()
    """Networks of allowed clients; empty: all networks. Required beyond loopback, unless TLS and a token are set."""
