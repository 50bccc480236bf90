"""The agents of three engines protect clients from faults of GPUs and engines, behind all three proxies at once.

Envoy and HAProxy run with the output of `lbctl render` alone; `lbctl serve` drives nginx. Neither the clients nor the
proxies repeat a request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.agents import CLIENT_PATH, WARMUP, Agent, agents
from tests.support.processes.client import Client
from tests.support.processes.control import controlling
from tests.support.processes.fleet import entry, fleet_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.waiting import eventually

pytestmark = pytest.mark.slow
_RATE = 10.0
"""Requests per second through each proxy. Each engine always has several in flight."""
_ENOUGH = 12
"""Requests in a row of which each replica in rotation gets some."""
_INTERVAL = 1.0
"""Seconds between two checks. Two failed checks take a replica out."""
_DEADLINE = 2 * _INTERVAL + 10.0
"""Seconds from the agent's report until no request arrives. The surplus is for the requests that show it, for a reload
of nginx and for a busy machine."""


class _Traffic:
    """The requests of clients, as they arrive at the engines through each proxy."""

    def __init__(self, arrivals: Mapping[str, Sequence[str]], proxies: Sequence[str]) -> None:
        """`arrivals`: proxy → the engines of its requests, in their order."""
        self._arrivals = arrivals
        self._proxies = proxies

    @contextmanager
    def avoids(self, agent: Agent) -> Iterator[None]:
        """Wait until the replica gets no requests. It must not get any until the end of the block."""
        first = self._counts()

        def is_out() -> bool:
            recent = [self._arrivals[proxy][first[proxy] :][-_ENOUGH:] for proxy in self._proxies]
            return all(len(engines) == _ENOUGH and agent.name not in engines for engines in recent)

        eventually(is_out, _DEADLINE)
        out = self._counts()
        yield
        self.await_more()
        assert {proxy: agent.name in self._arrivals[proxy][out[proxy] :] for proxy in self._proxies} == dict.fromkeys(
            self._proxies, False
        )

    def await_more(self) -> None:
        """Wait for some requests through each proxy, which arrive at any engines."""
        first = self._counts()
        eventually(lambda: all(count - first[proxy] >= _ENOUGH for proxy, count in self._counts().items()))

    def await_return(self, agent: Agent) -> None:
        """Wait until the agent reports the replica as healthy, and the replica gets requests from each proxy again."""
        agent.await_state("healthy")
        first = self._counts()
        eventually(lambda: all(agent.name in self._arrivals[proxy][first[proxy] :] for proxy in self._proxies))

    def _counts(self) -> dict[str, int]:
        return {proxy: len(self._arrivals[proxy]) for proxy in self._proxies}


def test_proxies_avoid_each_fault() -> None:
    arrivals: dict[str, list[str]] = defaultdict(list)
    with ExitStack() as stack:
        three = stack.enter_context(agents("a", "b", "c", options=("--stalled-after", "3s"), arrivals=arrivals))
        clients: dict[str, Client] = {
            "envoy": stack.enter_context(running("envoy", _fleet(three))),
            "haproxy": stack.enter_context(running("haproxy", _fleet(three))),
            "nginx": stack.enter_context(_nginx_with_serve(_fleet(three))),
        }
        for client in clients.values():
            eventually(lambda client=client: set(client.load(12, 2).by_replica) == {"a", "b", "c"}, pause=0.2)
        traffic = _Traffic(arrivals, tuple(clients))
        a, b, c = three
        with ExitStack() as sending:
            loads = [sending.enter_context(client.steady(_RATE, _request(name))) for name, client in clients.items()]
            traffic.await_more()
            _xid(traffic, a)
            _wedge(traffic, b)
            _slowdown(traffic, c)
            _drain_and_cold_start(traffic, a)
        for steady in loads:
            steady.load.assert_no_failure()
            assert set(steady.load.by_replica) == {"a", "b", "c"}


def _request(proxy: str) -> Request:
    return Request("POST", f"{CLIENT_PATH}?n=40&via={proxy}", body=b"{}", timeout=120.0)


@contextmanager
def _nginx_with_serve(fleet: Fleet) -> Iterator[Client]:
    with edges.nginx() as edge:
        fleet = edges.add(fleet, edge)
        del fleet["listeners"]["gateway"]
        with edges.started_edge(edge, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies[edge.name]["state"] == "SYNCED")
            yield edge


def _fleet(three: Sequence[Agent]) -> Fleet:
    check = {"http": {"path": "/health"}, "interval": "1s", "timeout": "1s"}
    thresholds = {"unhealthy_threshold": 2, "healthy_threshold": 1}
    return fleet_of(
        {
            "replicas": [entry(agent.engine, agent_port=agent.port) for agent in three],
            "balance": {"algorithm": "round_robin"},
            "slow_start": {"window": "500ms"},
            "weighting": {"strategy": "static"},
            "health": {
                "active": {**check, **thresholds},
                "agent": {"port": three[0].port},
            },
        },
        route={"retry": {"attempts": 0}},
    )


def _xid(traffic: _Traffic, agent: Agent) -> None:
    """The GPU reports an XID error, of which the engine dies soon after. No client notices it."""
    agent.gpus.xid(0, 79)
    agent.await_state("unhealthy", "xid")
    with traffic.avoids(agent):
        eventually(lambda: agent.engine.in_flight == 0)
        agent.engine.refuse()
        agent.await_state("unhealthy", "xid", "engine")
    agent.engine.restart()
    traffic.await_return(agent)


def _wedge(traffic: _Traffic, agent: Agent) -> None:
    """The engine stops, although its health check passes. Its requests in flight end when it continues."""
    agent.engine.wedged = True
    agent.await_state("unhealthy", "wedged")
    with traffic.avoids(agent):
        pass
    agent.engine.wedged = False
    traffic.await_return(agent)


def _slowdown(traffic: _Traffic, agent: Agent) -> None:
    agent.gpus.set("gpu0", slowdowns="0x40", clock=600, temperature=94)
    agent.await_state("unhealthy", "slowdown")
    with traffic.avoids(agent):
        pass
    agent.gpus.set("gpu0", slowdowns="0x0", clock=1980, temperature=56)
    traffic.await_return(agent)


def _drain_and_cold_start(traffic: _Traffic, agent: Agent) -> None:
    """The engine restarts immediately after the drain, and is warmed up before it gets requests."""
    drain = agent.command("drain", "--wait", "100s")
    agent.await_state("draining")
    # The agent waits until each client of its checks has seen the drain, so this client continues.
    eventually(lambda: bool(agent.health()) and drain.poll() is not None, 90)
    assert drain.returncode == 0
    with traffic.avoids(agent):
        agent.engine.refuse()
        agent.await_state("draining", "engine")
        agent.engine.is_loading = True
        agent.engine.restart()
        agent.await_state("warming_up")
    before = agent.engine.own_requests
    agent.engine.is_loading = False
    traffic.await_return(agent)
    assert agent.engine.own_requests >= before + WARMUP
