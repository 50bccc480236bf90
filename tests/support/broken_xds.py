"""The resources of a fleet, and changes that violate a rule of Envoy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from google.protobuf.message import Message

from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.xds.build.nack_locator import message_of
from lbctl.xds.build.snapshot_cache import Builder
from lbctl.xds.resource import CDS, EDS, LDS, RDS, Resources
from tests.support.xds import load_text

ANY = Proxy("somebody", "envoy", (1, 40))
FLEET = """
version: 1
listeners: {public: {bind: "127.0.0.1:8080"}}
routes:
  chat: {match: {path_prefix: /chat/, hosts: [a.example.com]}, split: {llama: 9, other: 1}}
  rest: {match: {path_prefix: /}, pool: llama, headers: {request: {set: {x-gateway: lbctl}}}}
pools:
  llama:
    replicas: [{name: one, address: "10.0.0.1:80"}, {name: two, address: "10.0.0.2:80"}]
    health: {active: {http: {path: /health}}}
  other: {replicas: [{name: one, address: "10.0.1.1:80"}]}
"""


def built_resources() -> Resources:
    loaded = load_text(FLEET)
    return Builder().build(loaded, Snapshot(loaded.compiled.topology)).resources(ANY)


def _no_weight(message: Any) -> None:
    message.endpoints[0].lb_endpoints[1].load_balancing_weight.value = 0


def _no_address(message: Any) -> None:
    message.endpoints[0].lb_endpoints[0].endpoint.address.Clear()


def _a_name(message: Any) -> None:
    message.endpoints[0].lb_endpoints[1].endpoint.address.socket_address.address = "replica.example"


def _a_large_port(message: Any) -> None:
    message.endpoints[0].lb_endpoints[1].endpoint.address.socket_address.port_value = 70_000


def _no_timeout(message: Any) -> None:
    message.connect_timeout.FromSeconds(0)


def _no_name(message: Any) -> None:
    message.name = ""


def _no_check(message: Any) -> None:
    message.health_checks[0].http_health_check.path = ""


def _no_threshold(message: Any) -> None:
    message.health_checks[0].ClearField("unhealthy_threshold")


def _an_unknown_policy(message: Any) -> None:
    message.lb_policy = 77


def _too_many_percent(message: Any) -> None:
    message.outlier_detection.max_ejection_percent.value = 101


def _no_domains(message: Any) -> None:
    del message.virtual_hosts[0].domains[:]


def _a_domain_twice(message: Any) -> None:
    message.virtual_hosts[1].domains[:] = message.virtual_hosts[0].domains


def _route(message: Any, host: int) -> Any:
    """Return the first route of the fleet; generated routes before it reject invalid requests."""
    return next(item for item in message.virtual_hosts[host].routes if item.HasField("route"))


def _no_cluster(message: Any) -> None:
    _route(message, 0).route.cluster = ""


def _no_path(message: Any) -> None:
    _route(message, 1).match.ClearField("path_specifier")


def _no_action(message: Any) -> None:
    _route(message, 1).ClearField("action")


def _empty_action(message: Any) -> None:
    """Make a message whose bytes are also a valid message of other types."""
    _route(message, 1).route.Clear()
    _route(message, 1).route.SetInParent()


def _a_line_in_a_header(message: Any) -> None:
    _route(message, 0).request_headers_to_add[0].header.key = "x-a\nx-b"


def _no_backoff(message: Any) -> None:
    _route(message, 0).route.retry_policy.retry_back_off.base_interval.Clear()


def _no_filter_name(message: Any) -> None:
    message.filter_chains[0].filters[0].name = ""


def _duplicate_chains(message: Any) -> None:
    message.filter_chains.add().CopyFrom(message.filter_chains[0])


def _not_a_message(message: Any) -> None:
    message.filter_chains[0].filters[0].typed_config.type_url = "type.googleapis.com/envoy.Nothing"


def _error_in_packed_message(message: Any) -> None:
    manager = hcm_pb2.HttpConnectionManager()
    packed = message.filter_chains[0].filters[0].typed_config
    packed.Unpack(manager)
    manager.stat_prefix = ""
    packed.Pack(manager)


BROKEN: list[tuple[str, str, Callable[[Any], None], str, tuple[str, ...]]] = [
    (EDS, "llama", _no_weight, "load_balancing_weight must be at least 1", ("pools", "llama", "replicas", "two")),
    (EDS, "llama", _no_address, "must be an IP address and a port", ("pools", "llama", "replicas", "one")),
    (EDS, "llama", _a_name, "must be an IP address and a port", ("pools", "llama", "replicas", "two")),
    (EDS, "llama", _a_large_port, "must be an IP address and a port", ("pools", "llama", "replicas", "two")),
    (CDS, "llama", _no_timeout, "connect_timeout must be more than 0s", ("pools", "llama")),
    (CDS, "llama", _no_name, "name must have at least 1 character", ("pools", "llama")),
    (CDS, "llama", _no_check, "health_checks[0].http_health_check.path must have at least", ("pools", "llama")),
    (CDS, "llama", _no_threshold, "health_checks[0].unhealthy_threshold must be given", ("pools", "llama")),
    (CDS, "llama", _an_unknown_policy, "lb_policy must be a known value", ("pools", "llama")),
    (CDS, "llama", _too_many_percent, "max_ejection_percent must be at most 100", ("pools", "llama")),
    (RDS, "public", _no_domains, "virtual_hosts[0].domains must have at least 1", ("listeners", "public")),
    (RDS, "public", _a_domain_twice, "'*' is used 2 times", ("listeners", "public")),
    (RDS, "public", _no_cluster, "route.cluster must have at least 1", ("routes", "rest")),
    (RDS, "public", _no_path, "match.path_specifier one of these must be set", ("routes", "chat")),
    (RDS, "public", _no_action, "action one of these must be set", ("routes", "chat")),
    (RDS, "public", _empty_action, "cluster_specifier one of these must be set", ("routes", "chat")),
    (RDS, "public", _a_line_in_a_header, "contains characters that are not allowed in a header", ("routes", "rest")),
    (RDS, "public", _no_backoff, "base_interval must be more than 0s", ("routes", "rest")),
    (LDS, "public", _no_filter_name, "filters[0].name must have at least 1", ("listeners", "public")),
    (LDS, "public", _duplicate_chains, "must be unique", ("listeners", "public")),
    (LDS, "public", _not_a_message, "type_url is not a message type that is allowed here", ("listeners", "public")),
    (LDS, "public", _error_in_packed_message, "typed_config.stat_prefix must have at least 1", ("listeners", "public")),
]
"""Type, name, change, words of the problem, and the path of the problem."""


def broken_message(kind: str, name: str, wrong: Callable[[Any], None]) -> tuple[Message, tuple[Any, ...]]:
    resource = built_resources().of(kind)[name]
    message = message_of(resource)
    wrong(message)
    return message, resource.path
