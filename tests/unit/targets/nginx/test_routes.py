"""Routes in nginx.conf: no line is longer than the 4 KiB that nginx reads, and each action has its locations."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.ir.listeners import Listener, PathMatch, Rule
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Mirror, Pin, Respond, Route, Share, StickySplit
from lbctl.targets.nginx import TARGET
from tests.support.nginx import nginx_view, replica_at, socket_in

POOLS = tuple(Pool(name, (replica_at("a"),)) for name in ("one", "two"))
SPLIT = (Share("one", 3), Share("two", 1))


def rendered(*routes: Route, rules: tuple[Rule, ...] = (), pools: tuple[Pool, ...] = POOLS) -> str:
    listener = Listener("public", socket_in(Path("/run")), rules=rules or tuple(Rule(route.name) for route in routes))
    return TARGET.render(nginx_view(listener, routes, pools)).main.text


def test_lines_of_many_pins_fit_a_token() -> None:
    pins = tuple(Pin(("header", "cookie")[n % 2], f"x-{n % 2}", f"v{n}", "two") for n in range(450))  # type: ignore[arg-type]
    text = rendered(Route("r", Forward(SPLIT, pins)))
    assert max(map(len, text.splitlines())) < 4096


def test_lines_of_many_rules_fit_a_token() -> None:
    rules = tuple(Rule("r", "", PathMatch(), (), (("x-tenant", f"t{n}"),)) for n in range(450))
    text = rendered(Route("r", Respond(200, "ok")), rules=rules)
    assert max(map(len, text.splitlines())) < 4096


def test_long_text_is_several_tokens() -> None:
    text = rendered(Route("r", Respond(200, "x" * 9000)))
    assert "x" * 9000 not in text
    assert max(map(len, text.splitlines())) < 4096


def test_group_of_a_regex_has_no_name() -> None:
    text = rendered(Route("r", Respond(200)), rules=(Rule("r", path=PathMatch("regex", "/(?P<name>[a-z]+)/x")),))
    assert "name" not in text
    assert "/(?:[a-z]+)/x" in text


@pytest.mark.parametrize("status", [301, 308])
def test_status_with_a_meaning_for_nginx_has_its_own_location(status: int) -> None:
    assert f"error_page 418 ={status} @r:answer;" in rendered(Route("r", Respond(status, "text")))


def test_empty_pool_leads_to_its_fallback() -> None:
    text = rendered(Route("r", Forward((Share("empty", 1),), fallback="one")), pools=(*POOLS, Pool("empty")))
    assert "error_page 418 = @r:one;" in text[text.index("location @r:empty {") :].split("}")[0]


def test_sticky_split_draws_by_the_header() -> None:
    text = rendered(Route("r", Forward(SPLIT, sticky=StickySplit("header", "x-user"))))
    assert 'map "$http_x_user" $lb_r0_client { default $http_x_user; "" $request_id; }' in text
    assert 'split_clients "$lb_r0_client 0" $lb_r0_draw {' in text


def test_mirror_of_all_requests_draws_nothing() -> None:
    text = rendered(Route("r", Forward((Share("one", 1),), mirror=Mirror("two", 100.0))))
    assert "split_clients" not in text
