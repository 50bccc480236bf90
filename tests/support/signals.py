"""Metrics pages for tests of signals: pages of this repository, and pages of real exporters if available."""

from __future__ import annotations

import pytest

from lbctl.signals import KINDS, table
from lbctl.signals.devices import Selection, selection
from lbctl.signals.exposition import MetricsPage
from lbctl.signals.source import SourceReading
from tests.support.paths import DATA, FIXTURES

METRICS = FIXTURES / "metrics"
needs_real_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no metrics pages of real exporters in {DATA} (LBCTL_REAL_DATA)"
)


def fixture(name: str) -> bytes:
    return (METRICS / f"{name}.prom").read_bytes()


def kind_of(name: str) -> str:
    return max((kind for kind in KINDS if name.startswith(kind)), key=len)


def page(kind: str, text: bytes) -> MetricsPage:
    return table(kind).reader().read(text)


def reading(kind: str, text: bytes, *devices: str, at: float = 0.0, **labels: str) -> SourceReading:
    item = table(kind)
    chosen: Selection = selection(tuple(sorted(labels.items())), devices, item.gpus)
    return item.reading(page(kind, text), chosen, at)
