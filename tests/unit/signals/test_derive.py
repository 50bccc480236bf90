"""Signals and evidence that are derived from two readings of a source."""

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


def reading_of(at: float, quantities: dict[str, float], lines: int = 1) -> SourceReading:
    return SourceReading(at, quantities, dict.fromkeys(quantities, lines))


def increased(quantities: dict[str, float], by: dict[str, float] = _GROWTH) -> dict[str, float]:
    return {name: value + by.get(name, 0) for name, value in quantities.items()}


def derived_values(kind: str, before: SourceReading | None, after: SourceReading) -> dict[str, float]:
    return {name: value.value for name, value in derive(table(kind), before, after).values.items()}


def test_two_readings_yield_means_and_rates() -> None:
    derived = derive(table("vllm"), reading_of(10, _VLLM), reading_of(15, increased(_VLLM)))
    assert derived.values["ttft"] == TimedValue(0.5, 15)
    assert derived.values["token_latency"] == TimedValue(0.02, 15)
    assert derived.values["throughput"] == TimedValue(80, 15)
    assert derived.values["queue"] == TimedValue(2, 15)
    assert derived.evidence == TokenEvidence(15, 400, 8, 8, 40)


def test_cache_hits_cover_the_tokens_between_two_readings() -> None:
    before = {**_VLLM, "cache_lookups": 5000.0, "cache_found": 100.0}
    after = increased(increased(before), {"cache_lookups": 2000.0, "cache_found": 1500.0})
    assert derived_values("vllm", reading_of(10, before), reading_of(15, after))["cache_hits"] == 0.75
    assert "cache_hits" not in derived_values("vllm", reading_of(10, before), reading_of(15, increased(before)))


def test_preemptions_and_rejections_are_rates() -> None:
    before = reading("vllm", fixture("vllm_0_33"), at=10)
    after = SourceReading(15, increased(dict(before.quantities), {"preempted": 10.0, "rejected": 2.0}), before.lines)
    values = derived_values("vllm", before, after)
    assert (values["preemptions"], values["rejections"]) == (2, 0.4)


def test_first_rejections_are_a_rate() -> None:
    """Dynamo's counter has labels, so it appears with the first rejection."""
    page = fixture("dynamo")
    lines = [line for line in page.splitlines(keepends=True) if b"model_rejection_total{" not in line]
    before, after = reading("dynamo", b"".join(lines), at=10), reading("dynamo", page, at=15)
    assert "rejections" not in derived_values("dynamo", None, after), "it may be old"
    assert derived_values("dynamo", before, after)["rejections"] == 1
    restarted = replace(after, quantities={**after.quantities, "finished": 0.0})
    assert "rejections" not in derived_values("dynamo", before, restarted)
    unreadable = page.replace(b"rejection_total{", b'rejection_total{broken="')
    assert unreadable != page
    assert "rejections" not in derived_values("dynamo", reading("dynamo", unreadable, at=10), after)


def test_cached_tokens_of_trtllm_replace_its_hit_rate() -> None:
    """The gauge covers the whole life of the engine, and is near 0 after long prompts."""
    before = reading("trtllm", fixture("trtllm_iterations"), at=10)
    growth = {"cache_lookups": 4000.0, "cache_found": 3000.0}
    after = SourceReading(15, increased(dict(before.quantities), growth), before.lines)
    assert derived_values("trtllm", before, after)["cache_hits"] == 0.75
    assert "cache_hits" not in derived_values("trtllm", None, before)
    assert "cache_hits" not in derived_values("trtllm", after, replace(after, at=20)), "no request has ended"
    gauge_only = {name: value for name, value in before.quantities.items() if name != "cache_found"}
    assert derived_values("trtllm", None, reading_of(10, gauge_only))["cache_hits"] == 0.0625


def test_trtllm_progresses_during_long_requests() -> None:
    before = derived_values("trtllm", None, reading("trtllm", fixture("trtllm_iterations")))
    page = fixture("trtllm_iterations").replace(b"} 500.0", b"} 501.0")
    assert derived_values("trtllm", None, reading("trtllm", page))["progress"] == before["progress"] + 1


def evidence_of(before: dict[str, float], after: dict[str, float]) -> TokenEvidence:
    evidence = derive(table("vllm"), reading_of(10, before), reading_of(15, after)).evidence
    assert isinstance(evidence, TokenEvidence)
    return evidence


