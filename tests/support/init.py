"""HTTP servers on loopback with the responses of model servers, for the tests of `init`.

Bodies come from the servers' own code and documentation, reduced to a few fields: vLLM, SGLang, TensorRT-LLM, LMDeploy:
`ModelCard` in openai/protocol.py of each · SGLang: docs.sglang.io/basic_usage/ native_api · TGI: docs/openapi.json ·
TEI: its /info · llama.cpp: tools/server/README.md, server-context.cpp · Triton: docs/protocol of
triton-inference-server/server · KServe: python/kserve dataplane.py · MLServer: its /v2 · NIM: docs.nvidia.com/nim,
/v1/metadata · Ray Serve: python/ray/serve proxy.py · TorchServe: pytorch.org/serve, inference_api and management_api ·
TensorFlow Serving: its monitoring page. Metrics: tests/fixtures/metrics.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lbctl.base.diagnostics import Diagnostics
from lbctl.init.fleet import fleet_from_urls
from lbctl.init.probe import PATHS, REPOSITORY_INDEX
from tests.support.paths import FIXTURES

if TYPE_CHECKING:
    from tests.support.processes.certs import Pair

METRICS = FIXTURES / "metrics"
Answers = Mapping[str, Any]
"""Path → JSON, the text of a page, or (status, text)."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LISTED = "/v1/models"


def metrics(name: str) -> str:
    return (METRICS / f"{name}.prom").read_text(encoding="utf-8")


def listing(owner: str, *names: str, **more: Any) -> dict[str, Any]:
    entries = [{"id": name, "object": "model", "created": 1790000000, "owned_by": owner} | more for name in names]
    return {"object": "list", "data": entries}


def vllm(*names: str, adapters: tuple[str, ...] = ()) -> Answers:
    """Return the responses of a vLLM that serves one model under these names, with LoRA adapters on the first one."""
    model_names = names or (LLAMA,)
    listed = listing("vllm", *model_names, root=model_names[0], parent=None, max_model_len=8192)
    listed["data"] += [
        {"id": item, "object": "model", "owned_by": "vllm", "root": "/adapters/x", "parent": model_names[0]}
        for item in adapters
    ]
    return {LISTED: listed, "/version": {"version": "0.11.0"}, "/metrics": metrics("vllm_v1"), "/ping": ""}


def sglang(name: str = LLAMA) -> Answers:
    return {
        LISTED: listing("sglang", name, root=name, max_model_len=8192),
        "/get_model_info": {"model_path": name, "tokenizer_path": name, "is_generation": True},
        "/metrics": metrics("sglang"),
    }


def llamacpp(name: str = LLAMA, page: bool = True) -> Answers:
    no_page = (501, '{"error":{"code":501,"message":"This server does not support metrics endpoint.","type":"not_supported_error"}}')  # fmt: skip  # noqa: E501
    listed = listing("llamacpp", name, meta={"n_vocab": 128256}) | {"models": [{"name": name, "model": name}]}
    return {
        LISTED: listed,
        "/models": listed,
        "/props": {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4, "model_path": "/m/x.gguf"},
        "/metrics": metrics("llamacpp") if page else no_page,
    }


