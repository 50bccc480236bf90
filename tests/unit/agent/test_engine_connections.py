"""The agent's connections to real HTTP servers: health check, metrics page, warm-up and probe."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lbctl.agent import engine, requests
from lbctl.agent.engine import EngineWatch
from lbctl.agent.readings import EngineReading
from lbctl.agent.requests import EngineRequests
from lbctl.agent.settings import EngineRequest
from lbctl.runtime.net import http_client
from lbctl.runtime.net.resolve import UnresolvedError
from tests.support.agent import settings
from tests.support.signals import fixture

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _good(request: web.Request) -> web.StreamResponse:
    match request.path:
        case "/metrics":
            return web.Response(body=fixture("vllm_v1"))
        case "/v1/models":
            return web.json_response({"data": [{"id": "llama"}, {"id": "adapter"}]})
        case "/v1/completions":
            wanted = {"model": "llama", "prompt": "Hi", "max_tokens": 1}
            return web.json_response({}, status=200 if await request.json() == wanted else 400)
    return web.Response(text="ok")


def _with(handler: Handler, use: Callable[[str], Awaitable[Any]]) -> Any:
    """Return the result of `use`, which gets the URL of a server with this handler."""

    async def run() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await use(f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def _read(handler: Handler, **changes: Any) -> EngineReading:
    reading = _with(handler, lambda url: EngineWatch(settings(engine=url, **changes)).read())
    assert isinstance(reading, EngineReading)
    return reading


def _send(handler: Handler, **changes: Any) -> str:
    problem = _with(handler, lambda url: EngineRequests(settings(engine=url, **changes)).send())
    assert isinstance(problem, str)
    return problem


def _failing(path: str, status: int = 503) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status) if request.path == path else await _good(request)

    return handler


def test_good_engine() -> None:
    reading = _read(_good)
    assert (reading.reachable, reading.problem, reading.page_problem) == (True, "", "")
    assert (reading.in_flight, reading.counters["finished"]) == (24, 902)


def test_problems_of_the_health_check_and_the_page_are_separate() -> None:
    reading = _read(_failing("/health"))
    assert (reading.reachable, reading.problem, reading.page_problem) == (True, "/health: status 503", "")
    reading = _read(_failing("/metrics", 404))
    assert (reading.problem, reading.page_problem, reading.in_flight) == ("", "status 404", None)
    assert _read(_failing("/health", 204), health_statuses=(200, 204)).problem == ""


def test_no_page_is_read_if_the_engine_has_none() -> None:
    reading = _read(_failing("/metrics"), kind="none")
    assert (reading.problem, reading.page_problem, reading.signals) == ("", "", {})


@pytest.mark.parametrize("kind", ["vllm_v1", "sglang", "tgi"])
def test_kind_is_detected_by_the_page(kind: str) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=fixture(kind))

    assert _read(handler, kind="").signals == _read(handler, kind=kind.partition("_")[0]).signals != {}


def test_page_of_an_unknown_engine_is_a_problem() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"DCGM_FI_DEV_GPU_UTIL 1\n")

    assert "set --kind" in _read(handler, kind="").page_problem


def test_page_is_read_at_the_path_of_its_kind() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=fixture("trtllm") if request.path == "/prometheus/metrics" else b"[]")

    assert _read(handler, kind="trtllm").in_flight == 9


def test_stopped_engine_is_not_reachable() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        watch = EngineWatch(settings(engine=f"http://127.0.0.1:{bound.getsockname()[1]}"))
        reading = asyncio.run(watch.read())
    assert not reading.reachable
    assert reading.problem.startswith("/health: ")
    assert reading.page_problem


def test_silent_engine_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "READ_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        watch = EngineWatch(settings(engine=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        reading = asyncio.run(watch.read())
    assert reading.reachable
    assert reading.problem == "/health: no response within 0.3 s"


def test_unresolved_name_does_not_mean_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_arguments: object) -> None:
        raise UnresolvedError("no name server answered")

    monkeypatch.setattr(http_client, "resolve", resolve)
    reading = asyncio.run(EngineWatch(settings(engine="http://engine.example:8000")).read())
    assert (reading.reachable, reading.in_flight) == (True, None)
    assert reading.problem == "/health: no name server answered"


def test_unreachable_network_does_not_mean_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(_info: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(http_client, "_socket", create)
    reading = asyncio.run(EngineWatch(settings(engine="http://127.0.0.1:8000")).read())
    assert (reading.reachable, reading.problem) == (True, "/health: Network is unreachable")


def test_key_is_sent_and_a_missing_key_is_explained(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers.get("x-key") != "secret":
            return web.Response(status=401)
        return await _good(request)

    file = tmp_path / "key"
    file.write_text("secret\n")
    key = {"key_header": "x-key", "key_file": str(file)}
    assert (_read(handler, **key).problem, _send(handler, **key)) == ("", "")
    file.unlink()
    hint = "status 401; the key file cannot be read (no such file or directory)"
    reading = _read(handler, **key)
    assert (reading.problem, reading.page_problem) == (f"/health: {hint}", hint)
    assert _send(handler, **key) == f"/v1/models: {hint}"


def test_request_of_one_token() -> None:
    assert _send(_good) == ""


def test_own_request() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        wanted = request.path == "/v2/infer" and await request.text() == '{"x": 1}'
        return web.Response(text="fine" if wanted else "", status=200 if wanted else 404)

    assert _send(handler, request=EngineRequest("/v2/infer", '{"x": 1}')) == ""


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        (b'{"data": []}', "/v1/models lists no model; set the request with --request"),
        (b"{}", "/v1/models lists no model; set the request with --request"),
        (b'{"data": [{"id": 3}]}', "/v1/models: id is not a string"),
        (b"<html>", "/v1/models: not JSON"),
    ],
)
def test_models_that_cannot_be_used(models: bytes, problem: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=models)

    assert _send(handler) == problem


def test_failed_requests() -> None:
    own: dict[str, Any] = {"request": EngineRequest("/v2/infer", json.dumps({"x": 1}))}
    assert _send(_failing("/v1/completions", 500)) == "/v1/completions: status 500"
    assert _send(_failing("/v2/infer", 302), **own) == "/v2/infer: status 302"
    assert _send(_failing("/v2/infer", 200), **own) == "/v2/infer: an empty response"


def test_request_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "TIMEOUTS", {"probe": 0.3})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        problem = asyncio.run(EngineRequests(settings(engine=url)).send("probe"))
    assert problem == "/v1/completions: no complete response within 0.3 s"


def test_request_to_a_stopped_engine_fails() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert asyncio.run(EngineRequests(settings(engine=url)).send()).startswith("/v1/completions: ")
