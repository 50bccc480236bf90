"""InferencePools and pods to endpoints: a pure function of API objects."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.ir.pools import KubernetesDiscovery
from lbctl.serve.discovery.endpoints import replicas_of
from lbctl.serve.discovery.inference_pool import endpoints, read
from tests.support.kubernetes import inference_pool, pod

SECTION = KubernetesDiscovery("ml", "", inference_pool="llama")


def replicas(*ports: int, **pods: dict[str, Any]) -> dict[str, str]:
    """Return the address of each replica of these pods, followed by `drained` if it is."""
    found = read(inference_pool(*ports))
    assert found is not None
    named = [{**item, "metadata": {**item["metadata"], "name": name}} for name, item in pods.items()]
    members = replicas_of(SECTION, endpoints(found, named), {"node": {}}).replicas
    return {item.name: f"{item.address}{' drained' if item.drain else ''}" for item in members}


def test_ready_is_in_terminating_is_drained_others_are_out() -> None:
    states = {"a": "ready", "b": "terminating", "c": "ended", "d": "unready"}
    pods = {name: pod(f"10.0.0.{i}", state=state) for i, (name, state) in enumerate(states.items(), start=1)}
    assert replicas(8000, **pods) == {"a": "10.0.0.1:8000", "b": "10.0.0.2:8000 drained"}


def test_each_port_of_a_pod_is_a_replica() -> None:
    assert replicas(8000, 8001, a=pod("10.0.0.1")) == {"a-8000": "10.0.0.1:8000", "a-8001": "10.0.0.1:8001"}


def test_dual_stack_pod_has_its_ipv4_address() -> None:
    both = pod("fd00::1", podIPs=[{"ip": "fd00::1"}, {"ip": "10.0.0.1"}])
    assert replicas(8000, a=both, b=pod("fd00::2")) == {"a": "10.0.0.1:8000", "b": "[fd00::2]:8000"}


def test_pods_that_ended_or_have_no_address_are_left_out() -> None:
    pods = {"a": pod("10.0.0.1", phase="Failed"), "b": pod("", podIPs=[]), "c": pod("10.0.0.3")}
    assert list(replicas(8000, **pods)) == ["c"]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"targetPorts": [{"number": 8000}]},
        {"selector": {"matchLabels": {}}, "targetPorts": [{"number": 8000}]},
        {"selector": {"matchLabels": {"app": "vllm"}}},
        {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 0}, {"number": 70000}]},
    ],
)
def test_incomplete_pool_selects_nothing(spec: dict[str, Any]) -> None:
    assert read({"spec": spec}) is None
