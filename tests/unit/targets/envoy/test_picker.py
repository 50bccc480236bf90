"""The picker beyond loopback: an Envoy by xDS has a certificate for it, one of files is warned about."""

from __future__ import annotations

from lbctl.ir.address import Address
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets.envoy import TARGET, picking
from lbctl.targets.envoy.bootstrap import CA, CERTIFICATE
from tests.support.fleet import compiled

_FLEET = """
version: 1
listeners: {public: {bind: "127.0.0.1:8080"}}
routes: {chat: {pool: llama}}
pools: {llama: {replicas: [{address: "127.0.0.1:9001"}], balance: {algorithm: pick}}}
control:
  picker: {bind: "BIND"}
  xds: {tls: {certificate: c, key: k, client_ca: a}}
"""


def test_files_of_an_envoy_ask_in_clear_and_say_so() -> None:
    for bind, codes in (("10.0.0.5:18001", ["LB308"]), ("127.0.0.1:18001", [])):
        made = compiled(_FLEET.replace("BIND", bind)).topology
        bundle = TARGET.render(view(Snapshot(made), Proxy("edge", "envoy", (1, 40))))
        assert [item.code for item in bundle.diagnostics if item.severity == "warning"] == codes
        assert CERTIFICATE not in bundle.files[0].text


def test_an_envoy_by_xds_names_the_secrets_of_its_bootstrap() -> None:
    cluster = picking.cluster(Address("10.0.0.5", 18001), tls=True)
    assert {name in str(cluster) for name in (CA, CERTIFICATE)} == {True}
    assert not picking.cluster(Address("10.0.0.5", 18001)).HasField("transport_socket")
