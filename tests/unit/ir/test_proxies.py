"""Proxies that the xDS server serves: entries of the fleet, and the unnamed proxy for unmatched nodes."""

from __future__ import annotations

import pytest

from lbctl.ir.address import Address
from lbctl.ir.proxies import Control, Proxy, picker_http, unnamed, xds_proxies
from lbctl.ir.topology import Topology

OLDEST = (1, 40)
EDGE = Proxy("edge", "by-xds", (1, 41))
OTHER = Proxy("other", "by-file", (2, 6))
ALL = Control(unmatched_nodes="all")


def names(*proxies: Proxy, control: Control = Control()) -> tuple[list[str], str | None]:
    proxies_served = xds_proxies(Topology((), (), (), proxies, control), {"by-xds": OLDEST})
    assert proxies_served.all == (*proxies_served.named, *filter(None, [proxies_served.unnamed]))
    return [item.name for item in proxies_served.named], proxies_served.unnamed.name if proxies_served.unnamed else None


@pytest.mark.parametrize(
    ("proxies", "control", "expected"),
    [
        ((), Control(), ([], "by-xds")),
        ((EDGE,), Control(), (["edge"], None)),
        ((OTHER,), Control(), ([], None)),
        ((OTHER, EDGE), ALL, (["edge"], "by-xds")),
        ((OTHER,), ALL, ([], "by-xds")),
    ],
)
def test_unmatched_nodes_are_served_if_allowed(
    proxies: tuple[Proxy, ...], control: Control, expected: tuple[list[str], str | None]
) -> None:
    assert names(*proxies, control=control) == expected


def test_an_unnamed_proxy_has_an_unused_name() -> None:
    taken = Topology((), (), (), (Proxy("by-xds", "by-file", (1,)),))
    assert unnamed(taken, "by-xds", OLDEST) == Proxy("-by-xds", "by-xds", OLDEST)


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("127.0.0.1", "127.0.0.1"), ("127.3.2.1", "127.3.2.1"), ("::1", "::1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"),
        ("10.0.0.7", "127.0.0.1"), ("gateway.internal", "127.0.0.1"),
    ],
)  # fmt: skip
def test_the_picker_serves_http_only_on_loopback(bind: str, expected: str) -> None:
    """The picker listens at this address, and proxies query it there."""
    assert picker_http(Address(bind, 18001)) == Address(expected, 18002)
