"""Resources that Envoy rejects are detected before they are sent; a real Envoy confirms each case."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from google.protobuf.message import Message

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.targets.load import load
from lbctl.xds.build import validate
from lbctl.xds.build.nack_locator import message_of
from lbctl.xds.build.snapshot_cache import Builder, UnsoundError
from lbctl.xds.resource import CDS, EDS, LDS, RDS, Resources
from tests.support.paths import ROOT
from tests.support.processes.binaries import require
from tests.support.processes.certs import Authority
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


# ── Broken rules, the problems they cause, and the verdict of Envoy ───────────────────────────────────────────────────


def _no_weight(message: Any) -> None:
    message.endpoints[0].lb_endpoints[1].load_balancing_weight.value = 0


def _weights_too_large(message: Any) -> None:
    for item in message.endpoints[0].lb_endpoints:
        item.load_balancing_weight.value = 2**32 - 1


def _no_address(message: Any) -> None:
    message.endpoints[0].lb_endpoints[0].endpoint.address.Clear()


def _a_name(message: Any) -> None:
    message.endpoints[0].lb_endpoints[1].endpoint.address.socket_address.address = "replica.example"


def _a_large_port(message: Any) -> None:
    message.endpoints[0].lb_endpoints[1].endpoint.address.socket_address.port_value = 70_000


def _priority_gap(message: Any) -> None:
    message.endpoints[0].priority = 1


def _twice_in_one_place(message: Any) -> None:
    message.endpoints[0].lb_endpoints[1].endpoint.address.socket_address.address = "10.0.0.1"


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
    """The result is byte for byte a valid message of other types."""
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


_BROKEN: list[tuple[str, str, Callable[[Any], None], str, tuple[str, ...]]] = [
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
    (RDS, "public", _a_domain_twice, "'*' stands 2 times", ("listeners", "public")),
    (RDS, "public", _no_cluster, "route.cluster must have at least 1", ("routes", "rest")),
    (RDS, "public", _no_path, "match.path_specifier one of these must be given", ("routes", "chat")),
    (RDS, "public", _no_action, "action one of these must be given", ("routes", "chat")),
    (RDS, "public", _empty_action, "cluster_specifier one of these must be given", ("routes", "chat")),
    (RDS, "public", _a_line_in_a_header, "holds characters that a header cannot have", ("routes", "rest")),
    (RDS, "public", _no_backoff, "base_interval must be more than 0s", ("routes", "rest")),
    (LDS, "public", _no_filter_name, "filters[0].name must have at least 1", ("listeners", "public")),
    (LDS, "public", _duplicate_chains, "must be told apart", ("listeners", "public")),
    (LDS, "public", _not_a_message, "type_url is no message that this can be", ("listeners", "public")),
    (LDS, "public", _error_in_packed_message, "typed_config.stat_prefix must have at least 1", ("listeners", "public")),
]


def broken_message(kind: str, name: str, wrong: Callable[[Any], None]) -> tuple[Message, tuple[Any, ...]]:
    resource = built_resources().of(kind)[name]
    message = message_of(resource)
    wrong(message)
    return message, resource.path


def problems_of(kind: str, message: Message, path: tuple[Any, ...]) -> list[tuple[str, tuple[Any, ...]]]:
    problems = [*validate.examine(kind, message, path).problems]
    problems += validate.examine_addresses(message, path) if kind == EDS else ()
    return [(item.message, item.path) for item in problems]


@pytest.mark.parametrize(("kind", "name", "wrong", "words", "path"), _BROKEN)
def test_a_broken_rule_is_reported_with_its_path(
    kind: str, name: str, wrong: Callable[[Any], None], words: str, path: tuple[str, ...]
) -> None:
    broken, broken_path = broken_message(kind, name, wrong)
    problems = problems_of(kind, broken, broken_path)
    assert any(words in message and position == path for message, position in problems), problems


@pytest.mark.e2e
@pytest.mark.parametrize(("kind", "name", "wrong", "words", "path"), _BROKEN)
def test_envoy_rejects_the_broken_message_too(
    kind: str, name: str, wrong: Callable[[Any], None], words: str, path: tuple[str, ...], tmp_path: Path
) -> None:
    broken, _ = broken_message(kind, name, wrong)
    assert envoy_error(tmp_path, {(kind, name): broken}) != ""


@pytest.mark.e2e
def test_envoy_accepts_the_built_resources(tmp_path: Path) -> None:
    assert envoy_error(tmp_path, {}) == ""


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_priority_gap, "no rank may be left out"),
        (_twice_in_one_place, "stands twice: 10.0.0.1, port 80"),
        (_weights_too_large, "sum is at most 4294967295"),
    ],
)
def test_messages_envoy_would_misread_are_reported(wrong: Callable[[Any], None], words: str) -> None:
    assert any(words in message for message, _ in problems_of(EDS, *broken_message(EDS, "llama", wrong)))


def test_built_resources_have_no_problems() -> None:
    resources = built_resources()
    for kind in (CDS, EDS, LDS, RDS):
        for item in resources.of(kind).values():
            assert problems_of(kind, message_of(item), item.path) == []


def envoy_error(directory: Path, others: dict[tuple[str, str], Message]) -> str:
    """Return the error of a real Envoy for all resources, with `others` in their places; empty if it accepts them."""
    resources = built_resources()

    def messages(kind: str) -> dict[str, Any]:
        return {name: others.get((kind, name)) or message_of(item) for name, item in resources.of(kind).items()}

    bootstrap = bootstrap_pb2.Bootstrap()
    for name, cluster in messages(CDS).items():
        cluster.ClearField("eds_cluster_config")
        cluster.type = cluster_pb2.Cluster.STATIC
        cluster.load_assignment.CopyFrom(messages(EDS)[name])
        bootstrap.static_resources.clusters.append(cluster)
    for name, listener in messages(LDS).items():
        for chain in listener.filter_chains:
            manager = hcm_pb2.HttpConnectionManager()
            if chain.filters[0].typed_config.Unpack(manager):
                manager.route_config.CopyFrom(messages(RDS)[name])
                chain.filters[0].typed_config.Pack(manager)
        bootstrap.static_resources.listeners.append(listener)
    return validation_error(directory, bootstrap)


def validation_error(directory: Path, bootstrap: Message) -> str:
    """Return the error of `envoy --mode validate`. The file is binary, because JSON cannot express all errors."""
    config = directory / "envoy.pb"
    config.write_bytes(bootstrap.SerializeToString())
    command = [str(require("envoy")), "--mode", "validate", "-l", "error", "-c", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return "" if result.returncode == 0 else result.stderr or "refused"


# ── References between resources ───────────────────────────────────────────────────────────────────────────────────


def test_a_dangling_reference_is_reported_at_its_source() -> None:
    needs = [((CDS, "gone"), ("listeners", "public")), ((CDS, "llama"), ("listeners", "public"))]
    (problem,) = validate.missing(needs, {(CDS, "llama")})
    assert problem.path == ("listeners", "public")
    assert "it refers to 'gone', and there is none (CDS)" in problem.message


def test_references_of_every_kind_are_collected(tmp_path: Path) -> None:
    text = """
