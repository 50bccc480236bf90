"""The agent's metrics page, with the engine's signals and with GPU metrics named as in NVIDIA's DCGM exporter.

GPU metrics also use the exporter's units. Unknown values, and GPUs that the driver has never listed, are omitted. Label
values are escaped, because they may come from a driver.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from lbctl.agent.assessment import Assessment, State
from lbctl.agent.readings import EngineReading, GpuReading, GpuReadings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLOCK_EVENTS = ("power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")
"""Reasons for a reduced clock, as named by the DCGM exporter."""
_MIB = 1 << 20
_SPECIAL = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}

Labels = tuple[tuple[str, str], ...]
_Sample = tuple[Labels, float]
_Family = tuple[str, str, str, Iterable[_Sample]]
"""A metric's name, type, help text and samples."""


class XidCounts:
    """Counts the XID errors of each GPU since the agent started."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {}
        self._last: dict[str, int] = {}

    def add(self, readings: GpuReadings) -> None:
        """Add the errors from a reading. Call this once per reading."""
        for gpu in readings.gpus:
            if gpu.xids:
                self._counts.setdefault(gpu.name, Counter()).update(gpu.xids)
                self._last[gpu.name] = gpu.xids[-1]

    def of(self, gpu: GpuReading) -> Mapping[int, int]:
        """Return a GPU's error counts by code."""
        return self._counts.get(gpu.name, {})

    def last(self, gpu: GpuReading) -> int:
        """Return the code of a GPU's most recent error, or 0 if it has reported none."""
        return self._last.get(gpu.name, 0)


def page(
    assessment: Assessment, gpus: GpuReadings | None, engine: EngineReading | None, xids: XidCounts, hostname: str
) -> bytes:
    """Return the metrics page. `gpus` and `engine` are None before their first readings."""
    families = (*_agent(assessment, engine), *_gpus(gpus.gpus if gpus else (), xids, hostname))
    return "".join(line for family in families for line in _lines(*family)).encode()


def _agent(assessment: Assessment, engine: EngineReading | None) -> Iterator[_Family]:
    healthy = assessment.state == "healthy"
    states = [((("state", state),), float(state == assessment.state)) for state in get_args(State)]
    reasons = sorted({(reason.code, reason.device) for reason in assessment.reasons})
    found = [((("code", code), ("device", device)), 1.0) for code, device in reasons]
    yield "lbctl_agent_healthy", "gauge", "Whether the replica should get requests.", [((), float(healthy))]
    yield "lbctl_agent_state", "gauge", "The replica's state: 1 for the current state, 0 for the others.", states
    yield "lbctl_agent_reason", "gauge", "Reason why the replica gets no requests.", found
    weight = assessment.weight / 100
    yield "lbctl_agent_weight_ratio", "gauge", "Share of its weight that the replica should get.", [((), weight)]
    signals = engine.signals if engine else {}
    counters = engine.counters if engine else {}
    yield "lbctl_agent_signal", "gauge", "An engine signal, in lbctl's units.", _named("signal", signals)
    yield "lbctl_agent_counter_total", "counter", "A counter of the engine.", _named("counter", counters)


def _named(label: str, values: Mapping[str, float]) -> list[_Sample]:
    return [(((label, name),), value) for name, value in sorted(values.items())]


def _gpus(gpus: tuple[GpuReading, ...], xids: XidCounts, hostname: str) -> Iterator[_Family]:
    labelled = [(_labels(gpu, hostname), gpu) for gpu in gpus if gpu.index >= 0]
    readable = [(labels, gpu) for labels, gpu in labelled if not gpu.problem]
    values: tuple[tuple[str, str, list[tuple[Labels, float | None]]], ...] = (
        ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).",
         [(labels, _scaled(gpu.utilization, 100)) for labels, gpu in readable]),
        ("DCGM_FI_DEV_FB_FREE", "Free GPU memory (in MiB).",
         [(labels, _scaled(gpu.memory_free, 1 / _MIB)) for labels, gpu in readable]),
        ("DCGM_FI_DEV_FB_USED", "Used GPU memory (in MiB).",
         [(labels, _scaled(gpu.memory_used, 1 / _MIB)) for labels, gpu in readable]),
        ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", [(labels, gpu.temperature) for labels, gpu in readable]),
        ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", [(labels, gpu.power) for labels, gpu in readable]),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether memory row remapping has failed.",
         [(labels, gpu.remap_failed) for labels, gpu in readable]),
        ("DCGM_FI_DEV_XID_ERRORS", "Code of the last XID error since the agent started.",
         [(labels, xids.last(gpu)) for labels, gpu in labelled]),
    )  # fmt: skip
    for name, text, samples in values:
        yield name, "gauge", text, [(labels, value) for labels, value in samples if value is not None]
    errors = [
        ((*labels, ("xid", str(code))), float(count))
        for labels, gpu in labelled
        for code, count in sorted(xids.of(gpu).items())
    ]
    yield "DCGM_EXP_XID_ERRORS_COUNT", "gauge", "Number of XID errors since the agent started.", errors
    events = [
        ((*labels, ("clock_event", event)), float(event in gpu.slowdowns))
        for labels, gpu in readable
        for event in CLOCK_EVENTS
    ]
    yield "DCGM_EXP_CLOCK_EVENTS_COUNT", "gauge", "Whether the clock is reduced for this reason.", events


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _labels(gpu: GpuReading, hostname: str) -> Labels:
    """Return the DCGM exporter's labels for a GPU or a MIG slice."""
    index = str(gpu.index)
    labels = (
        ("gpu", index),
        ("UUID", gpu.uuid),
        ("pci_bus_id", gpu.pci),
        ("device", f"nvidia{index}"),
        ("modelName", gpu.model),
        ("hostname", hostname),
    )
    return (*labels, ("GPU_I_ID", gpu.instance)) if gpu.instance else labels


def _lines(name: str, kind: str, text: str, samples: Iterable[_Sample]) -> Iterator[str]:
    """Yield the lines for a metric, or nothing if it has no samples."""
    for number, (labels, value) in enumerate(samples):
        if not number:
            yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        pairs = ",".join(f'{label}="{_SPECIAL.sub(_escape, item)}"' for label, item in labels)
        yield f"{name}{{{pairs}}} {_number(value)}\n" if pairs else f"{name} {_number(value)}\n"


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES[match[0]]


def _number(value: float) -> str:
    """Return the shortest string that represents the same value."""
    return str(int(value)) if value == int(value) else repr(float(value))
