"""The HTTP API: authorization, and errors as JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.cli import run
from lbctl.ir.address import Address
from lbctl.runtime.net.connections import MAX_CONNECTIONS, ConnectionLimit, LimitedConnection
from lbctl.serve.api import status_rows
from lbctl.serve.api.authorization import ApiAccess
from lbctl.serve.api.server import ApiServer
from lbctl.serve.ha.requests import MemberRequests
from lbctl.serve.metrics.instruments import Metrics
from lbctl.store.signing import Keyring
from tests.support import api
from tests.support.api import Fleet
from tests.support.processes.certs import Authority, client_context, server_context

TOKEN = "a-token-of-some-length"
JSON = {"content-type": "application/json"}
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Answer:
    def __init__(self, url: str, status: int, headers: dict[str, str], text: str) -> None:
        self.url, self.status, self.headers, self.text = url, status, headers, text

    @property
    def json(self) -> Any:
        return json.loads(self.text)


Ask = Callable[..., Awaitable[Answer]]


def conversation(
    fleet: Fleet,
    token: Path | None,
    script: Callable[[Ask], Awaitable[None]],
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    trust: ssl.SSLContext | None = None,
) -> None:
    async def run_script() -> None:
        server = ApiServer(fleet, ApiAccess(Address(host, 0), token, tls))
        port = await server.start()
        try:
            async with aiohttp.ClientSession() as session:

                async def ask(method: str, path: str, **more: Any) -> Answer:
                    url = f"http{'s' if tls else ''}://127.0.0.1:{port}{path}"
                    secure: Any = trust if trust is not None else True
                    async with session.request(method, url, ssl=secure, **more) as answer:
                        headers = {name.lower(): value for name, value in answer.headers.items()}
                        base = str(answer.url.origin())
                        return Answer(base, answer.status, headers, await answer.text())

                await script(ask)
        finally:
            await server.stop()

    asyncio.run(run_script())


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "api-token"
    file.write_text(TOKEN + "\n")
    return file


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_reading_needs_no_token_on_loopback(fleet: Fleet, token: Path) -> None:
    async def script(ask: Ask) -> None:
        assert (await ask("GET", "/healthz")).json == {"status": "ok"}
        assert (await ask("GET", "/readyz")).status == 200
        assert (await ask("GET", "/api/v1/status")).json["version"] == "1"
        assert (await ask("GET", "/api/v1/proxies")).json["proxies"][0]["node"] == "edge-1"
        assert (await ask("GET", "/api/v1/pools")).json["pools"][0]["name"] == "chat"

    conversation(fleet, token, script)


def test_readyz_reports_why_it_is_not_ready(fleet: Fleet, token: Path) -> None:
    fleet.waiting = "the files have errors"

    async def script(ask: Ask) -> None:
        answer = await ask("GET", "/readyz")
        assert (answer.status, answer.json) == (503, {"status": "the files have errors"})
        assert (await ask("GET", "/healthz")).status == 200

    conversation(fleet, token, script)


def test_reload_needs_the_token(fleet: Fleet, token: Path) -> None:
    async def script(ask: Ask) -> None:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            answer = await ask("POST", "/api/v1/reload", json={}, headers=headers)
            assert answer.status == 401
            assert str(token) in answer.json["error"]
            assert answer.headers["www-authenticate"] == "Bearer"
        assert fleet.reloads == []
        assert (await ask("POST", "/api/v1/reload", json={}, headers=BEARER)).json["result"] == "unchanged"
        assert (await ask("POST", "/api/v1/reload", json={"allow_shrink": True}, headers=BEARER)).status == 200
        assert fleet.reloads == [False, True]

    conversation(fleet, token, script)


def test_registering_a_picker_needs_the_token(fleet: Fleet, token: Path) -> None:
    """Pickers connect to this address, and a web page can make a local browser send a request without a token."""
    path = "/api/v1/picks/tables"

    async def script(ask: Ask) -> None:
        for query in ({"id": "evil", "address": "127.0.0.1:1"}, {"address": "127.0.0.1:1"}, {"id": "evil"}):
            assert (await ask("GET", path, params=query)).status == 401
        no_address = {"id": "mine", "address": "elsewhere"}
        assert (await ask("GET", path, params=no_address, headers=BEARER)).status == 400

    conversation(fleet, token, script)


@pytest.mark.parametrize("credentials", ["\udce9\udcff", "caf\u00e9", TOKEN + "\udce9"], ids=["bytes", "text", "after"])
def test_wrong_token_with_high_bytes_is_rejected(fleet: Fleet, token: Path, credentials: str) -> None:
    async def script(ask: Ask) -> None:
        host, port = urlsplit((await ask("GET", "/healthz")).url).netloc.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        line = f"authorization: Bearer {credentials}".encode(errors="surrogateescape")
        writer.write(b"POST /api/v1/reload HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + line + b"\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()

    conversation(fleet, token, script)


def test_right_token_with_high_bytes_is_accepted(fleet: Fleet, token: Path) -> None:
    token.write_bytes("café-of-some-length".encode())

    async def script(ask: Ask) -> None:
        headers = {"authorization": "Bearer café-of-some-length"}
        assert (await ask("POST", "/api/v1/reload", json={}, headers=headers)).status == 200

    conversation(fleet, token, script)


@pytest.mark.parametrize("body", [b'{"reason": "x\\ud800"}', b'{"x\\udfff": 1}', b'{"shares": [{"a": "\\udce9"}]}'])
def test_lone_surrogate_in_a_body_is_rejected(fleet: Fleet, token: Path, body: bytes) -> None:
    async def script(ask: Ask) -> None:
        for method, path in (
            ("POST", "/api/v1/overrides"),
            ("DELETE", "/api/v1/overrides"),
            ("POST", "/api/v1/reload"),
        ):
            answer = await ask(method, path, data=body, headers=BEARER | JSON)
            assert (answer.status, answer.json["error"]) == (
                400, "the body contains an unpaired surrogate, which is not a character",
            )  # fmt: skip
        assert fleet.reloads == []

    conversation(fleet, token, script)


def test_lone_surrogate_in_a_name_is_replaced(fleet: Fleet, token: Path) -> None:
    """State of an earlier version or the name of a fleet file may contain such a text."""
    fleet.listed = (api.pool("chat"), api.pool("caf\udce9"), api.pool("📎"))

    async def script(ask: Ask) -> None:
        answer = await ask("GET", "/api/v1/pools")
        assert answer.status == 200
        assert [item["name"] for item in answer.json["pools"]] == ["chat", "caf\ufffd", "📎"]

    conversation(fleet, token, script)


def test_new_token_applies_at_once(fleet: Fleet, token: Path) -> None:
    async def script(ask: Ask) -> None:
        token.write_text("another-token")
        assert (await ask("POST", "/api/v1/reload", json={}, headers=BEARER)).status == 401

    conversation(fleet, token, script)


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_without_a_token_file_writes_are_forbidden(fleet: Fleet, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)

    async def script(ask: Ask) -> None:
        assert (await ask("POST", "/api/v1/reload", json={}, headers={"authorization": "Bearer "})).status == 403
        assert fleet.reloads == []

    conversation(fleet, file, script)


def test_write_body_must_be_valid_json_of_the_schema(fleet: Fleet, token: Path) -> None:
    async def script(ask: Ask) -> None:
        async def post(data: bytes, headers: dict[str, str]) -> int:
            return (await ask("POST", "/api/v1/reload", data=data, headers=BEARER | headers)).status

        assert await post(b"{}", {"content-type": "text/plain"}) == 415
        assert await post(b"{", JSON) == 400
        assert await post(b"[]", JSON) == 400
        assert await post(b'{"allow_shrink": "yes"}', JSON) == 400
        assert await post(b'{"allow_shrnik": true}', JSON) == 400
        assert await post('{"allow_shrink": "caf\u00e9"}'.encode("latin-1"), JSON) == 400
        assert await post('{"allow_shrink": false}'.encode("utf-16"), JSON) == 400
        assert await post(b" " * 70_000 + b"{}", JSON) == 413
        assert fleet.reloads == []

    conversation(fleet, token, script)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:18080",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "",
        "[::1].evil.example",
        "[::1]evil.example:80",
        "[::1",
        "::1",
        "[localhost]",
        "127.0.0.1%evil.example",
        "[::1%evil.example]",
        "localhost:80.evil.example",
        "localhost:80:90",
        "user@localhost",
        "localhost.evil.example",
    ],
)
def test_foreign_host_header_is_rejected(fleet: Fleet, token: Path, host: str) -> None:
    async def script(ask: Ask) -> None:
        assert (await ask("GET", "/api/v1/status", headers={"host": host})).status == 403
        assert (await ask("POST", "/api/v1/reload", json={}, headers=BEARER | {"host": host})).status == 403
        assert fleet.reloads == []

    conversation(fleet, token, script)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:80", "[::1]:80", "127.8.8.8"])
def test_any_name_of_this_machine_is_accepted(fleet: Fleet, token: Path, host: str) -> None:
    async def script(ask: Ask) -> None:
        assert (await ask("GET", "/api/v1/status", headers={"host": host})).status == 200

    conversation(fleet, token, script)


def test_request_from_another_origin_is_rejected(fleet: Fleet, token: Path) -> None:
    async def script(ask: Ask) -> None:
        headers = BEARER | {"origin": "http://evil.example"}
        assert (await ask("POST", "/api/v1/reload", json={}, headers=headers)).status == 403
        assert (await ask("POST", "/api/v1/reload", json={}, headers=BEARER | {"origin": "null"})).status == 403

    conversation(fleet, token, script)


def test_not_found_and_not_allowed_are_json(fleet: Fleet, token: Path) -> None:
    async def script(ask: Ask) -> None:
        for path in ("/dashboard/", "/dashboard/server.py", "/api/v1/nothing", "/api/v1/../../etc/passwd"):
            answer = await ask("GET", path)
            assert (answer.status, answer.json) == (404, {"error": "not found"})
        answer = await ask("GET", "/api/v1/reload")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (await ask("POST", "/api/v1/status", headers=BEARER)).status == 405

    conversation(fleet, token, script)


def test_internal_error_details_are_not_shown(fleet: Fleet, token: Path) -> None:
    fleet.broken = True

    async def script(ask: Ask) -> None:
        answer = await ask("GET", "/api/v1/status")
        assert answer.status == 500
        assert "secret" not in answer.text
        assert (await ask("GET", "/healthz")).status == 200

    conversation(fleet, token, script)


def test_beyond_loopback_only_probes_and_pages_need_no_token(fleet: Fleet, token: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    pair = authority.issue("api", ["127.0.0.1"])

    async def script(ask: Ask) -> None:
        assert (await ask("GET", "/healthz")).status == 200
        assert (await ask("GET", "/readyz")).status == 200
        for path in ("/", "/dashboard/main.js"):
            assert (await ask("GET", path)).status == 200
        for path in ("/metrics", "/api/v1/status", "/api/v1/proxies", "/api/v1/pools", "/api/v1/live", "/nothing"):
            answer = await ask("GET", path)
            assert answer.status == 401
            assert str(token) not in answer.text
        assert (await ask("GET", "/api/v1/status", headers=BEARER)).status == 200
        assert (await ask("GET", "/api/v1/status", headers=BEARER | {"host": "lb.example"})).status == 200

    conversation(fleet, token, script, "0.0.0.0", server_context(pair), client_context(authority.ca))


SOON = status_rows.when(time.time() - 5)
NACKED = replace(
    api.ENVOY,
    state="NACKED",
    last_good="0123456789abcdef",
    types=(
        replace(api.TYPE, state="NACKED", offered="2222", acked="1111", message="no \x1b[2J", since=SOON),
        replace(api.TYPE, type="eds", offered="3333", acked="3333", since=SOON),
    ),
    nacks=(schema.NackRecord(api.THEN, "cds", "2222", (), "no", ("fleet.yaml:3:5: error LB921 pools.chat: no",)),),
)


def test_status_shows_a_nack_at_its_line_and_fails_the_check(
    fleet: Fleet, token: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet, "proxies", lambda: schema.Proxies((NACKED,)))

    async def script(ask: Ask) -> None:
        server = ["--server", (await ask("GET", "/api/v1/status")).url]
        assert await asyncio.to_thread(run, ["status", "proxies", *server]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert len(shown) == 2, "one row for a proxy"
        cells = shown[1].split(maxsplit=6)
        assert cells[:5] == ["edge-1", "edge", "envoy", "NACKED", "0123456789ab"]
        assert cells[5][-1] in "sm", "since when it is refused, not since when it is connected"
        assert cells[6] == "cds: fleet.yaml:3:5: error LB921 pools.chat: no"
        assert await asyncio.to_thread(run, ["status", "proxies", "-o", "wide", *server]) == 0
        shown = [line.split(maxsplit=8) for line in capsys.readouterr().out.splitlines()]
        assert shown[1][:5] == ["edge-1", "edge", "cds", "NACKED", "2222"]
        assert shown[1][6] == "0123456789ab"
        assert shown[1][8] == "fleet.yaml:3:5: error LB921 pools.chat: no"
        assert shown[2][3] == "SYNCED"
        assert await asyncio.to_thread(run, ["status", "proxies", "--check", *server]) == 3
        assert "edge-1 is NACKED" in capsys.readouterr().err

    conversation(fleet, token, script)


def test_reader_is_marked_and_does_not_fail_the_check(
    fleet: Fleet, token: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet, "proxies", lambda: schema.Proxies((replace(NACKED, kind="reader"),)))

    async def script(ask: Ask) -> None:
        server = ["--server", (await ask("GET", "/api/v1/status")).url]
        assert await asyncio.to_thread(run, ["status", "proxies", "--check", *server]) == 0
        assert "(reader)" in capsys.readouterr().out

    conversation(fleet, token, script)


def test_status_shows_warnings_of_the_files(
    fleet: Fleet, token: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "fleet.yaml:3:5: warning LB931 listeners.web.tls: the key is not the certificate's"
    warning = schema.Diagnostic("LB931", "warning", "", None, None, None, None, None, text)
    files = replace(api.FILES, diagnostics=(warning,))
    monkeypatch.setattr(fleet, "status", lambda: api.status(fleet=files))

    async def script(ask: Ask) -> None:
        server = ["--server", (await ask("GET", "/api/v1/status")).url]
        assert await asyncio.to_thread(run, ["status", *server]) == 0
        shown = capsys.readouterr().out
        assert "fleet/: served, 1 warning\n" in shown
        assert shown.endswith(f"  {text}\n")

    conversation(fleet, token, script)


def test_status_counts_failing_sources_and_ejected_replicas(
    fleet: Fleet, token: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = schema.SourceCounts(12, 8, {"llama": 7, "qwen": 1})
    floor = {"b": ("stalled", "not ejected, because too many replicas would be ejected")}
    control = schema.PoolControl("llama", "adaptive", "acting", None, {"a": ("XID 79",)}, floor)
    monkeypatch.setattr(fleet, "status", lambda: api.status(sources=sources, control=(control,)))

    async def script(ask: Ask) -> None:
        server = ["--server", (await ask("GET", "/api/v1/status")).url]
        assert await asyncio.to_thread(run, ["status", *server]) == 0
        shown = capsys.readouterr().out
        assert "sources    8 of 12 failing: 7 of llama, 1 of qwen (lbctl status signals)\n" in shown
        assert "out        llama/a: XID 79\n" in shown
        assert "floor      llama/b: stalled; not ejected, because too many replicas would be ejected\n" in shown

    conversation(fleet, token, script)


def test_status_lists_replicas_without_signals_and_their_state(
    fleet: Fleet, token: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = schema.Source("vllm", "http://a/", True, 1.0, None, None, 0, 0.0, ())
    fleet.read = schema.Signals((schema.ReplicaSignals("llama", "a", 15.0, {}, (source,)),))
    rows = (
        replace(api.REPLICA, state="ejected", state_reason="ejected by deep health: XID 79"),
        replace(api.REPLICA, name="b", state="drained"),
        replace(api.REPLICA, name="c"),
    )
    monkeypatch.setattr(fleet, "pools", lambda: schema.Pools((api.pool("llama", *rows),)))

    async def script(ask: Ask) -> None:
        server = ["--server", (await ask("GET", "/api/v1/status")).url]
        assert await asyncio.to_thread(run, ["status", "signals", *server]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown[1].split()[:7] == ["llama", "a", "-", "-", "-", "-", "vllm"]
        assert "no signal yet" in shown[1]
        assert await asyncio.to_thread(run, ["status", "pools", *server]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown[0].split() == [
            "POOL", "REPLICA", "STATE", "DECLARED", "DECIDED", "ACKNOWLEDGED", "OBSERVED", "ERRORS",
            "TTFB", "P50", "TTFB", "P99", "REASON",
        ]  # fmt: skip
        shares = ["0.0%", "0.0%", "-", "-", "-", "-", "-"]
        assert [line.split(maxsplit=10) for line in shown[1:]] == [
            ["llama", "a", "ejected", *shares, "ejected by deep health: XID 79"],
            ["llama", "b", "drained", *shares, "-"], ["llama", "c", "in", *shares, "-"],
        ]  # fmt: skip

    conversation(fleet, token, script)


def test_response_of_another_version_is_an_error_with_its_path(
    fleet: Fleet, token: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet, "status", lambda: {"version": "0"})

    async def script(ask: Ask) -> None:
        server = ["--server", (await ask("GET", "/healthz")).url]
        assert await asyncio.to_thread(run, ["status", *server]) == 4
        assert "returned a response of another lbctl version: since is missing" in capsys.readouterr().err

    conversation(fleet, token, script)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nan", "nan is not a number above 0"), ("inf", "inf is not a number above 0"),
        ("0", "0.0 is not a number above 0: to stop new requests, drain the replica"),
        ("much", "much is not a number above 0"),
        ("1e9", "1e+09 is too large: the maximum weight is 1000000, as in a fleet file"),
    ],
)  # fmt: skip
def test_invalid_weight_is_a_usage_error(value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["weight", "set", "vl/v2", value]) == 64
    assert words in capsys.readouterr().err


def test_server_without_scheme_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--server", "127.0.0.1:18080"]) == 64
    assert "is not a URL (use http:// or https://)" in capsys.readouterr().err


def test_server_without_http_is_a_readable_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\0\0\x12\x04\0\xff\x01\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert run(["status", "--server", f"http://127.0.0.1:{other.getsockname()[1]}"]) == 4
        thread.join()
    error = capsys.readouterr().err
    assert error.strip().isprintable()
    assert "\\x" not in error
    assert "does not use HTTP" in error


def test_metrics_count_reported_events(fleet: Fleet, token: Path) -> None:
    metrics = fleet.counted
    metrics.connected("delta")
    metrics.pushed("eds", 10, 4096)
    metrics.acked("eds", 0.004)
    metrics.nacked("cds")
    metrics.unmatched("stranger\n1")
    metrics.reloaded("invalid", warnings=2)

    async def script(ask: Ask) -> None:
        answer = await ask("GET", "/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = set(answer.text.splitlines())
        assert lines >= {
            'lbctl_xds_streams{kind="delta"} 1.0',
            'lbctl_xds_pushes_total{type="eds"} 1.0',
            'lbctl_xds_pushed_resources_total{type="eds"} 10.0',
            'lbctl_xds_pushed_bytes_total{type="eds"} 4096.0',
            'lbctl_xds_ack_seconds_bucket{le="0.005",type="eds"} 1.0',
            'lbctl_xds_nacks_total{type="cds"} 1.0',
            "lbctl_xds_unmatched_nodes_total 1.0",
            'lbctl_reloads_total{result="invalid"} 1.0',
            "lbctl_fleet_valid 0.0",
            "lbctl_fleet_warnings 2.0",
            "lbctl_ready 0.0",
        }
        assert "stranger" not in answer.text

    conversation(fleet, token, script)


def test_snapshot_age_restarts_only_with_new_content() -> None:
    clock = [1000.0]
    metrics = Metrics(now=lambda: clock[0])
    metrics.published("abc", 0.1, {"chat": (3, 1)})
    clock[0] = 1010.0
    metrics.published("abc", 0.1, {"chat": (3, 1)})
    clock[0] = 1020.0
    assert set(metrics.page().decode().splitlines()) >= {
        'lbctl_snapshot_info{version="abc"} 1.0',
        "lbctl_snapshot_age_seconds 20.0",
        'lbctl_pool_replicas{pool="chat"} 3.0',
        'lbctl_pool_drained_replicas{pool="chat"} 1.0',
    }
    metrics.published("def", 0.1, {"chat": (3, 0)})
    assert "abc" not in metrics.page().decode()


@pytest.mark.slow
def test_idle_connections_do_not_block_requests(fleet: Fleet, token: Path) -> None:
    """The oldest idle connections are closed for new ones."""

    async def script(ask: Ask) -> None:
        address = urlsplit((await ask("GET", "/healthz")).url)
        idle = [await asyncio.open_connection(address.hostname, address.port) for _ in range(2 * MAX_CONNECTIONS)]
        assert (await ask("GET", "/api/v1/status")).status == 200
        async with asyncio.timeout(30):
            assert await idle[0][0].read() == b""
        for _, writer in idle:
            writer.close()

    conversation(fleet, token, script)


def test_busy_connection_is_not_closed_for_a_new_one() -> None:
    async def check() -> None:
        protocols: list[_Inner] = []

        def inner() -> _Inner:
            protocols.append(_Inner())
            return protocols[-1]

        connections = ConnectionLimit(inner, most=2)
        server = await asyncio.get_running_loop().create_server(connections.protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await _until(lambda: len(protocols) == 2 and all(item.transport for item in protocols))
        for item in protocols:
            protocol = item.transport.get_protocol()  # type: ignore[union-attr]
            assert isinstance(protocol, LimitedConnection)
            protocol.begin()
        held.append(await asyncio.open_connection("127.0.0.1", port))
        with suppress(ConnectionResetError):
            async with asyncio.timeout(30):
                assert await held[-1][0].read() == b""
        assert not any(item.lost for item in protocols[:2])
        for _, writer in held:
            writer.close()
        server.close()

    asyncio.run(check())


class _Member(Fleet):
    """A member of a control plane with several."""

    def member_requests(self) -> MemberRequests:  # type: ignore[override]
        return MemberRequests("cp-1", Keyring(), lambda: 1000.0)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/api/v1/picks/explain", "/api/v1/reload"])
def test_connections_without_their_body_block_no_client(token: Path, path: str) -> None:
    async def script(ask: Ask) -> None:
        address = urlsplit((await ask("GET", "/healthz")).url)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            "authorization: lbctl-member e30=\r\n"
        ).encode()
        held = [await asyncio.open_connection(address.hostname, address.port) for _ in range(MAX_CONNECTIONS)]
        for _, writer in held:
            writer.write(head + b"content-length: 10\r\n\r\n{")
        await asyncio.sleep(0.2)
        assert (await ask("GET", "/api/v1/status")).status == 200
        for _, writer in held:
            writer.close()

    conversation(_Member(), token, script)


@pytest.mark.slow
def test_streams_of_strangers_leave_a_share_for_tokens(fleet: Fleet, token: Path) -> None:
    async def script(ask: Ask) -> None:
        address = urlsplit((await ask("GET", "/healthz")).url)
        for path in ("/api/v1/picks/tables", "/api/v1/events", "/api/v1/live"):
            held = [await asyncio.open_connection(address.hostname, address.port) for _ in range(100)]
            for _, writer in held:
                writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            statuses = [(await reader.readline()).split()[1] for reader, _ in held]
            assert statuses[-1] == b"503"
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode())
            assert b" 200 " in await reader.readline()
            for _, other in (*held, (reader, writer)):
                other.close()

    conversation(fleet, token, script)


def test_connections_without_a_handshake_are_closed(
    fleet: Fleet, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.xds.protocol.idle_connections.MAX_IDLE", 3)
    monkeypatch.setattr("lbctl.xds.protocol.idle_connections._INTERVAL", 0.1)
    monkeypatch.setattr("lbctl.xds.protocol.idle_connections.GRACE", 0.1)
    authority = Authority(tmp_path / "pki")
    tls, trust = server_context(authority.issue("api", ["127.0.0.1"])), client_context(authority.ca)

    async def script(ask: Ask) -> None:
        address = urlsplit((await ask("GET", "/healthz")).url)
        held = [await asyncio.open_connection(address.hostname, address.port) for _ in range(6)]
        ends = [asyncio.create_task(reader.read()) for reader, _ in held]
        async with asyncio.timeout(30):
            while sum(end.done() for end in ends) < 3:
                await asyncio.sleep(0.01)
        assert (await ask("GET", "/healthz")).status == 200
        assert sum(end.done() for end in ends) == 3, "which ones is open: all six were seen at one moment"
        for end, (_, writer) in zip(ends, held, strict=True):
            end.cancel()
            writer.close()

    conversation(fleet, token, script, tls=tls, trust=trust)


def test_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.runtime.net.connections._READ_TIMEOUT", 0.05)

    async def check() -> None:
        protocols: list[_Inner] = []

        def inner() -> _Inner:
            protocols.append(_Inner())
            return protocols[-1]

        server = await asyncio.get_running_loop().create_server(ConnectionLimit(inner).protocol, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        await _until(lambda: bool(protocols and protocols[0].transport))
        protocols[0].transport.write(bytes(32 << 20))  # type: ignore[union-attr]
        await _until(lambda: protocols[0].lost)
        writer.close()
        server.close()

    asyncio.run(check())


class _Inner(asyncio.Protocol):
    lost = False
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: loc"])
def test_connection_without_a_first_request_is_closed(
    fleet: Fleet, token: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("lbctl.serve.api.server.FIRST_REQUEST", 0.3)

    async def script(ask: Ask) -> None:
        address = urlsplit((await ask("GET", "/healthz")).url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(sent)
        with suppress(ConnectionResetError):
            async with asyncio.timeout(30):
                assert await reader.read() == b""
        writer.close()

    conversation(fleet, token, script)


def test_client_that_leaves_before_its_body_is_not_logged(
    fleet: Fleet, token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(ask: Ask) -> None:
        address = urlsplit((await ask("GET", "/healthz")).url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        head = b"POST /api/v1/picks/explain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: 10\r\n\r\n{")
        await asyncio.sleep(0.2)
        writer.close()
        await asyncio.sleep(0.2)
        assert not caplog.records

    conversation(fleet, token, script)


def test_missing_body_is_answered_with_408(fleet: Fleet, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.serve.api.responses.FIRST_REQUEST", 0.3)

    async def script(ask: Ask) -> None:
        address = urlsplit((await ask("GET", "/healthz")).url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = "POST /api/v1/reload HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}authorization: Bearer {TOKEN}\r\ncontent-length: 10\r\n\r\n{{".encode())
        async with asyncio.timeout(30):
            assert b" 408 " in await reader.readline()
        writer.close()

    conversation(fleet, token, script)


@pytest.mark.slow
def test_connection_accepted_during_a_stop_is_closed() -> None:
    async def run() -> None:
        for turns in range(8):
            server = ApiServer(Fleet(), ApiAccess(Address("127.0.0.1", 0)))
            port = await server.start()
            with socket.create_connection(("127.0.0.1", port)) as client:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await server.stop()
                client.settimeout(60)
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""
            gc.collect()  # pytest fails a test for a transport that was left open

    asyncio.run(run())