TGI: Answers = {
    "/info": {
        "model_id": LLAMA, "model_sha": "0e9e39f", "max_concurrent_requests": 128, "max_input_tokens": 4095,
        "max_total_tokens": 4096, "router": "text-generation-router", "version": "3.3.2", "docker_label": None,
    },
    "/metrics": metrics("tgi"),
}  # fmt: skip
TEI: Answers = {
    "/info": {
        "model_id": "BAAI/bge-large-en-v1.5", "model_type": {"embedding": {"pooling": "cls"}},
        "max_concurrent_requests": 512, "max_batch_tokens": 16384, "version": "1.9.3",
    },
}  # fmt: skip
TRTLLM: Answers = {
    LISTED: listing("tensorrt_llm", LLAMA),
    "/version": {"version": "1.1.0"},
    "/metrics": [{"gpuMemUsage": 76665782272, "iter": 154}],
    "/prometheus/metrics": metrics("trtllm"),
}
LMDEPLOY: Answers = {LISTED: listing("lmdeploy", LLAMA, root=LLAMA, parent=None), "/metrics": metrics("lmdeploy")}
DYNAMO: Answers = {LISTED: listing("nvidia", LLAMA), "/metrics": metrics("dynamo")}
_METADATA = {"version": "1.8.4", "modelInfo": [{"shortName": "llama", "modelUrl": "ngc://x"}], "assetInfo": []}
NIM: Answers = {
    LISTED: listing("system", LLAMA, root=LLAMA, parent=None),
    "/v1/metadata": _METADATA,
    "/v1/metrics": metrics("nim"),
}
NIM_NEWER: Answers = {
    LISTED: listing("vllm", LLAMA, root=LLAMA, parent=None),
    "/v1/metadata": _METADATA,
    "/v1/metrics": metrics("vllm_v1"),
    "/metrics": metrics("vllm_v1"),
}
RAY: Answers = {"/-/routes": {"/": "ranker"}, "/-/healthz": "success"}
RAY_LLM: Answers = {"/-/routes": {"/": "llm"}, "/-/healthz": "success", LISTED: listing("organization-owner", LLAMA)}
TORCHSERVE: Answers = {
    "/ping": {"status": "Healthy"},
    LISTED: (404, '{"code": 404, "type": "ResourceNotFoundException", "message": "Requested resource is not found"}'),
}
MANAGEMENT: Answers = {"/models": {"models": [{"modelName": "densenet161", "modelUrl": "densenet161.mar"}]}}
KSERVE: Answers = {
    "/v2": {"name": "kserve", "version": "0.15.2", "extensions": ["model_repository_extension"]},
    LISTED: {"models": ["iris"]},
    "/metrics": metrics("kserve"),
}
KSERVE_V1: Answers = {LISTED: {"models": ["iris"]}, "/": {"status": "alive"}, "/metrics": metrics("kserve")}
TFSERVING: Answers = {"/monitoring/prometheus/metrics": metrics("tfserving")}
OTHER: Answers = {LISTED: listing("library", "qwen3:8b")}
DCGM: Answers = {"/metrics": metrics("dcgm")}
HTML: Answers = dict.fromkeys((LISTED, "/v2", "/metrics", "/info", "/models"), "<!doctype html><title>It works</title>")


REQUESTED_PATHS = (*PATHS, REPOSITORY_INDEX)


def server_context(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def v2(name: str, *models: str) -> Answers:
    index = [{"name": item, "version": "1", "state": "READY"} for item in models]
    index.append({"name": "not_loaded", "version": "", "state": "UNAVAILABLE"})
    extensions = ["classification", "model_repository"] if name == "triton" else []
    return {"/v2": {"name": name, "version": "2.59.0", "extensions": extensions}, "/v2/repository/index": index}


@dataclass
class RunningServer:
    """A running server: its URL, and the requests that it received, in order."""

    url: str
    requests: list[web.BaseRequest] = field(default_factory=list)


@contextmanager
def serving(
    *servers: Answers | Handler, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[list[RunningServer]]:
    """Run these servers, each on its own port, in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners: list[web.AppRunner] = []
    try:
        yield [asyncio.run_coroutine_threadsafe(_start(item, host, tls, runners), loop).result() for item in servers]
    finally:
        for runner in runners:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(
    answers: Answers | Handler, host: str, tls: ssl.SSLContext | None, runners: list[web.AppRunner]
) -> RunningServer:
    server = RunningServer("")
    answer = answers if callable(answers) else answering(answers)

    async def handler(request: web.Request) -> web.StreamResponse:
        server.requests.append(request)
        return await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    runners.append(runner)
    await runner.setup()
    await web.TCPSite(runner, host, 0, ssl_context=tls).start()
    server.url = f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}"
    return server


def answering(answers: Answers) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        posted = request.path == "/v2/repository/index"
        if request.path not in answers or posted != (request.method == "POST"):
            return web.json_response({"detail": "Not Found"}, status=404)
        answer = answers[request.path]
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(
            status=status, text=text, content_type="text/plain" if status == 200 else "application/json"
        )

    return handler


def text_from_urls(urls: Iterable[str]) -> str:
    diagnostics = Diagnostics()
    text = fleet_from_urls(list(urls), diagnostics).text
    assert not len(diagnostics), [str(item) for item in diagnostics]
    return text


def fleet_of_every_kind() -> str:
    """Return the YAML of a fleet with a server of every kind, on separate hosts where kinds need it."""
    with (
        serving(vllm(), sglang("qwen/qwen3"), OTHER, llamacpp("a/gguf", page=False)) as first,
        serving(v2("triton", "resnet"), DCGM, TGI, host="127.0.0.2") as second,
        serving(v2("mlserver", "iris"), RAY, TEI, TORCHSERVE, TFSERVING, host="127.0.0.3") as third,
    ):
        return text_from_urls(item.url for item in (*first, *second, *third))


def init_process(*urls: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `lbctl init` in another process, because a process reads the system's CAs only once."""
    command = [sys.executable, "-m", "lbctl", "init", "--from", *urls]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
