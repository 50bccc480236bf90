"""A client that moves to another member of the control plane is not sent resources that it has.

Each member builds its resources alone: one from its own decisions, the other from the decisions that the first one
has stored. The client uses the protocol without a network.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.weight import Weight
from lbctl.store.records import read_loop_output, write_loop_output
from lbctl.xds.build.snapshot_cache import Builder
from lbctl.xds.resource import EDS, RDS, Resources
from tests.integration.xds.playbook import KINDS, Client
from tests.support.xds import load_text

FLEET = """
version: 1
listeners: {public: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /chat/}, pool: chat}, near: {match: {path_prefix: /near/}, pool: near}}
pools:
  chat:
    telemetry: {sources: [{kind: vllm, url: "http://{address}/metrics"}]}
    replicas: [{name: a, address: "10.0.0.1:80"}, {name: b, address: "10.0.0.2:80"}, {name: c, address: "10.0.0.3:80"}]
  near: {locality: {prefer: zone}, replicas: [{name: a, address: "10.0.2.1:80", zone: a}]}
proxies: {edge: {kind: envoy}}
"""
DECIDED = LoopOutput({"chat": {"a": Weight(0.7312345678, 0.9), "b": Weight(1 / 3, 1.0)}}, {"chat": {"c": ("slow",)}})
BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


def resources_of_member(decided: LoopOutput, text: str = FLEET) -> Resources:
    """Return the resources that a separate process builds from these decisions."""
    loaded = load_text(text)
    snapshot = compose(Snapshot(loaded.compiled.topology, secrets=loaded.secrets), decided, (), {}, 0.0).snapshot
    return Builder().build(loaded, snapshot).resources(Proxy("edge", "envoy", (1, 40), zone="a"))


def read_back(decided: LoopOutput) -> LoopOutput:
    """Return the decisions as another member reads them."""
    return read_loop_output(write_loop_output(decided, 1.0))[0]


def names(content: Resources, short: str) -> list[str]:
    return [] if short in ("cds", "lds") else [*content.of(KINDS[short])]


class ReturningClient:
    """A client that has all resources of the first member and then moves to other members."""

    def __init__(self, content: Resources, *, delta: bool) -> None:
        self.delta = delta
        self.subscriptions = {short: names(content, short) for short in KINDS}
        self.client = Client(content, delta=delta)
        self.have: dict[str, dict[str, str]] = {}
        for short, names_of_type in self.subscriptions.items():
            if names_of_type or short in ("cds", "lds"):
                self.client.subscribe(short, *names_of_type)
                for got in self.client.pull():
                    self.have.setdefault(got.short, {}).update(got.versions)
                    self.client.ack(got)

    def sent_by(self, content: Resources) -> list[tuple[str, set[str]]]:
        """Return the type and names of each response that a member with this content sends."""
        client = Client(content, delta=self.delta)
        for short, names_of_type in self.subscriptions.items():
            if self.delta and short in self.have:
                client.change(short, *names_of_type, have=self.have[short])
            elif short in self.client.accepted:
                client.ask(short, *names_of_type, version=self.client.accepted[short])
        sent = []
        while response := client.stream.respond(client.now):
            sent.append((response.type_url, {item.name for item in response.resources}))
        assert sent or all(item.state == "SYNCED" for item in client.stream.status())
        return sent


def test_a_member_with_equal_decisions_sends_nothing() -> None:
    client = ReturningClient(resources_of_member(DECIDED), delta=True)
    assert client.sent_by(resources_of_member(read_back(DECIDED))) == []


def test_a_member_answers_names_in_the_state_of_the_world() -> None:
    client = ReturningClient(resources_of_member(DECIDED), delta=False)
    sent = dict(client.sent_by(resources_of_member(read_back(DECIDED))))
    assert sent.keys() == {EDS, RDS}, "no clusters or listeners"


def test_a_delta_client_is_sent_only_the_differing_decision() -> None:
    client = ReturningClient(resources_of_member(DECIDED), delta=True)
    assert client.sent_by(resources_of_member(LoopOutput())) == [(EDS, {"chat"})]


@BOTH
def test_endpoints_are_resent_after_their_cluster_changes(delta: bool) -> None:
    """The stream may have ended between cluster and endpoints; Envoy warms the cluster until endpoints come."""
    before = ReturningClient(resources_of_member(DECIDED), delta=delta)
    other = resources_of_member(
        DECIDED, FLEET.replace("    replicas: [{name: a", "    timeouts: {connect: 1s}\n    replicas: [{name: a")
    )
    before.client.offer(other)
    for got in before.client.pull():
        if got.short == "cds":
            before.have["cds"] = {**before.have.get("cds", {}), **got.versions}
            before.client.ack(got)
    sent: Mapping[str, set[str]] = dict(before.sent_by(other))
    assert list(sent) == ([EDS] if delta else [EDS, RDS])
    assert "chat" in sent[EDS]


def test_routes_are_sent_after_a_request_without_names() -> None:
    """An Envoy without listeners that reconnects repeats its empty request for routes, with the version of the last
    ones it accepted. When a listener returns, it names routes that it no longer has."""
    before = ReturningClient(resources_of_member(DECIDED), delta=False)
    client = Client(resources_of_member(DECIDED))
    client.ask("rds", version=before.client.accepted["rds"])
    client.ask("rds", "public", version=before.client.accepted["rds"])
    assert [response.short for response in client.pull()] == ["rds"]
