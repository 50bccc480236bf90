"""The quantities on a page of each kind of source, in lbctl's units."""

from __future__ import annotations

import pytest

from lbctl.base.registry import UnknownName
from lbctl.model.telemetry import Kind
from lbctl.signals import KINDS, table
from lbctl.signals.derive import derive
from lbctl.signals.signal import COUNTERS, SIGNALS
from tests.support.paths import DATA
from tests.support.signals import METRICS, fixture, kind_of, needs_real_data, reading

_GIB = 2.0**30
_EXPECTED = {
    "vllm_v1": {"queue": 3, "running": 21, "kv_cache": 0.375, "iterations": 2000, "prefill_tokens": 300_000,
                "decode_tokens": 75_000, "ttft_seconds": 270, "ttft_count": 900, "itl_seconds": 1850,
                "itl_count": 74_000, "finished": 902, "cache_lookups": 1900, "preempted": 0,
                "awake": 1, "prompt_tokens": 300_000},
    "vllm_0_33": {"queue": 2, "deferred": 4, "running": 32, "kv_cache": 0.375, "iterations": 2, "prefill_tokens": 8000,
                  "computed_tokens": 4800, "prompt_tokens": 8000, "decode_tokens": 32, "cache_lookups": 8000,
                  "cache_found": 3200,
                  "ttft_seconds": 1.5, "ttft_count": 3, "itl_seconds": 1.3125, "itl_count": 30, "finished": 0,
                  "preempted": 5, "rejected": 3, "awake": 1,
                  "cached_total": 3200, "cached_device": 2000, "cached_host": 900, "cached_disk": 300,
                  "cached_external": 0},
    "vllm_v0": {"queue": 2, "running": 3, "kv_cache": 0.125, "prefill_tokens": 90, "prompt_tokens": 90,
                "decode_tokens": 2546,
                "ttft_seconds": 0.51, "ttft_count": 9, "itl_seconds": 98.35, "itl_count": 2537, "finished": 6},
    "sglang": {"queue": 1, "running": 4, "kv_cache": 0.28, "cache_hits": 0.0075, "throughput": 86.5,
               "prefill_tokens": 7000, "decode_tokens": 8000, "ttft_seconds": 3, "ttft_count": 10,
               "itl_seconds": 0.4, "itl_count": 10},
    "sglang_ranks": {"queue": 4, "running": 8, "kv_cache": 0.4, "throughput": 400, "iterations": 1500,
                     "prefill_tokens": 70_000, "computed_tokens": 70_000, "prompt_tokens": 87_000,
                     "decode_tokens": 8000,
                     "ttft_seconds": 27, "ttft_count": 90, "itl_seconds": 160, "itl_count": 8000, "finished": 100},
    "tgi": {"queue": 5, "running": 8, "iterations": 2040, "prefill_tokens": 20_000, "decode_tokens": 12_000,
            "itl_seconds": 1.2, "itl_count": 40, "compute_seconds": 50, "compute_count": 2000, "batches": 2000,
            "items": 12_000, "finished": 40},
    "triton": {"queue": 8, "gpu": 0.8, "gpu_memory_free": 1e9, "compute_seconds": 9, "compute_count": 1500,
               "batches": 1000, "items": 4500, "finished": 1500},
    "triton_trtllm": {"queue": 3, "running": 12, "kv_cache": 0.4875, "iterations": 777, "ttft_seconds": 29,
                      "ttft_count": 100, "compute_seconds": 800, "compute_count": 100, "batches": 100, "items": 100,
                      "finished": 100},
    "trtllm": {"queue": 2, "running": 7, "kv_cache": 0.35, "cache_hits": 0.5, "prefill_tokens": 40_000,
               "cache_lookups": 40_000,
               "decode_tokens": 9000, "ttft_seconds": 8.75, "ttft_count": 150, "itl_seconds": 12.5, "itl_count": 150,
               "finished": 155},
    "trtllm_iterations": {"queue": 3, "running": 12, "kv_cache": 0.5, "cache_hits": 0.0625, "prefill_tokens": 64_000,
                          "decode_tokens": 16_000, "cache_lookups": 64_000, "cache_found": 28_800, "batches": 580,
                          "ttft_seconds": 16, "ttft_count": 64, "itl_seconds": 1.6, "itl_count": 64, "finished": 64},
    "lmdeploy": {"queue": 1, "running": 5, "kv_cache": 0.4, "prefill_tokens": 900, "decode_tokens": 1800,
                 "ttft_seconds": 2, "ttft_count": 20, "itl_seconds": 30, "itl_count": 1500, "finished": 20},
    "nim": {"queue": 6, "running": 2, "kv_cache": 0.75, "prefill_tokens": 600, "decode_tokens": 2400,
            "ttft_seconds": 1.5, "ttft_count": 30, "itl_seconds": 24, "itl_count": 2400, "finished": 30},
    "llamacpp": {"queue": 46, "running": 4, "iterations": 9800, "prefill_tokens": 5120, "decode_tokens": 39_080,
                 "itl_seconds": 1235.5, "itl_count": 39_080},
    "ray": {"queue": 12, "running": 11, "finished": 850},
    "ray_vllm": {"queue": 4, "running": 5, "kv_cache": 0.3, "iterations": 250, "prefill_tokens": 3000,
                 "prompt_tokens": 3000, "decode_tokens": 1000, "ttft_seconds": 4, "ttft_count": 10,
                 "itl_seconds": 20, "itl_count": 990},
    "torchserve": {"gpu": 0.5, "finished": 42},
    "tfserving": {"compute_seconds": 6, "compute_count": 200, "batches": 50, "items": 200, "finished": 200},
    "kserve": {"compute_seconds": 6, "compute_count": 40, "finished": 40},
    "kserve_mlserver": {"running": 3, "finished": 90},
    "dynamo": {"queue": 2, "running": 6, "prefill_tokens": 3600, "decode_tokens": 1255, "cache_lookups": 3600,
               "cache_found": 768, "ttft_seconds": 0.369478809, "ttft_count": 9, "itl_seconds": 5.276617536,
               "itl_count": 885, "finished": 3, "rejected": 5},
    "smg": {"queue": 3, "running": 10, "kv_cache": 0.5, "cache_hits": 0.25, "throughput": 412.5, "finished": 7,
            "rejected": 2},
    "llm_d": {"queue": 7, "running": 18, "kv_cache": 0.625, "prefill_tokens": 1_000_000, "decode_tokens": 60_000,
              "cache_lookups": 1_000_000, "cache_found": 600_000, "ttft_seconds": 150, "ttft_count": 500,
              "itl_seconds": 900, "itl_count": 45_000, "finished": 500, "rejected": 3},
    "dcgm": {"gpu": 0.5, "gpu_memory_free": _GIB, "temperature": 88, "throttle": 1, "xid": 79},
    "dcgm_4_8": {"gpu": 0.75, "gpu_memory_free": 2 * _GIB, "temperature": 61, "xid": 64, "row_remap_failure": 1},
    "dcgm_mig": {"gpu": 0.4, "gpu_memory_free": 4 * _GIB, "temperature": 70, "xid": 48},
    "nvidia_gpu_exporter": {"gpu": 0.52, "gpu_memory_free": 1e9, "temperature": 91, "throttle": 1},
    "nvidia_gpu_exporter_older": {"gpu": 0.52, "gpu_memory_free": 1e9, "temperature": 91, "throttle": 1},
    "agent": {"queue": 3, "running": 21, "kv_cache": 0.375, "throughput": 812.5, "awake": 1, "iterations": 2000,
              "prefill_tokens": 300_000, "decode_tokens": 75_000, "itl_seconds": 1850, "itl_count": 74_000,
              "gpu": 0.75, "gpu_memory_free": 2 * _GIB, "temperature": 61, "throttle": 1, "xid": 79,
              "row_remap_failure": 1},
    "amd": {"gpu": 0.5, "gpu_memory_free": 30e9, "temperature": 72, "throttle": 0.35},
    "amd_mi2xx": {"gpu": 0.4, "gpu_memory_free": 5.52e9, "temperature": 66},
}  # fmt: skip


