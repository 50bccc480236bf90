"""Certificates, keys and CAs as secrets: other resources refer to them by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2, tls_pb2

from lbctl.ir.proxies import Proxy
from lbctl.ir.secrets import HeaderSecret, Secrets
from lbctl.ir.snapshot import Snapshot
from lbctl.xds.build.snapshot_cache import Builder, UnsoundError
from lbctl.xds.resource import CDS, LDS, SDS, SHORT, TYPES
from tests.support.fleets import fleet_text, pool, replica
from tests.support.processes.certs import Authority
from tests.support.xds import load_text
from tests.support.xds_secrets import FLEET, built, issued_files, snapshot_of

ANY = Proxy("somebody", "envoy", (1, 40))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return issued_files(tmp_path_factory.mktemp("tls"))


def problems_of(files: dict[str, bytes]) -> list[str]:
    with pytest.raises(UnsoundError) as caught:
        built(files)
    return [str(item).split("\n")[0] for item in caught.value.problems]


def test_each_file_is_one_named_secret(files: dict[str, bytes]) -> None:
    secrets = built(files).resources(ANY).of(SDS)
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


def test_a_listener_refers_to_its_certificate_and_client_ca(files: dict[str, bytes]) -> None:
    message = listener_pb2.Listener.FromString(built(files).resources(ANY).of(LDS)["public"].body)
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


def test_a_pool_still_verifies_the_server_name(files: dict[str, bytes]) -> None:
    clusters = built(files).resources(ANY).of(CDS)
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


def test_private_keys_are_only_in_secrets(files: dict[str, bytes]) -> None:
    resources = built(files).resources(ANY)
    others = b"".join(item.body for kind in TYPES if kind != SDS for item in resources.of(kind).values())
    assert b"PRIVATE KEY" not in others
    assert "PRIVATE KEY" not in repr(snapshot_of(load_text(FLEET), files).secrets)


def test_a_rotated_certificate_changes_only_its_secret(files: dict[str, bytes], tmp_path: Path) -> None:
    fresh = Authority(tmp_path).issue("a.example.com")
    rotated = {**files, "tls/a.crt": fresh.certificate.read_bytes(), "tls/a.key": fresh.key.read_bytes()}
    loaded, builder = load_text(FLEET), Builder()
    before = builder.build(loaded, snapshot_of(loaded, files)).resources(ANY)
    after = builder.build(loaded, snapshot_of(loaded, rotated)).resources(ANY)
    moved = {
        f"{SHORT[kind]} {name}"
        for kind in TYPES
        for name, item in after.of(kind).items()
        if before.of(kind)[name] is not item
    }
    assert moved == {"sds certificate:tls/a.crt"}


# ── Problems ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_file_is_reported_where_it_is_named(files: dict[str, bytes]) -> None:
    without = {name: data for name, data in files.items() if name not in ("tls/a.key", "tls/clients.crt")}
    problems = problems_of(without)
    assert [item.split(": ")[1] for item in problems] == [
        "error LB922 listeners.public.tls.certificates[0].key",
        "error LB922 listeners.public.tls.client_ca",
        "error LB922 pools.named.tls.key",
    ]
    assert [int(item.split(":")[1]) for item in problems] == [
        line_of("key: tls/a.key"),
        line_of("client_ca"),
        line_of("  named:") + 2,
    ]
    assert "'tls/a.key' cannot be read" in problems[0]


def line_of(words: str) -> int:
    return FLEET[: FLEET.index(words)].count("\n") + 1


@pytest.mark.parametrize(
    ("wrong", "place", "words"),
    [
        ({"tls/a.key": "tls/b.key"}, "listeners.public.tls.certificates[0].certificate", "do not match"),
        ({"tls/b.crt": "tls/b.key"}, "listeners.public.tls.certificates[1].certificate", "do not contain a PEM"),
        ({"tls/clients.crt": "tls/a.key"}, "listeners.public.tls.client_ca", "not a PEM certificate"),
        ({"tls/replicas.crt": ""}, "pools.named.tls.ca", "not a PEM certificate"),
    ],
)
def test_mismatched_files_are_rejected(files: dict[str, bytes], wrong: dict[str, str], place: str, words: str) -> None:
    problems = problems_of({**files, **{name: files.get(other, b"") for name, other in wrong.items()}})
    assert f"error LB920 {place}:" in problems[0]
    assert all(words in item and "BEGIN" not in item for item in problems)


def test_an_encrypted_key_is_rejected_without_a_prompt(files: dict[str, bytes]) -> None:
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key(files["tls/a.key"], None)
    locked = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret"))
    assert all(
        "do not contain a PEM certificate and key" in item for item in problems_of({**files, "tls/a.key": locked})
    )


def test_the_key_of_a_hosted_api_is_only_in_a_secret() -> None:
    secrets = Secrets(headers={"key": HeaderSecret("sk-of-provider")})
    upstream = {"host": "api.example.com", "headers": {"authorization": {"prefix": "Bearer ", "file": "key"}}}
    provider = pool(replica(address="10.0.0.2:443"), upstream=upstream)
    loaded = load_text(fleet_text(route={"fallback": "provider"}, pools={"provider": provider}))
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
