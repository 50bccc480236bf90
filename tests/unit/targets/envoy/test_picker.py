"""The clusters of the picker for an Envoy that gets its configuration by xDS."""

from __future__ import annotations

import pytest

from lbctl.ir.address import Address
from lbctl.targets.envoy import picking
from lbctl.targets.envoy.bootstrap import CA, CERTIFICATE

PORT = 18001


@pytest.mark.parametrize("make", picking.CLUSTERS.values())
def test_picker_clusters_name_secrets_of_the_bootstrap(make: picking.MakeCluster) -> None:
    cluster = make(Address("10.0.0.5", PORT), tls=True)
    assert {name in str(cluster) for name in (CA, CERTIFICATE)} == {True}
    assert not make(Address("10.0.0.5", PORT)).HasField("transport_socket")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_questions_on_loopback_go_without_tls(host: str) -> None:
    cluster = picking.questions_cluster(Address(host, PORT), tls=True)
    (endpoint,) = cluster.load_assignment.endpoints[0].lb_endpoints
    place = endpoint.endpoint.address.socket_address
    assert (place.address, place.port_value) == (Address(host, PORT).from_here.host, PORT + 1)
    assert not cluster.HasField("transport_socket")
    assert CERTIFICATE in str(cluster.transport_socket_matches), "an Envoy without it could not report ends"
