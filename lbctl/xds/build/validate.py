"""Predicts whether an Envoy will accept the built messages: each on its own, and the references between them.

Messages are checked against the rules in Envoy's own definitions (`field_rules`). Endpoints are numerous and similar,
so they are checked by specialised code. Some properties can be checked only by Envoy, such as whether RE2 accepts a
regular expression or whether a port is free. These checks are left to Envoy, whose response is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.message import Message

from lbctl.base.diagnostics import Diagnostic, Path, show
from lbctl.base.hosts import is_ip
from lbctl.targets.envoy.bootstrap import CONTROL_PLANE
from lbctl.xds.build import nack_locator
from lbctl.xds.build.field_rules import Broken, FieldRules, Reference
from lbctl.xds.build.key_pairs import authority_problem, crl_problem, pair_problem
from lbctl.xds.resource import CDS, EDS, RDS, SDS, SHORT

UNSOUND = "LB920"
UNREADABLE = "LB922"

_SUM = 2**32 - 1
_PORTS = 65_535


class Findings(NamedTuple):
    """The problems with a message and the resources that it refers to."""

    problems: tuple[Diagnostic, ...]
    """Problems with the message."""
    needs: frozenset[Reference]
    """Resources that it refers to."""


def examine(type_url: str, message: Message, path: Path) -> Findings:
    """Check one message. Return LB920 for each value that Envoy would reject or silently drop.

    `path` is the part of the fleet that the message was built from. For endpoints, only the weights are checked here;
    see `examine_addresses` for the rest.
    """
    if type_url == EDS:
        return Findings(tuple(_problem(EDS, message, path, *each) for each in _weight_problems(message)), frozenset())
    examined = _rules().examine(message)
    broken = (*examined.broken, *_duplicates(message), *_key_problems(message))
    return Findings(tuple(_problem(type_url, message, path, *each) for each in broken), frozenset(examined.needs))


@cache
def _rules() -> FieldRules:
    return FieldRules(_REFERENCE_EXTRACTORS)


def unsound(reason: str, path: Path) -> Diagnostic:
    """Return LB920: Envoy would reject the message built from the value at `path`, for this reason."""
    return Diagnostic(UNSOUND, f"Envoy would reject the configuration generated from this: {reason}", path=path)


def unreadable(file: str, path: Path) -> Diagnostic:
    """Return LB922: a file with content for the proxies cannot be read."""
    message = f"{show(file)} cannot be read, but the proxies need its content"
    return Diagnostic(UNREADABLE, message, path=path, hint="put the file there, readable for lbctl")


def missing(needs: Iterable[tuple[Reference, Path]], defined: Container[Reference]) -> Iterator[Diagnostic]:
    """Yield LB920 for each reference to a resource that does not exist."""
    for (type_url, name), path in needs:
        if (type_url, name) not in defined:
            yield unsound(f"it refers to {name!r}, which does not exist ({SHORT[type_url].upper()})", path)


def _problem(type_url: str, message: Message, path: Path, field_path: str, reason: str) -> Diagnostic:
    return unsound(f"{field_path} {reason}", nack_locator.within(type_url, message, field_path) or path)


# ── References to other resources ────────────────────────────────────────────────────────────────────────────────────


def _route_action(part: Any) -> Iterator[Reference]:
    if part.WhichOneof("cluster_specifier") == "cluster":
        yield CDS, part.cluster
    yield from ((CDS, item.name) for item in part.weighted_clusters.clusters)
    yield from ((CDS, item.cluster) for item in part.request_mirror_policies)


def _grpc_cluster(part: Any) -> Iterator[Reference]:
    """Yield the cluster that a gRPC service refers to.

    The control plane's cluster is part of every Envoy's bootstrap.
    """
    if part.cluster_name != CONTROL_PLANE:
        yield CDS, part.cluster_name


def _secret(part: Any) -> Iterator[Reference]:
    """Yield the secret if it has a source. Secrets without a source are part of every Envoy's bootstrap."""
    if part.HasField("sds_config"):
        yield SDS, part.name


