"""docs/up.md shows what `lbctl up` prints."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import blocks
from tests.support.processes.binaries import require
from tests.support.processes.ports import free_port
from tests.support.processes.up import up

FLEET = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:PORT"}}
routes: {chat: {match: {path_prefix: /v1/}, pool: llama}}
pools: {llama: {replicas: [{address: "127.0.0.1:9001"}]}}
"""


def test_the_page_shows_what_up_says(tmp_path: Path) -> None:
    require("envoy")
    (command,) = [command for block in blocks("docs/up.md") for command in block.commands]
    port = free_port()
    (tmp_path / "fleet.yaml").write_text(FLEET.replace("PORT", str(port)))
    with up(tmp_path) as run:
        run.start(*command.text.split()[2:])
        said = run.await_ready()
        first = next(line for line in run.err.read_text().splitlines() if line.startswith("lbctl: "))
    shown = f"{first}\n{said}".replace(str(port), "8080").replace(str(run.api), "18080")
    assert command.agrees(re.sub(r"\n+$", "\n", shown))
