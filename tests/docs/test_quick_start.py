"""The quick start of README.md and of the guide: two servers that run, `init`, `up`, and a request with the key."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from aiohttp import web

from tests.docs.pages import Block, blocks
from tests.e2e.support.binaries import require
from tests.e2e.support.ports import free_port
from tests.e2e.support.up import up
from tests.support import init as it

PLACE = "tests/docs/test_quick_start.py::test_a_newcomer_gets_a_url_with_a_key"


def shown(page: str) -> Block:
    """The block of the page that this test runs."""
    (block,) = [item for item in blocks(page) if item.words.get("by") == PLACE]
    return block


async def model_server(request: web.Request) -> web.StreamResponse:
    """A vLLM that answers chat requests too."""
    if request.method == "POST":
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": "Hello!"}}]})
    return await it.answering({**it.vllm(), "/health": ""})(request)


@pytest.mark.e2e
@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_a_newcomer_gets_a_url_with_a_key(page: str, tmp_path: Path) -> None:
    require("envoy")
    commands = [command.text.partition("   #")[0].strip() for command in shown(page).commands]
    init = next(command for command in commands if command.startswith("lbctl init"))
    assert "lbctl up" in commands
    with up(tmp_path) as run, it.serving(model_server, model_server) as servers:
        for written, server in zip(re.findall(r"http://\S+", init), servers, strict=True):
            init = init.replace(written, server.url)
        done = subprocess.run(
            init, shell=True, cwd=tmp_path, env=run.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(fleet.read_text().replace("127.0.0.1:8080", f"127.0.0.1:{free_port()}"))
        run.start()
        (curl,) = re.findall(r"^ +try +(curl .*)$", run.await_ready(), re.MULTILINE)
        answer = subprocess.run(
            [*shlex.split(curl), "-s"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello!"
        run.signal(signal.SIGINT)
        assert run.wait() == 0
