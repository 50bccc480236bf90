"""A replay as a whole: pauses, and what each proxy's picker knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lbctl.ir.pools import Telemetry, Weighting
from lbctl.simulate.columns import DONE
from lbctl.simulate.control import ControlLoop
from lbctl.simulate.trace import Trace
from tests.support.simulate import EASY, pool, replayed

PAUSED = Trace([0.0, 1.0, 1e8, 1e8 + 1.0], [10] * 4, [5] * 4)


@pytest.mark.parametrize("policy", ["nginx:least_request", "envoy:pick"])
def test_a_pause_costs_no_steps(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples: list[float] = []
    observe = ControlLoop.observe

    def counted(loop: ControlLoop, observations: Any, ejected: Any, now: float) -> None:
        samples.append(now)
        observe(loop, observations, ejected, now)

    monkeypatch.setattr(ControlLoop, "observe", counted)
    where = replace(pool(1.0, 1.0), telemetry=Telemetry(5_000), weighting=Weighting("adaptive"))
    progress: list[float] = []
    result = replayed(where, PAUSED, policy, cost=EASY, progress=progress.append)
    assert set(result.requests.state) == {DONE}
    assert result.requests.last[3] == pytest.approx(1e8 + 1.05)
    assert len(progress) < 500
    assert len(samples) < 200
    assert [at for at in samples if 1e8 - 60 <= at <= 1e8]


def test_behind_nginx_the_picker_does_not_see_prompts() -> None:
    """A prompt that was read before draws the next one to its replica, where the picker sees it."""
    count = 40
    trace = Trace(
        [2.0 * index for index in range(count)],
        [4096] * count,
        [2] * count,
        (),
        [(1, 2, 3, 4, 5, 6, 7, 8)] * count,
        512,
    )
    used = {
        policy: len({int(each) for each in replayed(pool(1.0, 1.0, 1.0, 1.0), trace, policy).requests.replica})
        for policy in ("nginx:pick", "haproxy:pick", "envoy:pick")
    }
    assert used["haproxy:pick"] == used["envoy:pick"] == 1
    assert used["nginx:pick"] > 1
