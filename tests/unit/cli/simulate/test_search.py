"""`lbctl simulate --find` and its results, drained replicas, and engines from files, models and GPU types."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.simulate_command import FLEET, result, synthetic


def test_replicas_are_searched_that_survive_the_loss_of_a_zone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*synthetic(tmp_path), "--policy", "nginx:least_request", "--find", "replicas", "--slo", "ttft p99 < 2s"]
    name = "nginx:least_request"
    alone = result(capsys, command, "--speedup", "3")
    safe = result(capsys, command, "--speedup", "3", "--lose", "zone=a")
    assert safe["found"][name] > alone["found"][name]
    assert safe["loads_found"][name] < 1
    assert run([*command, "--speedup", "3", "--lose", "zone=a"]) == 0
    out = capsys.readouterr().out
    assert f"{safe['found'][name]} replicas meet ttft p99 < 2s without zone a" in out
    # The result must not depend on the load of the fleet itself, which is beyond the bound.
    assert safe["load"] > 1
    assert re.findall(r"The load is (\d+) %", out) == [f"{100 * safe['loads_found'][name]:.0f}"]


def test_found_replicas_are_the_strongest_and_faults_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*synthetic(tmp_path), "--policy", "nginx:least_request", "--find", "replicas", "--slo", "ttft p99 < 9s"]
    (tmp_path / "fleet.yaml").write_text(
        "version: 1\nlisteners: {g: {bind: 127.0.0.1:8080}}\nroutes: {r: {match: {path_prefix: /}, pool: p}}\n"
        "pools: {p: {replicas: [{name: a, address: 127.0.0.1:9001, gpu: L4},"
        " {name: b, address: 127.0.0.1:9002, gpu: H100-SXM}]}}\n"
    )
    assert run([*command, "--kill", "a@1"]) == 0
    out = capsys.readouterr().out
    assert "1 replica meets" in out
    assert "These options have no effect, because their replicas are not included: a." in out
    assert "Engines: the strongest replica is assumed to be Llama-2-70B on 8 H100s with vLLM" in out


def test_result_is_below_the_capacity_for_short_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In forty seconds of overload, no request waits for the ten minutes of the limit."""
    command = [*synthetic(tmp_path), "--duration", "40s", "--speedup", "4", "--policy", "nginx:least_request"]
    for find in ("rate", "replicas"):
        value = result(capsys, command, "--find", find, "--slo", "ttft p99 < 10m")
        (load,) = value["loads_found"].values()
        assert 0.3 < load < 1


def test_rate_is_shown_as_a_multiple_of_the_base_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find = ["--policy", "nginx:random", "--find", "rate", "--slo", "ttft p99 < 2s", "--speedup", "2"]
    (tmp_path / "trace.csv").write_text("time,prompt,answer\n" + "".join(f"{at / 2},500,80\n" for at in range(101)))
    loads = {"load": synthetic(tmp_path), "trace": [*synthetic(tmp_path)[:2], "--trace", str(tmp_path / "trace.csv")]}
    for name, command in loads.items():
        expected_rate = result(capsys, command, *find)["found"]["nginx:random"]
        assert run([*command, *find]) == 0
        sentence = re.search(rf"up to (\S+) requests/s \((\S+) × the {name}'s (\S+)/s\) meet", capsys.readouterr().out)
        assert sentence is not None
        rate, multiple, base_rate = map(float, sentence.groups())
        assert rate == pytest.approx(expected_rate, rel=0.01)
        assert rate == pytest.approx(multiple * base_rate, rel=0.01)
        assert base_rate == pytest.approx({"load": 10.0, "trace": 4.0}[name], rel=0.2)


def test_rate_is_searched_for_an_almost_idle_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "trace.csv").write_text("time,prompt,answer\n0,10,10\n80000,10,10\n")
    command = ["simulate", str(tmp_path / "fleet.yaml"), "--trace", str(tmp_path / "trace.csv"), "--policy"]
    value = result(capsys, command, "nginx:random", "--find", "rate", "--slo", "ttft p99 < 2s")
    assert 0.8 < value["loads_found"]["nginx:random"] < 1


def test_events_keep_their_place_in_a_faster_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find = ["--policy", "haproxy:round_robin", "--find", "rate", "--slo", "failed < 50%"]
    for event in (["--kill", "big@55"], ["--slow", "big=0@40"], ["--join", "big@55"]):
        value = result(capsys, synthetic(tmp_path), *find, *event)
        (policy,) = value["policies"]
        assert value["found"]["haproxy:round_robin"] > 10
        assert policy["failed"] > 0 or policy["share"]["big"] < 0.2


