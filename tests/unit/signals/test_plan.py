"""Scrape plans of replicas: templates, custom metrics, and responses of Prometheus."""

from __future__ import annotations

import json

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.signals import custom, prometheus
from lbctl.signals.derive import derive
from lbctl.signals.devices import ALL_LINES
from lbctl.signals.plan import ScrapeSource, scrape_plan
from tests.support.fleet import pool_of


def planned_source(item: MetricsSource, replica: Replica) -> ScrapeSource:
    plan = scrape_plan(Pool("p", (replica,), telemetry=Telemetry(sources=(item,))), replica)
    assert plan is not None
    return plan.sources[0]


_A = Replica("a", Address("10.0.0.1", 8000), devices=("0", "1"))


def test_only_the_five_placeholders_are_replaced() -> None:
    query = 'sum(up{instance="{host}:{port}",pod="{name}",gpu=~"{device}",x="{other}"}) + {address}'
    item = MetricsSource("prometheus", "http://{host}:9090", "queue", query=query)
    assert planned_source(item, _A).url == "http://10.0.0.1:9090"
    assert (
        planned_source(item, _A).query
        == 'sum(up{instance="10.0.0.1:8000",pod="a",gpu=~"0|1",x="{other}"}) + 10.0.0.1:8000'
    )


def test_each_replica_has_the_url_of_its_agent() -> None:
    pool = pool_of(
        '{replicas: [{name: a, address: "10.0.0.1:8000"}, {name: b, address: "10.0.0.1:8001", agent_port: 9502}],'
        ' health: {agent: {port: 9500}}, telemetry: {sources: [{kind: vllm, url: "http://{address}/metrics"}]}}'
    )
    plans = [scrape_plan(pool, item) for item in pool.replicas]
    assert [[(item.kind, item.url) for item in plan.sources] for plan in plans if plan] == [
        [("vllm", "http://10.0.0.1:8000/metrics"), ("agent", "http://10.0.0.1:9500/metrics")],
        [("vllm", "http://10.0.0.1:8001/metrics"), ("agent", "http://10.0.0.1:9502/metrics")],
    ]


def test_an_ipv6_host_has_brackets_only_in_the_url() -> None:
    replica = Replica("a", Address("fd00::1", 8000))
    item = MetricsSource("dcgm", "http://{host}:9400/metrics", match_labels=(("host", "{host}"),))
    source = planned_source(item, replica)
    assert source.url == "http://[fd00::1]:9400/metrics"
    assert source.selection.labels == (("host", ("fd00::1",)),)


def test_a_label_with_the_device_matches_any_device() -> None:
    item = MetricsSource("dcgm", "http://x/", match_labels=(("device", "nvidia{device}"), ("Hostname", "{name}")))
    assert set(planned_source(item, _A).selection.labels) == {("device", ("nvidia0", "nvidia1")), ("Hostname", ("a",))}


def test_sources_of_the_replica_replace_sources_of_the_pool() -> None:
    own = Telemetry(interval=1000, timeout=500, stale_after=3000, sources=(MetricsSource("vllm", "http://own/"),))
    pool = Pool("p", telemetry=Telemetry(sources=(MetricsSource("dcgm", "http://pool/"),)))
    plan = scrape_plan(pool, Replica("a", Address("h", 1), telemetry=own))
    assert plan is not None
    assert [item.url for item in plan.sources] == ["http://own/"]
    assert (plan.interval, plan.timeout, plan.stale_after, plan.reserves_memory) == (1, 0.5, 3, True)
    assert scrape_plan(Pool("p"), Replica("a", Address("h", 1))) is None


def _custom(page: bytes, metric: str, signal: str, unit: str | None) -> dict[str, float]:
    table = custom.table(metric, signal, unit)
    return dict(table.reading(table.reader().read(page), ALL_LINES, 0).quantities)


@pytest.mark.parametrize(
    ("signal", "unit", "expected"),
    [("queue", "requests", 30), ("queue", None, 30), ("gpu", "percent", 0.15), ("gpu_memory_free", "MiB", 10 * 2**20),
     ("temperature", "celsius", 20), ("ttft", "milliseconds", 0.015), ("throughput", "tokens/s", 30),
     ("progress", "count", 30)],
)  # fmt: skip
def test_a_custom_metric_is_converted_and_combined(signal: str, unit: str | None, expected: float) -> None:
    assert _custom(b'mine{x="1"} 10\nmine{x="2"} 20\n', "mine", signal, unit)[signal] == pytest.approx(expected)