@pytest.mark.parametrize("name", _EXPECTED)
def test_a_page_yields_exactly_these_quantities(name: str) -> None:
    assert reading(kind_of(name), fixture(name)).quantities == pytest.approx(_EXPECTED[name])


def test_every_kind_has_a_table_and_a_test_page() -> None:
    assert {*KINDS, "custom", "prometheus"} == set(Kind.__args__)  # type: ignore[attr-defined]
    assert {path.stem for path in METRICS.glob("*.prom")} == set(_EXPECTED)
    assert {kind_of(name) for name in _EXPECTED} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_has_known_quantities_and_states_its_evidence(kind: str) -> None:
    item = table(kind)
    assert item.kind == kind
    assert set(item.series) <= {*SIGNALS, *COUNTERS}
    assert bool(item.evidence) is not bool(item.no_evidence)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_page_yields_nothing(kind: str) -> None:
    assert reading(kind, b"").quantities == {}


def test_an_unknown_kind_suggests_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="vllm"):
        table("vlm")


@pytest.mark.parametrize("name", _EXPECTED)
@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "٣"])
def test_impossible_values_yield_no_signal(name: str, value: str) -> None:
    lines = fixture(name).decode().splitlines()
    bad = "\n".join(
        line if line.startswith("#") or not line else f"{line.rpartition(' ')[0]} {value}" for line in lines
    )
    assert reading(kind_of(name), bad.encode()).quantities == {}


