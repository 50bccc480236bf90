"""A canary follows the rollout that the API reports. A bad version answers its share of requests with errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbctl.demo.canary import Canaries, Canary
from lbctl.demo.canary_fleet import PLANS, new_canary
from lbctl.demo.load import Arrival, LoadGenerator, Outcomes
from lbctl.demo.replica import PacedReplica
from lbctl.demo.report import progress
from lbctl.simulate.engine import CostModel

_CURVE = CostModel(0.01, 0.0, 0.0, 0.0, 8)
_GOOD, _BAD = PLANS
_COUNTS = {"requests": 40, "errors": 20, "rate": 0.5}


def _row(phase: str, percent: float | None, *verdicts: str) -> Mapping[str, Any]:
    evaluations = [{"verdict": verdict, "new": _COUNTS, "old": {**_COUNTS, "errors": 0}} for verdict in verdicts]
    return {"route": "bad", "phase": phase, "percent": percent, "analysis": {"evaluations": evaluations}}


def _canary() -> Canary:
    return Canary(new_canary(_BAD, 1, _CURVE))


def test_canary_waits_until_its_start() -> None:
    canary = _canary()
    canary.update(_row("progressing", 25.0, "inconclusive"))
    assert (canary.phase, canary.steps, canary.last_evaluation) == ("waiting", [], None)


def test_canary_records_each_step_and_ends_with_the_rollout() -> None:
    canary = _canary()
    canary.begin()
    for percent in (25.0, 25.0, 50.0):
        canary.update(_row("progressing", percent, "good"))
    assert canary.running
    canary.update(_row("rolled_back", None, "good", "bad"))
    assert [step.percent for step in canary.steps] == [25.0, 50.0]
    assert not canary.running
    assert progress(canary) == "rolled back (25 %, 50 %): bad, errors 20/40 against 0/40"


def test_refused_second_start_changes_nothing(tmp_path: Path) -> None:
    canaries = Canaries([new_canary(_GOOD, 1, _CURVE)], 1, tmp_path / "token")
    (tmp_path / "token").write_text("secret")
    canary = canaries.by_key["g"]
    asyncio.run(canaries.start(canary))
    assert canary.running
    canary.update(_row("promoted", 100.0, "good"))
    asyncio.run(canaries.start(canary))
    assert (canary.phase, canary.running) == ("promoted", False)


async def _outcomes(replica: PacedReplica, requests: int) -> Outcomes:
    await replica.start()
    load = LoadGenerator([replica.port], "/x", keep=False)
    began = time.monotonic()
    await load.run([Arrival(0.0, 1, 2)] * requests, began)
    await asyncio.sleep(0.3)
    outcomes = load.outcomes(began, began + 10)
    await replica.close()
    return outcomes


def test_bad_version_fails_its_share_of_requests() -> None:
    replica = new_canary(_BAD, 1, _CURVE).versions["v2"]
    outcomes = asyncio.run(_outcomes(replica, 8))
    assert (outcomes.failed, outcomes.shares()) == (4, {"v2": 1.0})
