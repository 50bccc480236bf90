"""The table in which nginx looks up API keys."""

from __future__ import annotations

import cProfile
from dataclasses import replace

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener, PathMatch, Rule
from lbctl.ir.pools import Pool
from lbctl.ir.routes import ApiKeys, Auth, Route
from lbctl.ir.secrets import ApiKey
from lbctl.targets.nginx import TARGET
from lbctl.targets.nginx.key_table import END, table
from tests.support.nginx import forward_to, nginx_view, replica_at


def test_each_key_is_one_string_without_expressions() -> None:
    many = table(ApiKey(f"t{number}", key=f"sk-{number:06}") for number in range(10_000))
    assert len(many.lines) == 10_000
    assert many.lines[7] == '"\\\\sk-000007" "t7 sk-000007";\n'
    assert not any(line.startswith('"~') for line in many.lines)


def test_keys_with_the_same_end_share_a_line() -> None:
    words = {"a": "Key", "b": "KEY", "c": "x" * END, "d": "y" + "x" * END}
    keys = [ApiKey(tenant, key=key) for tenant, key in words.items()]
    lines = table(keys).lines
    assert lines == (
        '"\\\\key" "a Key b KEY";\n',
        f'"\\\\{"x" * END}" "c {"x" * END} d y{"x" * END}";\n',
    )


def test_keys_that_fit_no_token_are_refused_and_counted() -> None:
    keys = [ApiKey("t", key=f"{number:02}{'x' * 254}") for number in range(20)]
    assert table(keys).lines == ()
    assert table(keys).refused == 20


def calls_of_many_routes(count: int) -> int:
    """Return how many functions of the nginx target are called to render routes that each have keys and a pool."""
    names = [f"r{number}" for number in range(count)]
    rules = tuple(Rule(name, "", PathMatch("prefix", f"/{name}/")) for name in names)
    routes = tuple(Route(name, forward_to(name), auth=Auth(ApiKeys("keys.yaml"))) for name in names)
    pools = tuple(Pool(name, (replica_at("a"),)) for name in names)
    view = nginx_view(Listener("public", Address("127.0.0.1", 8080), rules=rules), routes, pools)
    profile = cProfile.Profile()
    profile.runcall(TARGET.render, replace(view, api_keys={name: (ApiKey("t", key="sk-1"),) for name in names}))
    profile.create_stats()
    stats = profile.stats  # type: ignore[attr-defined]
    return sum(entry[1] for (file, _, _), entry in stats.items() if "/targets/nginx/" in file)


def test_cost_of_a_route_with_keys_does_not_grow() -> None:
    calls_of_many_routes(1)  # fills the caches that outlive a rendering
    assert calls_of_many_routes(100) < 2.5 * calls_of_many_routes(50)
