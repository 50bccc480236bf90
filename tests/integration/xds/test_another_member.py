"""A client that comes from another member of the control plane is sent nothing that it has.

Both members build what they serve by themselves: one from what it has decided, the other from what that one has
written. The client speaks the protocol without a network.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.weight import Weight
from lbctl.serve.state.records import read_loop_output, write_loop_output
from lbctl.targets.load import load
from lbctl.xds.build.snapshot_cache import Builder
from lbctl.xds.resource import EDS, Resources
from tests.integration.xds.playbook import KINDS, Client

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


def served(decided: LoopOutput, text: str = FLEET) -> Resources:
    """What a process of its own serves on these decisions."""
    loaded = load(["-"], Diagnostics(), stdin=io.BytesIO(text.encode()))
    assert loaded is not None
    snapshot = compose(Snapshot(loaded.compiled.topology, secrets=loaded.secrets), decided, (), {}, 0.0).snapshot
    return Builder().build(loaded, snapshot).resources(Proxy("edge", "envoy", (1, 40), zone="a"))


def written(decided: LoopOutput) -> LoopOutput:
    """The decisions as another member reads them."""
    return read_loop_output(write_loop_output(decided, 1.0))[0]


def names(content: Resources, short: str) -> list[str]:
    return [] if short in ("cds", "lds") else [*content.of(KINDS[short])]


class Returning:
    """A client that has all of what the first member serves, and then goes to others."""

    def __init__(self, content: Resources, *, delta: bool) -> None:
        self.delta = delta
        self.asked = {short: names(content, short) for short in KINDS}
        self.client = Client(content, delta=delta)
        self.have: dict[str, dict[str, str]] = {}
        for short, wanted in self.asked.items():
            if wanted or short in ("cds", "lds"):
                self.client.want(short, *wanted)
                for got in self.client.pull():
                    self.have.setdefault(got.short, {}).update(got.versions)
                    self.client.ack(got)

    def sent_by(self, content: Resources) -> list[tuple[str, set[str]]]:
        """What a member sends it that has this content: type and names of each response."""
        client = Client(content, delta=self.delta)
        for short, wanted in self.asked.items():
            if self.delta and short in self.have:
                client.change(short, *wanted, have=self.have[short])
            elif short in self.client.accepted:
                client.ask(short, *wanted, version=self.client.accepted[short])
        found = []
        while response := client.stream.respond(client.now):
            found.append((response.type_url, {item.name for item in response.resources}))
        assert found or all(item.state == "SYNCED" for item in client.stream.status())
        return found


@BOTH
def test_nothing_is_sent_by_a_member_that_follows_the_same_decisions(delta: bool) -> None:
    client = Returning(served(DECIDED), delta=delta)
    assert client.sent_by(served(written(DECIDED))) == []


def test_a_decision_that_the_other_member_does_not_know_is_the_only_thing_that_a_delta_client_is_sent() -> None:
    client = Returning(served(DECIDED), delta=True)
    assert client.sent_by(served(LoopOutput())) == [(EDS, {"chat"})]


@BOTH
def test_endpoints_are_sent_with_a_cluster_that_has_changed_though_they_be_the_same(delta: bool) -> None:
    """The stream may have ended between the two: Envoy warms the cluster until its endpoints come."""
    before = Returning(served(DECIDED), delta=delta)
    other = served(
        DECIDED, FLEET.replace("    replicas: [{name: a", "    timeouts: {connect: 1s}\n    replicas: [{name: a")
    )
    before.client.offer(other)
    for got in before.client.pull():
        if got.short == "cds":
            before.have["cds"] = {**before.have.get("cds", {}), **got.versions}
            before.client.ack(got)
    sent: Mapping[str, set[str]] = dict(before.sent_by(other))
    assert list(sent) == [EDS]
    assert "chat" in sent[EDS]