def test_cached_prompt_tokens_do_not_count_as_computed() -> None:
    before = {**_VLLM, "cache_found": 100.0}
    assert evidence_of(before, increased(before, {**_GROWTH, "cache_found": 1500.0})).prefill_tokens == 10
    assert evidence_of(before, increased(before, {**_GROWTH, "cache_found": 2500.0})).prefill_tokens == 0
    exact = {**before, "computed_tokens": 50.0}
    after = increased(exact, {**_GROWTH, "cache_found": 1500.0, "computed_tokens": 800.0})
    assert evidence_of(exact, after).prefill_tokens == 16


def test_one_reading_yields_only_gauges() -> None:
    assert set(derived_values("vllm", None, reading_of(10, _VLLM))) == {"queue", "kv_cache", "progress"}


def test_unchanged_counters_yield_no_mean() -> None:
    derived = derive(table("vllm"), reading_of(10, _VLLM), reading_of(15, _VLLM))
    assert {"ttft", "token_latency"}.isdisjoint(derived.values)
    assert derived.values["throughput"].value == 0
    assert derived.evidence is None


@pytest.mark.parametrize("seconds", [0, -3])
def test_no_time_between_two_readings_yields_no_rate(seconds: float) -> None:
    assert "throughput" not in derived_values("vllm", reading_of(10, _VLLM), reading_of(10 + seconds, increased(_VLLM)))


def test_a_restarted_engine_yields_no_rates() -> None:
    after = {**increased(_VLLM), "iterations": 3.0}
    derived = derive(table("vllm"), reading_of(10, _VLLM), reading_of(15, after))
    assert derived.restarted
    assert {"ttft", "token_latency", "throughput"}.isdisjoint(derived.values)
    assert derived.evidence is None
    again = derive(table("vllm"), reading_of(15, after), reading_of(20, increased(after)))
    assert again.values["throughput"].value == 80


def test_counters_of_a_changed_number_of_engines_are_ignored() -> None:
    derived = derive(table("vllm"), reading_of(10, _VLLM, 1), reading_of(15, increased(_VLLM), 2))
    assert "throughput" not in derived.values
    assert not derived.restarted


def test_a_missing_counter_does_not_affect_the_others() -> None:
    after = {name: value for name, value in increased(_VLLM).items() if not name.startswith("ttft")}
    values = derived_values("vllm", reading_of(10, _VLLM), reading_of(15, after))
    assert "ttft" not in values
    assert values["throughput"] == 80


def test_triton_yields_execution_time_and_batch() -> None:
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
    derived = derive(table("triton"), before, reading("triton", page, at=15, model="resnet"))
    assert isinstance(derived.evidence, BatchEvidence)
    assert derived.evidence.compute_seconds / derived.evidence.compute_count == pytest.approx(0.006)
    assert derived.evidence.items == 16


def test_a_language_model_in_triton_yields_no_batch_evidence() -> None:
    before = reading("triton", fixture("triton_trtllm"), at=10)
    after = SourceReading(15, increased(dict(before.quantities), dict.fromkeys(COUNTERS, 10.0)), before.lines)
    derived = derive(table("triton"), before, after)
    assert derived.evidence is None
    assert derived.by_steps


@pytest.mark.parametrize("kind", ["trtllm", "lmdeploy", "nim", "kserve", "torchserve", "dynamo", "smg", "llm_d"])
def test_a_source_without_batch_size_yields_no_evidence(kind: str) -> None:
    before = reading(kind, fixture(kind), at=10)
    after = SourceReading(15, increased(dict(before.quantities), dict.fromkeys(COUNTERS, 10.0)), before.lines)
    assert derive(table(kind), before, after).evidence is None


@pytest.mark.parametrize(("kind", "name"), [("vllm", "vllm_v1"), ("sglang", "sglang_ranks"), ("tgi", "tgi"),
                                            ("llamacpp", "llamacpp"), ("ray", "ray_vllm"), ("tfserving", "tfserving"),
                                            ("triton", "triton")])  # fmt: skip
def test_a_source_with_batch_size_yields_evidence(kind: str, name: str) -> None:
    before = reading(kind, fixture(name), at=10)
    after = SourceReading(15, increased(dict(before.quantities), dict.fromkeys(COUNTERS, 10.0)), before.lines)
    assert derive(table(kind), before, after).evidence is not None


