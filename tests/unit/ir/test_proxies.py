"""Which proxies the xDS server serves: those of the fleet, and the one that a node is when no entry names it."""

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
    found = xds_proxies(Topology((), (), (), proxies, control), {"by-xds": OLDEST})
    assert found.all == (*found.named, *filter(None, [found.unnamed]))
    return [item.name for item in found.named], found.unnamed.name if found.unnamed else None


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
def test_a_node_that_no_entry_names_is_served_without_entries_or_where_the_fleet_says_so(
    proxies: tuple[Proxy, ...], control: Control, expected: tuple[list[str], str | None]
) -> None:
    assert names(*proxies, control=control) == expected


def test_an_unnamed_proxy_has_the_name_of_no_entry() -> None:
    taken = Topology((), (), (), (Proxy("by-xds", "by-file", (1,)),))
    assert unnamed(taken, "by-xds", OLDEST) == Proxy("-by-xds", "by-xds", OLDEST)


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("127.0.0.1", "127.0.0.1"), ("127.3.2.1", "127.3.2.1"), ("::1", "::1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"),
        ("10.0.0.7", "127.0.0.1"), ("gateway.internal", "127.0.0.1"),
    ],
)  # fmt: skip
def test_a_picker_answers_http_on_loopback_alone(bind: str, expected: str) -> None:
    """The process listens there, and proxies ask there."""
    assert picker_http(Address(bind, 18001)) == Address(expected, 18002)
