"""The settings of an agent. Durations are in seconds."""

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
    """The request used for warm-ups and probes."""

    path: str = "/v1/completions"
    body: str = ""
    """JSON body. If empty, the request asks the first model in `/v1/models` for one token."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of an agent, which monitors one engine."""

    engine: str
    """URL of the engine, without a path, for example `http://127.0.0.1:8000`."""
    kind: str
    """Kind of the engine's metrics page, which is one of `ENGINE_KINDS` or `NO_PAGE`. If empty, it is detected from the
    page."""
    bind: Address
    """HTTP listen address."""
    check_bind: Address
    """Listen address for HAProxy agent checks."""
    state: str
    """Directory for the control socket and the saved faults."""
    devices: tuple[str, ...] | None = None
    """GPUs to monitor, as in a replica's `devices`. None means all GPUs, and an empty sequence means none."""
    health_path: str = "/health"
    """Path of the engine's health check."""
    health_statuses: tuple[int, ...] = (200,)
    """HTTP statuses that indicate a healthy engine."""
    metrics_path: str = "/metrics"
    """Path of the engine's metrics page, or its URL if it uses another port."""
    key_header: str = "authorization"
    """Name of the header that contains the engine's key."""
    key_prefix: str = ""
    """Prefix of the key in this header."""
    key_file: str = ""
    """File that contains the key. If empty, no key is used."""
    warmup: int = 0
    """Number of requests to send to a newly started engine before reporting it as healthy."""
    probe: bool = False
    """Whether a one-token request is sent to an idle engine every `PROBE_INTERVAL` seconds."""
    request: EngineRequest = EngineRequest()
    drain_deadline: float = 300.0
    """Maximum duration of a drain after SIGTERM."""
    fatal_xids: tuple[int, ...] = FATAL_XIDS
    min_free_memory: int | None = None
    """Minimum free GPU memory, in bytes. If None, it is not checked."""
    max_slowdown: float = 0.5
    """Fraction of its clock, from 0 to 1, that a GPU may lose because of heat."""
    stalled_after: float = 15.0
    """Time without progress on requests in flight after which the engine counts as wedged."""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    """File that contains the token for HTTP. If empty, no token is needed."""
    allow: tuple[str, ...] = ()
    """Networks of allowed clients, or an empty sequence for all networks. Required beyond loopback unless TLS and a
    token are set."""
