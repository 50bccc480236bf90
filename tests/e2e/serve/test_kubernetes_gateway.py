"""A gateway of Kubernetes next to other proxies of `lbctl serve`."""

from __future__ import annotations

from tests.support.fleets import Fleet
from tests.support.processes.control import controlling
from tests.support.processes.waiting import eventually

FLEET: Fleet = {
    "version": 1,
    "listeners": {"public": {"bind": "0.0.0.0:8080"}},
    "routes": {"chat": {"match": {"path_prefix": "/v1"}, "pool": "llama"}},
    "pools": {"llama": {"replicas": [{"name": "a", "address": "10.0.0.1:8000"}]}},
    "proxies": {
        "edge": {"kind": "envoy"},
        "gateway": {"kind": "gateway-api", "kubernetes": {"namespace": "ml", "gateway_class": "eg"}},
    },
}


def test_gateway_is_not_driven() -> None:
    with controlling(FLEET) as control:
        eventually(lambda: "gateway" in control.proxies)
        row = control.proxies["gateway"]
        assert (row["state"], row["reason"]) == ("NOT DRIVEN", "lbctl has no driver for Gateway API")
        assert "published version=" in control.log
        assert control.log.count("a proxy is not driven proxy=gateway") == 1
