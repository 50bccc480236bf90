"""Random tables of rules: the Gateway API's precedence selects the same route as lbctl, for every request.

The API's precedence is modelled here. The listener with the most specific host name gets the request, and of its routes
those with the most specific one. Then the path decides (exact, expression, longest prefix), a method, and the number of
headers. The name of the object and the place of the rule come last.
https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from lbctl.ir.address import Address
from lbctl.ir.listeners import Certificate, Listener, ListenerTls, PathMatch, Rule
from lbctl.ir.matching import Request, host_covers, matches, order
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import KubernetesObjects, Proxy
from lbctl.ir.routes import Forward, Pin, Route, Share
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.ir.topology import Topology
from lbctl.targets.gateway_api.render import render

HOSTS = ("", "", "*.example.com", "a.example.com", "*.b.example.com")
PATHS: tuple[PathMatch, ...] = tuple(
    PathMatch(kind, value)
    for kind, value in (
        ("prefix", "/"), ("prefix", "/v1"), ("prefix", "/v1/chat"), ("prefix", "/v2"), ("exact", "/v1/chat"),
        ("exact", "/v1"), ("regex", "/v1/c[a-z]+"),
    )
)  # fmt: skip
MODELS = (("llama",), ("llama-3", "qwen"), ("llama*",), ("llama-3*", "qwen"))
HEADERS = ("a", "b", "x-c")
Key = Callable[[dict[str, Any]], tuple[int, ...]]


def rule(rng: random.Random, route: str) -> Rule:
    headers = tuple((name, rng.choice("12")) for name in HEADERS if rng.random() < 0.3)
    methods = tuple(sorted(rng.sample(("GET", "HEAD", "POST"), rng.choice((0, 0, 0, 1, 2)))))
    models = rng.choice(MODELS) if rng.random() < 0.3 else ()
    path = rng.choices(PATHS, (4, 4, 3, 1, 2, 1, 1))[0]
    return Rule(route, rng.choice(HOSTS), path, methods, headers, models)


def fleet(rng: random.Random) -> View:
    names = [f"r{index}" for index in range(rng.randint(2, 7))]
    rules = tuple(sorted((rule(rng, name) for name in names for _ in range(rng.choice((1, 1, 2)))), key=order))
    pools = tuple(Pool(name, (Replica("one", Address("10.0.0.1", 80)),)) for name in ("p", "q"))
    pins = (Pin("header", "x-pin", "1", "q"), Pin("cookie", "beta", "1", "q"), Pin("header", "a", "1", "q"))
    routes = tuple(
        Route(name, Forward((Share("p", 1),), rng.choice(((), (), pins[:1], pins[1:2], pins[2:])))) for name in names
    )
    proxy = Proxy("edge", "gateway-api", (1, 6, 0), kubernetes=KubernetesObjects("ml", gateway_class="any"))
    hosts = rng.choice((None, ((),), (("a.example.com",), ("*.example.com",)), ((), ("*.b.example.com", "other.org"))))
    certificates = tuple(Certificate(f"{index}.crt", f"{index}.key", names) for index, names in enumerate(hosts or ()))
    tls = ListenerTls(certificates) if certificates else None
    listener = Listener("public", Address("0.0.0.0", 80), tls, rules=rules)
    return view(Snapshot(Topology((listener,), routes, pools, (proxy,))), proxy)


def requests(rng: random.Random, count: int) -> Iterator[Request]:
    for _ in range(count):
        headers = {name: (rng.choice("12"),) for name in HEADERS if rng.random() < 0.5}
        headers |= {"x-pin": ("1",)} if rng.random() < 0.3 else {}
        headers |= (
            {"cookie": (rng.choice(("beta=1", "x=y; beta=1; z=1", "beta=10", "abeta=1")),)}
            if rng.random() < 0.3
            else {}
        )
        model = rng.choice((None, "llama", "llama-3", "llama-3.1", "qwen"))
        yield Request(
            rng.choice(("GET", "HEAD", "POST", "PUT")),
            rng.choice(("a.example.com", "z.example.com", "x.b.example.com", "other.org")),
            rng.choice(("/", "/v1", "/v1/chat", "/v1/chat/x", "/v1/cc", "/v2/x", "/v1x")),
            headers | ({"x-model": (model,)} if model else {}),
            model,
        )  # fmt: skip


def expected(fleet: View, request: Request) -> str:
    """Return the route by lbctl's order, with `pin` if a pin selects the pool; empty for 404."""
    won = next((item for item in fleet.listeners[0].rules if matches(item, request)), None)
    if won is None:
        return ""
    action = fleet.routes[won.route].action
    assert isinstance(action, Forward)
    cookies = [pair.strip() for value in request.headers.get("cookie", ()) for pair in value.split(";")]
    pinned = any(
        f"{pin.name}={pin.value}" in cookies if pin.kind == "cookie" else pin.value in request.headers.get(pin.name, ())
        for pin in action.pins
    )
    return f"{won.route}.pin" if pinned else won.route


# ── The model of the API ─────────────────────────────────────────────────────────────────────────────────────────────


