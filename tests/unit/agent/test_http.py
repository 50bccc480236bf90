"""The agent's servers, with real connections on loopback and a replica whose health a test sets."""

from __future__ import annotations

import asyncio
import http.client
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from lbctl.agent.access import ClientNetworks
from lbctl.agent.agent_checks import MAX_CONNECTIONS, AgentCheckServer
from lbctl.agent.assessment import Assessment, Reason
from lbctl.agent.control_socket import ControlSocket
from lbctl.agent.http import AgentHttpServer
from lbctl.agent.metrics_page import XidCounts
from lbctl.agent.replica_watch import DrainResult, Health, ReplicaWatch
from lbctl.cli import agent_control
from lbctl.ir.address import Address
from tests.support.agent import settings
from tests.support.processes.ports import HOST, free_port

HEALTHY = Assessment("healthy", weight=75, notes=("no GPU is watched",))
XID = Assessment("unhealthy", (Reason("xid", "GPU 0 reported XID 79", "0"),))
EVERYWHERE = ClientNetworks()
ELSEWHERE = ClientNetworks.parse(("192.0.2.0/24",))


@dataclass
class Watch:
    """A replica in a fixed state, which records the clients that got answers."""

    assessment: Assessment = HEALTHY
    gpus: None = None
    engine: None = None
    in_flight: int | None = 2
    xids: XidCounts = field(default_factory=XidCounts)
    clients: list[tuple[str, int]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    @property
    def health(self) -> Health:
        return Health(self.assessment, 1.7e9)

    def answered(self, client: str, threshold: int = 2) -> None:
        self.clients.append((client, threshold))

    async def drain(self, wait: float) -> DrainResult:
        self.waits.append(wait)
        return DrainResult(True, 12.34, 0)

    def readmit(self) -> None:
        self.assessment = HEALTHY


def _http(watch: Watch, ask: Callable[[int], Any], networks: ClientNetworks = EVERYWHERE, **changes: Any) -> Any:
    """Return the result of `ask`, which gets the port of an HTTP server and runs in a thread."""

    async def run() -> Any:
        port = free_port()
        chosen = settings(bind=Address(HOST, port), **changes)
        server = AgentHttpServer(chosen, networks, cast(ReplicaWatch, watch))
        await server.start()
        try:
            return await asyncio.to_thread(ask, port)
        finally:
            await server.close()

    return asyncio.run(run())


def _get(path: str, **headers: str) -> Callable[[int], tuple[int, bytes]]:
    def ask(port: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, port, timeout=30)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    return ask


def test_health_of_a_healthy_replica() -> None:
    watch = Watch()
    status, body = _http(watch, _get("/health", **{"User-Agent": "Envoy/HC"}))
    assert status == 200
    assert json.loads(body) == {
        "state": "healthy",
        "healthy": True,
        "weight": 75,
        "reasons": [],
        "notes": ["no GPU is watched"],
        "since": "2023-11-14T22:13:20Z",
    }
    assert watch.clients == [(f"{HOST} Envoy/HC", 2)]


@pytest.mark.parametrize(
    ("query", "threshold"),
    [("unhealthy_threshold=5", 5), ("unhealthy_threshold=2147483647", 30), ("unhealthy_threshold=0", 2), ("x=5", 2)],
)
def test_check_states_the_threshold_of_its_client(query: str, threshold: int) -> None:
    watch = Watch()
    status, _ = _http(watch, _get(f"/health?{query}"))
    assert (status, [found for _, found in watch.clients]) == (200, [threshold])


def test_health_of_an_unhealthy_replica_has_its_reasons() -> None:
    status, body = _http(Watch(XID), _get("/health"))
    assert status == 503
    assert json.loads(body)["reasons"] == [{"code": "xid", "device": "0", "message": "GPU 0 reported XID 79"}]


def test_metrics_are_served_but_do_not_count_as_checks() -> None:
    watch = Watch()
    status, body = _http(watch, _get("/metrics"))
    assert (status, b"lbctl_agent_healthy 1\n" in body, watch.clients) == (200, True, [])


def test_request_needs_a_token_of_the_token_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")

    def ask(port: int) -> list[int]:
        given = _get("/health", Authorization="Bearer secret")
        statuses = [_get("/health")(port)[0], _get("/metrics")(port)[0], given(port)[0]]
        file.unlink()
        return [*statuses, given(port)[0]]

    assert _http(Watch(), ask, token_file=str(file)) == [401, 401, 200, 401]


def test_client_outside_the_networks_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientNetworks, "admit", lambda _networks, _host: False)
    watch = Watch()
    with pytest.raises(ConnectionError):
        _http(watch, _get("/health"), ELSEWHERE)
    assert watch.clients == []


