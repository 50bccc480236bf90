from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Respond
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets import target
from lbctl.targets.assess import Assessment, assess, close
from lbctl.targets.features import FEATURES
from lbctl.targets.target import Bundle, Capability, Complaint, NotYet, Rendered, Since, Unsupported
from tests.support.fleet import compiled, places

CANNOT = Unsupported("it has no such thing", "nothing")


@dataclass(frozen=True)
class Fake:
    """A proxy that can do everything but what the test says."""

    losses: Mapping[str, Capability] = field(default_factory=dict)
    kind: str = "fake"
    binary: str = "fake"
    reads_bodies: bool = True
    versions: Sequence[tuple[int, ...]] = ((1, 0), (2, 0))

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return {feature.id: Rendered() for feature in FEATURES} | dict(self.losses)

    def render(self, view: View, form: str = "yaml") -> Bundle:
        raise NotImplementedError

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        raise NotImplementedError

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        raise NotImplementedError

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        raise NotImplementedError


FLEET = """\
version: 1
listeners:
  front: {bind: "127.0.0.1:80"}
  back: {bind: "127.0.0.1:81"}
pools:
  a: {replicas: [{address: "10.0.0.1:80"}]}
  b:
    tls: {ca: tls/ca.crt}
    replicas: [{address: "10.0.0.2:80"}]
routes:
  open: {match: {path: /open}, pool: a}
  limited:
    match: {path: /limited}
    pool: a
    rate_limit:
      - {by: all, rate: 5/s}
      - {by: all, concurrent: 5}
  encrypted: {match: {path: /encrypted}, split: {a: 1, b: 0}}
  fallback: {match: {path: /fallback}, pool: a, fallback: b}
  pinned: {match: {path: /pinned}, pool: a, pin: [{header: x, equals: y, pool: b}]}
  mirrored: {match: {path: /mirrored}, pool: a, mirror: {pool: b}}
  back: {match: {path: /back}, listeners: [back], pool: a, websocket: true}
"""


def assessed(
    losses: Mapping[str, Capability], version: tuple[int, ...] = (1, 0), text: str = FLEET, **proxy: tuple[str, ...]
) -> tuple[Assessment, View]:
    made = compiled(text)
    whole = view(Snapshot(made.topology), Proxy("p", "fake", version, **proxy))
    found = assess(Fake(losses), version, whole, made.sources)
    return found, close(whole, found)


def closed_routes(made: View) -> set[str]:
    return {name for name, route in made.routes.items() if isinstance(route.action, Respond)}


def test_what_the_proxy_can_do_is_no_finding() -> None:
    found, made = assessed({})
    assert found.diagnostics == ()
    assert closed_routes(made) == set()


def test_what_it_cannot_is_a_warning_where_it_was_asked_for() -> None:
    found, made = assessed({"route.websocket": CANNOT})
    (warning,) = found.diagnostics
    assert places([warning]) == ["22:71 LB434"]
    assert warning.severity == "warning"
    assert "it has no such thing" in warning.message
    assert warning.hint == "instead: nothing"
    assert closed_routes(made) == set()


def test_what_is_not_rendered_yet_is_said_as_that() -> None:
    found, _ = assessed({"route.websocket": NotYet()})
    assert places(list(found.diagnostics)) == ["22:71 LB499"]


@pytest.mark.parametrize(("version", "count"), [((1, 9), 1), ((2, 0), 0), ((2, 1), 0)])
def test_a_version_that_can_do_it_is_not_warned_about(version: tuple[int, ...], count: int) -> None:
    found, _ = assessed({"route.websocket": Since((2, 0), CANNOT)}, version)
    assert len(found.diagnostics) == count


def test_what_nobody_wrote_is_no_finding() -> None:
    found, made = assessed({"route.auth.jwt": CANNOT, "pool.locality": CANNOT, "listener.client_certificate": NotYet()})
    assert found.diagnostics == ()
    assert closed_routes(made) == set()


def test_what_stands_twice_in_one_route_is_said_once() -> None:
    found, _ = assessed({"route.rate_limit": CANNOT})
    assert places(list(found.diagnostics)) == ["16:14 LB441"]


