from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Respond
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.assess import Assessment, assess, close
from lbctl.targets.features import FEATURES
from lbctl.targets.target import Bundle, Capability, Complaint, NotYet, Rendered, Since, Unsupported
from tests.support.fleet import compiled, places

CANNOT = Unsupported("it has no such thing", "nothing")


@dataclass(frozen=True)
class Fake:
    """A proxy with all capabilities except for the losses of the test."""

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
    """Return the assessment of the fleet by a fake proxy with these losses, and the view that it would render."""
    fleet = compiled(text)
    complete = view(Snapshot(fleet.topology), Proxy("p", "fake", version, **proxy))
    assessment = assess(Fake(losses), version, complete, fleet.sources)
    return assessment, close(complete, assessment)


def closed_routes(rendered: View) -> set[str]:
    return {name for name, route in rendered.routes.items() if isinstance(route.action, Respond)}


def test_supported_features_give_no_diagnostics() -> None:
    assessment, rendered = assessed({})
    assert assessment.diagnostics == ()
    assert closed_routes(rendered) == set()


def test_unsupported_feature_is_a_warning_at_its_key() -> None:
    assessment, rendered = assessed({"route.websocket": CANNOT})
    (warning,) = assessment.diagnostics
    assert places([warning]) == ["22:71 LB434"]
    assert warning.severity == "warning"
    assert "it has no such thing" in warning.message
    assert warning.hint == "instead, nothing"
    assert closed_routes(rendered) == set()


def test_feature_that_is_not_rendered_yet_has_its_own_code() -> None:
    assessment, _ = assessed({"route.websocket": NotYet()})
    assert places(list(assessment.diagnostics)) == ["22:71 LB499"]


@pytest.mark.parametrize(("version", "count"), [((1, 9), 1), ((2, 0), 0), ((2, 1), 0)])
def test_newer_version_with_the_feature_gives_no_warning(version: tuple[int, ...], count: int) -> None:
    assessment, _ = assessed({"route.websocket": Since((2, 0), CANNOT)}, version)
    assert len(assessment.diagnostics) == count


def test_unused_features_give_no_diagnostics() -> None:
    assessment, rendered = assessed(
        {"route.auth.jwt": CANNOT, "pool.locality": CANNOT, "listener.client_certificate": NotYet()}
    )
    assert assessment.diagnostics == ()
    assert closed_routes(rendered) == set()


def test_feature_used_twice_in_a_route_is_reported_once() -> None:
    assessment, _ = assessed({"route.rate_limit": CANNOT})
    assert places(list(assessment.diagnostics)) == ["16:14 LB441"]


def test_feature_in_defaults_is_reported_there_once() -> None:
    text = FLEET + "defaults:\n  pool: {slow_start: {window: 30s}}\n  route: {websocket: true}\n"
    assessment, _ = assessed({"pool.slow_start": CANNOT, "route.websocket": CANNOT}, text=text)
    assert places(list(assessment.diagnostics)) == ["24:22 LB474", "25:22 LB434", "22:71 LB434"]
    assert {item.path[:2] for item in assessment.diagnostics} == {
        ("defaults", "pool"),
        ("defaults", "route"),
        ("routes", "back"),
    }


def test_unsupported_protection_in_defaults_closes_routes() -> None:
    assessment, rendered = assessed({"pool.tls": CANNOT}, text=FLEET + "defaults: {pool: {tls: {ca: tls/ca.crt}}}\n")
    assert closed_routes(rendered) == set(rendered.routes)
    assert places(list(assessment.diagnostics)) == ["23:29 LB489", "8:15 LB489"]


def test_bound_of_an_unsupported_hash_is_not_reported() -> None:
    hashed = "balance: {algorithm: hash, hash: {key: {prompt_prefix: 256}, bounded_load: 1.5}}"
    text = FLEET.replace("a: {replicas", f"a: {{{hashed}, replicas")
    names = ("pool.balance.hash.prompt_prefix", "pool.balance.hash.bounded_load")
    assessment, _ = assessed(dict.fromkeys(names, CANNOT), text=text)
    assert places(list(assessment.diagnostics)) == ["6:62 LB461"]
    assessment, _ = assessed({names[1]: CANNOT}, text=text)
    assert len(assessment.diagnostics) == 1


def test_unsupported_check_of_an_agents_engine_is_not_reported() -> None:
    text = FLEET.replace("a: {replicas", "a: {health: {active: {http: {}}, agent: {port: 9500}}, replicas")
    assessment, _ = assessed(dict.fromkeys(("pool.health.http", "pool.health.agent"), CANNOT), text=text)
    assert [item.code for item in assessment.diagnostics] == ["LB168"]


@pytest.mark.parametrize("loss", [CANNOT, NotYet(), Since((2, 0), CANNOT)])
def test_route_with_unsupported_protection_answers_503(loss: Capability) -> None:
    assessment, rendered = assessed({"route.rate_limit.concurrent": loss})
    assert closed_routes(rendered) == {"limited"}
    action = rendered.routes["limited"].action
    assert isinstance(action, Respond)
    assert (action.status, action.content_type) == (503, "application/json")
    assert "return 503" in assessment.diagnostics[0].message
    assert [rule.route for rule in rendered.listeners[0].rules] == [
        rule.route for rule in assessed({})[1].listeners[0].rules
    ]


def test_pool_with_unsupported_protection_gets_no_request() -> None:
    _, rendered = assessed({"pool.tls": CANNOT})
    assert closed_routes(rendered) == {"encrypted", "fallback", "pinned"}
    assert "b" not in rendered.pools
    action = rendered.routes["mirrored"].action
    assert isinstance(action, Forward)
    assert action.mirror is None


def test_only_the_listener_without_its_protection_closes() -> None:
    text = FLEET.replace('front: {bind: "127.0.0.1:80"}', 'front: {bind: "127.0.0.1:80", max_body: 1MiB}')
    assessment, rendered = assessed({"listener.max_body": CANNOT}, text=text)
    assert places(list(assessment.diagnostics)) == ["3:43 LB409"]
    front = next(item for item in rendered.listeners if item.name == "front")
    back = next(item for item in rendered.listeners if item.name == "back")
    assert len(front.rules) == len(back.rules) - 1 > 0
    assert all(isinstance(rendered.routes[rule.route].action, Respond) for rule in front.rules)
    assert not any(isinstance(rendered.routes[rule.route].action, Respond) for rule in back.rules)


def test_listeners_of_other_proxies_give_no_diagnostics() -> None:
    assessment, _ = assessed({"route.websocket": CANNOT}, listeners=("front",))
    assert assessment.diagnostics == ()
    assessment, _ = assessed({"route.websocket": CANNOT}, listeners=("back",))
    assert len(assessment.diagnostics) == 1
