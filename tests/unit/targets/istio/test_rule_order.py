"""Random tables of rules: Istio selects the same route as lbctl, for every request.

Istio's translation is modelled here. The server with the most specific host gets the request. The VirtualServices of
its Gateway become virtual hosts, named by the hosts that are common to both. VirtualServices with the same name are
joined in the order of their age, and rules without conditions move to the end. Of the virtual host with the most
specific name, the first rule that matches decides.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from lbctl.ir.matching import Request, host_covers
from lbctl.ir.proxies import KubernetesObjects, Proxy
from lbctl.targets.istio.render import render
from tests.support.random_tables import expected, random_requests, random_view

PROXY = Proxy("edge", "istio", (1, 27, 0), kubernetes=KubernetesObjects("ml"))
Tree = dict[str, Any]


def order(host: str) -> tuple[int, int]:
    return (0, 0) if host and not host.startswith("*.") else (1, -len(host)) if host else (2, 0)


def is_match(match: Tree, request: Request) -> bool:
    values = {name: request.headers.get(name, ()) for name in match.get("headers", {})}
    return (
        is_equal(match.get("uri", {"prefix": "/"}), request.path)
        and is_equal(match.get("method", {"prefix": ""}), request.method)
        and all(any(is_equal(match["headers"][name], value) for value in values[name]) for name in values)
    )


def is_equal(condition: Tree, value: str) -> bool:
    ((kind, wanted),) = condition.items()
    if kind == "exact":
        return bool(value == wanted)
    return value.startswith(wanted) if kind == "prefix" else re.fullmatch(wanted, value) is not None


def translated(service: Tree, port: int) -> Iterator[tuple[Tree, str]]:
    """Yield the match and the name of each route of a VirtualService, up to the first one without conditions."""
    for rule in service["http"]:
        for match in rule["match"]:
            if match["port"] == port:
                yield match, rule["name"]
                if match.keys() == {"port"}:
                    return


def routes_for(objects: list[Tree], host: str) -> list[tuple[Tree, str]]:
    """Return the routes of the virtual host for requests to `host`; empty if it has none."""
    servers = [
        (name(server["hosts"][0].removeprefix("ml/")), server["port"]["number"], item["metadata"]["name"])
        for item in objects
        if item["kind"] == "Gateway"
        for server in item["spec"]["servers"]
    ]
    own, port, gateway = min((item for item in servers if host_covers(item[0], host)), key=lambda item: order(item[0]))
    found: dict[str, list[tuple[Tree, str]]] = {}
    for item in objects:
        if item["kind"] == "VirtualService" and gateway in item["spec"]["gateways"]:
            wanted = name(item["spec"]["hosts"][0])
            if host_covers(own, wanted) or host_covers(wanted, own):
                common = wanted if host_covers(own, wanted) else own
                found.setdefault(common, []).extend(translated(item["spec"], port))
    covering = [item for item in found if host_covers(item, host)]
    routes = found[min(covering, key=order)] if covering else []
    return sorted(routes, key=lambda item: item[0].keys() == {"port"})


def name(pattern: str) -> str:
    return "" if pattern == "*" else pattern


def selected(routes: list[tuple[Tree, str]], request: Request) -> str:
    found = next((rule for match, rule in routes if is_match(match, request)), "")
    route, _, rest = found.partition(".")
    return f"{route}.pin" if rest.startswith("pin-") else route


def check(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        table = random_view(rng, PROXY)
        bundle = render(table)
        errors = {item.code for item in bundle.diagnostics if item.severity == "error"}
        assert errors <= {"LB172"}
        if errors:
            continue
        objects = list(yaml.load_all(bundle.main.text, yaml.CSafeLoader))
        requests = list(random_requests(rng, 60))
        for by_age in (objects, objects[::-1]):
            routes = {host: routes_for(by_age, host) for host in {request.host for request in requests}}
            for request in requests:
                assert selected(routes[request.host], request) == expected(table, request), f"seed {seed}: {request}"


@pytest.mark.slow
def test_istio_selects_the_same_route_as_lbctl() -> None:
    check(range(200))


@pytest.mark.nightly
def test_istio_selects_the_same_route_in_many_tables() -> None:
    check(range(1000, 3000))
