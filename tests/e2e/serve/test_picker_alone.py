"""`lbctl picker` on another machine, as the picker of an InferencePool: an Envoy as Kubernetes gateways configure
it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.processes.control import controlling
from tests.support.processes.fleet import Gateway, entry, fleet_of, serving
from tests.support.processes.http1 import Request
from tests.support.processes.picker import alone, is_ready, key_of, open_picks, picker_section
from tests.support.processes.ports import HOST, free_pair, free_port
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

DESTINATION = "x-gateway-destination-endpoint"
TYPES = "type.googleapis.com/envoy.extensions"


def _endpoint(address: str) -> dict[str, Any]:
    host, port = address.rsplit(":", 1)
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}


def _cluster(name: str, addresses: Sequence[str], **more: Any) -> dict[str, Any]:
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": list(map(_endpoint, addresses))}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": assignment, **more}


def _filters(subset: Sequence[str], key: Mapping[str, str]) -> list[dict[str, Any]]:
    hint = {"metadata_namespace": "envoy.lb.subset_hint", "value": {f"{DESTINATION}-subset": list(subset)}}
    metadata = [{"key": name, "value": value} for name, value in key.items()]
    processor = {
        "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "initial_metadata": metadata},
        "message_timeout": "20s",
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
        "processing_mode": {
            "request_header_mode": "SEND", "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND", "response_trailer_mode": "SEND",
        },
    }  # fmt: skip
    return [
        {
            "name": "subset",
            "typed_config": {"@type": f"{TYPES}.filters.http.set_metadata.v3.Config", "metadata": [hint]},
        },
        {"name": "picker", "typed_config": processor},
        {"name": "router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}},
    ]


def _gateway(port: int, picker: int, pool: Sequence[Replica], subset: Sequence[str], key: Mapping[str, str]) -> str:
    round_robin = {
        "name": "rr",
        "typed_config": {"@type": f"{TYPES}.load_balancing_policies.round_robin.v3.RoundRobin"},
    }
    override = {
        "@type": f"{TYPES}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
        "fallback_policy": {"policies": [{"typed_extension_config": round_robin}]},
    }
    policy = {"policies": [{"typed_extension_config": {"name": "override_host", "typed_config": override}}]}
    http = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    explicit: dict[str, Any] = {"http2_protocol_options": {}}
    options = {http: {"@type": f"type.googleapis.com/{http}", "explicit_http_config": explicit}}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "60s"}}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": _filters(subset, key),
    }
    listener = {
        "name": "gateway",
        "address": {"socket_address": {"address": HOST, "port_value": port}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    clusters = [
        _cluster("pool", [item.address for item in pool], load_balancing_policy=policy),
        _cluster("picker", [f"{HOST}:{picker}"], typed_extension_protocol_options=options),
    ]
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": clusters}})


def _homes(gateway: Gateway) -> dict[str, set[str | None]]:
    """Return session → the replicas that answered it."""

    def turn(number: int) -> Request:
        body = json.dumps({"model": "m", "prompt": f"{number % 6} " * 400}).encode()
        return Request("POST", "/", (("content-type", "application/json"), ("x-session-id", f"s{number % 6}")), body)

    load = gateway.load(30, 3, turn)
    load.assert_no_failure()
    homes: dict[str, set[str | None]] = {}
    for response in load.responses:
        homes.setdefault(str(dict(response.json["headers"])["x-session-id"]), set()).add(response.replica)
    return homes


def test_standalone_picker_outlives_its_control_plane() -> None:
    with replicas("a", "b", "c") as (a, b, c):
        places = [entry(item) for item in (a, b, c)]
        fleet = fleet_of({"replicas": places, "balance": {"algorithm": "pick"}}, **picker_section())
        picker, port = free_pair(), free_port()
        with controlling(fleet) as control, alone(control, picker):
            eventually(lambda: is_ready(picker))
            text = _gateway(port, picker, (a, b, c), [a.address, b.address], key_of(control))
            with serving("envoy", text, port) as gateway:
                homes = _homes(gateway)
                assert {name for names in homes.values() for name in names} == {"a", "b"}, "the gateway allows no other"
                assert all(len(names) == 1 for names in _homes(gateway).values())
                for body in (b"", b"x" * 3_000_000):
                    for chunked in (False, True):
                        response = gateway.post("/", body, chunked=chunked)
                        assert (response.status, len(response.json["body"])) == (200, len(body))
                drained = [{**places[0], "drain": True}, *places[1:]]
                control.write({**fleet, "pools": {"pool": {"replicas": drained, "balance": {"algorithm": "pick"}}}})
                eventually(lambda: all(names == {"b"} for names in _homes(gateway).values()))
                control.stop()
                assert all(names == {"b"} for names in _homes(gateway).values()), "its last tables stay"
                eventually(lambda: open_picks(picker) == 0)
