"""`lbctl doctor` connects to each replica, and has the problems that a running serve reports."""

from __future__ import annotations

import socket

from lbctl.api.any_version import AnyVersionStatus
from lbctl.api.codec import decode
from lbctl.cli.doctor.check import exit_code
from lbctl.cli.doctor.replicas import problems, replicas
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica
from tests.support.processes.ports import free_port


def test_each_replica_is_connected_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        up, down = f"127.0.0.1:{listening.getsockname()[1]}", f"127.0.0.1:{free_port()}"
        half = pool(replica("a", up), replica("b", down), replica("c", f"127.0.0.1:{free_port()}", drain=True))
        spare, dead = pool(replica("a", down)), pool(replica("a", down))
        routes = {"dead": {"match": {"path_prefix": "/dead"}, "pool": "dead"}}
        text = fleet_text(half, routes=routes, pools={"dead": dead, "spare": spare})
        found = {item.what: item for item in replicas(compiled(text).topology)}
    refused = f"at {down}: connection refused"
    assert [(name, item.state, item.message) for name, item in sorted(found.items())] == [
        ("pools.dead.replicas", "failed", f"0 of 1 accept connections; a {refused}"),
        ("pools.pool.replicas", "warn", f"1 of 2 accept connections; b {refused}"),
        ("pools.spare.replicas", "warn", f"0 of 1 accept connections; a {refused}"),
    ]
    assert exit_code(found.values()) == 4


def test_problems_of_a_running_serve_are_results() -> None:
    reported = [
        {
            "severity": "critical",
            "kind": "pool_down",
            "subject": "llama",
            "text": "none",
            "command": "lbctl status",
        },
        {"severity": "warning", "kind": "store", "subject": "", "text": "disk full", "command": "lbctl doctor"},
        {"severity": "critical", "kind": "picker", "subject": "", "text": "it is down", "command": "lbctl doctor"},
    ]
    rows = list(problems(decode(AnyVersionStatus, {"problems": reported})))
    assert [(item.what, item.state, item.message, item.todo) for item in rows] == [
        ("serve llama", "failed", "none", "lbctl status"),
        ("serve store", "warn", "disk full", "lbctl doctor"),
    ]
    assert exit_code(rows) == 3
    assert list(problems(None)) == list(problems(AnyVersionStatus())) == []