version: 1
listeners:
  l: {bind: "127.0.0.1:80", tracing: {otlp: "127.0.0.1:4317", sample: 10%, service: s},
      tls: {certificates: [{certificate: a.crt, key: a.key}], client_ca: ca.crt}}
routes:
  r: {match: {path_prefix: /}, split: {a: 1, b: 1}, mirror: {pool: c}, fallback: d}
  s: {match: {path_prefix: /s}, pool: a}
pools:
  a: {replicas: [{address: "10.0.0.1:80"}], tls: {ca: ca.crt, server_name: x.example.com}}
  b: {replicas: [{address: "10.0.0.2:80"}]}
  c: {replicas: [{address: "10.0.0.3:80"}]}
  d: {replicas: [{address: "10.0.0.4:80"}]}
"""
    loaded = load_text(text)
    authority = Authority(tmp_path)
    pair = authority.issue("x.example.com")
    files = {"a.crt": pair.certificate, "a.key": pair.key, "ca.crt": authority.ca}
    secrets = replace(loaded.secrets, files={name: path.read_bytes() for name, path in files.items()})
    resources = Builder().build(loaded, Snapshot(loaded.compiled.topology, secrets=secrets)).resources(ANY)
    needs = {
        name: {
            f"{kind.rpartition('.')[2]} {of}"
            for kind, of in validate.examine(item.type_url, message_of(item), item.path).needs
        }
        for where in (LDS, RDS, CDS)
        for name, item in resources.of(where).items()
        for name in [f"{where.rpartition('.')[2]} {name}"]
    }
    assert needs == {
        "Listener l": {"RouteConfiguration l", "Secret certificate:a.crt", "Secret ca:ca.crt", "Cluster tracing|l"},
        "RouteConfiguration l": {"Cluster a|else|d", "Cluster b|else|d", "Cluster c", "Cluster a"},
        "Cluster a": {"ClusterLoadAssignment a", "Secret ca:ca.crt"},
        "Cluster b": {"ClusterLoadAssignment b"},
        "Cluster c": {"ClusterLoadAssignment c"},
        "Cluster d": {"ClusterLoadAssignment d"},
        "Cluster a|else|d": {"Cluster a", "Cluster d"},
        "Cluster b|else|d": {"Cluster b", "Cluster d"},
        "Cluster tracing|l": set(),
    }


# ── No false alarms ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for folder in (ROOT / "tests" / "golden", ROOT / "examples")
        for path in folder.rglob("*.yaml")
        if "version: 1" in path.read_text() and "invalid" not in str(path)
    ),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_valid_fleets_have_no_problems(path: Path, tmp_path: Path) -> None:
    """Files that the fleet refers to do not exist here, so only LB922 is allowed."""
    diagnostics = Diagnostics()
    loaded = load([str(path)], diagnostics)
    assert loaded is not None, list(diagnostics)
    problems: tuple[Diagnostic, ...] = ()
    try:
        Builder().build(loaded, Snapshot(loaded.compiled.topology, secrets=loaded.secrets))
    except UnsoundError as error:
        problems = error.problems
    assert {item.code for item in problems} <= {"LB922"}