def test_a_sleeping_engine_is_not_awake() -> None:
    page = fixture("vllm_0_33")
    for engine in (b"0", b"1"):
        line = b'sleep_state{engine="%s",model_name="acme/llama-70b",sleep_state=' % engine
        page = page.replace(line + b'"awake"} 1.0', line + b'"awake"} 0.0')
        page = page.replace(line + b'"weights_offloaded"} 0.0', line + b'"weights_offloaded"} 1.0')
    assert reading("vllm", page).quantities["awake"] == 0


def test_a_removed_worker_of_smg_does_not_count() -> None:
    """Its gauges become -1, because the exporter cannot delete a series. A value that cannot be read is unknown."""
    page = fixture("smg")
    assert b'smg_engine_waiting_requests{worker="http://10.0.0.8:8000"' in page
    unreadable = page.replace(b'dp_rank="0"} -1', b'dp_rank="0"} NaN')
    assert {"queue", "kv_cache", "throughput"}.isdisjoint(reading("smg", unreadable).quantities)


def test_one_unreadable_engine_makes_a_sum_unknown() -> None:
    page = fixture("vllm_v1").replace(
        b'waiting{engine="1",model_name="acme/llama-70b"} 0.0', b'waiting{engine="1"} NaN'
    )
    quantities = reading("vllm", page).quantities
    assert "queue" not in quantities
    assert quantities["running"] == 21


def test_the_newer_metric_name_takes_precedence() -> None:
    page = b"vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.1\n"
    assert reading("vllm", page).quantities == {"kv_cache": 0.1}


def test_a_ratio_slightly_above_1_is_1() -> None:
    assert reading("vllm", b"vllm:kv_cache_usage_perc 1.0000001\n").quantities == {"kv_cache": 1}
    assert reading("vllm", b"vllm:kv_cache_usage_perc 55\n").quantities == {}


