"""EndpointSlices to replicas: a pure function of API objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lbctl.ir.address import Address
from lbctl.ir.pools import KubernetesDiscovery, LabelSource, Replica
from lbctl.serve.discovery.endpoint_slices import endpoints
from lbctl.serve.discovery.endpoints import Reading, replicas_of
from tests.support.kubernetes import endpoint

SECTION = KubernetesDiscovery("ml", "vllm", "http")


def piece(*endpoints: dict[str, Any], family: str = "IPv4", ports: Any = None) -> dict[str, Any]:
    default = [{"name": "http", "port": 8000, "protocol": "TCP"}, {"name": "grpc", "port": 9000, "protocol": "TCP"}]
    return {"addressType": family, "ports": default if ports is None else ports, "endpoints": list(endpoints)}


def read(*slices: dict[str, Any], section: KubernetesDiscovery = SECTION, **labels: Any) -> Reading:
    """Return the replicas, and first the problems of the slices."""
    problems: dict[str, None] = {}
    found = endpoints(section.port, slices, problems)
    reading = replicas_of(section, found, {"node": labels.get("nodes", {}), "pod": labels.get("pods", {})})
    return replace(reading, problems=(*problems, *reading.problems))


def states(reading: Reading) -> dict[str, str]:
    return {item.name: "drained" if item.drain else "in" for item in reading.replicas}


def test_ready_is_in_terminating_is_drained_others_are_out() -> None:
    reading = read(
        piece(
            endpoint("a", "10.0.0.1"),
            endpoint("b", "10.0.0.2", state="terminating"),
            endpoint("c", "10.0.0.3", state="ended"),
            endpoint("d", "10.0.0.4", state="unready"),
        )
    )
    assert states(reading) == {"a": "in", "b": "drained"}
    assert reading.replicas[0] == Replica("a", Address("10.0.0.1", 8000))


def test_absent_conditions_mean_ready() -> None:
    assert states(read(piece({"addresses": ["10.0.0.1"]}))) == {"10.0.0.1-8000": "in"}
    nulls = {"ready": None, "serving": None, "terminating": None}
    assert states(read(piece({"addresses": ["10.0.0.1"], "conditions": nulls}))) == {"10.0.0.1-8000": "in"}


def test_terminating_pod_is_drained_even_if_it_is_ready() -> None:
    ending = {"ready": True, "serving": True, "terminating": True}
    reading = read(piece(endpoint("a", "10.0.0.1"), {**endpoint("b", "10.0.0.2"), "conditions": ending}))
    assert states(reading) == {"a": "in", "b": "drained"}


def test_without_ready_endpoints_terminating_ones_are_in() -> None:
    assert states(read(piece(endpoint("a", "10.0.0.1", state="terminating")))) == {"a": "in"}


def test_pod_in_two_slices_is_one_replica() -> None:
    reading = read(
        piece(endpoint("a", "10.0.0.1"), endpoint("b", "10.0.0.2", state="unready")),
        piece(endpoint("b", "10.0.0.2"), endpoint("c", "10.0.0.3")),
    )
    assert states(reading) == {"a": "in", "b": "in", "c": "in"}


def test_dual_stack_pod_is_one_replica_with_its_ipv4_address() -> None:
    six = piece(endpoint("a", "fd00::1"), endpoint("b", "fd00::2"), family="IPv6")
    reading = read(six, piece(endpoint("a", "10.0.0.1")))
    assert [(item.name, str(item.address)) for item in reading.replicas] == [
        ("a", "10.0.0.1:8000"),
        ("b", "[fd00::2]:8000"),
    ]


def test_endpoints_without_pods_are_listed_once() -> None:
    four, six = piece(endpoint("", "10.0.0.1")), piece(endpoint("", "fd00::1"), family="IPv6")
    assert [str(item.address) for item in read(four, six).replicas] == ["10.0.0.1:8000"]
    assert [str(item.address) for item in read(six).replicas] == ["[fd00::1]:8000"]
    assert read(piece(endpoint("", "replica.example.com"), family="FQDN")).replicas == ()


def test_port_is_chosen_by_name_or_number_or_is_the_only_one() -> None:
    one, two = piece(endpoint("a", "10.0.0.1"), ports=[{"port": 80}]), piece(endpoint("a", "10.0.0.1"))

    def port(item: dict[str, Any], wanted: str) -> int | str:
        reading = read(item, section=KubernetesDiscovery("ml", "vllm", wanted))
        return reading.replicas[0].address.port if reading.replicas else reading.problems[0]

    assert [port(two, "grpc"), port(two, "8123"), port(one, "")] == [9000, 8123, 80]
    assert port(two, "metrics") == "the service has no TCP port metrics (its ports: http, grpc)"
    assert "`port` is not set" in str(port(two, ""))


def test_gpu_and_zone_come_from_labels() -> None:
    section = KubernetesDiscovery(
        "ml", "vllm", "http", gpu_from=LabelSource("node", "gpu"), zone_from=LabelSource("pod", "zone")
    )
    nodes = {"n1": {"gpu": "NVIDIA-H100-80GB-HBM3"}, "n2": {"gpu": "Tesla-T4"}, "n3": {"gpu": "abacus"}}
    reading = read(
        piece(*(endpoint(f"p{i}", f"10.0.0.{i}", nodeName=f"n{i}") for i in (1, 2, 3))),
        section=section,
        nodes=nodes,
        pods={"p1": {"zone": "a"}},
    )
    assert [(item.gpu, item.capacity, item.zone) for item in reading.replicas] == [
        ("H100-SXM", 11, "a"),
        ("T4", 0.3, None),
        (None, 0.3, None),  # unknown: no more than the weakest
    ]
    assert reading.problems == ("gpu_from gpu: unknown GPU: abacus",)


def test_gpus_of_the_fleet_override_the_built_in_table() -> None:
    section = KubernetesDiscovery(
        "ml",
        "vllm",
        "http",
        gpu_from=LabelSource("node", "gpu"),
        zone_from="endpoint",
        gpus=(("L4", 7.0), ("own", 3.0)),
    )
    slices = piece(endpoint("a", "10.0.0.1", nodeName="n", zone="z"), endpoint("b", "10.0.0.2", nodeName="m"))
    reading = read(slices, section=section, nodes={"n": {"gpu": "NVIDIA-L4"}, "m": {"gpu": "Own"}})
    assert [(item.gpu, item.capacity, item.zone) for item in reading.replicas] == [("L4", 7, "z"), ("own", 3, None)]


def test_replicas_beyond_max_replicas_are_left_out() -> None:
    section = KubernetesDiscovery("ml", "vllm", "http", max_replicas=2)
    reading = read(piece(*(endpoint(f"p{i}", f"10.0.0.{i}") for i in (1, 2, 3))), section=section)
    assert (list(states(reading)), reading.left_out) == (["p1", "p2"], 1)