_REFERENCE_EXTRACTORS: dict[str, Callable[[Any], Iterable[Reference]]] = {
    "envoy.config.route.v3.RouteAction": _route_action,
    "envoy.config.core.v3.GrpcService.EnvoyGrpc": _grpc_cluster,
    "envoy.config.cluster.v3.Cluster.EdsClusterConfig": lambda part: [(EDS, part.service_name)],
    "envoy.extensions.clusters.aggregate.v3.ClusterConfig": lambda part: [(CDS, name) for name in part.clusters],
    "envoy.extensions.filters.network.http_connection_manager.v3.Rds": lambda part: [(RDS, part.route_config_name)],
    "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig": _secret,
}


def _duplicates(message: Any) -> Iterator[Broken]:
    """Yield duplicates among names that must be unique within a message."""
    if message.DESCRIPTOR.name == "RouteConfiguration":
        yield from _duplicated("virtual_hosts", (item.name for item in message.virtual_hosts))
        yield from _duplicated(
            "virtual_hosts.domains", (name for item in message.virtual_hosts for name in item.domains)
        )
    elif message.DESCRIPTOR.name == "Listener":
        chains = message.filter_chains
        yield from _duplicated("filter_chains", (item.name for item in chains))
        matches = (item.filter_chain_match.SerializeToString(deterministic=True) for item in chains)
        yield from _duplicated("filter_chains.filter_chain_match", matches)


def _duplicated(field_path: str, names: Iterable[str | bytes]) -> Iterator[Broken]:
    counted = Counter(names)
    yield from ((field_path, f"must be unique: {name!r} is used {n} times") for name, n in counted.items() if n > 1)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _key_problems(message: Any) -> Iterator[Broken]:
    if message.DESCRIPTOR.name != "Secret" or message.HasField("generic_secret"):
        return
    if message.HasField("tls_certificate"):
        pair = message.tls_certificate
        reason = pair_problem(pair.certificate_chain.inline_bytes, pair.private_key.inline_bytes)
    else:
        trust = message.validation_context
        reason = authority_problem(trust.trusted_ca.inline_bytes)
        if not reason and trust.HasField("crl"):
            reason = crl_problem(trust.crl.inline_bytes)
    if reason:
        yield message.name, f"cannot be used: {reason}"


# ── Endpoints ────────────────────────────────────────────────────────────────────────────────────────────────────────


def examine_addresses(message: Any, path: Path) -> tuple[Diagnostic, ...]:
    """Return LB920 for each problem with the endpoints, apart from their weights."""
    return tuple(_problem(EDS, message, path, field_path, reason) for field_path, reason in _address_problems(message))


def _address_problems(message: Any) -> Iterator[Broken]:
    if not message.cluster_name:
        yield "cluster_name", "must be given"
    used_addresses: set[tuple[str, int]] = set()
    for index, group in enumerate(message.endpoints):
        if group.priority != index:
            yield f"endpoints[{index}].priority", f"must be {index}: priorities must be consecutive"
        for number, item in enumerate(group.lb_endpoints):
            reason = _address_problem(item.endpoint.address, used_addresses)
            if reason:
                yield f"endpoints[{index}].lb_endpoints[{number}].endpoint.address", reason


def _weight_problems(message: Any) -> Iterator[Broken]:
    for index, group in enumerate(message.endpoints):
        weights = [item.load_balancing_weight.value for item in group.lb_endpoints]
        if sum(weights) > _SUM:
            yield f"endpoints[{index}].lb_endpoints", f"must have weights whose sum is at most {_SUM}"
        if min(weights, default=1) < 1:
            number = weights.index(min(weights))
            yield f"endpoints[{index}].lb_endpoints[{number}].load_balancing_weight", "must be at least 1"


def _address_problem(address: Any, used_addresses: set[tuple[str, int]]) -> str:
    if address.WhichOneof("address") == "pipe":
        address_and_port = (address.pipe.path, 0)
        reason = "" if address.pipe.path else "must have a path"
    else:
        address_and_port = (address.socket_address.address, address.socket_address.port_value)
        reason = (
            ""
            if is_ip(address_and_port[0]) and 0 < address_and_port[1] <= _PORTS
            else f"must be an IP address and a port, not {address_and_port}"
        )
    if address_and_port in used_addresses:
        return f"is used twice: {address_and_port[0]}, port {address_and_port[1]}"
    used_addresses.add(address_and_port)
    return reason
