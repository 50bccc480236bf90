from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.compile.gpus import GPUS
from lbctl.ir.pools import CircuitBreaker, KubernetesDiscovery, LabelSource
from tests.support.fleet import compiled, compiling, marked, places, pool_of


def capacities_of(*replicas: str, gpus: str = "{}") -> list[float]:
    listed = ", ".join(f'{{name: r{i}, address: "10.0.0.{i}:80"{more}}}' for i, more in enumerate(replicas))
    fleet, diagnostics = compiling(f"version: 1\ngpus: {gpus}\npools: {{p: {{replicas: [{listed}]}}}}\n")
    assert fleet is not None, diagnostics
    return [item.capacity for item in fleet.topology.pools[0].replicas]


def test_capacity_is_the_weight_or_else_gpu_throughput() -> None:
    a100 = GPUS["A100-80GB"].throughput
    given = (", weight: 2.5", ", gpu: A100-80GB", ", gpu: A100-80GB, gpu_count: 8", ", gpu: L4, weight: 9")
    assert capacities_of(*given) == [2.5, a100, 8 * a100, 9]


def test_a_replica_has_as_many_gpus_as_devices() -> None:
    assert capacities_of(', gpu: A100-80GB, devices: ["0", "1"]', ", gpu: A100-80GB") == [10, 5]


def test_replicas_without_gpu_and_weight_have_equal_capacity() -> None:
    assert capacities_of("", "", "") == [1, 1, 1]


def test_gpus_of_the_fleet_extend_and_override_the_table() -> None:
    assert capacities_of(", gpu: A100-80GB", ", gpu: Own", gpus="{A100-80GB: 6, Own: 7.5}") == [6, 7.5]


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ('{address: "a:1", weight: 2}, ▶{address: "b:1"}', "LB203"),
        ('{address: "a:1", gpu: L4}, ▶{address: "b:1"}', "LB203"),
        ('{address: "a:1", gpu: ▶h100-sxm}', "LB204"),
        ('{address: "a:1", gpu: L4, gpu_count: ▶3, devices: ["0", "1"]}', "LB205"),
        ('{address: "a:1", weight: ▶0}', "LB202"),
        ('{address: "a:1", weight: ▶-1}', "LB201"),
        ('{address: "a:1", weight: ▶"1"}', "LB201"),
        ('{address: "a:1", weight: ▶0.0000001}', "LB201"),
        ('{name: a, address: "a:1"}, ▶{name: a, address: "b:1"}', "LB104"),
        ('{address: "a:1"}, ▶{address: "A:1", name: x}', "LB105"),
        ('{address: "a:65534", ports: ▶3}', "LB153"),
        ('{address: "unix:/run/a.sock", ports: ▶2}', "LB153"),
        (f'{{name: {"n" * 62}, address: "a:1", ports: ▶2}}', "LB153"),
        ('{address: "a:1", gpu: L4, ports: 2, devices: ▶["0", "1", "2"]}', "LB153"),
        ('{name: dp-1, address: "b:1"}, {name: dp, address: "a:1", ports: ▶2}', "LB104"),
        ('{name: x, address: "a:2"}, {name: dp, address: "a:1", ports: ▶2}', "LB105"),
        ('{name: dp, address: "a:1", gpu: L4, ports: 2}, {name: x, address: "b:1", gpu: ▶L5}', "LB204"),
    ],
)
def test_a_bad_replica_is_an_error_at_its_position(replicas: str, code: str) -> None:
    text, mark = marked(f"version: 1\npools: {{p: {{replicas: [{replicas}]}}}}\n")
    fleet, diagnostics = compiling(text)
    assert fleet is None
    assert places(diagnostics) == [f"{mark} {code}"]


