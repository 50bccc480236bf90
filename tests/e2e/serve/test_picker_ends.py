"""The end of `serve` while a proxy has open streams to its picker."""

from __future__ import annotations

from tests.support.processes.fleet import entry
from tests.support.processes.picker import open_picks, picked
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def test_serve_with_a_connected_envoy_ends_without_errors() -> None:
    with replicas("a", "b") as two:
        pool = {"replicas": [entry(item) for item in two], "balance": {"algorithm": "pick"}}
        with picked("envoy", pool) as (control, client):
            client.load(20, 4).assert_no_failure()
            port = int(control.status["picker"]["listens"].rsplit(":", 1)[1])
            eventually(lambda: open_picks(port) == 0.0)  # the access log has reported the ends of all requests
            assert control.stop() == 0
            assert "Traceback" not in control.log
            assert " error " not in control.log
