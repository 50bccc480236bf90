"""The cluster of the picker for an Envoy that gets its configuration by xDS."""

from __future__ import annotations

from lbctl.ir.address import Address
from lbctl.targets.envoy import picking
from lbctl.targets.envoy.bootstrap import CA, CERTIFICATE


def test_picker_cluster_names_secrets_of_the_bootstrap() -> None:
    cluster = picking.cluster(Address("10.0.0.5", 18001), tls=True)
    assert {name in str(cluster) for name in (CA, CERTIFICATE)} == {True}
    assert not picking.cluster(Address("10.0.0.5", 18001)).HasField("transport_socket")
