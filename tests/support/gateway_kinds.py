"""Fleets for the kinds of gateways whose configuration is Kubernetes objects, and the effect of the objects."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lbctl.targets import MANIFESTS
from tests.support.kubernetes_objects import VERSIONS

Tree = dict[str, Any]
KINDS = MANIFESTS.names


def of_kind(fleet: str, kind: str) -> str:
    """Return the fleet with its gateways (`gateway-api`) replaced by the newest version of another kind.

    A fleet that has this kind is returned as it is. Only `gateway-api` needs the class of its Gateway.
    """
    if f"kind: {kind}" in fleet:
        return fleet
    newest = VERSIONS[kind][-1].rpartition(".")[0]
    fleet = fleet.replace("kind: gateway-api", f"kind: {kind}")
    fleet = re.sub(r'\bversion: "[0-9.]+"', f'version: "{newest}"', fleet)
    return re.sub(r", gateway_class: [a-z]+", "", fleet)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a route, as its objects express it."""

    backends: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(kind, name) of each backend → its weight. For Istio, the name is the host."""
    status: int | None = None
    """Status of a direct response or a redirect."""


def rules(objects: Iterable[Tree]) -> dict[str, list[Rule]]:
    """Map each route to its rules. The names of rules are `ROUTE`, `ROUTE.pin-N`, both also with `.N`."""
    listed = list(objects)
    found: dict[str, list[Rule]] = defaultdict(list)
    for name, rule in _rules(listed):
        found[re.sub(r"(\.pin-\d+)?(\.\d+)?$", "", name)].append(rule)
    return found


def _rules(objects: list[Tree]) -> Iterator[tuple[str, Rule]]:
    responses = {
        item["metadata"]["name"]: item["spec"]["directResponse"]["statusCode"]
        for item in objects
        if item["kind"] == "HTTPRouteFilter" and "directResponse" in item["spec"]
    }
    for item in objects:
        if item["kind"] == "HTTPRoute":
            yield from ((rule["name"], _of_http_route(rule, responses)) for rule in item["spec"]["rules"])
        if item["kind"] == "VirtualService":
            yield from ((rule["name"], _of_virtual_service(rule)) for rule in item["spec"]["http"])


def _of_http_route(rule: Tree, responses: Mapping[str, int]) -> Rule:
    backends = {
        (each.get("kind", "Service"), each["name"]): each.get("weight", 1) for each in rule.get("backendRefs", ())
    }
    if any(name.endswith("-closed") for _, name in backends):
        assert len(backends) == 1
        return Rule(status=503)  # the Service has no endpoints
    for each in rule.get("filters", ()):
        if each["type"] == "RequestRedirect":
            return Rule(status=each["requestRedirect"]["statusCode"])
        if each["type"] == "ExtensionRef" and each["extensionRef"]["name"] in responses:
            assert not backends
            return Rule(status=responses[each["extensionRef"]["name"]])
    return Rule(backends)


def _of_virtual_service(rule: Tree) -> Rule:
    if "directResponse" in rule:
        return Rule(status=rule["directResponse"]["status"])
    if "redirect" in rule:
        return Rule(status=rule["redirect"].get("redirectCode", 301))
    destinations = rule["route"]
    return Rule({("host", each["destination"]["host"]): each.get("weight", 1) for each in destinations})


def shares(rule: Rule, objects: Iterable[Tree]) -> dict[str, float]:
    """Return the share of a rule's requests that each endpoint (ADDRESS:PORT) gets, as far as its weight decides."""
    endpoints = _endpoints(list(objects))
    total = sum(rule.backends.values())
    found: dict[str, float] = defaultdict(float)
    for backend, weight in rule.backends.items():
        listed = endpoints.get(backend, {})
        for address, own in listed.items():
            found[address] += weight / total * own / sum(listed.values())
    return dict(found)


def _endpoints(objects: list[Tree]) -> dict[tuple[str, str], dict[str, float]]:
    """Map each backend to the weights of its endpoints that get new requests."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for item in objects:
        spec = item.get("spec", {})
        if item["kind"] == "EndpointSlice":
            service = ("Service", item["metadata"]["labels"]["kubernetes.io/service-name"])
            ready = [each for each in item["endpoints"] if each["conditions"]["ready"]]
            found[service] |= {f"{each['addresses'][0]}:{item['ports'][0]['port']}": 1 for each in ready}
        elif item["kind"] == "Backend":
            places = [each.get("ip") or each["fqdn"] for each in spec["endpoints"]]
            addresses = [f"{place.get('address') or place['hostname']}:{place['port']}" for place in places]
            found["Backend", item["metadata"]["name"]] |= dict.fromkeys(addresses, 1)
        elif item["kind"] == "ServiceEntry":
            (port,) = spec["ports"]
            weights = {
                f"{each['address']}:{each.get('ports', {}).get(port['name'], port['number'])}": each.get("weight", 1)
                for each in spec["endpoints"]
            }
            for host in spec["hosts"]:
                found["host", host] |= weights
    return found
