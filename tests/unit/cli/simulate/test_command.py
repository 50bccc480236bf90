"""`lbctl simulate`: results for each algorithm, searches, failures, plots, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.paths import ROOT
from tests.support.simulate import load
from tests.support.simulate_command import FLEET, result

FIND = ["--find", "replicas", "--slo", "ttft p99 < 2s"]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    trace = load(300, 5.0, 500, 80)
    rows = zip(trace.times, trace.prompts, trace.answers, strict=True)
    (tmp_path / "trace.csv").write_text("time,prompt,answer\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    return ["simulate", str(tmp_path / "fleet.yaml"), "--trace", str(tmp_path / "trace.csv")]


def test_every_algorithm_has_a_row_and_the_best_is_named(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert {line.split()[0] for line in out.splitlines()} >= {"envoy:least_request", "haproxy:pick", "nginx:random"}
    assert "(Σλ < Σμ)" in out


def test_json_results_are_deterministic(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (result(capsys, arguments, "--policy", "envoy:round_robin") for _ in range(2))
    assert one == two
    (policy,) = one["policies"]
    assert policy["share"]["big"] == pytest.approx(5 / 8, abs=0.02)
    assert policy["failed"] == 0
    assert 0 < policy["ttft"]["p50"] <= policy["ttft"]["p99"]


def test_find_reports_rate_or_replicas_that_meet_a_limit(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--policy", "nginx:least_request", "--slo", "ttft p99 < 2s"]
    rate = result(capsys, arguments, *chosen, "--find", "rate")
    assert rate["found"]["nginx:least_request"] > 1
    assert rate["policies"][0]["ttft"]["p99"] < 2
    few = result(capsys, arguments, *chosen, "--find", "replicas")["found"]["nginx:least_request"]
    many = result(capsys, arguments, *chosen, "--find", "replicas", "--speedup", "4")["found"]["nginx:least_request"]
    assert few < many
    assert run([*arguments, "--find", "rate", "--slo", "ttft p50 < 1ms", "--policy", "nginx:random"]) == 1
    assert "no result meets" in capsys.readouterr().out


def test_lost_or_slow_replica_increases_latency(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def p99(*more: str) -> float:
        value = result(capsys, arguments, "--policy", "haproxy:round_robin", *more)["policies"][0]["total"]["p99"]
        assert isinstance(value, float)
        return value

    assert p99("--lose", "largest") > p99()
    assert p99("--lose", "zone=a") > p99("--lose", "big") > p99("--lose", "small")
    assert p99("--slow", "small=0.3") > p99()


def test_lost_replicas_get_no_requests(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    policy = ["--policy", "haproxy:round_robin"]
    for lose, left in (
        (["big", "small"], {"middle"}),
        (["zone=b", "largest"], {"middle"}),
        (["big", "zone=a"], {"small"}),
        (["small", "small"], {"big", "middle"}),
    ):
        more = [each for text in lose for each in ("--lose", text)]
        (figures,) = result(capsys, arguments, *policy, *more)["policies"]
        assert set(figures["share"]) == left
    both = ["--lose", "zone=b", "--lose", "largest"]
    assert run([*arguments, *policy, *both]) == 0
    assert "the capacity of the engines without zone b and the largest replica" in capsys.readouterr().out
    counts = result(capsys, arguments, *policy, *both, *FIND)["found"]
    assert counts["haproxy:round_robin"] > result(capsys, arguments, *policy, *FIND)["found"]["haproxy:round_robin"]
    assert run([*arguments, *policy, *both, *FIND]) == 0
    assert "without zone b and the largest replica" in capsys.readouterr().out


def test_plot_writes_the_figures_as_svg(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--kill", "big@20", "--policy", "nginx:random,envoy:random"]
    figures = result(capsys, arguments, *more, "--plot", str(tmp_path / "out.svg"))["policies"]
    picture = ET.parse(tmp_path / "out.svg").getroot()
    texts = [each.text for each in picture.iter() if each.text]
    assert {"nginx:random", "time to the first token", "engines busy", "without an answer"} <= set(texts)
    for item in figures:
        busy = sorted(item["utilisation"].values())
        assert f"{100 * busy[0]:.0f}–{100 * busy[-1]:.0f} %" in texts
        assert f"{100 * item['failed']:.1f} %" in texts
    failed = [float(each.get("width", "")) for each in picture.iter() if each.get("class") == "f"]
    highest = max(item["failed"] for item in figures)
    assert failed == pytest.approx([max(failed) * item["failed"] / highest for item in figures], abs=0.1)


def test_figures_are_printed_if_the_plot_cannot_be_written(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "no" / "out.svg"
    assert run([*arguments, "--requests", "5", "--policy", "nginx:random", "--plot", str(picture)]) == 1
    out, err = capsys.readouterr()
    assert "nginx:random" in out
    assert f"{picture}: error LB001: the chart cannot be written: No such file or directory" in err


def test_plot_of_a_trace_whose_name_is_not_utf8(arguments: list[str], tmp_path: Path) -> None:
    """A file name may be any bytes. Python represents those that are not UTF-8 as halves of surrogate pairs."""
    named = tmp_path / "a\udce9\x01.csv"
    (tmp_path / "trace.csv").rename(named)
    more = ["--requests", "5", "--policy", "nginx:random", "--plot", str(tmp_path / "out.svg")]
    assert run([*arguments[:-1], str(named), *more]) == 0
    title = ET.parse(tmp_path / "out.svg").findtext("{http://www.w3.org/2000/svg}title")
    assert title == f"p: {tmp_path}/a\ufffd\ufffd.csv"


@pytest.mark.slow
def test_broken_numba_is_a_warning(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken" / "numba").mkdir(parents=True)
    (tmp_path / "broken" / "numba" / "__init__.py").write_text("raise ImportError('Numba needs NumPy 2.2 or less')")
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0", "PYTHONPATH": f"{tmp_path / 'broken'}:{ROOT}"}
    command = [sys.executable, "-m", "lbctl", *arguments, "--requests", "5", "--policy", "nginx:random"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.stderr.startswith("warning: numba is not available, so the simulation is slower: ")
    assert process.stderr.endswith("Numba needs NumPy 2.2 or less\n")
    assert (process.returncode, "nginx:random" in process.stdout) == (0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "envoy:leastrequest"], "envoy:least_request"),
        (["--pool", "q"], "no pool 'q'"),
        (["--lose", "nobody"], "has no replica nobody; big, middle, small (or largest, or zone=Z)"),
        (["--lose", "big", "--lose", "mid"], "has no replica mid; did you mean 'middle'?"),
        (["--lose", "zone=c"], "has no replica in zone 'c'; a, b"),
        (["--lose", "zone=a", "--lose", "small"], "without zone a and small, pool p has no replica that gets requests"),
        (["--lose", "zone=a", "--lose", "zone=b"], "keep one of these: big, middle, small"),
        (["--lose", "largest", "--lose", "largest"], "removes one replica, even if repeated (name the second one)"),
        (["--lose", "big", "--kill", "big@20"], "--kill big: --lose big removes it from the start (omit one"),
        (["--lose", "zone=a", "--join", "big@20"], "--join big: --lose zone=a removes it from the start"),
        (["--lose", "largest", "--slow", "big=0.5"], "--slow big: --lose largest removes it from the start"),
        (["--join", "big@20", "--join", "big@30"], "--join: big is set twice"),
        (["--slow", "big=0.5", "--slow", "big=0.4"], "--slow: big is set twice"),
        (["--price", "L40S=1", "--price", "L40S=2"], "--price: L40S is set twice"),
        (["--slow", "bigg=1"], "big"),
        (["--slow", "big=fast"], "REPLICA=FACTOR"),
        (["--slow", "big=1e-320"], "the factor must be from 0.0001 to 100"),
        (["--slow", "big=1e-320@5"], "the factor must be from 0.0001 to 100"),
        (["--engine", "z=1"], "not one of a, b, c"),
        (["--engine", "a=-1"], "a positive number"),
        (["--engine", "sequences=1e9"], "from 1 to 65,536"),
        (["--engine", "cache=0.5"], "a whole number"),
        (["--find", "rate"], "--find and --slo require each other"),
        (["--rate", "5"], "--trace and --rate"),
        (["--tenant", "a=1"], "--trace and --tenant"),
        (["--kill", "big"], "REPLICA@SECONDS"),
        (["--kill", "big@20-10"], "REPLICA@SECONDS"),
        (["--kill", "bigg@5"], "did you mean 'big'?"),
        (["--join", "big@-1"], "REPLICA@SECONDS"),
        (["--join", "nobody@1"], "no replica 'nobody'"),
        (["--telemetry-delay", "1"], "--telemetry-delay"),
        (["--gpu", "L40S"], "--gpu requires --find replicas"),
        (["--model", "gpt"], "there is no engine for 'gpt'"),
        (["--model", "llama-2-70b"], "a replica without a gpu"),
        (["--engine", "a=1", "--model", "llama-2-70b"], "use only one of these options"),
        (["--price", "L40S"], "TYPE=PRICE"),
        (["--calibrate", "file:///etc/passwd"], "not the URL of a metrics page"),
        (["--find", "rate", "--slo", "soon"], "not a limit"),
        (["--speedup", "nan"], "--speedup"),
        (["--model", "llama-2-70b", *FIND, "--gpu", "²xL40S"], "'²xL40S' is not in the GPU table"),
    ],
)
def test_invalid_options_are_refused(
    arguments: list[str], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, *options]) == 64
    assert message in " ".join(capsys.readouterr().err.split())


def test_errors_of_the_trace_have_a_position(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text("time,prompt,answer\n0,1,1\n1,x,1\n")
    assert run(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{tmp_path}/trace.csv:3:3: error LB030: 'x' is not a number of tokens" in err


def test_one_request_or_no_replicas_cause_no_traceback(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result(capsys, arguments, "--requests", "1")["policies"][0]["requests"] == 1
    for find in ("rate", "replicas"):
        run([*arguments, "--requests", "1", "--find", find, "--slo", "ttft p99 < 2s", "--policy", "nginx:random"])
        assert "Traceback" not in capsys.readouterr().err
    text = FLEET[: FLEET.index("    replicas:")]
    (tmp_path / "fleet.yaml").write_text(
        text + '    discovery: {dns: {name: "a.example", port: 80, resolvers: ["127.0.0.1"]}}\n'
    )
    assert run(arguments) != 0
    assert "Traceback" not in capsys.readouterr().err


def test_pause_in_the_trace_is_a_warning(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text("time,prompt,answer\n0,1,1\n1e8,1,1\n")
    assert run([*arguments, "--policy", "nginx:random"]) == 0
    assert f"{tmp_path}/trace.csv:3:1: warning LB031" in capsys.readouterr().err


def test_trace_times_in_milliseconds_are_converted(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(200 * at + 7 * (at % 5), 500, 80) for at in range(100)]
    for name, scale in (("trace.csv", lambda at: at / 1000), ("milliseconds.csv", lambda at: 1_700_000_000_000 + at)):
        lines = [f"{scale(at)},{prompt},{answer}\n" for at, prompt, answer in rows]
        (tmp_path / name).write_text("time,prompt,answer\n" + "".join(lines))
    more = ["--policy", "nginx:random"]
    assert run([*arguments, *more]) == 0
    in_seconds = capsys.readouterr().out
    assert run([*arguments[:-1], str(tmp_path / "milliseconds.csv"), *more]) == 0
    out, err = capsys.readouterr()
    assert out == in_seconds
    assert f"{tmp_path}/milliseconds.csv:2:1: warning LB033: 1700000000000 can only be milliseconds" in err


def test_simultaneous_requests_have_no_rate(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{at},500,80\n" for at in range(200))
    (tmp_path / "trace.csv").write_text(f"time,prompt,answer\n{rows}")
    more = ["--policy", "nginx:random,nginx:least_request"]
    steady = result(capsys, arguments, *more)["load"]
    (tmp_path / "trace.csv").write_text("time,prompt,answer\n" + "5,500,80\n" * 200)
    assert result(capsys, arguments, *more)["load"] is None
    assert run([*arguments, *more]) == 0
    out = capsys.readouterr().out
    assert "% of the capacity" not in out
    assert (
        "All requests in the load (200) arrive at the same time, so it has no rate; "
        f"the engines can handle up to {1 / steady:.3g} such requests/s." in out
    )
    assert run([*arguments, "--requests", "1", "--lose", "small"]) == 0
    assert (
        "(1) arrive at the same time, so it has no rate; the engines without small can handle"
        in capsys.readouterr().out
    )


def test_wide_table_has_every_percentile(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (figures,) = result(capsys, arguments, "--policy", "nginx:random")["policies"]
    assert run([*arguments, "--policy", "nginx:random", "-o", "wide"]) == 0
    out = capsys.readouterr().out
    assert "PER TOKEN P50" in out
    for key in ("ttft", "tpot", "total"):
        for value in figures[key].values():
            assert (f"{1000 * value:.0f} ms" if value < 1 else f"{value:.3g} s") in out
    assert f"{100 * figures['spread']:.1f}%" in out
