"""The load that the command line states, against what the fleet can carry."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.lint.rule import Found, rule
from lbctl.lint.sample import sample
from lbctl.lint.subject import Load, Subject

_BUSY = 0.8
_SLOTS = "circuit_breaker: {per_replica: {max_requests: 8}}\n"
SHOWN = Load(7.0, 2.0)
"""The load with which the pages' fleets are judged: `--rate 7/s --mean-service 2s`."""
_HOW = (
    "`lbctl lint --rate R --mean-service D` states the load: R requests a second, each of which keeps a replica busy "
    "for D. A replica works on one at a time, or on `circuit_breaker.per_replica.max_requests` where that is written "
    "(D is then the time of a request in a full batch). The page's fleets are judged with `--rate 7/s --mean-service "
    "2s`. "
)


@rule(
    "LB221",
    "warning",
    "a fleet that is nearly full",
    what=f"{_HOW}Here the fleet is busy for 80 % of its time or more.",
    why="Queues grow as 1 ÷ (1 − utilisation): at 80 % a request waits four times its service on average when arrivals "
    "are random, and one replica less is more than the rest can carry.",
    before=sample(_SLOTS),
    after=sample(_SLOTS, replicas="".join(f'- {{address: "10.0.0.{i}:8000", gpu: H100-SXM}}\n' for i in range(1, 4))),
    ignore="The load can wait, as batch work does.",
    asked=True,
)
def nearly_full(fleet: Subject) -> Iterator[Found]:
    used = _utilisation(fleet)
    if used is not None and _BUSY <= used[0] < 1:
        yield Found(("pools",), f"{used[1]}: {used[0]:.0%} busy, and queues grow from 80 % on", _more(used[0]))


@rule(
    "LB222",
    "error",
    "more load than the fleet can carry",
    what=f"{_HOW}Here as much comes as the fleet can carry, or more.",
    why="No algorithm saves that: the queue grows for as long as the load lasts, and with it the wait for the first "
    "token. All that is left is more capacity, less work, or shedding.",
    before=sample(),
    after=sample("circuit_breaker: {per_replica: {max_requests: 16}}\n"),
    ignore="Never; state the load that is meant.",
    asked=True,
)
def too_full(fleet: Subject) -> Iterator[Found]:
    used = _utilisation(fleet)
    if used is not None and used[0] >= 1:
        yield Found(("pools",), f"{used[1]}: {used[0]:.0%} of it, and no algorithm saves that", _more(used[0]))


def _utilisation(fleet: Subject) -> tuple[float, str] | None:
    """What part of the fleet's time is asked for, in words too."""
    load = fleet.load
    reached = {item.pool for _, action in fleet.forwards for item in action.shares if item.weight}
    slots = sum(_slots(fleet, name) for name in reached)
    if load is None or not slots:
        return None
    wanted = load.rate * load.mean_service
    words = f"{load.rate:g}/s × {load.mean_service:g} s = {wanted:g} requests at once, and the fleet works on {slots}"
    return wanted / slots, words


def _slots(fleet: Subject, name: str) -> int:
    pool = fleet.pool(name)
    each = pool.circuit_breaker.replica_max_requests or 1
    return each * sum(not item.drain for item in pool.replicas)


def _more(used: float) -> str:
    return f"{used / 0.7:.1f} times the replicas would be busy for 70 %"
