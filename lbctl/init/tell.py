"""What a server is, by what only such a server says: names in its bodies first, then names of its metrics.

`/v1/models` alone tells little: half of all servers have it. Who made it stands in `owned_by` (vLLM, SGLang, llama.cpp,
trtllm-serve, LMDeploy write their own names), in `/v2` (Triton, MLServer, KServe), or in a page that nobody else has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from lbctl.init import kinds as k
from lbctl.init.ask import Answers
from lbctl.init.gpus import gpus_of
from lbctl.init.models import NONE, Models, listed, management, repository, v1_names
from lbctl.init.place import Place

_PAGES = {
    "dcgm": r"DCGM_FI_",
    "nvidia_gpu_exporter": r"nvidia_smi_",
    "amd": r"(?:amd_)?gpu_(?:gfx_activity|junction_temperature|edge_temperature|free_vram|total_vram)",
    "triton": r"nv_",
    "ray": r"ray_",
    "vllm": r"vllm:",
    "sglang": r"sglang:",
    "tgi": r"tgi_",
    "trtllm": r"trtllm_",
    "lmdeploy": r"lmdeploy:",
    "llamacpp": r"llamacpp:",
    "torchserve": r"ts_(?:inference|queue)_|Requests2XX",
    "kserve": r"model_infer_request_|rest_server_|request_predict_seconds",
    "tfserving": r":tensorflow:",
    "nim": r"num_requests_(?:running|waiting)|num_request_max|gpu_cache_usage_perc",
}
"""Kind of the telemetry → how names of its metrics begin. The order matters where one page shows another's metrics:
Triton with its vLLM backend, vLLM inside Ray."""
_READ = {kind: re.compile(rf"^(?:# (?:HELP|TYPE) )?(?:{names})".encode(), re.M) for kind, names in _PAGES.items()}
_HEALTHY = frozenset({"Healthy", "Partial Healthy", "Unhealthy"})


@dataclass(frozen=True, slots=True)
class Server:
    """One that answers inference. `page`: the path of its metrics where they were seen on its own port. `apps`: Ray
    Serve's prefixes, each with the name of its application."""

    place: Place
    kind: k.Kind
    models: Models
    page: str = ""
    apps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside servers of the same host: GPUs' metrics, servers' metrics on a port of their own, the
    management of TorchServe. `gpus`: as the page names them, one for each GPU."""

    place: Place
    source: str
    role: Literal["gpus", "page", "management"]
    title: str
    models: Models = NONE
    gpus: tuple[str, ...] = ()


def told(answers: Answers) -> Server | Beside | str:
    """What is there, or in words why `init` cannot say."""
    kind = _kind(answers)
    if kind is not None:
        return _server(answers, kind)
    return _beside(answers) or _unknown(answers)


def page_kind(page: bytes) -> str:
    """Whose metrics these are; "" for nobody's that is known."""
    return next((kind for kind, names in _READ.items() if names.search(page)), "")


def _kind(answers: Answers) -> k.Kind | None:
    return _by_protocol(answers) or _by_engine(answers) or _by_page(answers) or _otherwise(answers)


def _by_protocol(answers: Answers) -> k.Kind | None:
    known = {"triton": k.TRITON, "mlserver": k.MLSERVER, "kserve": k.KSERVE}
    name = _text(answers.data("/v2"), "name")
    if name in known:
        return known[name]
    if _ray_apps(answers):
        return k.RAY_LLM if listed(answers.data("/v1/models")).raw else k.RAY
    if "modelInfo" in _keys(answers.data("/v1/metadata")):
        return k.NIM_VLLM if page_kind(answers.page("/v1/metrics")) == "vllm" else k.NIM
    return None


def _by_engine(answers: Answers) -> k.Kind | None:
    makers = {
        "vllm": k.VLLM, "sglang": k.SGLANG, "llamacpp": k.LLAMACPP, "tensorrt_llm": k.TRTLLM, "lmdeploy": k.LMDEPLOY,
    }  # fmt: skip
    owner = next((makers[item] for item in listed(answers.data("/v1/models")).owners if item in makers), None)
    if owner is not None:
        return owner
    if "default_generation_settings" in _keys(answers.data("/props")):
        return k.LLAMACPP
    if {"model_path", "is_generation"} <= _keys(answers.data("/get_model_info")):
        return k.SGLANG
    return _by_info(answers.data("/info"))