def test_what_the_defaults_ask_for_is_said_once_and_there() -> None:
    text = FLEET + "defaults:\n  pool: {slow_start: {window: 30s}}\n  route: {websocket: true}\n"
    found, _ = assessed({"pool.slow_start": CANNOT, "route.websocket": CANNOT}, text=text)
    assert places(list(found.diagnostics)) == ["24:22 LB474", "25:22 LB434", "22:71 LB434"]
    assert {item.path[:2] for item in found.diagnostics} == {
        ("defaults", "pool"),
        ("defaults", "route"),
        ("routes", "back"),
    }


def test_what_the_defaults_ask_for_closes_every_route_that_it_covers() -> None:
    found, made = assessed({"pool.tls": CANNOT}, text=FLEET + "defaults: {pool: {tls: {ca: tls/ca.crt}}}\n")
    assert closed_routes(made) == set(made.routes)
    assert places(list(found.diagnostics)) == ["23:29 LB489", "8:15 LB489"]


def test_a_bound_on_a_hash_that_is_not_taken_is_not_worth_a_word() -> None:
    hashed = "balance: {algorithm: hash, hash: {key: {prompt_prefix: 256}, bounded_load: 1.5}}"
    text = FLEET.replace("a: {replicas", f"a: {{{hashed}, replicas")
    names = ("pool.balance.hash.prompt_prefix", "pool.balance.hash.bounded_load")
    found, _ = assessed(dict.fromkeys(names, CANNOT), text=text)
    assert places(list(found.diagnostics)) == ["6:62 LB461"]
    found, _ = assessed({names[1]: CANNOT}, text=text)
    assert len(found.diagnostics) == 1


@pytest.mark.parametrize("loss", [CANNOT, NotYet(), Since((2, 0), CANNOT)])
def test_a_route_whose_protection_cannot_be_said_answers_503(loss: Capability) -> None:
    found, made = assessed({"route.rate_limit.concurrent": loss})
    assert closed_routes(made) == {"limited"}
    action = made.routes["limited"].action
    assert isinstance(action, Respond)
    assert (action.status, action.content_type) == (503, "application/json")
    assert "answer 503" in found.diagnostics[0].message
    assert [rule.route for rule in made.listeners[0].rules] == [
        rule.route for rule in assessed({})[1].listeners[0].rules
    ]


def test_a_pool_whose_protection_cannot_be_said_gets_no_request() -> None:
    _, made = assessed({"pool.tls": CANNOT})
    assert closed_routes(made) == {"encrypted", "fallback", "pinned"}
    assert "b" not in made.pools
    action = made.routes["mirrored"].action
    assert isinstance(action, Forward)
    assert action.mirror is None


def test_a_listener_whose_protection_cannot_be_said_is_closed_and_the_other_is_not() -> None:
    text = FLEET.replace('front: {bind: "127.0.0.1:80"}', 'front: {bind: "127.0.0.1:80", max_body: 1MiB}')
    found, made = assessed({"listener.max_body": CANNOT}, text=text)
    assert places(list(found.diagnostics)) == ["3:43 LB409"]
    front = next(item for item in made.listeners if item.name == "front")
    back = next(item for item in made.listeners if item.name == "back")
    assert len(front.rules) == len(back.rules) - 1 > 0
    assert all(isinstance(made.routes[rule.route].action, Respond) for rule in front.rules)
    assert not any(isinstance(made.routes[rule.route].action, Respond) for rule in back.rules)


def test_what_another_proxy_carries_is_not_this_ones_finding() -> None:
    found, _ = assessed({"route.websocket": CANNOT}, listeners=("front",))
    assert found.diagnostics == ()
    found, _ = assessed({"route.websocket": CANNOT}, listeners=("back",))
    assert len(found.diagnostics) == 1


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
def test_a_proxy_of_which_nobody_says_where_it_is_is_named_where_a_pool_prefers_what_is_near(kind: str) -> None:
    found = compiled("""\
version: 1
listeners: {main: {bind: "127.0.0.1:80"}}
routes: {all: {match: {path_prefix: /}, pool: p}}
pools:
  p:
    locality: {prefer: zone}
    replicas: [{address: "10.0.0.1:80", zone: a}, {address: "10.0.0.2:80", zone: b}]
""")
    made = target(kind).render(view(Snapshot(found.topology), Proxy("edge", kind, (2, 6))))
    assert [item.path for item in made.diagnostics if item.code == "LB467"] == [("pools", "p", "locality")]
