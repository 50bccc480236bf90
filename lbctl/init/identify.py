"""Identifies a server by its responses, first by names in the responses and then by metric names.

`/v1/models` alone is not sufficient, because half of all server kinds provide it. The engine is recognised by
`owned_by` (vLLM, SGLang, llama.cpp, trtllm-serve and LMDeploy use their own names), by `/v2` (Triton, MLServer,
KServe), or by a page that only one kind of server provides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lbctl.init import kinds as k
from lbctl.init.gpus import gpus_of
from lbctl.init.models import NONE, Models, management_models, openai_models, v1_models, v2_models
from lbctl.init.probe import ServerResponses
from lbctl.init.probe_target import ProbeTarget
from lbctl.signals.detect import page_kind

_REFUSALS = frozenset({401, 403})
_HEALTHY = frozenset({"Healthy", "Partial Healthy", "Unhealthy"})


@dataclass(frozen=True, slots=True)
class IdentifiedServer:
    """A server that answers inference requests."""

    target: ProbeTarget
    kind: k.ServerKind
    models: Models
    """The server's models."""
    page: str = ""
    """Path of the server's metrics, if they were found on its own port."""
    apps: tuple[tuple[str, str], ...] = ()
    """(route prefix, application name) pair for each Ray Serve application."""
    wants_key: bool = False
    """Whether the server rejects the model-list request, either without a key or with the given key."""


@dataclass(frozen=True, slots=True)
class AuxiliaryEndpoint:
    """An auxiliary endpoint on the same host as servers.

    The endpoint is a GPU metrics exporter, a separate metrics port of a server, or TorchServe's management API.
    """

    target: ProbeTarget
    source: str
    """Name of the metrics source."""
    role: Literal["gpus", "page", "management"]
    title: str
    """Human-readable name."""
    models: Models = NONE
    """Models managed by the endpoint, possibly none."""
    gpus: tuple[str, ...] = ()
    """One name per GPU, as reported in its metrics."""


def identify(answers: ServerResponses) -> IdentifiedServer | AuxiliaryEndpoint | str:
    """Identify the server by its responses. If this is not possible, return the reason as a string."""
    kind = _kind(answers)
    if kind is not None:
        return _server(answers, kind)
    return _auxiliary(answers) or _unknown(answers)


def _kind(answers: ServerResponses) -> k.ServerKind | None:
    return _by_protocol(answers) or _by_engine(answers) or _by_page(answers) or _by_fallback(answers)


def _by_protocol(answers: ServerResponses) -> k.ServerKind | None:
    kinds = {"triton": k.TRITON, "mlserver": k.MLSERVER, "kserve": k.KSERVE}
    name = _text(answers.data("/v2"), "name")
    if name in kinds:
        return kinds[name]
    if _ray_apps(answers):
        return k.RAY_LLM if openai_models(answers.data("/v1/models")).raw else k.RAY
    if "modelInfo" in _keys(answers.data("/v1/metadata")):
        return k.NIM_VLLM if page_kind(answers.page("/v1/metrics")) == "vllm" else k.NIM
    return None


def _by_engine(answers: ServerResponses) -> k.ServerKind | None:
    engines = {
        "vllm": k.VLLM, "sglang": k.SGLANG, "llamacpp": k.LLAMACPP, "tensorrt_llm": k.TRTLLM, "lmdeploy": k.LMDEPLOY,
    }  # fmt: skip
    kind = next((engines[kind] for kind in openai_models(answers.data("/v1/models")).owners if kind in engines), None)
    if kind is not None:
        return kind
    if "default_generation_settings" in _keys(answers.data("/props")):
        return k.LLAMACPP
    if {"model_path", "is_generation"} <= _keys(answers.data("/get_model_info")):
        return k.SGLANG
    return _by_info(answers.data("/info"))


def _by_info(info: Any) -> k.ServerKind | None:
    """Distinguish Hugging Face's two servers. Only the embeddings server reports its model's type."""
    if {"model_id", "model_type"} <= _keys(info):
        return k.TEI
    router = _text(info, "router").startswith("text-generation-router")
    return k.TGI if router or {"model_id", "max_total_tokens"} <= _keys(info) else None