def test_a_blank_dcgm_value_is_unknown() -> None:
    page = b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 9223372036854775794\nDCGM_FI_DEV_GPU_TEMP{gpu="1"} 40\n'
    assert reading("dcgm", page, "0").quantities == {}
    assert reading("dcgm", page).quantities == {"temperature": 40}


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("0", {"gpu": 1, "gpu_memory_free": 20 * _GIB, "temperature": 61, "xid": 0}),
        ("GPU-bbbbbbbb-1111-1111-1111-111111111111",
         {"gpu": 0.5, "gpu_memory_free": _GIB, "temperature": 88, "throttle": 1, "xid": 79}),
        ("cccccccc-2222-2222-2222-222222222222",
         {"gpu": 0, "gpu_memory_free": 81000 * 2**20, "temperature": 35, "xid": 13}),
        ("nvidia2", {"gpu": 0, "gpu_memory_free": 81000 * 2**20, "temperature": 35, "xid": 13}),
        ("7", {}),
    ],
)  # fmt: skip
def test_a_device_by_index_or_uuid_selects_one_gpu(device: str, expected: dict[str, float]) -> None:
    assert reading("dcgm", fixture("dcgm"), device).quantities == pytest.approx(expected)


def test_signals_of_several_devices_are_combined() -> None:
    source_reading = reading("dcgm", fixture("dcgm"), "0", "1")
    assert source_reading.quantities["gpu"] == 0.75
    assert source_reading.quantities["gpu_memory_free"] == _GIB
    assert source_reading.quantities["temperature"] == 88
    assert source_reading.xids == (("GPU-bbbbbbbb-1111-1111-1111-111111111111", 79),)


def test_an_unreadable_gpu_does_not_affect_other_gpus() -> None:
    page = fixture("dcgm").replace(b"55.0", b"NaN") + b'DCGM_FI_DEV_GPU_UTIL{gpu="9"} NaN\n'
    assert reading("dcgm", page, "1").quantities["gpu"] == 0.5
    assert "gpu" not in reading("dcgm", page).quantities


@pytest.mark.parametrize(("counter", "by_steps"), [("iterations", True), ("decode_tokens", False)])
def test_steps_of_an_agents_engine_are_its_iterations(counter: str, by_steps: bool) -> None:
    page = b'lbctl_agent_counter_total{counter="%s"} 7\n' % counter.encode()
    derived = derive(table("agent"), None, reading("agent", page))
    assert (derived.values["progress"].value, derived.by_steps) == (7, by_steps)


def test_a_fatal_xid_counts_before_a_larger_code() -> None:
    page = b'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 119\nDCGM_FI_DEV_XID_ERRORS{gpu="1"} 48\n'
    source_reading = reading("dcgm", page)
    assert source_reading.quantities == {"xid": 48}
    assert source_reading.xids == (("0", 119), ("1", 48))


@pytest.mark.parametrize("name", ["dcgm", "dcgm_4_8"])
@pytest.mark.parametrize("label", ["hostname", "Hostname"])
def test_both_names_of_the_hosts_label_select_lines(name: str, label: str) -> None:
    assert reading("dcgm", fixture(name), **{label: "node-1"}) == reading("dcgm", fixture(name))
    assert reading("dcgm", fixture(name), **{label: "node-2"}).quantities == {}


def test_a_row_remap_fails_on_the_gpu_of_the_replica() -> None:
    failed = [reading("dcgm", fixture("dcgm_4_8"), device).quantities["row_remap_failure"] for device in ("0", "1")]
    assert failed == [0, 1]


def test_a_mig_slice_has_the_temperature_of_its_gpu() -> None:
    first, second = (reading("dcgm", fixture("dcgm_mig"), f"0:{number}").quantities for number in (1, 2))
    assert first == {"gpu": 0.75, "gpu_memory_free": 4 * _GIB, "temperature": 70, "xid": 48}
    assert (second["gpu"], second["temperature"]) == (0.25, 70)


def test_match_labels_with_the_device_equal_devices() -> None:
    assert reading("dcgm", fixture("dcgm"), "1", gpu="{device}") == reading("dcgm", fixture("dcgm"), "1")
    assert reading("dcgm", fixture("dcgm"), gpu="{device}") == reading("dcgm", fixture("dcgm"))