def test_each_rank_has_a_port_a_name_and_part_of_the_devices() -> None:
    devices = '["0", "1", "2", "3"]'
    listed = (
        f'{{name: dp, address: "h:9010", gpu: A100-80GB, ports: 2, devices: {devices}}}, {{address: "b:1", gpu: L4}}'
    )
    fleet, diagnostics = compiling(f"version: 1\npools: {{p: {{replicas: [{listed}]}}}}\n")
    assert fleet is not None, diagnostics
    *ranks, _ = sorted(fleet.topology.pools[0].replicas, key=lambda item: item.address.port, reverse=True)
    assert [(item.name, str(item.address), item.devices, item.gpu_count) for item in ranks] == [
        ("dp-1", "h:9011", ("2", "3"), 2),
        ("dp-0", "h:9010", ("0", "1"), 2),
    ]
    assert {item.capacity for item in ranks} == {2 * GPUS["A100-80GB"].throughput}
    positions = [str(fleet.sources.position(("pools", "p", "replicas", name))) for name in ("dp-0", "dp-1", "b-1")]
    assert positions[0] == positions[1] != positions[2]


def test_ranks_without_a_name_are_named_after_their_address() -> None:
    fleet, diagnostics = compiling('version: 1\npools: {p: {replicas: [{address: "h:9010", ports: 2}]}}\n')
    assert fleet is not None, diagnostics
    assert [item.name for item in fleet.topology.pools[0].replicas] == ["h-9010", "h-9011"]


def test_an_unknown_gpu_suggests_the_nearest_name() -> None:
    _, diagnostics = compiling('version: 1\npools: {p: {replicas: [{address: "a:1", gpu: H100-SMX}]}}\n')
    assert diagnostics[0].hint == "did you mean 'H100-SXM'?"


@pytest.mark.parametrize(
    ("address", "name"),
    [("10.0.0.1:80", "10.0.0.1-80"), ("[2001:db8::1]:80", "2001-db8--1--80"), ("Host_A:80", "host_a-80"),
     ("unix:/run/a.sock", "unix--run-a.sock"), ("unix:/" + "x" * 90, "unix--" + "x" * 57)],
)  # fmt: skip
def test_a_replica_without_a_name_is_named_after_its_address(address: str, name: str) -> None:
    assert pool_of(f'{{replicas: [{{address: "{address}"}}]}}').replicas[0].name == name


def test_replicas_are_sorted_by_name() -> None:
    pool = pool_of('{replicas: [{name: b, address: "a:1"}, {name: a, address: "b:1"}]}')
    assert [item.name for item in pool.replicas] == ["a", "b"]


@given(st.integers(1, 20), st.integers(0, 5))
def test_a_breaker_fits_all_replicas_and_at_most_twice_as_many(live: int, drained: int) -> None:
    listed = [f'{{address: "10.0.0.{i}:80", drain: {str(i >= live).lower()}}}' for i in range(live + drained)]
    breaker = pool_of(f"{{replicas: [{', '.join(listed)}]}}").circuit_breaker
    room = breaker.max_requests // 512
    assert breaker == CircuitBreaker(*[512 * room] * 4)
    assert live + drained <= room < 2 * (live + drained)


@pytest.mark.parametrize(("replicas", "room"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (17, 32)])
def test_a_breaker_grows_by_powers_of_two(replicas: int, room: int) -> None:
    listed = ", ".join(f'{{address: "10.0.0.{i}:80"}}' for i in range(replicas))
    assert pool_of(f"{{replicas: [{listed}]}}").circuit_breaker.max_requests == 512 * room


def test_a_breaker_follows_the_limits_of_a_replica() -> None:
    both = 'replicas: [{address: "a:1"}, {address: "b:1"}]'
    breaker = pool_of(
        f"{{{both}, circuit_breaker: {{per_replica: {{max_connections: 64, max_requests: 10}}}}}}"
    ).circuit_breaker
    assert breaker == CircuitBreaker(128, 20, 20, 20, 64, 10)


def test_a_drain_changes_no_breaker() -> None:
    both = '{{replicas: [{{address: "a:1", drain: {}}}, {{address: "b:1"}}, {{address: "c:1"}}]}}'
    assert pool_of(both.format("true")).circuit_breaker == pool_of(both.format("false")).circuit_breaker


