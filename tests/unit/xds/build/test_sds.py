"""Certificates, keys and authorities reach an Envoy as secrets: named where they are used, sent by themselves."""

from __future__ import annotations

import io
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2, tls_pb2
from google.protobuf.json_format import MessageToJson

from lbctl.base.diagnostics import Diagnostics
from lbctl.ir.proxies import Proxy
from lbctl.ir.secrets import HeaderSecret, Secrets
from lbctl.ir.snapshot import Snapshot
from lbctl.targets.load import Loaded, load
from lbctl.xds.build.nack_locator import message_of
from lbctl.xds.build.snapshot_cache import Builder, CachedSnapshot, UnsoundError
from lbctl.xds.resource import CDS, LDS, SDS, SHORT, TYPES
from tests.support.processes.binaries import require
from tests.support.processes.certs import Authority

ANY = Proxy("somebody", "envoy", (1, 40))
FLEET = """
version: 1
listeners:
  public:
    bind: "127.0.0.1:8443"
    max_connections: 100
    tls:
      certificates:
        - {certificate: tls/a.crt, key: tls/a.key}
        - {certificate: tls/b.crt, key: tls/b.key, hosts: [b.example.com]}
      client_ca: tls/clients.crt
      client_certificate: required
    client_address: {trusted: [10.0.0.0/8]}
routes:
  all: {match: {path_prefix: /}, split: {named: 1, unnamed: 1, bare: 1}}
pools:
  named:
    replicas: [{address: "10.0.0.1:8443"}]
    tls: {ca: tls/replicas.crt, server_name: llama.example.com, certificate: tls/a.crt, key: tls/a.key}
  unnamed:
    replicas: [{address: "10.0.0.2:8443"}]
    tls: {ca: tls/replicas.crt}
  bare:
    replicas: [{address: "10.0.0.3:8443"}]
    tls: {}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    found = {f"tls/{name}.crt": authority.ca.read_bytes() for name in ("clients", "replicas")}
    for name in ("a", "b"):
        pair = authority.issue(f"{name}.example.com")
        found |= {f"tls/{name}.crt": pair.certificate.read_bytes(), f"tls/{name}.key": pair.key.read_bytes()}
    return found


def _loaded(text: str = FLEET) -> Loaded:
    found = Diagnostics()
    made = load(["-"], found, stdin=io.BytesIO(text.encode()))
    assert made is not None, list(map(str, found))
    return made


def _snapshot(made: Loaded, files: dict[str, bytes]) -> Snapshot:
    return Snapshot(made.compiled.topology, secrets=replace(made.secrets, files=files))


def _built(files: dict[str, bytes]) -> CachedSnapshot:
    made = _loaded()
    return Builder().build(made, _snapshot(made, files))


def _unsound(files: dict[str, bytes]) -> list[str]:
    with pytest.raises(UnsoundError) as caught:
        _built(files)
    return [str(item).split("\n")[0] for item in caught.value.problems]


def test_each_file_is_sent_once_under_a_name_of_its_own(files: dict[str, bytes]) -> None:
    secrets = _built(files).resources(ANY).of(SDS)
    assert list(secrets) == [
        "ca:tls/clients.crt",
        "ca:tls/replicas.crt",
        "certificate:tls/a.crt",
        "certificate:tls/b.crt",
    ]
    pair = secret_pb2.Secret.FromString(secrets["certificate:tls/a.crt"].body).tls_certificate
    assert pair.certificate_chain.inline_bytes == files["tls/a.crt"]
    assert pair.private_key.inline_bytes == files["tls/a.key"]
    trust = secret_pb2.Secret.FromString(secrets["ca:tls/clients.crt"].body).validation_context
    assert trust.trusted_ca.inline_bytes == files["tls/clients.crt"]


def test_a_listener_names_its_certificate_and_its_clients_authority(files: dict[str, bytes]) -> None:
    message = listener_pb2.Listener.FromString(_built(files).resources(ANY).of(LDS)["public"].body)
    seen = set()
    for chain in message.filter_chains:
        context = tls_pb2.DownstreamTlsContext()
        chain.transport_socket.typed_config.Unpack(context)
        assert context.require_client_certificate.value
        common = context.common_tls_context
        (pair,) = common.tls_certificate_sds_secret_configs
        assert pair.sds_config.HasField("ads")
        assert common.validation_context_sds_secret_config.name == "ca:tls/clients.crt"
        seen.add((tuple(chain.filter_chain_match.server_names), pair.name))
    assert seen == {(("b.example.com",), "certificate:tls/b.crt"), ((), "certificate:tls/a.crt")}


def test_a_pool_still_asks_for_the_name_in_its_replicas_certificate(files: dict[str, bytes]) -> None:
    clusters = _built(files).resources(ANY).of(CDS)
    contexts = {}
    for name in ("named", "unnamed", "bare"):
        cluster = cluster_pb2.Cluster.FromString(clusters[name].body)
        contexts[name] = tls_pb2.UpstreamTlsContext()
        cluster.transport_socket.typed_config.Unpack(contexts[name])
    both = contexts["named"].common_tls_context.combined_validation_context
    assert both.validation_context_sds_secret_config.name == "ca:tls/replicas.crt"
    (san,) = both.default_validation_context.match_typed_subject_alt_names
    assert san.matcher.exact == "llama.example.com"
    assert contexts["named"].sni == "llama.example.com"
    assert contexts["unnamed"].common_tls_context.validation_context_sds_secret_config.name == "ca:tls/replicas.crt"
    assert not contexts["bare"].common_tls_context.WhichOneof("validation_context_type")


def test_no_key_stands_anywhere_but_in_a_secret(files: dict[str, bytes]) -> None:
    resources = _built(files).resources(ANY)
    others = b"".join(item.body for kind in TYPES if kind != SDS for item in resources.of(kind).values())
    assert b"PRIVATE KEY" not in others
    assert "PRIVATE KEY" not in repr(_snapshot(_loaded(), files).secrets)


def test_a_rotated_certificate_moves_its_secret_and_nothing_else(files: dict[str, bytes], tmp_path: Path) -> None:
    fresh = Authority(tmp_path).issue("a.example.com")
    rotated = {**files, "tls/a.crt": fresh.certificate.read_bytes(), "tls/a.key": fresh.key.read_bytes()}
    made, builder = _loaded(), Builder()
    before = builder.build(made, _snapshot(made, files)).resources(ANY)
    after = builder.build(made, _snapshot(made, rotated)).resources(ANY)
    moved = {
        f"{SHORT[kind]} {name}"
        for kind in TYPES
        for name, item in after.of(kind).items()
        if before.of(kind)[name] is not item
    }
    assert moved == {"sds certificate:tls/a.crt"}


# ── What is not good is not sent ─────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_not_there_is_named_where_the_fleet_names_it(files: dict[str, bytes]) -> None:
    without = {name: data for name, data in files.items() if name not in ("tls/a.key", "tls/clients.crt")}
    found = _unsound(without)
    assert [item.split(": ")[1] for item in found] == [
        "error LB922 listeners.public.tls.certificates[0].key",
        "error LB922 listeners.public.tls.client_ca",
        "error LB922 pools.named.tls.key",
    ]
    assert [int(item.split(":")[1]) for item in found] == [
        _line("key: tls/a.key"),
        _line("client_ca"),
        _line("  named:") + 2,
    ]
    assert "'tls/a.key' cannot be read" in found[0]


def _line(words: str) -> int:
    return FLEET[: FLEET.index(words)].count("\n") + 1


@pytest.mark.parametrize(
    ("wrong", "place", "words"),
    [
        ({"tls/a.key": "tls/b.key"}, "listeners.public.tls.certificates[0].certificate", "do not belong together"),
        ({"tls/b.crt": "tls/b.key"}, "listeners.public.tls.certificates[1].certificate", "no certificate and key"),
        ({"tls/clients.crt": "tls/a.key"}, "listeners.public.tls.client_ca", "no certificate"),
        ({"tls/replicas.crt": ""}, "pools.named.tls.ca", "no certificate"),
    ],
)
def test_files_that_do_not_fit_are_refused_before_a_proxy_refuses_them(
    files: dict[str, bytes], wrong: dict[str, str], place: str, words: str
) -> None:
    found = _unsound({**files, **{name: files.get(other, b"") for name, other in wrong.items()}})
    assert f"error LB920 {place}:" in found[0]
    assert all(words in item and "BEGIN" not in item for item in found)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(files: dict[str, bytes]) -> None:
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key(files["tls/a.key"], None)
    locked = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret"))
    assert all("no certificate and key" in item for item in _unsound({**files, "tls/a.key": locked}))


# ── A real Envoy ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.e2e
def test_a_real_envoy_takes_listeners_and_clusters_that_name_secrets(files: dict[str, bytes], tmp_path: Path) -> None:
    resources = _built(files).resources(ANY)
    bootstrap = bootstrap_pb2.Bootstrap(
        node={"id": "n", "cluster": "c"},
        dynamic_resources={
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
            }
        },
        static_resources={
            "listeners": [message_of(item) for item in resources.of(LDS).values()],
            "clusters": [_control_plane(), *(message_of(item) for item in resources.of(CDS).values())],
        },
    )
    config = tmp_path / "envoy.json"
    config.write_text(MessageToJson(bootstrap, preserving_proto_field_name=True))
    command = [str(require("envoy")), "--mode", "validate", "-l", "error", "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def _control_plane() -> Any:
    place = {"socket_address": {"address": "127.0.0.1", "port_value": 1}}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": place}}]}]
    return cluster_pb2.Cluster(
        name="xds",
        type="STATIC",
        connect_timeout={"seconds": 1},
        load_assignment={"cluster_name": "xds", "endpoints": endpoints},
    )


_HOSTED = """
version: 1
listeners: {public: {bind: "127.0.0.1:8080"}}
routes: {all: {match: {path_prefix: /}, pool: own, fallback: provider}}
pools:
  own: {replicas: [{address: "10.0.0.1:8000"}]}
  provider:
    replicas: [{address: "10.0.0.2:443"}]
    upstream: {host: api.example.com, headers: {authorization: {prefix: "Bearer ", file: key}}}
"""


def test_the_key_of_a_hosted_api_stands_in_a_secret_alone() -> None:
    secrets = Secrets(headers={"key": HeaderSecret("sk-of-provider")})
    loaded = _loaded(_HOSTED)
    built = Builder().build(loaded, Snapshot(loaded.compiled.topology, secrets=secrets))
    resources = built.resources(ANY)
    holding = {
        (SHORT[kind], name): resource.secret
        for kind in TYPES
        for name, resource in resources.of(kind).items()
        if b"sk-of-provider" in resource.body
    }
    assert holding == {("sds", "header:provider/authorization"): True}
    assert resources.secret
