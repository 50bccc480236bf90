"""Replicas that die, restart or join: the effect on their engines, and how proxies detect it.

An active check detects a dead replica after `unhealthy_threshold` failures, at a random phase of its interval and at
the same time for all proxies. A proxy ejects a replica for `ejection_time` after a number of consecutive refused
connections.
"""

from __future__ import annotations

import math
from random import Random

from lbctl.control import slow_start
from lbctl.simulate.action_queue import Action, ActionQueue
from lbctl.simulate.engines import WAYS, reschedule
from lbctl.simulate.setup import Setup
from lbctl.simulate.state import FOR_ONE, IDLE, PENDING, EngineColumns, ProxyColumns, Requests, RunSettings

_STEPS = 32
"""Number of steps in a proxy's own slow start."""


def break_off(requests: Requests, engines: EngineColumns, settings: RunSettings, replica: int, now: float) -> list[int]:
    """Empty a dead engine and close its port.

    Return the requests whose clients are still waiting, in order of arrival.
    """
    base = replica * settings.slots
    inside = [int(engines.run_request[base + slot]) for slot in range(engines.running[replica])]
    inside += [int(engines.read_request[base + slot]) for slot in range(engines.reading[replica])]
    request = int(engines.head[replica])
    for _ in range(engines.waiting[replica]):
        inside.append(request)
        request = int(requests.follower[request])
    if engines.kind[replica] != IDLE:
        engines.busy_seconds[replica] += now - engines.begun[replica]
    engines.up[replica] = engines.running[replica] = engines.reading[replica] = 0
    engines.waiting[replica] = engines.left[replica] = engines.context[replica] = 0
    engines.kind[replica], engines.end[replica] = IDLE, math.inf
    reschedule(engines, replica)
    start = int(engines.cache_start[replica])
    for slot in range(start, start + WAYS * int(engines.cache_sets[replica]) if settings.block else start):
        engines.cached_block[slot] = -1
    broken = sorted(request for request in inside if requests.state[request] == PENDING)
    for request in broken:
        requests.replica[request], requests.admitted[request] = -1, 0
        requests.need[request], requests.rest[request] = requests.prompt[request], requests.answer[request]
    return broken


def revive(engines: EngineColumns, replica: int) -> None:
    """Reopen a replica's port."""
    engines.up[replica] = 1


def waiting_for(requests: Requests, proxies: ProxyColumns, settings: RunSettings, replica: int) -> list[int]:
    """Remove and return the requests waiting in proxies for this replica only."""
    taken = []
    for slot in range(replica, len(proxies.head), settings.replicas) if settings.waits == FOR_ONE else ():
        request = int(proxies.head[slot])
        proxies.head[slot] = -1
        while request >= 0:
            if requests.state[request] == PENDING:
                taken.append(request)
            request = int(requests.follower[request])
    return sorted(taken)


class Availability:
    """The replicas of one run, by index."""

    def __init__(self, setup: Setup, actions: ActionQueue, rng: Random) -> None:
        self._setup, self._actions, self._rng = setup, actions, rng
        names = [replica.name for replica in setup.pool.replicas]
        self._absent = {names.index(name) for name in setup.joins}
        self._dead: set[int] = set()
        self._changes = [0] * len(names)
        self._failures: dict[tuple[int, int], int] = {}
        """Maps each (proxy, replica) pair to the number of consecutive failed connections since the replica died or was
        ejected."""
        self._pace = setup.policy.push_every
        self.checked_out: set[int] = set()
        """Replicas that are failing their active checks."""
        self.ejected: set[tuple[int, int]] = set()
        """(proxy, replica) pairs for which the proxy has ejected the replica."""
        self.began: dict[int, float] = {}
        """The times at which replicas in slow start joined or restarted."""
        self.changed = False
        """Whether anything has changed since this was last set to False."""

    def is_member(self, replica: int) -> bool:
        """Return whether the replica has joined the pool."""
        return replica not in self._absent

    def takes(self, replica: int) -> bool:
        """Return whether checks allow requests to the replica."""
        return replica not in self._absent and replica not in self.checked_out

    def factor(self, replica: int, now: float) -> float:
        """Return the slow-start factor for a replica's weight."""
        rules = self._setup.pool.slow_start
        if rules is None or replica not in self.began or not self._setup.policy.ramps(self._setup.pool):
            return 1.0
        age = now - self.began[replica]
        return slow_start.stepped(rules, age, self._pace) if self._pace else rules.factor(age)

    def healthy_percent(self) -> float:
        """Return the percentage of the pool's replicas that are healthy."""
        members = [at for at, item in enumerate(self._setup.pool.replicas) if at not in self._absent and not item.drain]
        return 100 * sum(self.takes(at) for at in members) / len(members) if members else 0.0

    def died(self, replica: int, now: float) -> None:
        """Record that a replica died."""
        self._dead.add(replica)
        self._changes[replica] += 1
        check = self._setup.pool.active
        if check is not None:
            self._actions.at(
                self._checked(now, check.unhealthy_threshold), self._finds(replica, self._changes[replica])
            )

    def came_back(self, replica: int, now: float) -> None:
        """Record that a replica listens again. Without active checks, the proxies' slow start begins immediately."""
        self._dead.discard(replica)
        self._failures = {key: count for key, count in self._failures.items() if key[1] != replica}
        self._changes[replica] += 1
        check = self._setup.pool.active
        time = self._checked(now, check.healthy_threshold) if check and replica in self.checked_out else now
        self._actions.at(time, self._finds(replica, self._changes[replica]))

    def joined(self, replica: int, now: float) -> None:
        """Record that a replica joined the pool."""
        self._absent.discard(replica)
        self._ramp(replica, now)

    def _checked(self, now: float, threshold: int) -> float:
        check = self._setup.pool.active
        assert check is not None
        return now + check.interval / 1000 * (self._rng.random() + threshold - 1)

    def _finds(self, replica: int, change: int) -> Action:
        """Return the action for the check that this change starts, which has no effect after another change."""

        def act(now: float) -> None:
            if change != self._changes[replica]:
                return
            self.changed = True
            if replica in self._dead:
                self.checked_out.add(replica)
            else:
                self.checked_out.discard(replica)
                self._ramp(replica, now)

        return act

    def _ramp(self, replica: int, now: float) -> None:
        self.changed = True
        self.began[replica] = now
        rules = self._setup.pool.slow_start
        if rules is None or not self._setup.policy.ramps(self._setup.pool):
            return
        window = rules.window / 1000
        step = slow_start.step(rules, self._pace) if self._pace else window / _STEPS
        for number in range(1, math.ceil(window / step) + 1):
            self._actions.at(now + min(window, number * step), self._note_change)

    def _note_change(self, _: float) -> None:
        self.changed = True

    def refused(self, proxy: int, replica: int, now: float) -> None:
        """Record that a proxy could not connect to a replica."""
        passive = self._setup.pool.passive
        if passive is None:
            return
        key = (proxy, replica)
        self._failures[key] = self._failures.get(key, 0) + 1
        most = max(1, int(len(self._setup.pool.replicas) * passive.max_ejection / 100))
        if self._failures[key] < passive.consecutive_connect_failures or self._count(proxy) >= most:
            return
        self._failures[key] = 0
        self.ejected.add(key)
        self.changed = True
        self._actions.at(now + passive.ejection_time / 1000, lambda _: self._readmit(key))

    def _count(self, proxy: int) -> int:
        return sum(each == proxy for each, _ in self.ejected)

    def _readmit(self, key: tuple[int, int]) -> None:
        self.ejected.discard(key)
        self.changed = True
