"""Whether an Envoy would take what is built for it: each message by itself, and what the messages say of each other.

A message is held to the rules of Envoy's own definitions (`rules`). Endpoints are many and alike, and what can be wrong
with one is known: they are looked at in one pass of their own. What only Envoy can judge (whether RE2 takes a regular
expression, whether a port is free) is left to it, and its answer is recorded, not foreseen.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.message import Message

from lbctl.base.diagnostics import Diagnostic, Path, show
from lbctl.xds import refusals
from lbctl.xds.keys import authority_problem, pair_problem
from lbctl.xds.resource import CDS, EDS, RDS, SDS, SHORT
from lbctl.xds.rules import Broken, Reference, Rules

UNSOUND = "LB920"
UNREADABLE = "LB922"

_SUM = 2**32 - 1
_PORTS = 65_535


class Findings(NamedTuple):
    problems: tuple[Diagnostic, ...]
    needs: frozenset[Reference]


def examine(type_url: str, message: Message, path: Path) -> Findings:
    """LB920 for everything that would be refused, or that Envoy would silently drop, and what the message refers to.
    `path`: what of the fleet it was made from. Of endpoints only the weights are looked at (`examine_places`)."""
    if type_url == EDS:
        return Findings(tuple(_problem(EDS, message, path, *each) for each in _weights(message)), frozenset())
    found = _rules().examine(message)
    broken = (*found.broken, *_doubles(message), *_keys(message))
    return Findings(tuple(_problem(type_url, message, path, *each) for each in broken), frozenset(found.needs))


@cache
def _rules() -> Rules:
    return Rules(_LOOKS)


def unsound(words: str, path: Path) -> Diagnostic:
    return Diagnostic(UNSOUND, f"an Envoy would refuse what is made of this: {words}", path=path)


def unreadable(file: str, path: Path) -> Diagnostic:
    """LB922: what a proxy is to get the content of."""
    message = f"{show(file)} cannot be read, and the proxies are to get what is in it"
    return Diagnostic(UNREADABLE, message, path=path, hint="put the file there, readable for lbctl")


def missing(needs: Iterable[tuple[Reference, Path]], there: Container[Reference]) -> Iterator[Diagnostic]:
    """LB920 for each reference that leads nowhere."""
    for (type_url, name), path in needs:
        if (type_url, name) not in there:
            yield unsound(f"it refers to {name!r}, and there is none ({SHORT[type_url].upper()})", path)


def _problem(type_url: str, message: Message, path: Path, way: str, words: str) -> Diagnostic:
    return unsound(f"{way} {words}", refusals.within(type_url, message, way) or path)


# ── What a message says of others ────────────────────────────────────────────────────────────────────────────────────


def _route_action(part: Any) -> Iterator[Reference]:
    if part.WhichOneof("cluster_specifier") == "cluster":
        yield CDS, part.cluster
    yield from ((CDS, item.name) for item in part.weighted_clusters.clusters)
    yield from ((CDS, item.cluster) for item in part.request_mirror_policies)


_LOOKS: dict[str, Callable[[Any], Iterable[Reference]]] = {
    "envoy.config.route.v3.RouteAction": _route_action,
    "envoy.config.core.v3.GrpcService.EnvoyGrpc": lambda part: [(CDS, part.cluster_name)],
    "envoy.config.cluster.v3.Cluster.EdsClusterConfig": lambda part: [(EDS, part.service_name)],
    "envoy.extensions.clusters.aggregate.v3.ClusterConfig": lambda part: [(CDS, name) for name in part.clusters],
    "envoy.extensions.filters.network.http_connection_manager.v3.Rds": lambda part: [(RDS, part.route_config_name)],
    "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig": lambda part: [(SDS, part.name)],
}


def _doubles(message: Any) -> Iterator[Broken]:
    """Names that must be one's own within a message."""
    if message.DESCRIPTOR.name == "RouteConfiguration":
        yield from _twice("virtual_hosts", (item.name for item in message.virtual_hosts))
        yield from _twice("virtual_hosts.domains", (name for item in message.virtual_hosts for name in item.domains))
    elif message.DESCRIPTOR.name == "Listener":
        chains = message.filter_chains
        yield from _twice("filter_chains", (item.name for item in chains))
        matches = (item.filter_chain_match.SerializeToString(deterministic=True) for item in chains)
        yield from _twice("filter_chains.filter_chain_match", matches)


def _twice(way: str, names: Iterable[str | bytes]) -> Iterator[Broken]:
    counted = Counter(names)
    yield from ((way, f"must be told apart: {name!r} stands {n} times") for name, n in counted.items() if n > 1)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _keys(message: Any) -> Iterator[Broken]:
    if message.DESCRIPTOR.name != "Secret":
        return
    if message.HasField("tls_certificate"):
        pair = message.tls_certificate
        words = pair_problem(pair.certificate_chain.inline_bytes, pair.private_key.inline_bytes)
    else:
        words = authority_problem(message.validation_context.trusted_ca.inline_bytes)
    if words:
        yield message.name, f"cannot be used: {words}"


# ── Endpoints ────────────────────────────────────────────────────────────────────────────────────────────────────────


def examine_places(message: Any, path: Path) -> tuple[Diagnostic, ...]:
    """LB920 for what is wrong with endpoints, whatever their weights."""
    return tuple(_problem(EDS, message, path, way, words) for way, words in _places(message))


def _places(message: Any) -> Iterator[Broken]:
    if not message.cluster_name:
        yield "cluster_name", "must be given"
    taken: set[tuple[str, int]] = set()
    for index, group in enumerate(message.endpoints):
        if group.priority != index:
            yield f"endpoints[{index}].priority", f"must be {index}: no rank may be left out"
        for number, item in enumerate(group.lb_endpoints):
            words = _place(item.endpoint.address, taken)
            if words:
                yield f"endpoints[{index}].lb_endpoints[{number}].endpoint.address", words


def _weights(message: Any) -> Iterator[Broken]:
    for index, group in enumerate(message.endpoints):
        found = [item.load_balancing_weight.value for item in group.lb_endpoints]
        if sum(found) > _SUM:
            yield f"endpoints[{index}].lb_endpoints", f"must have weights whose sum is at most {_SUM}"
        if min(found, default=1) < 1:
            number = found.index(min(found))
            yield f"endpoints[{index}].lb_endpoints[{number}].load_balancing_weight", "must be at least 1"


def _place(address: Any, taken: set[tuple[str, int]]) -> str:
    if address.WhichOneof("address") == "pipe":
        place = (address.pipe.path, 0)
        words = "" if address.pipe.path else "must have a path"
    else:
        place = (address.socket_address.address, address.socket_address.port_value)
        words = "" if _is_ip(place[0]) and 0 < place[1] <= _PORTS else f"must be an IP address and a port, not {place}"
    if place in taken:
        return f"stands twice: {place[0]}, port {place[1]}"
    taken.add(place)
    return words


def _is_ip(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except (OSError, ValueError):
        return False
    return True
