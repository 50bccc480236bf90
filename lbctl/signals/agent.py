"""Metrics table for `lbctl agent`: the engine's signals and counters under lbctl's names, GPUs under DCGM's names."""

from __future__ import annotations

from lbctl.signals.gpu_exporters import DCGM
from lbctl.signals.signal import COUNTERS, SIGNALS
from lbctl.signals.source import MetricSeries, MetricsTable

_ENGINE_SIGNALS = [name for name in SIGNALS if name not in DCGM.series and name != "progress"]

TABLE = MetricsTable(
    kind="agent",
    title="lbctl agent",
    series={
        **{name: (MetricSeries("lbctl_agent_signal", where=(("signal", (name,)),)),) for name in _ENGINE_SIGNALS},
        **DCGM.series,
        **{name: (MetricSeries("lbctl_agent_counter_total", where=(("counter", (name,)),)),) for name in COUNTERS},
    },
    evidence="tokens",
    heartbeat="requests",
    gpus=DCGM.gpus,
    notes=(
        "The agent reports the signals and counters on its engine's metrics page.",
        "In a pool with `health.agent`, `serve` also queries the agents, unless `sources` has an entry of this kind.",
    ),
)
"""The agent next to a replica.

Progress is derived from the counters: engines that count their steps provide `iterations`. Other engines may count
tokens only when a request ends, so their progress is measured in complete responses.
"""