def test_custom_histograms_and_counters_yield_means_and_rates() -> None:
    table = custom.table("wait_ms", "ttft", "milliseconds")
    looks = [
        table.reading(table.reader().read(b"wait_ms_sum %d\nwait_ms_count %d\n" % pair), ALL_LINES, at)
        for at, pair in ((0, (1000, 10)), (5, (3000, 20)))
    ]
    assert derive(table, *looks).values["ttft"].value == pytest.approx(0.2)
    table = custom.table("out_total", "throughput", "tokens")
    looks = [table.reading(table.reader().read(b"out_total %d\n" % n), ALL_LINES, at) for at, n in ((0, 100), (5, 600))]
    assert derive(table, *looks).values["throughput"].value == 100


def test_a_wrong_unit_is_rejected_with_the_valid_ones() -> None:
    assert custom.unit_problem("temperature", "celsius") is None
    assert "bytes, KiB" in (custom.unit_problem("gpu_memory_free", "seconds") or "")
    assert "MiB" in (custom.unit_problem("gpu_memory_free", "Mib") or "")
    assert _custom(b"mine 3\n", "mine", "temperature", "bytes") == {}


def _answer(kind: str, result: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def _vector(*values: str) -> bytes:
    return _answer("vector", [{"metric": {"i": str(place)}, "value": [1, value]} for place, value in enumerate(values)])


@pytest.mark.parametrize(
    ("body", "signal", "unit", "expected"),
    [
        (_vector("7"), "queue", None, 7),
        (_vector("7", "5"), "queue", None, 12),
        (_vector("80", "90"), "gpu", "percent", 0.85),
        (_answer("scalar", [1, "2.5"]), "temperature", None, 2.5),
        (_vector("3", "9"), "gpu_memory_free", "GB", 3e9),
    ],
)
def test_a_query_result_becomes_one_number(body: bytes, signal: str, unit: str | None, expected: float) -> None:
    assert prometheus.value(body, signal, unit) == pytest.approx(expected)


@pytest.mark.parametrize(
    "body",
    [_vector(), _vector("NaN"), _vector("+Inf"), _vector("-1"), _vector("1_0"), _vector("٣"), _vector("1", "NaN"),
     _vector("2e9"), _answer("matrix", []), _answer("vector", [3]), _answer("vector", None), _answer("scalar", None),
     _answer("string", [1, "x"]), b"", b"[]", b"{", b"null", b'{"status":"success"}', b'{"status":"success","data":7}',
     b"[" * 100_000, b"1" * 10_000, b"\xff\xfe", json.dumps({"status": "error", "error": "parse error"}).encode(),
     _answer("vector", [{"value": [1, 7]}]), _answer("vector", [{"value": [1, "\ud800"]}])],
    ids=range(25),
)  # fmt: skip
def test_a_response_without_a_value_has_a_reason(body: bytes) -> None:
    with pytest.raises(prometheus.NoValueError) as refused:
        prometheus.value(body, "queue", None)
    assert str(refused.value)


@pytest.mark.parametrize(
    "answer",
    [
        {"status": "error", "error": "x\ud800" + "y" * 900_000},
        {"status": "success", "data": {"resultType": "x\ud800" + "y" * 900_000}},
        {"status": "error", "error": ["x\ud800"] * 10_000},
    ],
)
def test_prometheus_errors_are_short_and_encodable(answer: dict[str, object]) -> None:
    with pytest.raises(prometheus.NoValueError) as refused:
        prometheus.value(json.dumps(answer).encode(), "queue", None)
    assert len(str(refused.value).encode()) < 300


def test_the_error_of_prometheus_is_repeated() -> None:
    with pytest.raises(prometheus.NoValueError, match="parse error at char 3"):
        prometheus.value(b'{"status":"error","errorType":"bad_data","error":"parse error at char 3"}', "queue", None)


@pytest.mark.parametrize(
    ("url", "keyed"),
    [
        ("http://{address}/metrics", True),
        ("https://{host}:{port}/metrics?x=1", True),
        ("http://{host}:9400/metrics", False),
        ("http://metrics.example/{address}", False),
        ("http://{address}@metrics.example/", False),
    ],
)
@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1"])
def test_key_goes_to_the_replicas_own_address_alone(host: str, url: str, keyed: bool) -> None:
    pool = Pool("p", telemetry=Telemetry(sources=(MetricsSource("vllm", url),)))
    plan = scrape_plan(pool, Replica("a", Address(host, 8000)), ("authorization", "Bearer x"))
    assert plan is not None
    assert (plan.sources[0].key is not None) == keyed
    assert "Bearer" not in repr(plan)