def test_drained_replicas_carry_no_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = ["--policy", "nginx:least_request"]
    drained = FLEET.replace("weight: 5, zone: a", "weight: 5, zone: a, drain: true")
    load = result(capsys, synthetic(tmp_path), *policy)["load"]
    command = [*synthetic(tmp_path, drained), *policy]
    assert result(capsys, command)["load"] == pytest.approx(load * 8 / 3, rel=0.1)
    # The largest replica that gets requests is lost, and each added copy gets requests.
    assert result(capsys, command, "--lose", "largest")["load"] == pytest.approx(load * 8, rel=0.2)
    value = result(capsys, command, "--speedup", "4", "--find", "replicas", "--slo", "ttft p99 < 2s")
    (policy_row,) = value["policies"]
    assert len(policy_row["share"]) == value["found"]["nginx:least_request"] >= 3
    assert all(policy_row["share"].values())


def test_drained_replica_is_listed_and_not_in_busy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drained = FLEET.replace("weight: 2, zone: a", "weight: 2, zone: a, drain: true")
    command = [*synthetic(tmp_path, drained), "--policy", "nginx:round_robin", "--plot", str(tmp_path / "out.svg")]
    (figures,) = result(capsys, command)["policies"]
    assert set(figures["utilisation"]) == set(figures["share"]) == {"big", "small"}
    assert figures["drained"] == ["middle"]
    least, most = sorted(figures["utilisation"].values())
    assert least > 0.5
    assert figures["spread"] == pytest.approx(most - least)
    assert run(command) == 0
    out = capsys.readouterr().out
    assert f" {100 * least:.0f}–{100 * most:.0f}% " in out
    assert "Drained replicas, which get no requests and are not included in BUSY: middle." in out
    assert f"{100 * least:.0f}–{100 * most:.0f} %" in (tmp_path / "out.svg").read_text()
    assert run(synthetic(tmp_path)) == 0
    assert "Drained" not in capsys.readouterr().out


@pytest.mark.parametrize("more", [["--kill", "big@20"], ["--join", "big@20"], ["--slow", "big=0.5"], ["--lose", "big"]])
def test_events_of_a_drained_replica_are_refused(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drained = FLEET.replace("weight: 5, zone: a", "weight: 5, zone: a, drain: true")
    assert run([*synthetic(tmp_path, drained), *more]) == 64
    message = " ".join(capsys.readouterr().err.split())
    assert f"{more[0]} big: it is drained and gets no requests, so this has no effect" in message


def test_pool_with_only_drained_replicas_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drained = FLEET.replace("zone: a", "zone: a, drain: true")
    assert run([*synthetic(tmp_path, drained), "--lose", "small"]) == 64
    assert "without small, pool p has no replica that gets requests" in " ".join(capsys.readouterr().err.split())
    assert run(synthetic(tmp_path, drained.replace("zone: b", "zone: b, drain: true"))) == 64
    assert "pool p has only drained replicas" in " ".join(capsys.readouterr().err.split())


def test_overloaded_fleet_gets_no_recommendation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*synthetic(tmp_path), "--speedup", "8", "--policy", "nginx:random,envoy:random"]) == 0
    out = capsys.readouterr().out
    assert "(Σλ ≥ Σμ): queues grow without bound" in out
    assert "The fleet is overloaded with every algorithm." in out
    assert "has the lowest" not in out


GPUS = """\
version: 1
listeners: {l: {bind: "127.0.0.1:8000"}}
routes: {r: {match: {path_prefix: /v1/}, pool: p}}
pools:
  p:
    replicas:
      - {name: a, address: "127.0.0.1:8001", gpu: H100-SXM, gpu_count: 8}
      - {name: b, address: "127.0.0.1:8002", gpu: A100-80GB, gpu_count: 8}
"""
PRICES = ["--price", "H100-SXM=10", "--price", "A100-80GB=1"]


def test_replicas_are_searched_by_gpu_type_with_their_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*synthetic(tmp_path, GPUS), "--policy", "nginx:least_request", "--find", "replicas"]
    command += ["--slo", "ttft p99 < 2s", "--speedup", "3", "--gpu", "8xH100-SXM", "--gpu", "8xA100-80GB"]
    value = result(capsys, command, *PRICES)
    strong, weak = (value["found"][f"8x{gpu}/nginx:least_request"] for gpu in ("H100-SXM", "A100-80GB"))
    assert 1 <= strong < weak
    assert value["cost_per_hour"] == {
        "8xH100-SXM/nginx:least_request": strong * 80,
        "8xA100-80GB/nginx:least_request": weak * 8,
    }
    assert run([*command, *PRICES]) == 0
    out = capsys.readouterr().out
    assert f"8xA100-80GB/nginx:least_request costs least: {weak} replicas for {weak * 8:.2f} per hour" in out
    assert run(command) == 0
    assert f"8xH100-SXM/nginx:least_request: the fewest replicas, {strong}." in capsys.readouterr().out
    assert run([*command, "--gpu", "H100"]) == 64
    assert "did you mean 'H100-" in capsys.readouterr().err


