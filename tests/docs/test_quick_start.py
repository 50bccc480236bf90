"""The quick start of README.md and of the site: two running servers, `init`, `up`, and a request with the key."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks
from tests.support import init as fake
from tests.support.model_servers import ModelServer
from tests.support.processes.binaries import require
from tests.support.processes.ports import free_port
from tests.support.processes.up import alone_at_the_first_port, up

PLACE = "tests/docs/test_quick_start.py::test_quick_start_gives_a_url_with_a_key"


def block_of(page: str) -> Block:
    """Return the block of the page that this test runs."""
    (block,) = [item for item in blocks(page) if item.words.get("by") == PLACE]
    return block


@pytest.mark.e2e
@pytest.mark.parametrize("page", ["README.md", "docs/start/quickstart.md"])
def test_quick_start_gives_a_url_with_a_key(page: str, tmp_path: Path) -> None:
    require("envoy")
    commands = [command.text.partition("   #")[0].strip() for command in block_of(page).commands]
    *before, last = [command for command in commands if command.startswith("lbctl ")]
    with alone_at_the_first_port(), up(tmp_path) as run, fake.serving(ModelServer(), ModelServer()) as servers:
        urls = dict(zip(re.findall(r"http://\S+", " ".join((*before, last))), servers, strict=True))
        for command in before:
            arguments = [urls[word].url if word in urls else word for word in shlex.split(command)]
            process = subprocess.run(
                arguments, cwd=tmp_path, env=run.env, capture_output=True, text=True, timeout=60, check=False
            )
            assert process.returncode == 0, process.stderr
            fleet = tmp_path / "fleet.yaml"
            fleet.write_text(fleet.read_text().replace("127.0.0.1:8080", f"127.0.0.1:{free_port()}"))
        lbctl, verb, *options = shlex.split(last)
        assert (lbctl, verb) == ("lbctl", "up")
        run.start(*(urls[word].url if word in urls else word for word in options))
        (curl,) = re.findall(r"^ +try +(curl .*)$", run.await_ready(), re.MULTILINE)
        answer = subprocess.run(
            [*shlex.split(curl), "-s"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        assert json.loads(answer)["choices"][0]["message"]["content"].startswith("Hello!")
        run.signal(signal.SIGINT)
        assert run.wait() == 0
