from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fleet import GROUND, compiled

# The order that the contract defines: exact host, longest wildcard, no host; exact path, regex, longest prefix; method;
# model, exact before a pattern; more headers; name.
LADDER = {
    "z-exact-host": "hosts: [a.example.com]",
    "y-long-wildcard": 'hosts: ["*.a.example.com"]',
    "x-wildcard": 'hosts: ["*.example.com"]',
    "w-exact": "path: /v1/a",
    "v-regex": "path_regex: /v1/.*",
    "u-longer-prefix": "path_prefix: /v1/a",
    "t-method-and-model": "path_prefix: /v1, methods: [GET], model: [m]",
    "s-method-and-pattern": 'path_prefix: /v1, methods: [GET], model: ["m*"]',
    "r-method": "path_prefix: /v1, methods: [GET]",
    "q-model": "path_prefix: /v1, model: [m]",
    "p-longer-pattern": 'path_prefix: /v1, model: ["llama-*"]',
    "o-pattern": 'path_prefix: /v1, model: ["m*"]',
    "n-two-headers": "path_prefix: /v1, headers: {a: x, b: x}",
    "m-one-header": "path_prefix: /v1/, headers: {c: x}",
    "a-name": "path_prefix: /v1",
    "b-name": "path_prefix: /v1/",
    "c-anything": "",
}


def rule_order(names: list[str]) -> list[str]:
    routes = "".join(f"  {name}: {{pool: a, match: {{{LADDER[name]}}}}}\n" for name in names)
    (listener,) = compiled(f"{GROUND}routes:\n{routes}").topology.listeners
    return [rule.route for rule in listener.rules]


def test_the_most_specific_rule_comes_first() -> None:
    assert rule_order(list(LADDER)) == list(LADDER)


@given(st.permutations(list(LADDER)))
def test_the_order_in_the_file_does_not_matter(names: list[str]) -> None:
    assert rule_order(names) == list(LADDER)


def test_a_route_has_one_rule_per_host() -> None:
    fleet = compiled(f"{GROUND}routes:\n  r: {{pool: a, match: {{hosts: [B.example, '*.b.example', b.example]}}}}\n")
    assert [rule.host for rule in fleet.topology.listeners[0].rules] == ["b.example", "*.b.example"]


@pytest.mark.parametrize(("written", "meant"), [("/v1/", "/v1"), ("/v1", "/v1"), ("/", "/")])
def test_a_path_prefix_ends_at_a_segment(written: str, meant: str) -> None:
    fleet = compiled(f"{GROUND}routes:\n  r: {{pool: a, match: {{path_prefix: {written}}}}}\n")
    assert fleet.topology.listeners[0].rules[0].path.value == meant


def test_a_route_without_listeners_is_on_all_of_them() -> None:
    text = f"{GROUND}routes:\n  r: {{pool: a}}\n  s: {{pool: b, listeners: [m]}}\n"
    fleet = compiled(text.replace('l: {bind: "127.0.0.1:80"}', 'l: {bind: "127.0.0.1:80"}, m: {bind: "127.0.0.1:81"}'))
    assert {item.name: [rule.route for rule in item.rules] for item in fleet.topology.listeners} == {
        "l": ["r"],
        "m": ["r", "s"],
    }
