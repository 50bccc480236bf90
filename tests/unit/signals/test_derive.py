"""Two looks at a source: signals with their ages, and evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.signals import table
from lbctl.signals.derive import BatchEvidence, TimedValue, TokenEvidence, derive
from lbctl.signals.devices import ALL_LINES
from lbctl.signals.merge import SourceSignals, merge
from lbctl.signals.signal import COUNTERS, SIGNALS
from lbctl.signals.source import SourceReading
from tests.support.signals import fixture, reading

_VLLM = {
    "queue": 2.0, "kv_cache": 0.5, "iterations": 100.0, "prefill_tokens": 1000.0, "decode_tokens": 500.0,
    "ttft_seconds": 10.0, "ttft_count": 20.0, "itl_seconds": 9.0, "itl_count": 480.0, "finished": 20.0,
}  # fmt: skip
_GROWTH = {
    "iterations": 50.0, "prefill_tokens": 2000.0, "decode_tokens": 400.0, "ttft_seconds": 3.0, "ttft_count": 6.0,
    "itl_seconds": 8.0, "itl_count": 400.0, "finished": 6.0,
}  # fmt: skip


def _look(at: float, told: dict[str, float], lines: int = 1) -> SourceReading:
    return SourceReading(at, told, dict.fromkeys(told, lines))


def _grown(told: dict[str, float], by: dict[str, float] = _GROWTH) -> dict[str, float]:
    return {name: value + by.get(name, 0) for name, value in told.items()}


def _values(kind: str, before: SourceReading | None, after: SourceReading) -> dict[str, float]:
    return {name: value.value for name, value in derive(table(kind), before, after).values.items()}


def test_two_looks_give_means_and_rates_with_the_time_of_the_later() -> None:
    found = derive(table("vllm"), _look(10, _VLLM), _look(15, _grown(_VLLM)))
    assert found.values["ttft"] == TimedValue(0.5, 15)
    assert found.values["token_latency"] == TimedValue(0.02, 15)
    assert found.values["throughput"] == TimedValue(80, 15)
    assert found.values["queue"] == TimedValue(2, 15)
    assert found.evidence == TokenEvidence(15, 400, 8, 8, 40)


def test_the_part_of_prompts_that_was_cached_is_of_the_tokens_between_two_looks() -> None:
    before = {**_VLLM, "cache_lookups": 5000.0, "cache_found": 100.0}
    after = _grown(_grown(before), {"cache_lookups": 2000.0, "cache_found": 1500.0})
    assert _values("vllm", _look(10, before), _look(15, after))["cache_hits"] == 0.75
    assert "cache_hits" not in _values("vllm", _look(10, before), _look(15, _grown(before)))


def test_one_look_gives_gauges_alone() -> None:
    assert set(_values("vllm", None, _look(10, _VLLM))) == {"queue", "kv_cache", "progress"}


def test_where_nothing_was_counted_there_is_no_mean() -> None:
    found = derive(table("vllm"), _look(10, _VLLM), _look(15, _VLLM))
    assert {"ttft", "token_latency"}.isdisjoint(found.values)
    assert found.values["throughput"].value == 0
    assert found.evidence is None


@pytest.mark.parametrize("seconds", [0, -3])
def test_no_time_between_two_looks_gives_no_rate(seconds: float) -> None:
    assert "throughput" not in _values("vllm", _look(10, _VLLM), _look(10 + seconds, _grown(_VLLM)))


def test_an_engine_that_starts_again_is_a_new_beginning_for_all_of_its_counters() -> None:
    after = {**_grown(_VLLM), "iterations": 3.0}
    found = derive(table("vllm"), _look(10, _VLLM), _look(15, after))
    assert found.restarted
    assert {"ttft", "token_latency", "throughput"}.isdisjoint(found.values)
    assert found.evidence is None
    again = derive(table("vllm"), _look(15, after), _look(20, _grown(after)))
    assert again.values["throughput"].value == 80


def test_a_counter_of_another_number_of_engines_is_not_compared() -> None:
    found = derive(table("vllm"), _look(10, _VLLM, 1), _look(15, _grown(_VLLM), 2))
    assert "throughput" not in found.values
    assert not found.restarted


def test_a_counter_that_vanished_leaves_the_others() -> None:
    after = {name: value for name, value in _grown(_VLLM).items() if not name.startswith("ttft")}
    found = _values("vllm", _look(10, _VLLM), _look(15, after))
    assert "ttft" not in found
    assert found["throughput"] == 80


def test_triton_gives_the_time_of_an_execution_and_its_batch() -> None:
    before = reading("triton", fixture("triton"), at=10, model="resnet")
    page = fixture("triton")
    model = '{model="resnet",version="1"}'
    for name, old, new in (
        ("request_success", 1000, 1080),
        ("count", 4000, 4320),
        ("exec_count", 500, 520),
        ("compute_infer_duration_us", 6_000_000, 6_480_000),
    ):
        line = f"nv_inference_{name}{model} "
        assert f"{line}{old}" in page.decode()
        page = page.replace(f"{line}{old}".encode(), f"{line}{new}".encode())
    found = derive(table("triton"), before, reading("triton", page, at=15, model="resnet"))
    assert isinstance(found.evidence, BatchEvidence)
    assert found.evidence.compute_seconds / found.evidence.compute_count == pytest.approx(0.006)
    assert found.evidence.items == 16


def test_a_language_model_in_triton_is_not_judged_by_its_executions() -> None:
    before = reading("triton", fixture("triton_trtllm"), at=10)
    after = SourceReading(15, _grown(dict(before.quantities), dict.fromkeys(COUNTERS, 10.0)), before.lines)
    found = derive(table("triton"), before, after)
    assert found.evidence is None
    assert found.by_steps


@pytest.mark.parametrize("kind", ["trtllm", "lmdeploy", "nim", "kserve", "torchserve"])
def test_a_source_that_cannot_tell_the_batch_gives_no_evidence(kind: str) -> None:
    before = reading(kind, fixture(kind), at=10)
    after = SourceReading(15, _grown(dict(before.quantities), dict.fromkeys(COUNTERS, 10.0)), before.lines)
    assert derive(table(kind), before, after).evidence is None


@pytest.mark.parametrize(("kind", "name"), [("vllm", "vllm_v1"), ("sglang", "sglang_ranks"), ("tgi", "tgi"),
                                            ("llamacpp", "llamacpp"), ("ray", "ray_vllm"), ("tfserving", "tfserving"),
                                            ("triton", "triton")])  # fmt: skip
def test_a_source_with_evidence_gives_it(kind: str, name: str) -> None:
    before = reading(kind, fixture(name), at=10)
    after = SourceReading(15, _grown(dict(before.quantities), dict.fromkeys(COUNTERS, 10.0)), before.lines)
    assert derive(table(kind), before, after).evidence is not None


@pytest.mark.parametrize("name", ["iterations", "decode_tokens", "kv_cache"])
def test_progress_moves_with_whatever_a_step_moves(name: str) -> None:
    before = derive(table("vllm"), None, _look(10, _VLLM))
    after = derive(table("vllm"), _look(10, _VLLM), _look(15, {**_VLLM, name: _VLLM[name] + 0.25}))
    assert before.by_steps
    assert before.values["progress"].value != after.values["progress"].value


def test_progress_is_a_whole_count_whatever_the_cache_does_and_no_cache_outweighs_a_step() -> None:
    """A cache that empties by as much as the steps have grown would stand still as a sum."""
    first = derive(table("vllm"), None, look := _look(10, {**_VLLM, "kv_cache": 1.0}))
    again = replace(look, moves=first.moves)
    second = derive(table("vllm"), again, _look(15, {**_VLLM, "iterations": 101.0, "kv_cache": 0.0}))
    third = derive(table("vllm"), replace(look, moves=second.moves), _look(20, {**_VLLM, "kv_cache": 0.4875}))
    told = [item.values["progress"].value for item in (first, second, third)]
    assert told == [1600, 1602, 1602]


def test_a_cache_alone_is_no_progress_counter_and_a_counter_that_stands_at_0_shows_no_part_of_it() -> None:
    fraction = b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="a"} 0.4875\n'
    triton = table("triton")
    alone = triton.reading(triton.reader().read(fraction), ALL_LINES, 1.0)
    assert "progress" not in derive(triton, None, alone).values
    page = fraction + b'nv_inference_request_success{model="a"} 0\n'
    beside = triton.reading(triton.reader().read(page), ALL_LINES, 1.0)
    assert derive(triton, None, beside).values["progress"].value == 0


def test_requests_that_clients_give_up_are_no_progress_of_a_wedged_engine() -> None:
    before = derive(table("vllm"), None, _look(10, _VLLM))
    after = derive(table("vllm"), None, _look(15, {**_VLLM, "finished": 26.0, "queue": 40.0}))
    assert before.values["progress"].value == after.values["progress"].value


@pytest.mark.parametrize("kind", ["torchserve", "tfserving", "kserve", "triton", "trtllm"])
def test_progress_by_requests_says_that_it_is(kind: str) -> None:
    found = derive(table(kind), None, reading(kind, fixture(kind)))
    assert "progress" in found.values
    assert not found.by_steps


@pytest.mark.parametrize("kind", ["dcgm", "nvidia_gpu_exporter", "amd"])
def test_a_gpu_makes_no_progress_of_its_own(kind: str) -> None:
    assert "progress" not in derive(table(kind), None, reading(kind, fixture(kind))).values


_quantity = st.sampled_from(sorted({*COUNTERS, *SIGNALS}))
_told = st.dictionaries(_quantity, st.floats(0, 2**60, allow_nan=False))


@given(st.sampled_from(["vllm", "triton", "trtllm"]), _told, _told, st.floats(-10, 10))
def test_whatever_two_looks_say_every_signal_is_a_number_from_0_on(
    kind: str, before: dict[str, float], after: dict[str, float], seconds: float
) -> None:
    found = derive(table(kind), _look(0, before), _look(seconds, after))
    assert all(0 <= value.value < float("inf") for value in found.values.values())


def _source(**values: tuple[float, float]) -> SourceSignals:
    return SourceSignals({name: TimedValue(*value) for name, value in values.items()})


def test_the_first_source_with_a_fresh_value_gives_a_signal() -> None:
    found = merge([_source(queue=(1, 80)), _source(queue=(2, 95), gpu=(0.5, 99))], now=100, stale_after=15)
    assert {name: (item.value, item.source) for name, item in found.values.items()} == {
        "queue": (2, 1),
        "gpu": (0.5, 1),
    }
    assert found.values["queue"].age(100) == 5
    assert found.stale == {}


def test_a_signal_that_nobody_has_told_for_long_is_unknown_and_its_last_value_stands_apart() -> None:
    found = merge([_source(queue=(1, 50)), _source(queue=(2, 60))], now=100, stale_after=15)
    assert found.get("queue") is None
    assert (found.stale["queue"].value, found.stale["queue"].age(100)) == (2, 40)


def test_the_codes_and_the_kind_of_progress_are_of_the_source_that_gives_them() -> None:
    engine = SourceSignals({"progress": TimedValue(7, 99)}, by_steps=True)
    gpu = SourceSignals({"xid": TimedValue(79, 98)}, xids=(("GPU-1", 79),))
    found = merge([engine, gpu], now=100, stale_after=15)
    assert found.by_steps
    assert found.xids == (("GPU-1", 79),)
    assert merge([engine, gpu], now=200, stale_after=15).xids == ()