def is_match(match: dict[str, Any], request: Request) -> bool:
    path, value = match["path"], match["path"]["value"]
    bare = value.rstrip("/")
    paths = {
        "Exact": request.path == value,
        "PathPrefix": request.path == bare or request.path.startswith(f"{bare}/"),
        "RegularExpression": path["type"] == "RegularExpression" and bool(re.fullmatch(value, request.path)),
    }
    return (
        paths[path["type"]]
        and match.get("method", request.method) == request.method
        and all(is_header_match(header, request) for header in match.get("headers", ()))
    )


def is_header_match(header: dict[str, str], request: Request) -> bool:
    values = request.headers.get(header["name"], ())
    if header.get("type") == "RegularExpression":
        return any(re.fullmatch(header["value"], value) for value in values)
    return header["value"] in values


def of_api(match: dict[str, Any]) -> tuple[int, ...]:
    return (*path_order(match), 0 if "method" in match else 1, -len(match.get("headers", ())))


def of_envoy_gateway(match: dict[str, Any]) -> tuple[int, ...]:
    headers, method = match.get("headers", ()), "method" in match
    exact = sum("type" not in header for header in headers)
    return (*path_order(match), -len(headers) - method, -exact - method)


def path_order(match: dict[str, Any]) -> tuple[int, int]:
    path = match["path"]
    rank = ("Exact", "RegularExpression", "PathPrefix").index(path["type"])
    return rank, -len(path["value"]) if path["type"] == "PathPrefix" else 0


def host_order(host: str) -> tuple[int, int]:
    return (0, 0) if host and not host.startswith("*.") else (1, -len(host)) if host else (2, 0)


def attached(objects: list[dict[str, Any]], request: Request) -> list[tuple[str, dict[str, Any]]]:
    """Return the HTTPRoutes of the request's listener, each with the host name that is common to both."""
    (gateway,) = (item for item in objects if item["kind"] == "Gateway")
    sections = [item for item in gateway["spec"]["listeners"] if host_covers(item.get("hostname", ""), request.host)]
    section = min(sections, key=lambda item: host_order(item.get("hostname", "")))
    pairs = [
        (host, item)
        for item in objects
        if item["kind"] == "HTTPRoute"
        and section["name"] in [parent["sectionName"] for parent in item["spec"]["parentRefs"]]
        for host in item["spec"].get("hostnames", [""])
    ]
    own = section.get("hostname", "")
    return [(host if host_covers(own, host) else own, item) for host, item in pairs]


def selected(objects: list[dict[str, Any]], request: Request, key: Key, *, falls_through: bool) -> str:
    """Return the route that the API selects; `falls_through`: whether less specific hosts are tried after a miss."""
    routes = attached(objects, request)
    hosts = {host for host, _ in routes if host_covers(host, request.host)}
    if hosts and not falls_through:
        hosts = {min(hosts, key=host_order)}
    found = [
        (host_order(host), key(match), item["metadata"]["name"], index, rule["name"])
        for host, item in routes
        if host in hosts
        for index, rule in enumerate(item["spec"]["rules"])
        for match in rule["matches"]
        if is_match(match, request)
    ]
    if not found:
        return ""
    route, _, rest = min(found)[-1].partition(".")
    return f"{route}.pin" if rest.startswith("pin-") else route


def check(seeds: range) -> tuple[int, int, int]:
    """Return the numbers of tables, of rejected tables, and of tables with additional matches."""
    rejected = grown = 0
    for seed in seeds:
        rng = random.Random(seed)
        table = fleet(rng)
        bundle = render(table)
        if any(item.severity == "error" for item in bundle.diagnostics):
            assert {item.code for item in bundle.diagnostics if item.severity == "error"} == {"LB172"}
            rejected += 1
            continue
        objects = list(yaml.load_all(bundle.main.text, yaml.CSafeLoader))
        routes = [item for item in objects if item["kind"] == "HTTPRoute"]
        for item in routes:
            counts = [len(rule["matches"]) for rule in item["spec"]["rules"]]
            assert len(counts) <= 16
            assert max(counts) <= 64
            assert sum(counts) <= 128
            names = [rule["name"] for rule in item["spec"]["rules"]]
            assert len(names) == len(set(names))
        grown += any(len(rule["matches"]) > 4 for item in routes for rule in item["spec"]["rules"])
        for request in requests(rng, 60):
            wanted = expected(table, request)
            for key in (of_api, of_envoy_gateway):
                for falls_through in (False, True):
                    found = selected(objects, request, key, falls_through=falls_through)
                    assert found == wanted, f"seed {seed}: {request}"
    return len(seeds), rejected, grown


@pytest.mark.slow
def test_api_selects_the_same_route_as_lbctl() -> None:
    tables, rejected, grown = check(range(200))
    assert rejected < tables / 4
    assert grown > 0


@pytest.mark.nightly
def test_api_selects_the_same_route_in_many_tables() -> None:
    tables, rejected, _ = check(range(1000, 3000))
    assert rejected < tables / 4
