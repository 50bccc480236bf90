"""The routes of an import decide as HAProxy's rules do, in their order, and never forward what HAProxy refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.proxy import unnamed
from lbctl.importer.haproxy.conditions import condition
from lbctl.importer.matching import MAX_ADDED, Match, apart, merge, overlaps
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.targets.load import complete
from lbctl.targets.reading import Message
from lbctl.targets.route_trace import explain
from tests.support.importer import fleet_from_text, imported_text

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

HEAD = "defaults\n mode http\n" + "".join(f"backend {name}\n server s 10.0.0.1:80\n" for name in "abc")
Request = dict[str, str]
TESTS: dict[str, Callable[[Request], bool]] = {
    "{ path_beg /v1 }": lambda request: f"{request['path']}/".startswith("/v1/"),
    "{ path_beg /v1/a }": lambda request: f"{request['path']}/".startswith("/v1/a/"),
    "{ path /v1/b }": lambda request: request["path"] == "/v1/b",
    "{ path /w /v1 }": lambda request: request["path"] in {"/w", "/v1"},
    "{ path_reg ^/v1/[ab]$ }": lambda request: request["path"] in {"/v1/a", "/v1/b"},
    "{ method POST }": lambda request: request["method"] == "POST",
    "METH_GET": lambda request: request["method"] == "GET",
    "{ hdr(host) h.example }": lambda request: request["host"] == "h.example",
    "{ hdr_end(host) .example }": lambda _: True,
    "{ req.hdr(x-a) b }": lambda request: request["x-a"] == "b",
    "{ var(txn.a) -m found }": lambda request: request["variable"] == "set",
}
TERMS = st.tuples(st.sampled_from([*TESTS]), st.booleans())
Condition = list[list[tuple[str, bool]]]
RULES = st.tuples(
    st.sampled_from(["deny", "deny", "deny", "allow", "return status 204"]),
    st.booleans(),
    st.lists(st.lists(TERMS, min_size=1, max_size=2), min_size=1, max_size=3),
)
BACKENDS = st.tuples(st.sampled_from("ab"), st.lists(st.lists(TERMS, min_size=1, max_size=2), min_size=1, max_size=2))


def text_of(condition: Condition) -> str:
    return " or ".join(" ".join(f"{'!' * negated}{test}" for test, negated in terms) for terms in condition)


def holds(condition: Condition, request: Request) -> bool:
    return any(all(TESTS[test](request) != negated for test, negated in terms) for terms in condition)


def requests() -> Iterator[Request]:
    paths = ("/", "/v1", "/v1/a", "/v1/b", "/v1/a/x", "/w")
    for path, method, host, header in product(paths, ("GET", "POST"), ("h.example", "i.example"), ("", "b")):
        yield {"path": path, "method": method, "host": host, "x-a": header}


@settings(max_examples=40, deadline=None)
@given(
    rules=st.lists(RULES, max_size=3),
    backends=st.lists(BACKENDS, max_size=3),
    default=st.sampled_from(["c", ""]),
)
@pytest.mark.slow
def test_routes_decide_as_the_rules_do(
    rules: list[tuple[str, bool, Condition]],
    backends: list[tuple[str, Condition]],
    default: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lines = [f"http-request {action} {'unless' if no else 'if'} {text_of(when)}" for action, no, when in rules]
    lines += [f"use_backend {name} if {text_of(when)}" for name, when in backends]
    lines += [f"default_backend {default}"] if default else ["monitor-uri /monitor"]
    text = f"{HEAD}frontend f\n bind :80\n " + "\n ".join(lines) + "\n"
    result, findings = imported_text("haproxy", text, tmp_path_factory.mktemp("rules"))
    misrouted = any(item.code == "LB989" for item in findings)
    source = parse([SourceText("import", result.text.encode(), ".")], diagnostics := Diagnostics())
    loaded = complete(source, diagnostics) if source is not None else None
    assert loaded is not None
    topology = loaded.compiled.topology
    version = unnamed(topology, "haproxy").version

    def decided(request: Request) -> str:
        """Return what HAProxy does: the backend, `refuse`, `204`, or nothing for lack of a backend."""
        for action, negated, when in rules:
            if holds(when, request) != negated:
                if action == "allow":
                    break
                return "refuse" if action == "deny" else "204"
        return next((name for name, when in backends if holds(when, request)), default)

    for request in requests():
        expected = {decided(request | {"variable": value}) for value in ("set", "")}
        headers = (("host", request["host"]), *((("x-a", "b"),) if request["x-a"] else ()))
        message = Message(request["method"], request["host"], request["path"], headers, b"")
        winner = explain(topology.listeners[0], message, "haproxy", version).winner
        route = result.draft.fleet["routes"][winner.route] if winner is not None else {}
        if "pool" in route:
            assert "refuse" not in expected, (text, request)
            assert misrouted or expected == {route["pool"]}, (text, request)
        elif route.get("respond", {}).get("status") == 204:
            assert misrouted or expected == {"204"}, (text, request)


@pytest.mark.parametrize(
    ("one", "other", "joint", "is_apart"),
    [
        ({"hosts": ["*.x.example"]}, {"hosts": ["a.x.example", "y.example"]}, {"hosts": ["a.x.example"]}, False),
        ({"hosts": ["a.example"]}, {"hosts": ["b.example"]}, None, True),
        ({"model": ["llama*"]}, {"model": ["llama-70b", "qwen"]}, {"model": ["llama-70b"]}, False),
        ({"methods": ["GET", "POST"]}, {"methods": ["POST", "GET"]}, {"methods": ["POST", "GET"]}, False),
        ({"path": "/a"}, {"path_prefix": "/b"}, None, True),
        ({"path": "/a"}, {"path_regex": ".*a"}, None, False),
        ({"path": "/b"}, {"path_regex": ".*a"}, None, True),
        ({"path_prefix": "/v1"}, {"path_regex": "/v2/.*"}, None, True),
        ({"path_prefix": "/v1"}, {"path_regex": "/v1*/x"}, None, False),
        ({"path_regex": r".*\.a"}, {"path_regex": r".*\.b"}, None, True),
        ({"path_regex": r".*\.a"}, {"path_regex": r".*(?i)\.b"}, None, False),
        ({"path_regex": r".*\.a"}, {"path_regex": r".*a|.*b"}, None, False),
        ({"path": "/a", "methods": ["GET"]}, {"path_regex": ".*a", "methods": ["POST"]}, None, True),
    ],
)
def test_common_requests_of_two_matches(one: Match, other: Match, joint: Match | None, is_apart: bool) -> None:
    assert (merge([one, other]), apart([one, other])) == (joint, is_apart)


def test_overlap_of_three_rules_is_of_the_first() -> None:
    matches: list[Match] = [{"headers": {"x": "y"}, "hosts": ["h"]}, {"path_prefix": "/w"}, {"hosts": ["h"]}]
    added = overlaps(matches)
    assert ({"path_prefix": "/w", "hosts": ["h"]}, 1) in added
    assert ({"headers": {"x": "y"}, "hosts": ["h"], "path_prefix": "/w"}, 0) in added


@pytest.mark.slow
def test_frontend_with_too_many_overlaps_is_closed(tmp_path: Path) -> None:
    names = range(int(MAX_ADDED**0.5) + 1)
    lines = [f" use_backend a if {{ path /p{n} }}" for n in names]
    lines += [f" use_backend b if {{ hdr(host) h{n}.example }}" for n in names]
    text = HEAD + "frontend f\n bind :80\n" + "\n".join(lines) + "\n default_backend c\n"
    routes = fleet_from_text("haproxy", text, tmp_path)["routes"].values()
    assert {item["respond"]["body"] for item in routes} == {
        "lbctl import: the frontend's rules overlap in too many ways"
    }


def test_wildcard_host_does_not_escape_a_protection(tmp_path: Path) -> None:
    rules = (
        "frontend f\n bind :80\n http-request deny if { hdr_end(host) .x.example } !{ req.hdr(x-api-key) -m str k }\n"
        " use_backend a if { hdr(host) a.x.example }\n"
    )
    (route,) = fleet_from_text("haproxy", HEAD + rules, tmp_path)["routes"].values()
    assert "auth" in route


def test_negation_of_a_condition_negates_each_alternative() -> None:
    terms = condition(["a", "b", "or", "!c"], {}, negated=True).terms
    read = [[(term.tokens, term.negated) for term in each] for each in terms]
    assert read == [[(("a",), True), (("c",), False)], [(("b",), True), (("c",), False)]]


DEFAULTS = (
    "defaults base\n mode http\n acl known req.hdr(x-a) b\n http-request deny unless known\n"
    " http-request set-header x-from base\ndefaults other\n mode http\nfrontend f from base\n bind :80\n"
    " default_backend b\nbackend b from other\n server s 10.0.0.1:80\n"
)


def test_rules_of_named_defaults_are_imported(tmp_path: Path) -> None:
    routes = fleet_from_text("haproxy", DEFAULTS, tmp_path)["routes"].values()
    assert [(item["match"], "pool" in item) for item in routes] == [({"headers": {"x-a": "b"}}, True), ({}, False)]
    assert [item["headers"]["request"]["set"] for item in routes if "pool" in item] == [{"x-from": "base"}]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("if { path /metrics } { src 127.0.0.1 }", [{"path": "/metrics"}, {}]),
        ("if { src 127.0.0.1 }", [{}]),
        ("if { path /m } or { path /n }", [{"path": "/m"}, {"path": "/n"}, {}]),
    ],
)
def test_figures_take_only_the_requests_of_their_rule(condition: str, expected: list[Match], tmp_path: Path) -> None:
    rules = f"frontend f\n bind :80\n http-request use-service prometheus-exporter {condition}\n default_backend a\n"
    routes = [*fleet_from_text("haproxy", HEAD + rules, tmp_path)["routes"].values()]
    assert [item["match"] for item in routes] == expected
    assert [item.get("pool") for item in routes] == [None] * (len(expected) - 1) + ["a"]
