"""Detects the kind of a metrics page from its metric names."""

from __future__ import annotations

import re

_PAGES = {
    "agent": r"lbctl_agent_",
    "dcgm": r"DCGM_FI_",
    "nvidia_gpu_exporter": r"nvidia_smi_",
    "amd": r"(?:amd_)?gpu_(?:gfx_activity|junction_temperature|edge_temperature|free_vram|total_vram)",
    "dynamo": r"dynamo_frontend_",
    "smg": r"smg_",
    "llm_d": r"llm_d_epp_",
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
"""Maps a kind of telemetry to the prefixes of its metric names.

The order matters if a page contains metrics of several kinds: the agent with GPU metrics, Triton with its vLLM backend,
vLLM inside Ray, or an engine behind a router.
"""
_PAGE_PATTERNS = {
    kind: re.compile(rf"^(?:# (?:HELP|TYPE) )?(?:{names})".encode(), re.M) for kind, names in _PAGES.items()
}


def page_kind(page: bytes) -> str:
    """Return the kind of telemetry source that exposes such a page, or "" if it is unknown."""
    return next((kind for kind, names in _PAGE_PATTERNS.items() if names.search(page)), "")
