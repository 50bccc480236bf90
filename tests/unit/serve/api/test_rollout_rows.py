"""The split of a rollout is shown on the scale of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.control import splits
from lbctl.control.outages import NO_OUTAGES
from lbctl.control.rollouts import reconcile, shares_at
from lbctl.serve.api.rollout_rows import rows
from tests.support.fleets import fleet_of, load_fleet, pool, replica


@pytest.mark.parametrize(
    ("base", "percent", "expected"),
    [
        ({"old": 100, "new": 0}, 5, {"old": 95, "new": 5}),
        ({"old": 1000, "new": 0}, 0.5, {"old": 995, "new": 5}),
        ({"old": 1, "new": 0}, 5, {"old": 19, "new": 1}),
        ({"old": 100, "new": 0}, 0.25, {"old": 399, "new": 1}),
    ],
)
def test_split_has_the_sum_of_the_files(
    base: dict[str, int], percent: float, expected: dict[str, int], tmp_path: Path
) -> None:
    steps = [{"percent": "50%"}, {"percent": "100%"}]
    route = {"match": {"path_prefix": "/"}, "split": base, "rollout": {"to": "new", "mode": "manual", "steps": steps}}
    pools = {name: pool(replica(), model={"name": name}) for name in base}
    topology = load_fleet(tmp_path, fleet_of(routes={"chat": route}, pools=pools)).compiled.topology
    served = splits.apply(topology, {"chat": shares_at(tuple(sorted(base.items())), "new", percent)})
    (row,) = rows(reconcile((), topology, 0.0), topology, served, (), {}, NO_OUTAGES, 0.0)
    assert row.split == expected
