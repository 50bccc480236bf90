"""The servers that `init` can identify, with their API, readiness path and metrics endpoint.

This module contains only data. Paths and ports are taken from the servers' own documentation. `identify` distinguishes
the servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Api = Literal["openai", "v2", "own"]


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A kind of model server."""

    title: str
    """Human-readable name."""
    source: str
    """Kind of the server's telemetry, or "" if it has none."""
    api: Api
    """Where a request specifies the model, which is in the JSON body, in a v2 path, or in a server-specific place."""
    ready: tuple[str, ...]
    """Paths that return status 200 once the model is ready, in order of preference. If empty, only the port is
    checked."""
    prefixes: tuple[str, ...]
    """Path prefixes that clients use."""
    page: str = "/metrics"
    """Path of the server's metrics."""
    port: int | None = None
    """Default port for the metrics, or None for the server's own port."""
    switch: str = ""
    """Option that enables the metrics."""
    paths: tuple[str, ...] = ()
    """Additional exact paths that clients use."""


_V1 = ("/v1/",)
_V2 = ("/v2/models/", "/v2/health/")
"""Excludes /v2/repository, /v2/logging and other administrative paths."""
_V2_PATHS = ("/v2",)
VLLM = ServerKind("vLLM", "vllm", "openai", ("/health",), _V1)
SGLANG = ServerKind("SGLang", "sglang", "openai", ("/health_generate", "/health"), _V1, switch="--enable-metrics")
TGI = ServerKind("Text Generation Inference", "tgi", "openai", ("/health",), (*_V1, "/generate", "/generate_stream"))
TEI = ServerKind("Text Embeddings Inference", "", "openai", ("/health",), (*_V1, "/embed", "/rerank"))
LLAMACPP = ServerKind("llama.cpp", "llamacpp", "openai", ("/health",), _V1, switch="--metrics")
TRTLLM = ServerKind("trtllm-serve", "trtllm", "openai", ("/health",), _V1, page="/prometheus/metrics")
LMDEPLOY = ServerKind("LMDeploy", "lmdeploy", "openai", ("/health",), _V1, switch="--enable-metrics")
DYNAMO = ServerKind("Dynamo frontend", "dynamo", "openai", ("/health",), _V1)
NIM = ServerKind("NVIDIA NIM", "nim", "openai", ("/v1/health/ready",), _V1, page="/v1/metrics")
NIM_VLLM = ServerKind("NVIDIA NIM", "vllm", "openai", ("/v1/health/ready",), _V1, page="/v1/metrics")
OPENAI = ServerKind("an OpenAI-compatible server", "", "openai", ("/v1/models",), _V1)
RAY = ServerKind("Ray Serve", "ray", "own", ("/-/healthz",), ("/",), port=8080)
RAY_LLM = ServerKind("Ray Serve LLM", "ray", "openai", ("/-/healthz",), _V1, port=8080)
TRITON = ServerKind("Triton", "triton", "v2", ("/v2/health/ready",), _V2, port=8002, paths=_V2_PATHS)
KSERVE = ServerKind("KServe", "kserve", "v2", ("/v2/health/ready",), (*_V2, "/v1/models/"), paths=_V2_PATHS)
KSERVE_V1 = ServerKind("KServe", "kserve", "own", ("/v1/models",), ("/v1/models/",))
MLSERVER = ServerKind("MLServer", "kserve", "v2", ("/v2/health/ready",), _V2, port=8082, paths=_V2_PATHS)
V2 = ServerKind("a server with the v2 protocol", "", "v2", ("/v2/health/ready",), _V2, paths=_V2_PATHS)
TORCHSERVE = ServerKind(
    "TorchServe", "torchserve", "own", ("/ping",), ("/predictions/",), port=8082, switch="metrics_mode=prometheus"
)
TFSERVING = ServerKind(
    "TensorFlow Serving", "tfserving", "own", (), ("/v1/models/",), page="/monitoring/prometheus/metrics"
)
GPU_PAGES = {
    "agent": "lbctl agent",
    "dcgm": "DCGM exporter",
    "nvidia_gpu_exporter": "nvidia_gpu_exporter",
    "amd": "AMD metrics exporter",
}
"""Maps a GPU exporter's telemetry kind to its title."""
