"""Lists of revoked client certificates: sent with their authority, and the last good one stays."""

from __future__ import annotations

from pathlib import Path

from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from lbctl.base.diagnostics import Diagnostics
from lbctl.ir.proxies import Proxy
from lbctl.ir.secrets import Secrets
from lbctl.ir.snapshot import Snapshot
from lbctl.serve.fleet.certificates import CertificateCache
from lbctl.targets.load import load
from lbctl.xds.build.snapshot_cache import Builder
from lbctl.xds.resource import SDS
from tests.support.processes.certs import Authority

_FLEET = """\
version: 1
listeners:
  public:
    bind: "127.0.0.1:8443"
    tls: {certificates: [{certificate: a.crt, key: a.key}], client_ca: ca.crt, client_crl: ca.crl}
routes: {all: {match: {path_prefix: /}, pool: p}}
pools: {p: {replicas: [{address: "10.0.0.1:80"}]}}
proxies: {edge: {kind: envoy}}
"""


def test_a_list_is_sent_with_its_authority_and_a_bad_one_leaves_the_last_good(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    pair = authority.issue("a")
    good = authority.revoke(pair)
    (tmp_path / "ca.crl").write_bytes(good)
    (tmp_path / "fleet.yaml").write_text(_FLEET)
    loaded = load([str(tmp_path / "fleet.yaml")], Diagnostics())
    assert loaded is not None
    cache = CertificateCache()
    files, findings = cache.read(loaded.source, loaded.compiled.topology)
    assert (findings, files["ca.crl"]) == ([], good)

    snapshot = Snapshot(loaded.compiled.topology, secrets=Secrets(files=files))
    secrets = Builder().build(loaded, snapshot).resources(Proxy("edge", "envoy", (1, 40))).of(SDS)
    trust = secret_pb2.Secret.FromString(secrets["ca:ca.crt crl:ca.crl"].body).validation_context
    assert (trust.trusted_ca.inline_bytes, trust.crl.inline_bytes) == (authority.ca.read_bytes(), good)

    for bad in (b"", b"nonsense", pair.certificate.read_bytes()):
        (tmp_path / "ca.crl").write_bytes(bad)
        files, (finding,) = cache.read(loaded.source, loaded.compiled.topology)
        assert files["ca.crl"] == good
        assert (finding.code, finding.severity) == ("LB931", "warning")
        assert finding.position is not None
        assert (finding.position.line, "revocation list" in finding.message) == (5, True)
