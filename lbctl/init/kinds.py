"""The servers that `init` knows: how each is spoken to, where it says that it is ready, where its metrics are.

Data alone. Paths and ports are those of the servers' own documentation; `tell` says how they are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Api = Literal["openai", "v2", "own"]


@dataclass(frozen=True, slots=True)
class Kind:
    """`source`: the kind of its telemetry, "" for none. `api`: how a request names its model: in the JSON body, in a
    path of the v2 protocol, or in a way of its own. `ready`: paths that answer 200 once the model is there, the best
    first; none: only the port can be checked. `page`: its metrics; `port`: their port by default, None for the server's
    own. `prefixes`: what clients ask for. `switch`: what makes it show metrics.
    """

    title: str
    source: str
    api: Api
    ready: tuple[str, ...]
    prefixes: tuple[str, ...]
    page: str = "/metrics"
    port: int | None = None
    switch: str = ""


_V1 = ("/v1/",)
_V2 = ("/v2/models/",)
VLLM = Kind("vLLM", "vllm", "openai", ("/health",), _V1)
SGLANG = Kind("SGLang", "sglang", "openai", ("/health_generate", "/health"), _V1, switch="--enable-metrics")
TGI = Kind("Text Generation Inference", "tgi", "openai", ("/health",), (*_V1, "/generate", "/generate_stream"))
TEI = Kind("Text Embeddings Inference", "", "openai", ("/health",), (*_V1, "/embed", "/rerank"))
LLAMACPP = Kind("llama.cpp", "llamacpp", "openai", ("/health",), _V1, switch="--metrics")
TRTLLM = Kind("trtllm-serve", "trtllm", "openai", ("/health",), _V1, page="/prometheus/metrics")
LMDEPLOY = Kind("LMDeploy", "lmdeploy", "openai", ("/health",), _V1, switch="--enable-metrics")
NIM = Kind("NVIDIA NIM", "nim", "openai", ("/v1/health/ready",), _V1, page="/v1/metrics")
NIM_VLLM = Kind("NVIDIA NIM", "vllm", "openai", ("/v1/health/ready",), _V1, page="/v1/metrics")
OPENAI = Kind("a server with OpenAI's API", "", "openai", ("/v1/models",), _V1)
RAY = Kind("Ray Serve", "ray", "own", ("/-/healthz",), ("/",), port=8080)
RAY_LLM = Kind("Ray Serve LLM", "ray", "openai", ("/-/healthz",), _V1, port=8080)
TRITON = Kind("Triton", "triton", "v2", ("/v2/health/ready",), _V2, port=8002)
KSERVE = Kind("KServe", "kserve", "v2", ("/v2/health/ready",), (*_V2, "/v1/models/"))
KSERVE_V1 = Kind("KServe", "kserve", "own", ("/v1/models",), ("/v1/models/",))
MLSERVER = Kind("MLServer", "kserve", "v2", ("/v2/health/ready",), _V2, port=8082)
V2 = Kind("a server of the v2 protocol", "", "v2", ("/v2/health/ready",), _V2)
TORCHSERVE = Kind(
    "TorchServe", "torchserve", "own", ("/ping",), ("/predictions/",), port=8082, switch="metrics_mode=prometheus"
)
TFSERVING = Kind("TensorFlow Serving", "tfserving", "own", (), ("/v1/models/",), page="/monitoring/prometheus/metrics")
GPU_PAGES = {"dcgm": "DCGM exporter", "nvidia_gpu_exporter": "nvidia_gpu_exporter", "amd": "AMD metrics exporter"}
"""Pages of GPUs: kind of the telemetry → its name."""