def _by_page(answers: ServerResponses) -> k.ServerKind | None:
    """Identify engines by their metrics, which are public even if listing the models requires a key."""
    engines = {
        "vllm": k.VLLM, "sglang": k.SGLANG, "tgi": k.TGI, "lmdeploy": k.LMDEPLOY, "llamacpp": k.LLAMACPP,
        "dynamo": k.DYNAMO,
    }  # fmt: skip
    if page_kind(answers.page("/prometheus/metrics")) == "trtllm":
        return k.TRTLLM
    if page_kind(answers.page("/monitoring/prometheus/metrics")) == "tfserving":
        return k.TFSERVING
    return engines.get(page_kind(answers.page("/metrics")))


def _by_fallback(answers: ServerResponses) -> k.ServerKind | None:
    if _text(answers.data("/ping"), "status") in _HEALTHY:
        return k.TORCHSERVE
    if v1_models(answers.data("/v1/models")).raw:
        return k.KSERVE_V1
    if openai_models(answers.data("/v1/models")).raw:
        return k.OPENAI
    return k.V2 if {"name", "extensions"} <= _keys(answers.data("/v2")) else None


def _server(answers: ServerResponses, kind: k.ServerKind) -> IdentifiedServer:
    match kind:
        case k.ServerKind(api="v2"):
            models = v2_models(answers)
        case k.KSERVE_V1:
            models = v1_models(answers.data("/v1/models"))
        case _:
            models = openai_models(answers.data("/v1/models"))
    if kind in (k.TGI, k.TEI) and not models.raw:
        models = Models.of([_text(answers.data("/info"), "model_id")])
    page = kind.page if kind.port is None and kind.source and answers.page(kind.page) else ""
    wants_key = "/v1/models" in answers.by_path and answers.by_path["/v1/models"].status in _REFUSALS
    apps = _ray_apps(answers) if kind is k.RAY else ()
    return IdentifiedServer(answers.target, kind, models, page, apps, wants_key)


def _auxiliary(answers: ServerResponses) -> AuxiliaryEndpoint | None:
    page = answers.page("/metrics")
    source = page_kind(page)
    if source in k.GPU_PAGES:
        return AuxiliaryEndpoint(answers.target, source, "gpus", k.GPU_PAGES[source], gpus=gpus_of(source, page))
    if source in {"triton", "torchserve", "kserve", "ray"}:
        return AuxiliaryEndpoint(answers.target, source, "page", "metrics of servers")
    models = management_models(answers.data("/models"))
    return (
        AuxiliaryEndpoint(answers.target, "torchserve", "management", "TorchServe's management", models)
        if models.raw
        else None
    )


def _ray_apps(answers: ServerResponses) -> tuple[tuple[str, str], ...]:
    """Return each Ray Serve application's route prefix and name. Empty if this is not Ray Serve."""
    routes = answers.data("/-/routes")
    is_ray = isinstance(routes, dict) and all(
        key[:1] == "/" and isinstance(value, str) for key, value in routes.items()
    )
    return tuple(sorted(routes.items())) if is_ray else ()


def _unknown(answers: ServerResponses) -> str:
    answered = [response for response in answers.by_path.values() if response.status]
    if "ray_version" in _keys(answers.data("/api/version")):
        return "this is Ray's dashboard: use the address of Ray Serve's HTTP proxy (port 8000 by default)"
    if any(response.html and response.status == 200 for response in answered):
        return "it returns an HTML page, so init does not recognise it as a model server"
    if all(300 <= response.status < 400 for response in answered):
        return "it redirects, and init does not follow redirects: use the server's own address"
    if any(response.status in _REFUSALS for response in answered):
        return "it requires a key: use --api-key-file"
    return "its responses do not match a model server that init supports"


def _text(data: Any, key: str) -> str:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, str) else ""


def _keys(data: Any) -> frozenset[str]:
    return frozenset(data) if isinstance(data, dict) else frozenset()