def test_match_labels_select_lines_by_any_label() -> None:
    assert reading("ray", fixture("ray"), deployment="Embedder").quantities == {
        "queue": 3,
        "running": 3,
        "finished": 150,
    }
    assert reading("ray", fixture("ray"), deployment="Nobody").quantities == {}
    assert reading("triton", fixture("triton"), model="bert").quantities["queue"] == 1


@pytest.mark.parametrize(
    "device", ["1", "GPU-11111111-bbbb-1111-1111-111111111111", "11111111-BBBB-1111-1111-111111111111"]
)
def test_the_nvidia_smi_index_comes_from_a_separate_metric(device: str) -> None:
    assert reading("nvidia_gpu_exporter", fixture("nvidia_gpu_exporter"), device).quantities["temperature"] == 91
    assert reading("nvidia_gpu_exporter", fixture("nvidia_gpu_exporter"), "0").quantities["throttle"] == 0


def test_amd_gpus_are_distinguished() -> None:
    assert reading("amd", fixture("amd"), "1").quantities["temperature"] == 55


_REAL = {
    "vllm/kubeai-vllm-v0-full.prom": {"queue": 5, "running": 3, "kv_cache": 0.0026235242675994863,
                                      "decode_tokens": 2546, "itl_count": 2537},
    "vllm/datadog-vllm-v1-EXCERPT.prom": {"kv_cache": 0.0, "finished": 1, "computed_tokens": 53},
    "vllm/aibrix-runtime-block1.prom": {"queue": 0, "running": 0, "kv_cache": 0, "prefill_tokens": 148,
                                        "decode_tokens": 955, "finished": 4},
    "vllm/dynamo-vllm-observability-block1.prom": {"finished": 165, "ttft_seconds": 89.38, "ttft_count": 165},
    "sglang/sglang-production_metrics-block1.prom": {"queue": 0, "running": 0, "kv_cache": 0, "prefill_tokens": 7,
                                                     "decode_tokens": 8, "itl_count": 1},
    "sglang/dynamo-sglang-observability-block1.prom": {"prefill_tokens": 8128902, "decode_tokens": 7557572},
    "triton/tensorrtllm_backend-README-block1.prom": {"queue": 1, "running": 0, "kv_cache": 0.4875, "iterations": 0},
    "triton/tensorrtllm_backend-README-block3.prom": {"queue": 0, "batches": 0, "items": 0, "finished": 0},
    "triton/triton-metrics-block1.prom": {"ttft_seconds": 10.771, "ttft_count": 37},
    "trtllm/dynamo-tensorrt-llm-observability-block1.prom": {"finished": 155, "ttft_seconds": 8.75, "itl_count": 150},
    "torchserve/torchserve-docs-metrics_api-block1.prom": {"finished": 3},
    "torchserve/torchserve-custom_metrics-README-block1.prom": {"finished": 1},
    "nvidia_gpu_exporter/linux-x86_64__nvidia-l40s__595.80__load.prom": {
        "gpu": 0.09, "gpu_memory_free": 4.63732736e10, "temperature": 54, "throttle": 0},
    "nvidia_gpu_exporter/linux-x86_64__nvidia-h200__590.48.01__idle.prom": {
        "gpu": 0, "throttle": 0, "row_remap_failure": 0},
    "dcgm/dcgm-exporter-README-block1.prom": {},
    "amd/rocm-metricslist-block2.prom": {},
}  # fmt: skip


@needs_real_data
@pytest.mark.parametrize("name", _REAL)
def test_pages_of_real_exporters_are_read(name: str) -> None:
    quantities = reading(name.partition("/")[0], (DATA / "metrics" / name).read_bytes()).quantities
    assert {key: quantities.get(key) for key in _REAL[name]} == pytest.approx(_REAL[name])