@pytest.mark.slow
def test_gpu_search_supports_only_loss_of_the_largest_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        *synthetic(tmp_path, GPUS),
        "--policy",
        "nginx:least_request",
        "--find",
        "replicas",
        "--gpu",
        "8xH100-SXM",
    ]
    name, slo = "8xH100-SXM/nginx:least_request", ["--slo", "ttft p99 < 2s"]
    alone = result(capsys, command, *slo)["found"][name]
    safe = result(capsys, command, *slo, "--lose", "largest")
    assert (safe["found"][name], safe["load"]) == (alone + 1, None)
    assert run([*command, "--slo", "ttft p50 < 1ms", "--lose", "largest"]) == 1
    assert f"{name}: no result meets ttft p50 < 1ms without the largest replica" in capsys.readouterr().out
    for more in (["--kill", "a@20"], ["--join", "a@20"], ["--slow", "a=0.5"], ["--lose", "a"], ["--lose", "zone=a"]):
        assert run([*command, *slo, *more]) == 64
        message = " ".join(capsys.readouterr().err.split())
        option = " ".join(more) if more[0] == "--lose" else more[0]
        assert f"--gpu and {option}: the replicas of --gpu do not have" in message


def test_gpu_types_are_compared_by_throughput_not_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--policy", "nginx:least_request", "--find", "replicas", "--slo", "ttft p99 < 2s", "--speedup", "3"]
    command += ["--gpu", "8xA100-80GB"]
    weighted = GPUS.replace("gpu: ", "weight: 1, gpu: ")
    by_gpu, by_weight = (result(capsys, synthetic(tmp_path, each), *command)["found"] for each in (GPUS, weighted))
    assert by_gpu == by_weight


def test_limit_per_token_needs_answers_of_several_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*synthetic(tmp_path), "--answer", "1", "--find", "rate", "--slo", "tpot p99 < 1s"]) == 64
    assert "every response in the load is only one" in " ".join(capsys.readouterr().err.split())


def test_slow_replica_keeps_its_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six prompts with the same prefix of 20 blocks arrive one after the other: five hit the cache."""
    rows = [
        {"timestamp": 60_000 * at, "input_length": 10_240, "output_length": 2, "hash_ids": [*range(20)]}
        for at in range(6)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "fleet.yaml").write_text(FLEET[: FLEET.index("      - {name: middle")])
    command = [
        "simulate",
        str(tmp_path / "fleet.yaml"),
        "--trace",
        str(tmp_path / "trace.jsonl"),
        "--policy",
        "nginx:random",
    ]
    (policy,) = result(capsys, command, "--slow", "big=0.01", "--engine", "cache=20000")["policies"]
    assert policy["cache_hits"] == pytest.approx(5 / 6, abs=0.01)


def test_engines_are_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*synthetic(tmp_path, GPUS), "--policy", "nginx:least_request"]
    file = tmp_path / "engines.yaml"
    file.write_text("a: 0.03\ngpus:\n  A100-80GB: {a: 0.3, sequences: 4}\n")
    (slow,) = result(capsys, command, "--engine", str(file))["policies"]
    (usual,) = result(capsys, command)["policies"]
    assert slow["tpot"]["p99"] > 2 * usual["tpot"]["p99"]
    file.write_text("")
    assert run([*command, "--engine", str(file)]) == 1
    assert f"{file}:1:1: error LB032: the file is empty\n" in capsys.readouterr().err
    file.write_text("a: -1\nz: 1\ngpus: {L4: 5}\ncache: 1.5\n")
    assert run([*command, "--engine", str(file)]) == 1
    err = capsys.readouterr().err
    assert f"{file}:1:4: error LB032: a must be a positive number of seconds" in err
    assert f"{file}:2:1: error LB032: 'z' is not an engine cost" in err
    assert f"{file}:3:12: error LB032: L4 must be a map of costs" in err
    assert f"{file}:4:8: error LB032: cache must be a whole number from 1 to 100,000,000" in err
    assert run([*command, "--engine", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml: error LB032: it cannot be read" in capsys.readouterr().err
    file.write_text(f"a: 0.03\n# {'x' * (1 << 20)}\nz: 1\n")
    assert run([*command, "--engine", str(file)]) == 1
    assert f"{file}: error LB032: it is larger than 1 MiB" in capsys.readouterr().err


def test_model_selects_the_engines_of_the_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*synthetic(tmp_path, GPUS), "--policy", "nginx:round_robin", "--model"]
    (figures,) = result(capsys, command, "llama-2-70b")["policies"]
    assert figures["utilisation"]["b"] > figures["utilisation"]["a"]
    assert run([*command, "llama-2-70b"]) == 0
    assert "Published results for llama-2-70b differ from these engines' speed: A100-80GB -, H100-SXM 83–110 %." in (
        capsys.readouterr().out
    )
    assert run([*command, "llama-3.1-8b"]) == 64
    assert "llama-3.1-8b was not measured on A100-80GB; measured: B200, H100-SXM" in capsys.readouterr().err
