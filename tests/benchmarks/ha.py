"""`python -m tests.benchmarks.ha [FAULT…]`: three members of one control plane with a real store, real Envoys and load.

Each Envoy names all members by `lbctl bootstrap --standby`. While requests run at a constant rate, the faults of the
table are made one after the other. For each it prints how long it took until a member led again, the requests and those
that failed, the updates that Envoys took although nothing had changed, and whether the override that was set before is
still held everywhere. `--rate`, `--kills`, `--pause` (seconds of a stop) and `--store` choose the size.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lbctl.cli import run
from tests.e2e.support.control import XdsEnvoy, driven
from tests.e2e.support.engines import Engine, engines
from tests.e2e.support.fleet import Fleet, fleet_of, pool_of
from tests.e2e.support.http1 import Request
from tests.e2e.support.members import MemberPlane, leader_of, members
from tests.e2e.support.ports import HOST
from tests.e2e.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.e2e.support.waiting import eventually
from tests.support.stores import STORES, Server

_NAMES = ("e1", "e2", "e3")
_LEASE = 3.0
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

    def leader(self) -> MemberPlane:
        eventually(lambda: leader_of(self.planes) is not None, 60)
        found = leader_of(self.planes)
        assert found is not None
        return found

    def weights(self) -> dict[str, int]:
        return self.envoys[0].weights("pool")


def _fleet(members_: list[Engine]) -> Fleet:
    sources = [{"kind": "vllm", "url": "http://{address}/metrics"}]
    telemetry = {"interval": "500ms", "timeout": "400ms", "stale_after": "2s", "sources": sources}
    return fleet_of(
        pool_of(members_, telemetry=telemetry, weighting={"adaptive": {"smoothing": "2s"}}), **driven(*_NAMES)
    )


def _bootstrap(planes: tuple[MemberPlane, ...], first: int, node: str) -> dict[str, Any]:
    order = [*planes[first:], *planes[:first]]
    with tempfile.TemporaryDirectory() as directory:
        command = ["bootstrap", "--xds", f"{HOST}:{order[0].control.xds}", "--node", node, "-d", directory]
        for plane in order[1:]:
            command += ["--standby", f"{HOST}:{plane.control.xds}"]
        assert run(command) == 0
        (file,) = Path(directory).glob("envoy.yaml")
        read: dict[str, Any] = yaml.safe_load(file.read_text())
    return read


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


FAULTS: dict[str, Callable[[Trial], Iterator[float]]] = {
    "leader killed": _killed,
    "leader stopped": _stopped,
    "leader cut off": _cut_off,
    "clock 5 minutes ahead": _clock_off,
    "store stopped": _store_stopped,
    "store restarted": _store_restarted,
    "store emptied": _store_emptied,
}


def _row(trial: Trial, name: str, rate: float) -> None:
    """Makes the fault under load, and prints what came of it."""
    before = [envoy.updates() for envoy in trial.envoys]
    epoch, largest = trial.leader().epoch, 0.0
    request = Request("GET", "/health")
    with (
        trial.envoys[0].client("e1").steady(rate / 2, request) as first,
        trial.envoys[1].client("e2").steady(rate / 2, request) as second,
    ):
        time.sleep(1)
        times = []
        weights = trial.weights()
        for seconds in FAULTS[name](trial):
            times.append(seconds)
            after = trial.weights()
            largest = max([largest, *(abs(after[key] / weights[key] - 1) for key in weights.keys() & after.keys())])
            weights = after
        time.sleep(2)
    updates = sum(
        count
        for envoy, earlier in zip(trial.envoys, before, strict=True)
        for name, count in (envoy.updates() - earlier).items()
        if name.endswith("update_success")
    )
    _explain(trial, before)
    responses = [*first.load.responses, *second.load.responses]
    failed = [item for item in responses if not item.ok]
    held = all(plane.control.get("overrides")["overrides"] for plane in trial.planes if plane.control.ready())
    took = f"{min(times):.2f}–{max(times):.2f} s"
    epochs = f"{epoch:.0f} → {trial.leader().epoch:.0f}"
    print(
        f"{name:<28}{took:>18}{len(responses):>10}{len(failed):>8}{updates:>9}{largest:>13.1%}   {held!s:<8}  {epochs}",
        flush=True,
    )
    for item in failed[:3]:
        print("   ", item)


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
        replicas = stack.enter_context(engines("a", "b", "c"))
        ways = [stack.enter_context(tcp_proxy(store.port)) for _ in _NAMES]
        fleet = _fleet(replicas)
        url_of = [f"{kind}://{HOST}:{way.port}" for way in ways].__getitem__
        planes = stack.enter_context(members(fleet, "", 3, lease=f"{_LEASE:g}s", url_of=url_of))
        envoys = tuple(
            stack.enter_context(plane.control.envoy(name, [name], bootstrap=_bootstrap(planes, at, name)))
            for at, (plane, name) in enumerate(zip(planes, _NAMES, strict=True))
        )
        answer = planes[1].write("POST", "overrides", {"kind": "drain", "pool": "pool", "replica": "c"})
        assert answer.ok, answer.text
        time.sleep(3)
        try:
            yield Trial(store, planes, envoys, replicas, ways, kills, pause)
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
