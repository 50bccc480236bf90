"""The utilisation bound that lint and the simulation share."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from lbctl.ir import load_bound
from lbctl.simulate import capacity
from lbctl.simulate.engine import CostModel
from tests.support.fleets import fleet_of, write_fleet
from tests.support.simulate import load, pool


def test_utilisation_is_arrival_rate_by_service_rate() -> None:
    assert load_bound.utilisation(6.0, [2.0, 1.0, 1.0]) == 1.5
    assert load_bound.utilisation(6.0, []) == float("inf")
    assert load_bound.advice(2.1) == "3.0 times as many replicas would be busy 70 % of the time"


def test_lint_and_the_simulation_share_the_utilisation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the utilisation function changes, both report the new value."""
    monkeypatch.setattr(load_bound, "utilisation", lambda *_: 3.33)
    where = pool(1.0)
    assert capacity.load_of(capacity.engines_of(where, CostModel()), load(10, 1.0)) == 3.33
    fleet = write_fleet(tmp_path, fleet_of())
    assert run(["lint", "--select", "LB222", "--rate", "1/s", "--mean-service", "1ms", str(fleet)]) == 1
    assert "utilisation is 333%" in capsys.readouterr().out
