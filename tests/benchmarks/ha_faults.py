"""Three members of one control plane with a real store and real proxies, and the faults to inject.

Each of three Envoys knows all members through `lbctl bootstrap --standby`; the leader drives a HAProxy and an nginx.
One engine is slower than the others, so that the weights differ from the capacities.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.control import XdsEnvoy, driven
from tests.support.processes.edges import Edge
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.members import MemberPlane, bootstrap_of_members, leader_of, members
from tests.support.processes.ports import HOST
from tests.support.processes.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.processes.waiting import eventually
from tests.support.stores import STORES, Server

NAMES = ("e1", "e2", "e3")
LEASE = 3.0
_INTERVAL = 0.5
"""Seconds between scrapes."""
_TAKEN = r"(update_success|version)$"
"""Statistics of an Envoy: the number of accepted updates, and the hash of the newest accepted version."""
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
"""From the Debian package faketime."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a trial. `pause` and `down`: seconds for which a member, or the store, is away."""

    kills: int
    pause: float
    down: float
    steps: int


@dataclass
class Trial:
    """The running members, proxies and store."""

    store: Server
    planes: tuple[MemberPlane, ...]
    envoys: tuple[XdsEnvoy, ...]
    engines: list[Engine]
    ways: list[TcpProxy]
    size: Size
    edges: tuple[Edge, ...]

    def leader(self) -> MemberPlane:
        eventually(lambda: leader_of(self.planes) is not None, 60)
        found = leader_of(self.planes)
        assert found is not None
        return found

    def rollout(self, action: str) -> None:
        answer = self.leader().write("POST", "rollouts", {"route": "canary", "action": action})
        assert answer.ok, answer.text

    def steps(self) -> list[str]:
        """Return the audit entries about the rollout since an operator resumed it."""
        rows = self.leader().control.get("audit")["records"]
        actions = [row["action"] for row in rows if row["action"].startswith("rollout ")]
        resumed = [place for place, action in enumerate(actions) if action.startswith("rollout resume")]
        return actions[resumed[-1] :] if resumed else []


class Sampler(threading.Thread):
    """Reads the weights of all Envoys and their update counters a few times per interval.

    `largest`: the largest change of a weight in one interval, relative to the capacity. `again`: how many updates had a
    version that the Envoy already had. On a busy machine this is too high, because only one of several updates between
    two readings counts as new.
    """

    def __init__(self, envoys: tuple[XdsEnvoy, ...]) -> None:
        super().__init__(daemon=True)
        self.largest = 0.0
        self.again = 0
        self._envoys = envoys
        self._ends = threading.Event()

    def run(self) -> None:
        before: dict[str, tuple[float, dict[str, float], dict[str, int]]] = {}
        while not self._ends.wait(0.15):
            for envoy in self._envoys:
                now = time.monotonic(), shares(envoy), envoy.stats(_TAKEN)
                if envoy.node in before:
                    then, earlier, taken = before[envoy.node]
                    self._compare_weights(now[0] - then, earlier, now[1])
                    self._compare_taken(taken, now[2])
                before[envoy.node] = now

    def _compare_weights(self, seconds: float, earlier: dict[str, float], later: dict[str, float]) -> None:
        moved = [abs(later[name] - earlier[name]) for name in later.keys() & earlier.keys()]
        self.largest = max([self.largest, *(each / (1 + int(seconds / _INTERVAL)) for each in moved)])

    def _compare_taken(self, earlier: dict[str, int], later: dict[str, int]) -> None:
        """Count updates without a new version. At most one update per source counts as new between two readings."""
        for name, count in later.items():
            prefix, _, last = name.rpartition(".")
            if last == "update_success" and f"{prefix}.version" in later:
                changed = later[f"{prefix}.version"] != earlier.get(f"{prefix}.version")
                self.again += max(0, count - earlier.get(name, 0) - changed)

    def end(self) -> None:
        self._ends.set()
        self.join()


