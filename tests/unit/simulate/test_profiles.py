"""Engine profiles by GPU and model, and profiles calibrated from the metrics of a live replica."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from lbctl.compile.gpus import GPUS
from lbctl.demo.load import LoadGenerator, poisson
from lbctl.demo.replica import PacedReplica
from lbctl.signals.source import SourceReading
from lbctl.simulate import calibrate, profiles
from lbctl.simulate.engine import CostModel, Engine, SimulatedRequest, saturated_rate
from lbctl.simulate.load import lognormal
from tests.support.gpus import BASE, results, speed
from tests.support.paths import DATA

RESULTS = DATA / "gpus"


def test_every_profile_has_a_source_and_a_plausible_speed() -> None:
    for (model, gpu), profile in profiles.PROFILES.items():
        assert model in profiles.MODELS
        assert gpu in GPUS
        assert profile.low <= profile.speed <= profile.high
        assert ("MLPerf" if profile.cells else "Splitwise") in profile.source


@pytest.mark.skipif(not RESULTS.is_dir(), reason=f"no tables of MLPerf in {RESULTS} (LBCTL_REAL_DATA)")
def test_speeds_match_the_published_results() -> None:
    names = {"llama-2-70b": BASE, "llama-3.1-8b": "llama3.1-8b", "mixtral-8x7b": "mixtral-8x7b"}
    rows = results(RESULTS)
    for (model, gpu), profile in profiles.PROFILES.items():
        if gpu == "A100-80GB":  # it has no MLPerf row
            continue
        published = speed(rows, gpu, names[model])
        assert (profile.speed, profile.low, profile.high) == tuple(round(each, 2) for each in published[:3])
        assert profile.cells in (0, published[3])


def test_an_engine_scales_with_its_gpus() -> None:
    eight, four = (profiles.engine("llama-2-70b", "H100-SXM", count) for count in (8, 4))
    assert (eight.a, eight.p) == (CostModel().a, CostModel().p)
    assert four.a == 2 * eight.a
    assert eight.cache == int((8 * 80 * 0.9 - 140) * 1e9 / 327_680)
    rates = [
        saturated_rate(1.0, 900, 130, profiles.engine("llama-2-70b", gpu, 8))
        for gpu in ("B200", "H100-SXM", "A100-80GB")
    ]
    assert all(one > 1.3 * other for one, other in pairwise(rates))


@pytest.mark.parametrize(
    ("model", "gpu", "count", "reason"),
    [
        ("llama-2-70b", "T4", 8, "was not measured on T4; measured: A100-80GB, B200"),
        ("llama-2-70b", None, 1, "a replica without a gpu"),
        ("llama-2-70b", "H100-SXM", 1, "does not fit on 1 × H100-SXM"),
    ],
)
def test_an_unknown_profile_is_an_error_with_a_reason(model: str, gpu: str | None, count: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        profiles.engine(model, gpu, count)


# ── Calibration ──────────────────────────────────────────────────────────────────────────────────────────────────────

SLOW = CostModel(a=60e-3, b=0.5e-3, c=4e-7, p=0.2e-3)


def readings_of(cost: CostModel, seconds: float, rate: float) -> list[SourceReading]:
    """Return the readings, every two seconds, of an engine under a varying load."""
    engine, rng, now, readings = Engine(1.0, curve=cost), random.Random(4), 0.0, []
    arrivals, at = [], 0.0
    while at < seconds:
        at += rng.expovariate(rate * (2 if int(at / 20) % 2 else 0.4))
        arrivals.append(SimulatedRequest(at, rng.randint(50, 2000), rng.randint(20, 300)))
    finished, end = 0, None
    for number in range(int(seconds / 2)):
        until = 2.0 * number
        while True:
            begin = arrivals[0].arrived if arrivals else float("inf")
            now = min(end if end is not None else float("inf"), begin)
            if now > until:
                break
            if end is not None and end <= begin:
                finished += len(engine.end(end))
                end = engine.begin(end)
            else:
                engine.add(arrivals.pop(0))
                end = engine.begin(now) if end is None else end
        counters = engine.counters
        names = ("iterations", "running", *calibrate._NEEDED[:-1])
        quantities = {name: float(getattr(counters, name)) for name in names}
        readings.append(SourceReading(until, {**quantities, "finished": float(finished)}))
    return readings


def test_calibration_ignores_cached_prompt_tokens() -> None:
    readings = readings_of(SLOW, 300.0, 0.5)
    with_cache = [
        replace(item, quantities=with_cached_tokens(item.quantities, 1000.0 * (number // 5)))
        for number, item in enumerate(readings)
    ]
    assert calibrate.fit(with_cache).cost.p == pytest.approx(calibrate.fit(readings).cost.p, rel=0.03)


def with_cached_tokens(quantities: Mapping[str, float], tokens: float) -> dict[str, float]:
    return {**quantities, "prefill_tokens": quantities["prefill_tokens"] + tokens, "cache_found": tokens}


def test_calibration_recovers_costs_from_counters() -> None:
    result = calibrate.fit(readings_of(SLOW, 300.0, 0.5))
    assert result.error < 0.03
    for prompt, answer in ((500, 200), (2000, 50)):
        assert saturated_rate(1.0, prompt, answer, result.cost) == pytest.approx(
            saturated_rate(1.0, prompt, answer, SLOW), rel=0.15
        )


def test_calibration_without_iterations_uses_running_requests() -> None:
    readings = [
        replace(each, quantities={name: value for name, value in each.quantities.items() if name != "iterations"})
        for each in readings_of(SLOW, 600.0, 0.5)
    ]
    result = calibrate.fit(readings)
    assert result.error < 0.2
    assert saturated_rate(1.0, 500, 200, result.cost) == pytest.approx(saturated_rate(1.0, 500, 200, SLOW), rel=0.3)


def test_calibration_without_prompts_keeps_the_proportions() -> None:
    readings = [
        SourceReading(float(at), dict.fromkeys(calibrate._NEEDED, 0.0) | {
            "iterations": 10.0 * at, "decode_tokens": 10.0 * at, "itl_count": 10.0 * at, "itl_seconds": 0.6 * at,
        })
        for at in range(6)
    ]  # fmt: skip
    cost = calibrate.fit(readings).cost
    assert cost.a + cost.b == pytest.approx(0.06, rel=0.02)
    assert cost.p / CostModel().p == pytest.approx(2.0, rel=0.1)


def test_too_few_readings_and_a_restart_are_errors() -> None:
    readings = readings_of(SLOW, 60.0, 0.5)
    with pytest.raises(ValueError, match="3 are needed: send requests to the replica"):
        calibrate.fit(readings[-2:])
    back = [*readings[-6:], replace(readings[0], at=99.0)]
    with pytest.raises(ValueError, match="it restarted during the observation"):
        calibrate.fit(back)


@pytest.mark.slow
def test_a_live_replica_is_calibrated_from_its_metrics() -> None:
    """The replica runs in real time, at a tenth of the costs; its page is read by the real parser."""
    fast = CostModel(a=3e-3, b=0.05e-3, c=2e-8, p=0.01e-3, sequences=24)

    async def pages() -> list[bytes]:
        replica = PacedReplica("a", 1.0, fast)
        await replica.start()
        load, loop = LoadGenerator([replica.port], "/v1"), asyncio.get_running_loop()
        arrivals = poisson(120.0, 3.0, lognormal(300.0, 40.0, 0.8), "calibration")
        sending = loop.create_task(load.run(arrivals, loop.time()))
        scraped = [replica.page()]
        while replica._finished < 200:
            await asyncio.sleep(0.1)
            scraped.append(replica.page())
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await load.close()
        await replica.close()
        return scraped

    readings = [calibrate.reading(page, float(at)) for at, page in enumerate(asyncio.run(pages()))]
    result = calibrate.fit([each for each in readings if each is not None])
    assert result.error < 0.1
    rate = saturated_rate(1.0, 300, 40, replace(result.cost, sequences=24))
    assert rate == pytest.approx(saturated_rate(1.0, 300, 40, fast), rel=0.25)


def test_a_page_without_the_counters_yields_nothing() -> None:
    assert calibrate.reading(b"vllm:num_requests_running 3\n", 0.0) is None