def _by_info(info: Any) -> k.Kind | None:
    """Hugging Face's two servers; only the one for embeddings says what type of model it has."""
    if {"model_id", "model_type"} <= _keys(info):
        return k.TEI
    router = _text(info, "router").startswith("text-generation-router")
    return k.TGI if router or {"model_id", "max_total_tokens"} <= _keys(info) else None


def _by_page(answers: Answers) -> k.Kind | None:
    """Engines whose list of models wants a key show their metrics all the same."""
    shown = {"vllm": k.VLLM, "sglang": k.SGLANG, "tgi": k.TGI, "lmdeploy": k.LMDEPLOY, "llamacpp": k.LLAMACPP}
    if page_kind(answers.page("/prometheus/metrics")) == "trtllm":
        return k.TRTLLM
    if page_kind(answers.page("/monitoring/prometheus/metrics")) == "tfserving":
        return k.TFSERVING
    return shown.get(page_kind(answers.page("/metrics")))


def _otherwise(answers: Answers) -> k.Kind | None:
    if _text(answers.data("/ping"), "status") in _HEALTHY:
        return k.TORCHSERVE
    if v1_names(answers.data("/v1/models")).raw:
        return k.KSERVE_V1
    if listed(answers.data("/v1/models")).raw:
        return k.OPENAI
    return k.V2 if {"name", "extensions"} <= _keys(answers.data("/v2")) else None


def _server(answers: Answers, kind: k.Kind) -> Server:
    match kind:
        case k.Kind(api="v2"):
            models = repository(answers)
        case k.KSERVE_V1:
            models = v1_names(answers.data("/v1/models"))
        case _:
            models = listed(answers.data("/v1/models"))
    if kind in (k.TGI, k.TEI) and not models.raw:
        models = Models.of([_text(answers.data("/info"), "model_id")])
    page = kind.page if kind.port is None and kind.source and answers.page(kind.page) else ""
    return Server(answers.place, kind, models, page, _ray_apps(answers) if kind is k.RAY else ())


def _beside(answers: Answers) -> Beside | None:
    page = answers.page("/metrics")
    source = page_kind(page)
    if source in k.GPU_PAGES:
        return Beside(answers.place, source, "gpus", k.GPU_PAGES[source], gpus=gpus_of(source, page))
    if source in {"triton", "torchserve", "kserve", "ray"}:
        return Beside(answers.place, source, "page", "metrics of servers")
    models = management(answers.data("/models"))
    return Beside(answers.place, "torchserve", "management", "TorchServe's management", models) if models.raw else None


def _ray_apps(answers: Answers) -> tuple[tuple[str, str], ...]:
    """The prefixes of Ray Serve's applications, each with its name; none where this is no Ray Serve."""
    routes = answers.data("/-/routes")
    known = isinstance(routes, dict) and all(key[:1] == "/" and isinstance(value, str) for key, value in routes.items())
    return tuple(sorted(routes.items())) if known else ()


def _unknown(answers: Answers) -> str:
    answered = [item for item in answers.by_path.values() if item.status]
    if "ray_version" in _keys(answers.data("/api/version")):
        return "this is Ray's dashboard: give the address of Ray Serve's HTTP proxy (port 8000 by default)"
    if any(item.html and item.status == 200 for item in answered):
        return "it answers with an HTML page: this is no model server that init knows"
    if all(300 <= item.status < 400 for item in answered):
        return "it redirects, and init does not follow: give the address where the server is"
    if any(item.status in (401, 403) for item in answered):
        return "it wants credentials, and init sends none"
    return "none of its answers is one of a model server that init knows"


def _text(data: Any, key: str) -> str:
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, str) else ""


def _keys(data: Any) -> frozenset[str]:
    return frozenset(data) if isinstance(data, dict) else frozenset()
