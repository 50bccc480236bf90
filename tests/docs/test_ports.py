"""The table of ports for the firewall contains the defaults of the code."""

from __future__ import annotations

import re

from lbctl.base import ports
from lbctl.cli.agent import _DEFAULT_BIND
from tests.support.paths import ROOT


def test_port_table_contains_the_default_ports() -> None:
    page = (ROOT / "docs/how-to/install-in-production.md").read_text(encoding="utf-8")
    table = page.partition("## Ports for the firewall")[2].partition("\n## ")[0]
    shown = {
        (int(port), set_by)
        for port, set_by in re.findall(r"^\| ([0-9]{4,5})(?:, (?:TCP|UDP))? \|.*\| ([^|]+) \|$", table, re.MULTILINE)
    }
    agent = int(_DEFAULT_BIND.rpartition(":")[2])
    assert shown == {
        (ports.XDS, "`control.xds.bind`"),
        (ports.API, "`control.api.bind`"),
        (ports.PICKER, "`control.picker.bind`"),
        (ports.PICKER + 1, "the port after `control.picker.bind`"),
        (ports.LOGS, "`control.logs.bind`"),
        (agent, "`--bind`"),
        (agent + 1, "the port after `--bind`"),
    }
