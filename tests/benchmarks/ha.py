"""`python -m tests.benchmarks.ha [FAULT…]`: three members of one control plane with a real store, proxies and load.

Each of three Envoys names all members by `lbctl bootstrap --standby`; a HAProxy and an nginx are driven by the leader.
One engine is slower than the others, so that the weights are not those of the capacities. While requests run at a
constant rate, the faults of the table are made one after the other. For each it prints how long it took until a member
led again, the requests and those that failed, the updates that Envoys took, the largest step of a weight in an interval
(the bound is 20 %), and whether the override that was set before is still held everywhere. `--rate`, `--kills`,
`--pause` (seconds of a stop) and `--store` choose the size.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from lbctl.serve.state.audit import CONTROL_PLANE
from tests.e2e.support import edges
from tests.e2e.support.control import XdsEnvoy, driven
from tests.e2e.support.edges import Edge
from tests.e2e.support.engines import Engine, engines
from tests.e2e.support.fleet import Fleet, fleet_of, pool_of
from tests.e2e.support.http1 import Request
from tests.e2e.support.members import MemberPlane, bootstrap_of_members, leader_of, members
from tests.e2e.support.ports import HOST
from tests.e2e.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.e2e.support.waiting import eventually
from tests.support.stores import STORES, Server

_NAMES = ("e1", "e2", "e3")
_LEASE = 3.0
_INTERVAL = 0.5
"""Seconds between two scrapes."""
_LARGEST = 0.3
"""Of a step: `max_step`, in parts of what most replicas have, which may have moved by as much."""
_STEPS = 12
"""Of the rollout."""
_FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
"""The package faketime of the distribution."""
_HEAD = (
    f"{'FAULT':<28}{'LED AGAIN':>18}{'REQUESTS':>10}{'FAILED':>8}{'UPDATES':>9}{'LARGEST STEP':>14}  OVERRIDE  EPOCHS"
)


@dataclass
class Trial:
    """The running parts."""

    store: Server
    planes: tuple[MemberPlane, ...]
    envoys: tuple[XdsEnvoy, ...]
    engines: list[Engine]
    ways: list[TcpProxy]
    kills: int
    pause: float
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
        """What the audit says that the control plane itself has done with the rollout."""
        rows = self.leader().control.get("audit")["records"]
        return [row["action"] for row in rows if row["actor"] == CONTROL_PLANE and row["action"].startswith("rollout ")]


class Sampler(threading.Thread):
    """Reads the weights of all Envoys now and then. `largest`: the largest step in one interval, of the capacity."""

    def __init__(self, envoys: tuple[XdsEnvoy, ...]) -> None:
        super().__init__(daemon=True)
        self.largest = 0.0
        self.slowest = 1.0
        """The least weight that was seen."""
        self._envoys = envoys
        self._ends = threading.Event()

    def run(self) -> None:
        before: dict[str, tuple[float, dict[str, float]]] = {}
        while not self._ends.wait(0.15):
            for envoy in self._envoys:
                asked, shares = time.monotonic(), _shares(envoy)
                earlier = before.get(envoy.node)
                before[envoy.node] = asked, shares
                self.slowest = min([self.slowest, *shares.values()])
                if earlier is not None:
                    intervals = 1 + int((time.monotonic() - earlier[0]) / _INTERVAL)
                    moved = (abs(shares[name] - earlier[1][name]) for name in shares.keys() & earlier[1].keys())
                    self.largest = max([self.largest, *(each / intervals for each in moved)])

    def end(self) -> None:
        self._ends.set()
        self.join()


def _shares(envoy: XdsEnvoy) -> dict[str, float]:
    """Address → weight, of what most replicas have."""
    weights = {name: count for name, count in envoy.weights("pool").items() if count}
    usual = sorted(weights.values())[len(weights) // 2]
    return {name: count / usual for name, count in weights.items()}


def _fleet(pool: list[Engine], canary: Engine, sites: Sequence[Edge]) -> Fleet:
    sources = [{"kind": "vllm", "url": "http://{address}/metrics"}]
    telemetry = {"interval": f"{_INTERVAL:g}s", "timeout": "400ms", "stale_after": "2s", "sources": sources}
    weighting = {"adaptive": {"smoothing": "2s"}, "max_step": {"down": "20%", "up": "10%"}}
    steps = [{"percent": f"{number}%", "hold": "5s"} for number in range(1, _STEPS + 1)]
    canary_route = {
        "match": {"path_prefix": "/canary/"},
        "split": {"pool": 100, "next": 0},
        "rollout": {"to": "next", "mode": "timed", "steps": steps},
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
        **driven(*_NAMES),
    )
    for site in sites:
        for section, entries in site.sections.items():
            fleet[section] |= entries
    del fleet["listeners"]["gateway"]
    return fleet


# ── The faults; each returns the seconds until a member led again ────────────────────────────────────────────────────


def _await_leader(planes: tuple[MemberPlane, ...]) -> None:
    eventually(lambda: leader_of(planes) is not None, 60, 0.02)


def _killed(trial: Trial) -> Iterator[float]:
    for _ in range(trial.kills):
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
    time.sleep(max(0.0, trial.pause - (time.monotonic() - started)))
    old.control.signal(signal.SIGCONT)
    eventually(lambda: not old.leads, 20)
    assert trial.leader().epoch > epoch
    assert trial.leader() is not old


def _store_stopped(trial: Trial) -> Iterator[float]:
    trial.store.signal(signal.SIGSTOP)
    eventually(lambda: all(item.control.metric("lbctl_ha_store_up") == 0 for item in trial.planes), 30)
    time.sleep(trial.pause)
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
    time.sleep(max(0.0, trial.pause - (time.monotonic() - started)))
    way.cut = False
    eventually(lambda: old.control.metric("lbctl_ha_store_up") == 1, 20)


def _clock_off(trial: Trial) -> Iterator[float]:
    """A member whose clock is 300 s ahead becomes the leader while an override for 200 s is held."""
    leader = trial.leader()
    other, ahead = (item for item in trial.planes if item is not leader)
    freeze = {"kind": "freeze", "pool": "pool", "ttl": 200}
    assert ahead.write("POST", "overrides", freeze).ok
    ahead.control.kill()
    wrong = {"LD_PRELOAD": _FAKETIME, "FAKETIME": "+300s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
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
    """Each member is ended as an init system does it and started anew, the leader too, one after the other."""
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
    """A timed rollout goes on while leaders are killed; each of its steps is done once, in order."""
    trial.rollout("resume")
    done = [f"rollout progressing (step {number}, {number} %)" for number in range(1, _STEPS + 1)]
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
    assert trial.steps() == [*done, f"rollout promoted (step {_STEPS}, {_STEPS} %)"], trial.steps()


FAULTS: dict[str, Callable[[Trial], Iterator[float]]] = {
    "leader killed": _killed,
    "leader stopped": _stopped,
    "leader cut off": _cut_off,
    "clock 5 minutes ahead": _clock_off,
    "store stopped": _store_stopped,
    "store restarted": _store_restarted,
    "store emptied": _store_emptied,
    "upgraded one by one": _upgraded,
    "rollout over killed leaders": _rolled_out,
}


def _row(trial: Trial, name: str, rate: float) -> None:
    """Makes the fault under load, and prints what came of it."""
    before = [envoy.updates() for envoy in trial.envoys]
    epoch = trial.leader().epoch
    sampler, request = Sampler(trial.envoys), Request("GET", "/health")
    sites = [envoy.client(envoy.node) for envoy in trial.envoys[:2]]
    with ExitStack() as stack:
        loads = [stack.enter_context(site.steady(rate / 4, request)) for site in sites]
        # A reload closes connections that are idle, and a request may be on its way to one.
        loads += [stack.enter_context(site.steady(rate / 4, request, keep_alive=False)) for site in trial.edges]
        loads.append(stack.enter_context(trial.envoys[2].client(_NAMES[2]).steady(rate / 20, Request("GET", "/?n=20"))))
        eventually(lambda: min(_shares(trial.envoys[0]).values()) < 0.8, 60)
        sampler.start()
        times = list(FAULTS[name](trial))
        time.sleep(2)
        sampler.end()
    updates = sum(
        count
        for envoy, earlier in zip(trial.envoys, before, strict=True)
        for name, count in (envoy.updates() - earlier).items()
        if name.endswith("update_success")
    )
    _explain(trial, before)
    responses = [response for load in loads for response in load.load.responses]
    failed = [item for item in responses if not item.ok]
    held = all(plane.control.get("overrides")["overrides"] for plane in trial.planes if plane.control.ready())
    took = f"{min(times):.2f}–{max(times):.2f} s"
    epochs = f"{epoch:.0f} → {trial.leader().epoch:.0f}"
    print(
        f"{name:<28}{took:>18}{len(responses):>10}{len(failed):>8}{updates:>9}{sampler.largest:>13.1%}"
        f"   {held!s:<8}  {epochs}",
        flush=True,
    )
    print(f"    the least weight was {sampler.slowest:.0%} of the usual one")
    for item in failed[:3]:
        print("   ", item)
    assert sampler.largest < _LARGEST, "a weight has moved by more than max_step"


def _explain(trial: Trial, before: list[Counter[str]]) -> None:
    """Prints which updates the Envoys have taken."""
    for envoy, earlier in zip(trial.envoys, before, strict=True):
        taken = {name: count for name, count in (envoy.updates() - earlier).items() if "success" in name}
        if taken:
            print(f"    {envoy.node}: {taken}")


@contextmanager
def _running(kind: str, kills: int, pause: float) -> Iterator[Trial]:
    with ExitStack() as stack:
        store = STORES[kind]()
        stack.callback(store.close)
        store.start()
        *replicas, canary = stack.enter_context(engines("a", "b", "c", "d", "slow", "next"))
        replicas[-1].speed = 0.35
        sites = (stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx()))
        ways = [stack.enter_context(tcp_proxy(store.port)) for _ in _NAMES]
        fleet = _fleet(replicas, canary, sites)
        for site in sites:
            stack.enter_context(edges.started_edge(site, fleet))
        url_of = [f"{kind}://{HOST}:{way.port}" for way in ways].__getitem__
        planes = stack.enter_context(members(fleet, "", 3, lease=f"{_LEASE:g}s", url_of=url_of))
        envoys = tuple(
            stack.enter_context(
                plane.control.envoy(name, [name], bootstrap=bootstrap_of_members([*planes[at:], *planes[:at]], name))
            )
            for at, (plane, name) in enumerate(zip(planes, _NAMES, strict=True))
        )
        answer = planes[1].write("POST", "overrides", {"kind": "drain", "pool": "pool", "replica": "c"})
        assert answer.ok, answer.text
        for site in sites:
            eventually(lambda site=site: site.get("/health").ok, 60)
        trial = Trial(store, planes, envoys, replicas, ways, kills, pause, sites)
        trial.rollout("pause")
        try:
            yield trial
        except BaseException:
            for plane in planes:
                print(plane.control.log[-3000:])
            raise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ha")
    parser.add_argument("faults", nargs="*", choices=[*FAULTS, []])
    parser.add_argument("--store", choices=STORES, default="redis")
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pause", type=float, default=30.0)
    options = parser.parse_args()
    print(_HEAD)
    with _running(options.store, options.kills, options.pause) as trial:
        for name in options.faults or FAULTS:
            _row(trial, name, options.rate)


if __name__ == "__main__":
    main()