def test_client_that_is_admitted_is_answered() -> None:
    assert _http(Watch(), _get("/health"), ELSEWHERE)[0] == 200, "loopback is always admitted"


def test_other_paths_and_methods_are_refused() -> None:
    def ask(port: int) -> list[int]:
        connection = http.client.HTTPConnection(HOST, port, timeout=30)
        connection.request("POST", "/health", b"{}")
        status = connection.getresponse().status
        connection.close()
        return [status, _get("/drain")(port)[0]]

    assert _http(Watch(), ask) == [405, 404]


@pytest.mark.parametrize(("question", "line"), [(b"full\n", b"up ready 75%\n"), (b"health\n", b"up\n"), (b"", b"up ")])
def test_agent_check_gets_one_line(question: bytes, line: bytes) -> None:
    watch = Watch()

    async def run() -> bytes:
        port = free_port()
        server = AgentCheckServer(Address(HOST, port), ClientNetworks(), lambda: watch.assessment, watch.answered)
        await server.start()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(question)
        answer = await reader.read()
        writer.close()
        server.close()
        return answer

    assert asyncio.run(run()).startswith(line)
    assert watch.clients == [(f"agent check {HOST}", 2)]


def test_open_connections_do_not_exclude_an_agent_check() -> None:
    watch = Watch()

    async def run() -> bytes:
        port = free_port()
        server = AgentCheckServer(Address(HOST, port), ClientNetworks(), lambda: watch.assessment, watch.answered)
        await server.start()
        silent = [await asyncio.open_connection(HOST, port) for _ in range(MAX_CONNECTIONS)]
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"full\n")
        answer = await reader.read()
        for _, other in silent:
            other.close()
        writer.close()
        server.close()
        return answer

    assert asyncio.run(run()) == b"up ready 75%\n"
    assert watch.clients == [(f"agent check {HOST}", 2)]


def _control(directory: Path, watch: Watch, ask: Callable[[], Any]) -> Any:
    """Return the result of `ask`, which runs in a thread while a control socket is open in the directory."""

    async def run() -> Any:
        control = ControlSocket(str(directory), cast(ReplicaWatch, watch))
        await control.start()
        try:
            return await asyncio.to_thread(ask)
        finally:
            await control.close()

    return asyncio.run(run())


def test_control_socket_is_only_for_the_user_of_the_agent(tmp_path: Path) -> None:
    mode = _control(tmp_path, Watch(), lambda: (tmp_path / "agent.sock").stat().st_mode)
    assert stat.S_IMODE(mode) == 0o600
    assert not (tmp_path / "agent.sock").exists()


def test_drain_over_the_control_socket(tmp_path: Path) -> None:
    watch = Watch()
    answer = _control(tmp_path, watch, lambda: agent_control.ask(tmp_path, "/drain", b'{"wait": 90}', 90.0))
    assert watch.waits == [90.0]
    assert answer == {"drained": True, "waited_s": 12.3, "in_flight": 0, "ended": False}


@pytest.mark.parametrize("body", [b"{", b'{"wait": "long"}', b'{"wait": -1}', b'{"wait": 1e9}'])
def test_invalid_wait_is_rejected(tmp_path: Path, body: bytes) -> None:
    watch = Watch()
    with pytest.raises(agent_control.AgentError, match=r"JSON|wait"):
        _control(tmp_path, watch, lambda: agent_control.ask(tmp_path, "/drain", body, 0.0))
    assert watch.waits == []


def test_readmit_over_the_control_socket(tmp_path: Path) -> None:
    watch = Watch(XID)
    answer = _control(tmp_path, watch, lambda: agent_control.ask(tmp_path, "/readmit", b"{}", 0.0))
    assert (answer["state"], watch.assessment) == ("healthy", HEALTHY)
