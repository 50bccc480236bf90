"""`lbctl up` in an empty directory: from model servers to a URL in one command."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from tests.support import init as servers
from tests.support.processes.binaries import require
from tests.support.processes.client import Client
from tests.support.processes.ports import HOST
from tests.support.processes.up import Up, alone_at_the_first_port, up
from tests.support.processes.waiting import eventually
from tests.support.pseudo_terminal import on_terminal

URL = re.compile(r"URL +http://127\.0\.0\.1:(\d+)")
TIMEOUT = 60.0
VLLM = {**servers.vllm(), "/health": ""}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Up]:
    require("haproxy")
    with alone_at_the_first_port(), up(tmp_path) as place:
        yield place


@contextmanager
def _occupied(port: int) -> Iterator[None]:
    """Listen on the port, unless another program does."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(socket.create_server((HOST, port)))
        yield


async def _keyed(request: web.Request) -> web.StreamResponse:
    """Answer like vLLM with `--api-key`, which also protects its checks and metrics."""
    if request.headers.get("authorization") != "Bearer sk-of-the-servers":
        return web.Response(status=401)
    return await servers.answering(VLLM)(request)


def test_model_servers_get_a_fleet_file_and_a_free_port(run: Up) -> None:
    """The servers require a key, which the fleet sends them; clients have separate keys."""
    run.api = None
    (run.folder / "key").write_text("sk-of-the-servers\n")
    with servers.serving(_keyed) as (server,), _occupied(8080), _occupied(18080):
        run.start("--proxy", "haproxy", "--from", server.url, "--api-key-file", "key")
        ready = run.await_ready()
        (port,) = URL.findall(ready)
        assert port != "8080"
        assert "dashboard  http://127.0.0.1:180" in ready
        assert ":18080/" not in ready
        assert "lbctl: wrote fleet.yaml" in run.err.read_text()
        assert server.url.removeprefix("http://") in (run.folder / "fleet.yaml").read_text()
        assert Client(int(port)).get("/v1/models", {"authorization": f"Bearer {run.key}"}).ok
        assert (run.folder / "replica-key").stat().st_mode & 0o777 == 0o600
        assert "sk-of-the-servers" not in ready + run.err.read_text() + (run.folder / "fleet.yaml").read_text()


def test_up_on_a_terminal_prompts_and_colours_logs(run: Up) -> None:
    with (
        servers.serving(servers.answering(VLLM)) as (server,),
        on_terminal("up", "--proxy", "haproxy", columns=200, environment=run.own_env, directory=run.folder) as terminal,
    ):
        terminal.await_text("there is no fleet.yaml here", TIMEOUT)
        terminal.press(f"{server.url}\n")
        terminal.await_text("(for changes, add --token-file", TIMEOUT)  # the last line of its first output
        (port,) = URL.findall(terminal.text)
        (key,) = re.findall(r"key +(sk-\S+)", terminal.text)
        assert Client(int(port)).get("/v1/models", {"authorization": f"Bearer {key}"}).ok
        assert Client(int(port)).get("/v1/models").status == 401
        (log,) = re.findall(r"requests +tail -f (\S+)", terminal.text)
        eventually(lambda: '"status":401' in Path(log).read_text())
        assert "\x1b[36mserve   |\x1b[0m " in terminal.shown
        assert "\x1b[35mhaproxy |\x1b[0m " in terminal.shown
        terminal.press("\x03")
        assert terminal.end(TIMEOUT) == 0
        assert '"status":401' not in terminal.text
    assert run.processes() == {}
