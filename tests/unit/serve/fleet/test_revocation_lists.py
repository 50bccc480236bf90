"""Lists of revoked client certificates are sent with their authority, and the last valid list stays in use."""

from __future__ import annotations

from pathlib import Path

from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from lbctl.ir.proxies import Proxy
from lbctl.ir.secrets import Secrets
from lbctl.ir.snapshot import Snapshot
from lbctl.serve.fleet.certificates import CertificateCache
from lbctl.xds.build.snapshot_cache import Builder
from lbctl.xds.resource import SDS
from tests.support.fleets import fleet_of, load_fleet
from tests.support.processes.certs import Authority


def test_revocation_list_is_sent_and_the_last_valid_one_stays(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    pair = authority.issue("a")
    good = authority.revoke(pair)
    (tmp_path / "ca.crl").write_bytes(good)
    certificates = [{"certificate": "a.crt", "key": "a.key"}]
    tls = {"certificates": certificates, "client_ca": "ca.crt", "client_crl": "ca.crl"}
    loaded = load_fleet(tmp_path, fleet_of(listener={"tls": tls}, proxies={"edge": {"kind": "envoy"}}))
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
        assert finding.position.line == _line_of(tmp_path / "fleet.yaml", "client_crl")
        assert "revocation list" in finding.message


def _line_of(file: Path, key: str) -> int:
    return next(number for number, line in enumerate(file.read_text().splitlines(), 1) if key in line)
