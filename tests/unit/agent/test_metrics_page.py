"""The agent's metrics page, which DCGM's table and every reader of Prometheus' text format understand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbctl.agent.assessment import Assessment, Reason
from lbctl.agent.metrics_page import XidCounts, page
from lbctl.agent.readings import EngineReading, GpuReading, GpuReadings
from lbctl.signals import table
from lbctl.signals.devices import selection
from lbctl.signals.exposition import MetricsReader, Sample
from lbctl.signals.source import SourceReading

HEALTHY = Assessment("healthy", weight=75)
GPU = GpuReading(
    0, "GPU-5fd4", "NVIDIA H100 80GB HBM3", pci="00000000:17:00.0", utilization=0.5, memory_free=3 << 30,
    memory_used=1 << 30, temperature=61.0, power=350.5, slowdowns=frozenset({"sw_thermal"}), remap_failed=False,
)  # fmt: skip
SLICE = GpuReading(1, "MIG-9a", "NVIDIA A100", instance="3", memory_free=1 << 20)


def _page(*gpus: GpuReading, assessment: Assessment = HEALTHY, engine: EngineReading | None = None) -> bytes:
    readings, xids = GpuReadings(1.0, gpus), XidCounts()
    xids.add(readings)
    return page(assessment, readings, engine, xids, "gpu-1")


def _samples(text: bytes, name: str) -> tuple[Sample, ...]:
    """Return the samples of a metric. No line of it may be refused."""
    read = MetricsReader({name}).read(text)
    assert read.refused == {}
    return read.samples.get(name, ())


def _dcgm(text: bytes, *devices: str) -> SourceReading:
    dcgm = table("dcgm")
    return dcgm.reading(dcgm.reader().read(text), selection((), devices, dcgm.gpus), 1.0)


def test_gpu_has_the_values_of_a_dcgm_exporter() -> None:
    assert _dcgm(_page(GPU)).quantities == {
        "gpu": 0.5,
        "gpu_memory_free": 3 << 30,
        "temperature": 61.0,
        "throttle": 1.0,
        "xid": 0.0,
        "row_remap_failure": 0.0,
    }


def test_gpu_has_the_labels_of_a_dcgm_exporter() -> None:
    (sample,) = _samples(_page(GPU), "DCGM_FI_DEV_POWER_USAGE")
    assert sample == Sample(
        {
            "gpu": "0",
            "UUID": "GPU-5fd4",
            "pci_bus_id": "00000000:17:00.0",
            "device": "nvidia0",
            "modelName": "NVIDIA H100 80GB HBM3",
            "hostname": "gpu-1",
        },
        350.5,
    )


def test_mig_slice_is_found_by_its_instance() -> None:
    text = _page(GPU, SLICE)
    assert _dcgm(text, "1:3").quantities["gpu_memory_free"] == 1 << 20
    assert _dcgm(text, "0").quantities["gpu_memory_free"] == 3 << 30


def test_unknown_values_have_no_line() -> None:
    text = _page(GpuReading(0, "GPU-5fd4", "H100"))
    assert {line.split(b"{")[0] for line in text.splitlines() if line.startswith(b"DCGM")} == {
        b"DCGM_FI_DEV_XID_ERRORS", b"DCGM_EXP_CLOCK_EVENTS_COUNT"
    }  # fmt: skip


def test_lost_gpu_reports_only_its_xid() -> None:
    lost = replace(GpuReading(0, "GPU-5fd4", "H100"), problem="the GPU is lost", xids=(79,))
    reading = _dcgm(_page(lost))
    assert reading.quantities == {"xid": 79.0}
    assert reading.xids == (("GPU-5fd4", 79),)


def test_xids_are_counted_over_readings() -> None:
    xids = XidCounts()
    for codes in ((48, 48), (), (31,)):
        xids.add(GpuReadings(1.0, (replace(GPU, xids=codes),)))
    text = page(HEALTHY, GpuReadings(1.0, (GPU,)), None, xids, "gpu-1")
    counts = {item.labels["xid"]: item.value for item in _samples(text, "DCGM_EXP_XID_ERRORS_COUNT")}
    assert counts == {"48": 2.0, "31": 1.0}
    assert [item.value for item in _samples(text, "DCGM_FI_DEV_XID_ERRORS")] == [31.0]


def test_engine_signals_and_counters_have_their_names() -> None:
    engine = EngineReading(1.0, True, signals={"queue": 3.0, "kv_cache": 0.25}, counters={"decode_tokens": 1e15})
    text = _page(engine=engine)
    assert _samples(text, "lbctl_agent_signal") == (
        Sample({"signal": "kv_cache"}, 0.25),
        Sample({"signal": "queue"}, 3.0),
    )
    assert _samples(text, "lbctl_agent_counter_total") == (Sample({"counter": "decode_tokens"}, 1e15),)


def test_control_plane_reads_the_page_with_its_own_table() -> None:
    engine = EngineReading(
        1.0,
        True,
        signals={"queue": 3.0, "running": 5.0, "kv_cache": 0.25, "awake": 1.0},
        counters={"decode_tokens": 1200.0, "iterations": 400.0},
    )
    agent = table("agent")
    page_read = agent.reader().read(_page(GPU, replace(GPU, index=1, uuid="GPU-6", memory_free=2 << 30), engine=engine))
    assert page_read.refused == {}
    assert agent.reading(page_read, selection((), (), agent.gpus), 1.0).quantities == {
        "queue": 3.0,
        "running": 5.0,
        "kv_cache": 0.25,
        "awake": 1.0,
        "decode_tokens": 1200.0,
        "iterations": 400.0,
        "gpu": 0.5,
        "gpu_memory_free": 2 << 30,
        "temperature": 61.0,
        "throttle": 1.0,
        "xid": 0.0,
        "row_remap_failure": 0.0,
    }


def test_health_is_reported_with_its_reasons() -> None:
    reasons = (Reason("xid", "GPU 0 reported XID 79", "0"), Reason("engine", "status 503"))
    text = _page(assessment=Assessment("unhealthy", reasons))
    assert _samples(text, "lbctl_agent_healthy") == (Sample({}, 0.0),)
    states = {item.labels["state"] for item in _samples(text, "lbctl_agent_state") if item.value}
    assert states == {"unhealthy"}
    assert [dict(item.labels) for item in _samples(text, "lbctl_agent_reason")] == [
        {"code": "engine", "device": ""},
        {"code": "xid", "device": "0"},
    ]


def test_weight_is_a_ratio() -> None:
    assert _samples(_page(), "lbctl_agent_weight_ratio") == (Sample({}, 0.75),)


@pytest.mark.parametrize("model", ['H100 "SXM"', "back\\slash", 'line\nbreak{x="1"} 2'])
def test_text_of_a_driver_is_escaped(model: str) -> None:
    (sample,) = _samples(_page(replace(GPU, model=model)), "DCGM_FI_DEV_GPU_TEMP")
    assert sample.labels["modelName"] == model


def test_page_before_the_first_reading() -> None:
    text = page(Assessment("unhealthy", (Reason("engine", "not read yet"),)), None, None, XidCounts(), "gpu-1")
    assert _samples(text, "lbctl_agent_healthy") == (Sample({}, 0.0),)
    assert b"DCGM" not in text