@pytest.mark.parametrize("name", ["iterations", "decode_tokens", "kv_cache"])
def test_progress_changes_with_every_step_counter(name: str) -> None:
    before = derive(table("vllm"), None, reading_of(10, _VLLM))
    after = derive(table("vllm"), reading_of(10, _VLLM), reading_of(15, {**_VLLM, name: _VLLM[name] + 0.25}))
    assert before.by_steps
    assert before.values["progress"].value != after.values["progress"].value


def test_cache_changes_do_not_hide_progress() -> None:
    """Progress is not a plain sum: a cache that empties by as much as the steps grow would hide the progress."""
    first = derive(table("vllm"), None, reading := reading_of(10, {**_VLLM, "kv_cache": 1.0}))
    again = replace(reading, moves=first.moves)
    second = derive(table("vllm"), again, reading_of(15, {**_VLLM, "iterations": 101.0, "kv_cache": 0.0}))
    third = derive(table("vllm"), replace(reading, moves=second.moves), reading_of(20, {**_VLLM, "kv_cache": 0.4875}))
    progress = [item.values["progress"].value for item in (first, second, third)]
    assert progress == [1600, 1602, 1602]


def test_a_cache_alone_is_not_progress() -> None:
    fraction = b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="a"} 0.4875\n'
    triton = table("triton")
    alone = triton.reading(triton.reader().read(fraction), ALL_LINES, 1.0)
    assert "progress" not in derive(triton, None, alone).values
    page = fraction + b'nv_inference_request_success{model="a"} 0\n'
    beside = triton.reading(triton.reader().read(page), ALL_LINES, 1.0)
    assert derive(triton, None, beside).values["progress"].value == 0


def test_requests_aborted_by_clients_are_not_progress() -> None:
    before = derive(table("vllm"), None, reading_of(10, _VLLM))
    after = derive(table("vllm"), None, reading_of(15, {**_VLLM, "finished": 26.0, "queue": 40.0}))
    assert before.values["progress"].value == after.values["progress"].value


@pytest.mark.parametrize("kind", ["torchserve", "tfserving", "kserve", "triton", "trtllm"])
def test_progress_by_requests_is_not_by_steps(kind: str) -> None:
    derived = derive(table(kind), None, reading(kind, fixture(kind)))
    assert "progress" in derived.values
    assert not derived.by_steps


@pytest.mark.parametrize("kind", ["dcgm", "nvidia_gpu_exporter", "amd"])
def test_a_gpu_source_has_no_progress(kind: str) -> None:
    assert "progress" not in derive(table(kind), None, reading(kind, fixture(kind))).values


_quantity = st.sampled_from(sorted({*COUNTERS, *SIGNALS}))
_quantities = st.dictionaries(_quantity, st.floats(0, 2**60, allow_nan=False))


@given(st.sampled_from(["vllm", "triton", "trtllm"]), _quantities, _quantities, st.floats(-10, 10))
def test_every_signal_is_a_finite_number_of_at_least_0(
    kind: str, before: dict[str, float], after: dict[str, float], seconds: float
) -> None:
    derived = derive(table(kind), reading_of(0, before), reading_of(seconds, after))
    assert all(0 <= value.value < float("inf") for value in derived.values.values())


def source_signals(**values: tuple[float, float]) -> SourceSignals:
    return SourceSignals({name: TimedValue(*value) for name, value in values.items()})


def test_the_first_source_with_a_fresh_value_wins() -> None:
    merged = merge(
        [source_signals(queue=(1, 80)), source_signals(queue=(2, 95), gpu=(0.5, 99))], now=100, stale_after=15
    )
    assert {name: (item.value, item.source) for name, item in merged.values.items()} == {
        "queue": (2, 1),
        "gpu": (0.5, 1),
    }
    assert merged.values["queue"].age(100) == 5
    assert merged.stale == {}


def test_a_stale_signal_is_unknown_but_keeps_its_last_value() -> None:
    merged = merge([source_signals(queue=(1, 50)), source_signals(queue=(2, 60))], now=100, stale_after=15)
    assert merged.get("queue") is None
    assert (merged.stale["queue"].value, merged.stale["queue"].age(100)) == (2, 40)


def test_xids_and_progress_kind_come_from_their_source() -> None:
    engine = SourceSignals({"progress": TimedValue(7, 99)}, by_steps=True)
    gpu = SourceSignals({"xid": TimedValue(79, 98)}, xids=(("GPU-1", 79),))
    merged = merge([engine, gpu], now=100, stale_after=15)
    assert merged.by_steps
    assert merged.xids == (("GPU-1", 79),)
    assert merge([engine, gpu], now=200, stale_after=15).xids == ()
