"""Properties for any order of events: the client ends with the offered content, its routes never refer to missing
clusters, and rejected content is not sent again."""

from __future__ import annotations

from collections import Counter, deque

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbctl.xds.protocol.stream import Stream
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, TYPES, Resource, Resources
from tests.integration.xds.envoy_model import BAD, Body, Envoy

GOOD = st.integers(1, BAD - 1)
ANY = st.sampled_from([1, 1, 1, 2, 2, 3, BAD])
CLUSTERS = ("a", "b", "c", "d")
LISTENERS = ("public", "internal")


@st.composite
def contents(draw: st.DrawFn, numbers: st.SearchStrategy[int] = ANY) -> Resources:
    """Draw a consistent fleet: each cluster has endpoints, each listener has routes, and routes refer to existing
    clusters. Some content may be rejected."""
    clusters = draw(st.sets(st.sampled_from(CLUSTERS)))
    listeners = draw(st.sets(st.sampled_from(LISTENERS)))
    bodies: dict[str, dict[str, bytes]] = {kind: {} for kind in TYPES}
    for name in clusters:
        bodies[CDS][name] = Body.of(name, draw(numbers))
        bodies[EDS][name] = Body.of(name, draw(numbers))
    for name in listeners:
        uses = draw(st.sets(st.sampled_from(sorted(clusters)))) if clusters else set()
        bodies[LDS][name] = Body.of(name, draw(numbers))
        bodies[RDS][name] = Body.of(name, draw(numbers), uses)
    bodies[SDS]["ca"] = Body.of("ca", draw(numbers))
    return Resources(
        {kind: {name: resource(kind, name, body) for name, body in named.items()} for kind, named in bodies.items()}
    )


_SHARED: dict[tuple[str, bytes], Resource] = {}


def resource(kind: str, name: str, body: bytes) -> Resource:
    """Return a resource. Depending on the content, equal content is the same object (as in the server) or another."""
    if len(body) % 2:
        return Resource(kind, name, body)
    return _SHARED.setdefault((kind, body), Resource(kind, name, body))


class Conversation(RuleBasedStateMachine):
    delta = False

    @initialize(speaks=st.booleans(), content=st.none() | contents())
    def begin(self, speaks: bool, content: Resources | None) -> None:
        self.now = 0.0
        self.envoy = Envoy(delta=self.delta, speaks=speaks)
        self.stream = Stream(delta=self.delta)
        self.content: Resources | None = None
        self.wire: deque[bytes] = deque()
        self.under_way: Counter[str] = Counter()
        if content:
            self.offer(content)

    @rule(content=contents())
    def offer(self, content: Resources) -> None:
        self.content = content
        self.stream.offer(content)

    @rule(content=contents(GOOD))
    def offer_good(self, content: Resources) -> None:
        self.offer(content)

    @rule()
    def send(self) -> None:
        response = self.stream.respond(self.now)
        if response:
            self.under_way[response.type_url] += 1
            assert self.under_way[response.type_url] == 1, "two responses of a type in flight"
            self.wire.append(response.encode())

    @precondition(lambda self: self.wire)
    @rule()
    def receive(self) -> None:
        self.envoy.receive(self.wire.popleft())

    @precondition(lambda self: self.envoy.out)
    @rule()
    def hear(self) -> None:
        for event in self.stream.request(self.envoy.out.popleft(), self.now):
            self.under_way[event.type_url] -= 1

    @precondition(lambda self: not self.envoy.out)
    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.envoy.hopeless)
    @rule()
    def time_out(self) -> None:
        self.envoy.time_out()

    @rule(kind=st.sampled_from([CDS, EDS, RDS]), name=st.sampled_from(CLUSTERS + LISTENERS))
    def ask_again(self, kind: str, name: str) -> None:
        self.envoy.ask_again(kind, name)

    @precondition(lambda self: not self.envoy.has_leftovers)
    @rule()
    def reconnect(self) -> None:
        self._new_stream()
        self.envoy.connect()

    @rule()
    def restart_envoy(self) -> None:
        self._new_stream()
        self.envoy = Envoy(delta=self.delta, speaks=self.envoy.speaks)

    def _new_stream(self) -> None:
        self.stream = Stream(delta=self.delta, before=self.stream.last())
        self.wire.clear()
        self.under_way.clear()
        if self.content:
            self.stream.offer(self.content)

    @rule()
    def settle(self) -> None:
        """Deliver everything and let time pass. Then nothing more is sent, and the client has the offered content."""
        self._run_dry()
        if self.content and not self._is_bad() and not self._is_innocent_refused():
            assert not self.envoy.warming
            assert self.envoy.have == {kind: self._offered(kind) for kind in TYPES}
            assert {status.state for status in self.stream.status()} <= {"SYNCED"}
            assert all(status.acked_version == status.offered_version for status in self.stream.status())

    def _run_dry(self) -> None:
        messages = 0
        while True:
            before = messages
            self.send()
            while self.envoy.out or self.wire:
                messages += 1
                assert messages < 300, "the exchange does not end"
                if self.envoy.out:
                    self.hear()
                if self.wire:
                    self.receive()
                self.send()
            due = self.stream.due()
            if due is not None:
                assert due >= self.now - 1e-9 or messages == before, "due, and nothing is sent"
                assert due > self.now, "due, and nothing is sent"
                self.now = due
            elif self.envoy.hopeless:
                self.envoy.time_out()
            elif messages == before:
                return

    def _offered(self, kind: str) -> dict[str, Body]:
        return {name: Body(each.body) for name, each in self.content.of(kind).items()} if self.content else {}

    def _is_innocent_refused(self) -> bool:
        """Whether good content may be missing: a NACK without names rejects all content of a response."""
        return not self.envoy.speaks and any(self.envoy.refused.values())

    def _is_bad(self) -> bool:
        return any(body.number == BAD for kind in TYPES for body in self._offered(kind).values())

    @invariant()
    def routes_lead_somewhere(self) -> None:
        self.envoy.check()

    def teardown(self) -> None:
        if hasattr(self, "envoy"):
            self.settle()


class DeltaConversation(Conversation):
    delta = True


class ThoroughConversation(Conversation):
    pass


class ThoroughDeltaConversation(DeltaConversation):
    pass


USUAL = settings(max_examples=100, stateful_step_count=40, derandomize=True, suppress_health_check=list(HealthCheck))
"""The same examples in each run; the nightly run draws others."""
THOROUGH = settings(USUAL, max_examples=1000, derandomize=False)

TestStateOfTheWorld = pytest.mark.slow(Conversation.TestCase)
TestStateOfTheWorld.settings = USUAL
TestDelta = pytest.mark.slow(DeltaConversation.TestCase)
TestDelta.settings = USUAL
TestStateOfTheWorldThoroughly = pytest.mark.nightly(ThoroughConversation.TestCase)
TestStateOfTheWorldThoroughly.settings = THOROUGH
TestDeltaThoroughly = pytest.mark.nightly(ThoroughDeltaConversation.TestCase)
TestDeltaThoroughly.settings = THOROUGH
