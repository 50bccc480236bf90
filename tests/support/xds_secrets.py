"""A fleet whose certificates, keys and CAs become xDS secrets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lbctl.ir.snapshot import Snapshot
from lbctl.targets.load import Loaded
from lbctl.xds.build.snapshot_cache import Builder, CachedSnapshot
from tests.support.processes.certs import Authority
from tests.support.xds import load_text

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


def issued_files(directory: Path) -> dict[str, bytes]:
    """Return the content of each file that the fleet names."""
    authority = Authority(directory)
    contents = {f"tls/{name}.crt": authority.ca.read_bytes() for name in ("clients", "replicas")}
    for name in ("a", "b"):
        pair = authority.issue(f"{name}.example.com")
        contents |= {f"tls/{name}.crt": pair.certificate.read_bytes(), f"tls/{name}.key": pair.key.read_bytes()}
    return contents


def snapshot_of(loaded: Loaded, files: dict[str, bytes]) -> Snapshot:
    return Snapshot(loaded.compiled.topology, secrets=replace(loaded.secrets, files=files))


def built(files: dict[str, bytes]) -> CachedSnapshot:
    loaded = load_text(FLEET)
    return Builder().build(loaded, snapshot_of(loaded, files))
