"""How live signals change the traffic of a real Envoy. The engines expose the metrics of vLLM."""

from __future__ import annotations

import time
from typing import Any

import pytest
import requests

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import next_share
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.waiting import at_rest, eventually

_GENERATE = Request("POST", "/v1/completions?n=10", timeout=20.0)


def _fleet(members: list[Engine], telemetry: dict[str, Any] | None = None, **keys: Any) -> Fleet:
    sources = [{"kind": "vllm", "url": "http://{address}/metrics"}]
    pool = pool_of(members, telemetry={"interval": "500ms", "sources": sources, **(telemetry or {})}, **keys)
    return fleet_of(pool, **driven("edge"))


def _weights(envoy: XdsEnvoy, members: list[Engine]) -> list[int]:
    weights = envoy.weights("pool")
    return [weights[item.address] for item in members]


def _health(envoy: XdsEnvoy, engine: Engine) -> str:
    return str(envoy.hosts("pool")[engine.address]["health_status"].get("eds_health_status", "HEALTHY"))


def _state(control: ControlPlane, replica: str) -> tuple[str, str]:
    (pool,) = control.get("pools")["pools"]
    row = next(item for item in pool["replicas"] if item["name"] == replica)
    return row["state"], row["state_reason"]


def _has_samples(control: ControlPlane) -> bool:
    return control.metric("lbctl_sample_to_decision_seconds_count") > 0


def test_replica_of_half_speed_gets_half_the_requests() -> None:
    weighting = {"adaptive": {"smoothing": "2s"}}
    with engines("a", "b", "c", "d") as members:
        fleet = _fleet(members, weighting=weighting)
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(60, _GENERATE) as load:
                eventually(lambda: _has_samples(control))
                time.sleep(1)
                assert len(set(_weights(envoy, members))) == 1
                members[0].speed = 0.5
                # least request: 0.35 when it has arrived
                eventually(lambda: _weights(envoy, members)[0] < 0.45 * _weights(envoy, members)[1])
                wanted = pytest.approx(0.5 / 3.5, abs=0.05)
                eventually(lambda: next_share(load, "a", 3) == wanted)
            load.load.assert_no_failure()


def test_wedged_engine_gets_no_requests_until_it_recovers() -> None:
    """It answers its health checks, but it reports requests and no progress."""
    active = {"http": {"path": "/health"}, "interval": "1s", "unhealthy_threshold": 20}
    health = {"active": active, "deep": {"stalled_after": "2s"}}
    passive = {"passive": {"ejection_time": "1s"}}
    with engines("a", "b", "c") as members:
        fleet = _fleet(members, health={**health, **passive})
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(30, _GENERATE) as load:
                eventually(lambda: _has_samples(control))
                time.sleep(1)
                members[0].wedged = True
                eventually(lambda: _health(envoy, members[0]) == "UNHEALTHY")
                count = at_rest(lambda: members[0].requests)
                assert "stalled" in control.log
                series = next(item for item in control.metrics() if item.startswith("lbctl_replica_out{"))
                assert 'replica="a"' in series
                time.sleep(1)
                assert members[0].requests == count
                members[0].wedged = False
                eventually(lambda: _health(envoy, members[0]) == "HEALTHY")
                eventually(lambda: members[0].requests > count + 3)
            load.load.assert_no_failure()


def test_sleeping_engine_gets_no_requests_and_no_warning() -> None:
    state = 'vllm:engine_sleep_state{sleep_state="awake"} %d\n'
    with engines("a", "b", "c") as members:
        for engine in members:
            engine.more = state % 1
        with controlling(_fleet(members)) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(30, _GENERATE) as load:
                eventually(lambda: _has_samples(control))
                members[0].more = state % 0
                eventually(lambda: _health(envoy, members[0]) == "UNHEALTHY")
                count = at_rest(lambda: members[0].requests)
                eventually(lambda: _state(control, "a")[0] == "asleep")
                assert _state(control, "a")[1] == "its engine is asleep; it gets requests when it is awake"
                assert control.status["problems"] == []
                assert members[0].requests == count
                members[0].more = state % 1
                eventually(lambda: members[0].requests > count + 3)
                eventually(lambda: _state(control, "a")[0] == "in")
            load.load.assert_no_failure()


def test_weights_become_equal_when_all_exporters_fail() -> None:
    with engines("a", "b", "c") as members:
        members[0].speed = 0.4
        weighting = {"adaptive": {"smoothing": "1s"}, "max_step": {"up": "30%"}}
        fleet = _fleet(members, {"stale_after": "2s"}, weighting=weighting)
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(40, _GENERATE) as load:
                eventually(lambda: _weights(envoy, members)[0] < _weights(envoy, members)[1])
                eventually(lambda: control.status["sources"] == {"total": 3, "failing": 0, "pools": {}})
                for engine in members:
                    engine.silent = True
                silent = time.monotonic()
                least = 1 << 30
                while len(set(_weights(envoy, members))) > 1:
                    assert time.monotonic() - silent < 60, control.tail()
                    least = min(least, *_weights(envoy, members))
                    time.sleep(0.05)
                assert least > 0
                eventually(lambda: control.status["sources"] == {"total": 3, "failing": 3, "pools": {"pool": 3}})
                assert control.metric("lbctl_sources") == 3
                time.sleep(1)
                assert len(set(_weights(envoy, members))) == 1
            load.load.assert_no_failure()