def shares(envoy: XdsEnvoy) -> dict[str, float]:
    """Return address → weight relative to the median weight."""
    weights = {name: count for name, count in envoy.weights("pool").items() if count}
    usual = sorted(weights.values())[len(weights) // 2]
    return {name: count / usual for name, count in weights.items()}


def _fleet(pool: list[Engine], canary: Engine, sites: Sequence[Edge], steps: int) -> Fleet:
    sources = [{"kind": "vllm", "url": "http://{address}/metrics"}]
    telemetry = {"interval": f"{_INTERVAL:g}s", "timeout": "400ms", "stale_after": "2s", "sources": sources}
    weighting = {"adaptive": {"smoothing": "2s"}, "max_step": {"down": "20%", "up": "10%"}}
    canary_route = {
        "match": {"path_prefix": "/canary/"},
        "split": {"pool": 100, "next": 0},
        "rollout": {
            "to": "next",
            "mode": "timed",
            "steps": [{"percent": f"{number}%", "hold": "5s"} for number in range(1, steps + 1)],
        },
    }
    fleet = fleet_of(
        pool_of(
            pool,
            telemetry=telemetry,
            weighting=weighting,
            balance={"algorithm": "round_robin"},
            model={"name": "m"},
        ),
        routes={"canary": canary_route},
        pools={"next": pool_of([canary], model={"name": "n"})},
        **driven(*NAMES),
    )
    for site in sites:
        for section, entries in site.sections.items():
            fleet[section] |= entries
    del fleet["listeners"]["gateway"]
    return fleet


# ── Faults. Each yields the seconds until a member led again ─────────────────────────────────────────────────────────


def _await_leader(planes: tuple[MemberPlane, ...]) -> None:
    eventually(lambda: leader_of(planes) is not None, 60, 0.02)


def _killed(trial: Trial) -> Iterator[float]:
    for _ in range(trial.size.kills):
        old = trial.leader()
        started = time.monotonic()
        old.control.kill()
        others = tuple(item for item in trial.planes if item is not old)
        _await_leader(others)
        yield time.monotonic() - started
        old.control.start()


def _stopped(trial: Trial) -> Iterator[float]:
    old = trial.leader()
    epoch = old.epoch
    started = time.monotonic()
    old.control.signal(signal.SIGSTOP)
    others = tuple(item for item in trial.planes if item is not old)
    _await_leader(others)
    yield time.monotonic() - started
    time.sleep(max(0.0, trial.size.pause - (time.monotonic() - started)))
    old.control.signal(signal.SIGCONT)
    eventually(lambda: not old.leads, 20)
    assert trial.leader().epoch > epoch
    assert trial.leader() is not old


def _store_stopped(trial: Trial) -> Iterator[float]:
    trial.store.signal(signal.SIGSTOP)
    eventually(lambda: all(item.control.metric("lbctl_ha_store_up") == 0 for item in trial.planes), 30)
    time.sleep(trial.size.down)
    trial.store.signal(signal.SIGCONT)
    started = time.monotonic()
    trial.leader()
    yield time.monotonic() - started


def _store_restarted(trial: Trial) -> Iterator[float]:
    trial.store.stop()
    trial.store.start()
    started = time.monotonic()
    time.sleep(1.0)
    trial.leader()
    yield time.monotonic() - started


def _store_emptied(trial: Trial) -> Iterator[float]:
    epoch = trial.leader().epoch
    started = time.monotonic()
    trial.store.empty()
    eventually(lambda: (led := leader_of(trial.planes)) is not None and led.epoch > epoch, 60, 0.02)
    yield time.monotonic() - started


def _cut_off(trial: Trial) -> Iterator[float]:
    old = trial.leader()
    way = trial.ways[trial.planes.index(old)]
    started = time.monotonic()
    way.cut = True
    _await_leader(tuple(item for item in trial.planes if item is not old))
    yield time.monotonic() - started
    assert not old.leads
    time.sleep(max(0.0, trial.size.pause - (time.monotonic() - started)))
    way.cut = False
    eventually(lambda: old.control.metric("lbctl_ha_store_up") == 1, 20)


def _clock_off(trial: Trial) -> Iterator[float]:
    """Let a member whose clock is 300 s ahead become the leader while an override for 200 s is held."""
    leader = trial.leader()
    other, ahead = (item for item in trial.planes if item is not leader)
    freeze = {"kind": "freeze", "pool": "pool", "ttl": 200}
    assert ahead.write("POST", "overrides", freeze).ok
    ahead.control.kill()
    wrong = {"LD_PRELOAD": FAKETIME, "FAKETIME": "+300s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    os.environ.update(wrong)
    try:
        ahead.control.start()
    finally:
        for name in wrong:
            del os.environ[name]
    eventually(lambda: ahead.control.metric("lbctl_ha_clock_offset_seconds") < -250, 20)
    other.control.kill()
    started = time.monotonic()
    leader.control.kill()
    _await_leader((ahead,))
    yield time.monotonic() - started
    kinds = {item["kind"] for item in ahead.control.get("overrides")["overrides"]}
    assert kinds == {"drain", "freeze"}, kinds
    leader.control.start()
    other.control.start()
    ahead.control.kill()
    trial.leader()
    ahead.control.start()
    assert trial.leader().write("DELETE", "overrides", {"kind": "freeze", "pool": "pool"}).ok


def _upgraded(trial: Trial) -> Iterator[float]:
    """End and restart each member as an init system does, one after the other, including the leader."""
    for plane in trial.planes:
        led = plane.leads
        started = time.monotonic()
        assert plane.control.stop() == 0
        _await_leader(tuple(item for item in trial.planes if item is not plane))
        if led:
            yield time.monotonic() - started
        plane.control.start()
        eventually(lambda: len({item.version for item in trial.planes}) == 1, 60)


def _rolled_out(trial: Trial) -> Iterator[float]:
    """Kill leaders during a timed rollout, and check that each of its steps happens once and in order."""
    trial.rollout("resume")
    eventually(lambda: bool(trial.steps()), 20)
    begun = trial.steps()[0]
    step = int(begun.partition("(step ")[2].partition(",")[0])
    done = [begun, *(f"rollout progressing (step {each}, {each} %)" for each in range(step + 1, trial.size.steps + 1))]
    while len(trial.steps()) < len(done):
        before = len(trial.steps())
        eventually(lambda before=before: len(trial.steps()) > before, 60, 0.05)
        old = trial.leader()
        started = time.monotonic()
        old.control.kill()
        _await_leader(tuple(item for item in trial.planes if item is not old))
        yield time.monotonic() - started
        old.control.start()
    eventually(lambda: len(trial.steps()) > len(done), 60)
    assert trial.steps() == [*done, f"rollout promoted (step {trial.size.steps}, {trial.size.steps} %)"], trial.steps()


FAULTS: dict[str, tuple[str, Callable[[Trial], Iterator[float]]]] = {
    "killed": ("the leader killed, {0.kills} times", _killed),
    "stopped": ("the leader stopped for {0.pause:g} s, then continued", _stopped),
    "cut-off": ("the leader cut off from the store for {0.pause:g} s", _cut_off),
    "clock": ("a member whose clock is five minutes ahead takes over", _clock_off),
    "store-stopped": ("the store stopped for {0.down:g} s; the time after it answers", _store_stopped),
    "store-restarted": ("the store restarted", _store_restarted),
    "store-emptied": ("the store emptied", _store_emptied),
    "upgraded": ("all members ended by SIGTERM and started, one by one", _upgraded),
    "rollout": ("a rollout of {0.steps} steps, the leader killed after each: each step once, in order", _rolled_out),
}
"""Name → description with fields of `Size`, and the function that injects the fault."""


@contextmanager
def running(kind: str, size: Size) -> Iterator[Trial]:
    """Run the members, proxies and a store of this kind, with a held override and a paused rollout."""
    with ExitStack() as stack:
        store = STORES[kind]()
        stack.callback(store.close)
        store.start()
        *replicas, canary = stack.enter_context(engines("a", "b", "c", "d", "slow", "next"))
        replicas[-1].speed = 0.35
        sites = (stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx()))
        ways = [stack.enter_context(tcp_proxy(store.port)) for _ in NAMES]
        fleet = _fleet(replicas, canary, sites, size.steps)
        for site in sites:
            stack.enter_context(edges.started_edge(site, fleet))
        url_of = [f"{kind}://{HOST}:{way.port}" for way in ways].__getitem__
        planes = stack.enter_context(members(fleet, "", 3, lease=f"{LEASE:g}s", url_of=url_of))
        answer = planes[1].write("POST", "rollouts", {"route": "canary", "action": "pause"})
        assert answer.ok, answer.text
        envoys = tuple(
            stack.enter_context(
                plane.control.envoy(name, [name], bootstrap=bootstrap_of_members([*planes[at:], *planes[:at]], name))
            )
            for at, (plane, name) in enumerate(zip(planes, NAMES, strict=True))
        )
        answer = planes[1].write("POST", "overrides", {"kind": "drain", "pool": "pool", "replica": "c"})
        assert answer.ok, answer.text
        for site in sites:
            eventually(lambda site=site: site.get("/health").ok, 60)
        trial = Trial(store, planes, envoys, replicas, ways, size, sites)
        try:
            yield trial
        except BaseException:
            for plane in planes:
                print(plane.control.log[-3000:])
            raise
