"""docs/how-to/run-with-one-command.md shows what `lbctl up` prints."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import blocks
from tests.support.fleets import fleet_of, write_fleet
from tests.support.processes.binaries import require
from tests.support.processes.ports import free_port
from tests.support.processes.up import up


def test_page_shows_the_output_of_up(tmp_path: Path) -> None:
    require("envoy")
    (shown,) = [block for block in blocks("docs/how-to/run-with-one-command.md") if "by" in block.words]
    (command,) = shown.commands
    port = free_port()
    write_fleet(tmp_path, fleet_of(listener={"bind": f"127.0.0.1:{port}"}, route={"match": {"path_prefix": "/v1/"}}))
    with up(tmp_path) as run:
        run.start(*command.text.split()[2:])
        output = run.await_ready()
        first = next(line for line in run.err.read_text().splitlines() if line.startswith("lbctl: "))
    printed = f"{first}\n{output}".replace(str(port), "8080").replace(str(run.api), "18080")
    assert command.agrees(re.sub(r"\n+$", "\n", printed))
