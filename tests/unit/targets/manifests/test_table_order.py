"""Random tables of rules: the Gateway API's precedence selects the same route as lbctl, for every request.

The API's precedence is modelled here. The listener with the most specific host name gets the request, and of its routes
those with the most specific one. Then the path decides (exact, expression, longest prefix), a method, and the number of
headers. The name of the object and the place of the rule come last.
https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from lbctl.ir.matching import Request, host_covers
from lbctl.ir.proxies import KubernetesObjects, Proxy
from lbctl.targets import target
from tests.support.random_tables import expected, random_requests, random_view

PROXIES = (
    Proxy("edge", "gateway-api", (1, 6, 0), kubernetes=KubernetesObjects("ml", gateway_class="any")),
    Proxy("edge", "envoy-gateway", (1, 9, 0), kubernetes=KubernetesObjects("ml")),
)
every_kind = pytest.mark.parametrize("proxy", PROXIES, ids=lambda proxy: proxy.kind)
Key = Callable[[dict[str, Any]], tuple[int, ...]]

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


def check(proxy: Proxy, seeds: range) -> tuple[int, int, int]:
    """Return the numbers of tables, of rejected tables, and of tables with additional matches."""
    rejected = grown = 0
    for seed in seeds:
        rng = random.Random(seed)
        table = random_view(rng, proxy)
        bundle = target(proxy.kind).render(table)
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
        for request in random_requests(rng, 60):
            wanted = expected(table, request)
            for key in (of_api, of_envoy_gateway):
                for falls_through in (False, True):
                    found = selected(objects, request, key, falls_through=falls_through)
                    assert found == wanted, f"seed {seed}: {request}"
    return len(seeds), rejected, grown


@every_kind
@pytest.mark.slow
def test_api_selects_the_same_route_as_lbctl(proxy: Proxy) -> None:
    tables, rejected, grown = check(proxy, range(100))
    assert rejected < tables / 4
    assert grown > 0


@every_kind
@pytest.mark.nightly
def test_api_selects_the_same_route_in_many_tables(proxy: Proxy) -> None:
    tables, rejected, _ = check(proxy, range(1000, 3000))
    assert rejected < tables / 4