def test_saturated_engine_stays_healthy() -> None:
    deep = {"deep": {"stalled_after": "2s"}}
    with (
        engines("a", "b", slots=2) as members,
        controlling(_fleet(members, health=deep)) as control,
        control.envoy("edge", ["edge"]) as envoy,
    ):
        # about 200 requests for each engine, which takes 0.4 s for two of them
        load = envoy.client().send_load(400, 400, Request("POST", "/v1/completions?n=40", timeout=100.0))
        eventually(lambda: min(item.in_flight for item in members) > 8)
        time.sleep(4)
        assert [_health(envoy, item) for item in members] == ["HEALTHY", "HEALTHY"]
        assert len(set(_weights(envoy, members))) == 1
        assert min(item.in_flight for item in members) > 0
        assert not control.metric("lbctl_replica_out")
        for engine in members:
            engine.slots = 400
        load.result(60).assert_no_failure()


def test_commands_explain_decisions_and_operators_override_them(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with engines("a", "b", "c") as members:
        fleet = _fleet(members, weighting={"adaptive": {"smoothing": "1s"}})
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(30, _GENERATE):
                members[0].speed = 0.4
                eventually(lambda: _weights(envoy, members)[0] < _weights(envoy, members)[1])
                assert _invoke(capfd, control, "explain", "weight", "pool/a")[0] == 0
                parts = (
                    "normalised     -0.", "factors        room 1, ", "acknowledged   by 1 of 1 proxies",
                    "signal         running = ",
                )  # fmt: skip

                def is_explained() -> bool:
                    explanation = _invoke(capfd, control, "explain", "weight", "pool/a")[1]
                    return all(part in explanation for part in parts)

                eventually(is_explained)  # a weight that moves just then is not acknowledged yet
                rows = _invoke(capfd, control, "status", "signals")[1].splitlines()
                assert any(row.split()[:3] == ["pool", "a", "kv_cache"] for row in rows)
                token = ("--token-file", str(control.state / "api-token"))

                assert _invoke(capfd, control, "weight", "set", "pool/a", "3", "--reason", "a trial", *token)[0] == 0
                eventually(lambda: _weights(envoy, members)[0] > 4 * _weights(envoy, members)[1])
                assert "override   weight pool/a 3, by operator: a trial" in _invoke(capfd, control, "status")[1]
                for value in _WRONG_WEIGHTS:
                    code, answer = _set_weight(control, value)
                    assert code == 400, answer
                    assert _WRONG_WEIGHTS[value] in answer
                assert control.status["overrides"][0]["value"] == 3
                eventually(lambda: "sources    0 of 3 failing\n" in _invoke(capfd, control, "status")[1])
                assert _invoke(capfd, control, "weight", "unset", "pool/a", *token)[0] == 0
                eventually(lambda: _weights(envoy, members)[0] < _weights(envoy, members)[1])

                assert _invoke(capfd, control, "drain", "pool/b", "--wait", *token)[0] == 0
                assert _health(envoy, members[1]) == "DRAINING"
                assert _invoke(capfd, control, "drain", "pool/b", "--ttl", "2s", *token)[0] == 0
                eventually(lambda: _health(envoy, members[1]) == "HEALTHY")
                assert _invoke(capfd, control, "drain", "pool/b", "--wait", *token)[0] == 0
                assert _invoke(capfd, control, "undrain", "pool/b", "--wait", *token)[0] == 0
                assert _health(envoy, members[1]) == "HEALTHY"
                code, _, errors = _invoke(capfd, control, "drain", "pool/z", *token)
                assert (code, "has no replica" in errors) == (1, True), errors
            metrics = control.metrics()
            assert metrics['lbctl_replica_weight{pool="pool",replica="a"}'] < 0.8
            assert 0 < metrics['lbctl_pool_utilisation{pool="pool"}'] < 1
            assert metrics['lbctl_pool_queue{pool="pool"}'] >= 0
            per_replica = {name.partition("{")[0] for name in metrics if name.startswith("lbctl_replica_")}
            assert {"lbctl_replica_queue", "lbctl_replica_kv_cache_ratio"} <= per_replica
            assert metrics["lbctl_sample_to_acked_seconds_count"] > 0


_WRONG_WEIGHTS = {
    "NaN": "is not a number above 0", "Infinity": "is not a number above 0", "0": "is not a number above 0",
    "1e9": "the maximum weight is 1000000", '"3"': "value is not a number", "true": "value is not a number",
}  # fmt: skip
"""Maps the JSON of a weight to the error."""


def _set_weight(control: ControlPlane, value: str) -> tuple[int, str]:
    """Set a weight to this JSON by the API, and return the status and the body of the response."""
    token = (control.state / "api-token").read_text().strip()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    body = f'{{"kind": "weight", "pool": "pool", "replica": "a", "value": {value}}}'
    answer = requests.post(f"{control.url}/api/v1/overrides", data=body, headers=headers, timeout=10)
    return answer.status_code, answer.text


def _invoke(capfd: pytest.CaptureFixture[str], control: ControlPlane, *arguments: str) -> tuple[int, str, str]:
    """Run a command against this control plane, and return its exit code and both outputs."""
    capfd.readouterr()
    code = run([*arguments, "--server", control.url])
    out, err = capfd.readouterr()
    return code, out, err
