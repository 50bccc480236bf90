from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.apply.placeholders import stand_in
from lbctl.ir.address import Address
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, View, view
from tests.support.fleet import compiled

FLEET = """\
version: 1
listeners:
  l:
    bind: "203.0.113.1:443"
    tls:
      certificates: [{certificate: tls/a.crt, key: tls/a.key}, {certificate: tls/b.crt, key: tls/b.key}]
      client_ca: tls/ca.crt
    access_log: {path: /var/log/nowhere/access.log}
    tracing: {otlp: "collector.nowhere:4317"}
  m: {bind: "[2001:db8::1]:80"}
pools:
  p:
    replicas:
      - {name: named, address: "replica.nowhere:8000"}
      - {name: v4, address: "10.0.0.1:8000"}
      - {name: v6, address: "[2001:db8::2]:8000"}
      - {name: socket, address: "unix:/run/replica.sock"}
    tls: {ca: tls/replicas.crt, certificate: /etc/client.crt, key: /etc/client.key}
routes:
  r:
    pool: p
    auth:
      api_keys: {file: secrets/keys.yaml}
      jwt: {issuer: i, jwks_file: secrets/jwks.json}
"""


@pytest.fixture
def original() -> View:
    return view(Snapshot(compiled(FLEET).topology), Proxy("p", "nginx", (1, 22)))


def no_file(_path: str) -> None:
    """Return None: no file of the fleet exists."""


def test_listeners_move_to_the_private_directory(original: View, tmp_path: Path) -> None:
    replaced = stand_in(original, tmp_path, no_file)
    paths = [item.bind.path for item in replaced.listeners]
    assert len(set(paths)) == 2
    assert all(Path(path).parent == tmp_path and len(path) < 104 for path in paths)
    assert replaced.listeners[0].access_log.path.startswith(str(tmp_path))


def test_log_to_standard_output_is_kept(original: View, tmp_path: Path) -> None:
    assert stand_in(original, tmp_path, no_file).listeners[1].access_log.path is None


def test_host_names_are_replaced_and_addresses_kept(original: View, tmp_path: Path) -> None:
    replaced = stand_in(original, tmp_path, no_file)
    assert [item.address for item in replaced.pools["p"].replicas] == [
        Address("127.0.0.1", 8000), Address(path="/run/replica.sock"), Address("10.0.0.1", 8000),
        Address("2001:db8::2", 8000),
    ]  # fmt: skip
    tracing = replaced.listeners[0].tracing
    assert tracing is not None
    assert tracing.otlp == Address("127.0.0.1", 4317)


def test_missing_certificates_are_replaced_by_valid_ones(original: View, tmp_path: Path) -> None:
    replaced = stand_in(original, tmp_path, no_file)
    tls = replaced.listeners[0].tls
    assert tls is not None
    for pair in tls.certificates:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key)
    ssl.create_default_context(cafile=tls.client_ca)
    to_replicas = replaced.pools["p"].tls
    assert to_replicas is not None
    assert str(to_replicas.certificate).startswith(str(tmp_path))
    auth = replaced.routes["r"].auth
    assert auth is not None
    assert auth.api_keys is not None
    assert Path(auth.api_keys.file).is_file()


def test_missing_file_with_certificate_and_key_is_replaced(original: View, tmp_path: Path) -> None:
    tls = original.listeners[0].tls
    assert tls is not None
    joined = replace(tls, certificates=(replace(tls.certificates[0], certificate="tls/a.pem", key="tls/a.pem"),))
    view_of_one_file = replace(original, listeners=(replace(original.listeners[0], tls=joined),))
    replaced = stand_in(view_of_one_file, tmp_path, no_file).listeners[0].tls
    assert replaced is not None
    (pair,) = replaced.certificates
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key)


def test_existing_files_are_used_but_not_half_a_pair(original: View, tmp_path: Path) -> None:
    here = {path: Path("/here") / path for path in ("tls/a.crt", "tls/a.key", "tls/b.crt", "tls/ca.crt")}
    tls = stand_in(original, tmp_path, here.get).listeners[0].tls
    assert tls is not None
    assert (tls.certificates[0].certificate, tls.certificates[0].key) == ("/here/tls/a.crt", "/here/tls/a.key")
    assert tls.client_ca == "/here/tls/ca.crt"
    assert tls.certificates[1].certificate.startswith(str(tmp_path))
    assert tls.certificates[1].key.startswith(str(tmp_path))


def test_all_other_settings_are_unchanged(original: View, tmp_path: Path) -> None:
    replaced = stand_in(original, tmp_path, no_file)
    listeners = tuple(
        replace(item, bind=was.bind, tls=was.tls, access_log=was.access_log, tracing=was.tracing)
        for item, was in zip(replaced.listeners, original.listeners, strict=True)
    )
    addresses = {item.name: item.address for item in original.pools["p"].replicas}
    replicas = tuple(replace(item, address=addresses[item.name]) for item in replaced.pools["p"].replicas)
    pools = {"p": replace(replaced.pools["p"], replicas=replicas, tls=original.pools["p"].tls)}
    routes = {"r": replace(replaced.routes["r"], auth=original.routes["r"].auth)}
    assert replace(replaced, listeners=listeners, pools=pools, routes=routes) == original


def test_files_are_written_only_to_the_private_directory(original: View, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    stand_in(original, tmp_path / "private", no_file)
    assert [item.name for item in tmp_path.iterdir()] == ["private"]
