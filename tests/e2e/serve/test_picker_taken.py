"""Two control planes on one machine whose pickers have the same address: no proxy asks the picker of the other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import requests

from tests.e2e.support import edges
from tests.e2e.support.client import Client
from tests.e2e.support.control import ControlPlane, controlling, driven
from tests.e2e.support.driving import change
from tests.e2e.support.fleet import Fleet, entry, fleet_of
from tests.e2e.support.picker import EDGE, KINDS, alone, await_picker, picker_section
from tests.e2e.support.ports import HOST, free_pair, hold
from tests.e2e.support.replicas import Replica, replicas
from tests.e2e.support.waiting import eventually

TAKEN = "another process has the address of the picker"


def _pool(members: list[Replica]) -> Fleet:
    return {"replicas": [entry(item) for item in members], "balance": {"algorithm": "pick"}}


@contextmanager
def _second(kind: str, pool: Fleet, control: Fleet) -> Iterator[tuple[ControlPlane, Client, Callable[[], None]]]:
    """The second control plane with a proxy; the function waits until the proxy may ask the picker."""
    if kind == "envoy":
        with controlling(fleet_of(pool, **driven(EDGE), **control)) as second, second.envoy(EDGE, [EDGE]) as envoy:
            yield second, envoy.client(), lambda: await_picker(envoy)
        return
    start = edges.haproxy if kind == "haproxy" else edges.nginx
    with start(EDGE, min_interval="100ms") as site:
        fleet = fleet_of(pool, **site.sections, **control)
        del fleet["listeners"]["gateway"]
        with edges.started_edge(site, fleet), controlling(fleet) as second:
            eventually(lambda: second.proxies[EDGE]["state"] == "SYNCED")
            yield second, site, lambda: None


def _decisions_after_one_more(control: ControlPlane, section: Fleet) -> float:
    """Ask the picker of a control plane once, and return its count of decisions once this one is in it."""
    host, port = section["control"]["picker"]["bind"].split(":")
    assert requests.get(f"http://{host}:{int(port) + 1}/pick/pool", timeout=10).status_code == 200
    eventually(lambda: control.metric("lbctl_pick_decisions_total") > 0)
    return control.metric("lbctl_pick_decisions_total")


@pytest.mark.parametrize("kind", KINDS)
def test_the_proxies_of_the_second_one_never_ask_the_picker_of_the_first(kind: str) -> None:
    control = picker_section()
    with replicas("a") as one, replicas("b", "c") as two, controlling(fleet_of(_pool(one), **control)) as first:
        eventually(lambda: first.status["picker"]["running"])
        with _second(kind, _pool(two), control) as (second, client, await_fit):
            eventually(lambda: not second.status["picker"]["running"])
            assert str(control["control"]["picker"]["bind"].split(":")[1]) in second.status["picker"]["reason"]
            assert TAKEN in second.log
            client.load(30, 4).assert_no_failure()
            assert _decisions_after_one_more(first, control) == 1.0
            assert first.stop() == 0
            eventually(lambda: second.status["picker"]["running"])
            await_fit()

            def picks() -> bool:
                client.load(10, 2).assert_no_failure()
                return second.metric("lbctl_pick_decisions_total") > 0

            eventually(picks)
            assert second.log.count(TAKEN) == 1
            assert "a task failed" not in second.log


def test_the_second_one_has_a_picker_of_its_own_with_an_address_of_its_own() -> None:
    control, own = picker_section(), f"{HOST}:{free_pair()}"
    with replicas("a") as one, replicas("b") as two, controlling(fleet_of(_pool(one), **control)) as first:
        eventually(lambda: first.status["picker"]["running"])
        fleet = fleet_of(_pool(two), **driven(EDGE), **control)
        with controlling(fleet, options=("--picker-bind", own)) as second, second.envoy(EDGE, [EDGE]) as envoy:
            await_picker(envoy)
            envoy.client().load(30, 4).assert_no_failure()
            assert second.status["picker"]["listens"] == own
            eventually(lambda: second.metric("lbctl_pick_decisions_total") == 30.0)
            assert _decisions_after_one_more(first, control) == 1.0


def _free_triple() -> int:
    """Return the first of three ports that follow each other."""
    while True:
        port = free_pair()
        try:
            hold(port + 2)
        except OSError:
            continue
        return port


def test_a_picker_that_moves_by_a_port_is_not_taken_for_somebody_else() -> None:
    port = _free_triple()
    with replicas("a", "b") as two:
        fleet = fleet_of(_pool(two), **driven(EDGE), control={"picker": {"bind": f"{HOST}:{port}"}})
        with controlling(fleet) as control, control.envoy(EDGE, [EDGE]) as envoy:
            await_picker(envoy)
            for bind in (f"{HOST}:{port + 1}", f"{HOST}:{port}"):
                change(control, {**fleet, "control": {"picker": {"bind": bind}}}, EDGE)
                eventually(lambda bind=bind: control.status["picker"]["listens"] == bind)  # type: ignore[misc]
                await_picker(envoy)
                envoy.client().load(10, 2).assert_no_failure()
            assert TAKEN not in control.log


def test_an_lbctl_picker_at_the_address_is_asked() -> None:
    port = free_pair()
    with replicas("a", "b") as two:
        fleet = fleet_of(_pool(two), **driven(EDGE), control={"picker": {"bind": f"{HOST}:{port}"}})
        with controlling(fleet) as control:
            control.kill()
            with alone(control, port):
                eventually(lambda: _answers(port))
                control.start()
                with control.envoy(EDGE, [EDGE]) as envoy:
                    eventually(lambda: control.status["picker"]["following"] == 1)
                    await_picker(envoy)
                    envoy.client().load(20, 2).assert_no_failure()
                    assert (
                        "lbctl_pick_decisions_total{"
                        in requests.get(f"http://{HOST}:{port + 1}/metrics", timeout=10).text
                    )
                    assert TAKEN not in control.log
                    assert f" has {HOST}:{port}" in control.status["picker"]["reason"]
            eventually(lambda: control.status["picker"]["running"])


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://{HOST}:{port + 1}/health", timeout=10).status_code == 200
    except requests.RequestException:
        return False
