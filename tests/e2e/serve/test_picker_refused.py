"""A picker that would be open to strangers is not started: the log, `status` and `lint` report it, and `serve`
continues."""

from __future__ import annotations

import socket

from lbctl.apply.reserved_ports import LOOPBACK
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.picker import EDGE
from tests.support.processes.ports import free_pair
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def test_picker_beyond_loopback_needs_client_certificates() -> None:
    bind = f"0.0.0.0:{free_pair()}"
    refusal = f"the picker on {bind} without TLS would accept prompts from any client, so it does not start"
    with replicas("a") as one:
        pool = {"replicas": [entry(item) for item in one], "balance": {"algorithm": "pick"}}
        fleet = fleet_of(pool, **driven(EDGE), control={"picker": {"bind": bind}})
        with controlling(fleet) as control, control.envoy(EDGE, [EDGE], by_socket=True) as envoy:
            assert envoy.stat("cluster.picker|lbctl.membership_total") == 0, "somebody else may come to that address"
            eventually(lambda: "LB513" in control.log)
            (line,) = (line for line in control.log.splitlines() if "LB513" in line)
            assert f" error {control.files}/fleet.yaml:" in line
            assert f"LB513 control.picker.bind: {refusal} (set certificate, key" in line
            assert control.status["picker"]["reason"] == refusal
            assert not control.status["picker"]["running"]
            control.reload()
            assert control.log.count("LB513") == 1
            control.write({**fleet, "control": {"picker": {"bind": f"{LOOPBACK}:{bind.split(':')[1]}"}}})
            eventually(lambda: control.status["picker"]["running"])
            eventually(lambda: envoy.stat("cluster.picker|lbctl.membership_total") == 1)
        with controlling(fleet, options=("--insecure",)) as control:
            eventually(lambda: control.status["picker"]["running"])
            assert "LB513" not in control.log
            with socket.create_connection((LOOPBACK, int(bind.split(":")[1])), timeout=5):
                pass
