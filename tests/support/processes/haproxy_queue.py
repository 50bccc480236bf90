"""The number of requests that wait in a HAProxy for a replica, from its Runtime API."""

from __future__ import annotations

import csv

from lbctl.apply.haproxy.runtime import Runtime
from tests.support.fleets import Fleet
from tests.support.processes import background


def with_runtime_api(fleet: Fleet, socket: str) -> Fleet:
    """Return the fleet for a HAProxy with its Runtime API on `socket`."""
    return {**fleet, "proxies": {"under-test": {"kind": "haproxy", "runtime_api": socket}}}


def waiting(socket: str) -> int:
    """Return the number of requests that wait for any replica of any pool."""
    table = "".join(background.wait(Runtime(socket).query("show stat")).texts)
    rows = csv.DictReader(table.removeprefix("# ").splitlines())
    return sum(int(row["qcur"] or 0) for row in rows if row["svname"] == "BACKEND")