def test_explicit_breaker_limits_are_kept() -> None:
    written = "{max_connections: 1, max_pending_requests: 2, max_requests: 3, max_retries: 4}"
    assert pool_of(f'{{replicas: [{{address: "a:1"}}], circuit_breaker: {written}}}').circuit_breaker == CircuitBreaker(
        1, 2, 3, 4
    )


def test_a_breaker_of_discovered_replicas_fits_max_replicas() -> None:
    pool = pool_of("{discovery: {dns: {name: a.b, port: 80, max_replicas: 10}}}")
    assert pool.circuit_breaker.max_requests == 5120
    pool = pool_of("{discovery: {kubernetes: {namespace: ml, service: vllm, max_replicas: 20}}}")
    assert pool.circuit_breaker.max_requests == 10240


def test_kubernetes_discovery_has_its_kubeconfig_path() -> None:
    keys = "port: 8000, kubeconfig: kube/config, context: prod, gpu_from: {node_label: x/gpu}, zone_from: endpoint"
    pool = pool_of(f"{{discovery: {{kubernetes: {{namespace: ml, service: vllm, {keys}}}}}}}")
    assert pool.discovery == KubernetesDiscovery(
        "ml", "vllm", "8000", "kube/config", "kube/config", "prod", LabelSource("node", "x/gpu"), "endpoint"
    )


def test_inference_pool_is_a_source() -> None:
    pool = pool_of("{discovery: {kubernetes: {namespace: ml, inference_pool: llama, zone_from: {node_label: zone}}}}")
    assert pool.discovery == KubernetesDiscovery(
        "ml", "", inference_pool="llama", zone_from=LabelSource("node", "zone")
    )


def test_slow_start_is_on_except_with_hash() -> None:
    base = 'replicas: [{address: "a:1"}]'
    assert pool_of(f"{{{base}}}").slow_start is not None
    assert pool_of(f"{{{base}, balance: {{algorithm: hash, hash: {{key: {{header: x}}}}}}}}").slow_start is None


@pytest.mark.parametrize(
    ("telemetry", "algorithm", "strategy"),
    [
        ("vllm", "{}", "adaptive"),
        ("dcgm", "{}", "static"),
        ("lmdeploy", "{}", "static"),
        ("tfserving", "{}", "adaptive"),
        ("vllm", "{algorithm: hash, hash: {key: {header: x}}}", "static"),
    ],
)
def test_weights_adapt_with_evidence_and_without_hashing(telemetry: str, algorithm: str, strategy: str) -> None:
    source = f'{{kind: {telemetry}, url: "http://{{host}}/"}}'
    text = f'{{replicas: [{{address: "a:1"}}], balance: {algorithm}, telemetry: {{sources: [{source}]}}}}'
    assert pool_of(text).weighting.strategy == strategy


@pytest.mark.parametrize(
    ("passive", "fallback", "expected"),
    [("{}", "", 50), ("{}", ", fallback: q", 100), ("{max_ejection: 50%}", ", fallback: q", 50)],
)
def test_a_whole_pool_may_be_ejected_if_it_has_a_fallback(passive: str, fallback: str, expected: float) -> None:
    fleet = compiled(
        f"version: 1\nroutes: {{r: {{pool: p{fallback}}}}}\npools:\n"
        f'  p: {{replicas: [{{address: "a:1"}}], health: {{passive: {passive}}}}}\n'
        '  q: {replicas: [{address: "b:1"}]}\n'
    )
    assert [item.passive.max_ejection for item in fleet.topology.pools if item.passive] == [expected, 50]


def test_adaptive_weighting_without_evidence_is_a_warning() -> None:
    fleet, diagnostics = compiling(
        "version: 1\npools:\n"
        '  p: {replicas: [{address: "a:1"}], weighting: {strategy: adaptive},'
        ' telemetry: {sources: [{kind: dcgm, url: "http://{host}/"}]}}\n'
    )
    assert fleet is not None
    assert [(item.code, item.severity, item.path[-1]) for item in diagnostics] == [("LB603", "warning", "strategy")]
