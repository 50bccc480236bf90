"""Which pickers exchange counts and memories: those that can reach each other."""

from __future__ import annotations

import json

import pytest

from lbctl.ir.address import Address
from lbctl.serve.picker import peers
from lbctl.serve.picker.feed import Feed, FeedSubscription
from lbctl.serve.picker.peers import Peer, local_peer, others, remote_peer

HERE = local_peer("here", Address("127.0.0.1", 1))
OPEN = local_peer("open", Address("10.0.0.1", 1))
FAR = Peer("far", "10.0.0.2:1")


def test_pickers_of_one_machine_reach_each_other_on_loopback() -> None:
    beside = local_peer("beside", Address("0.0.0.0", 3))
    assert others([HERE, FAR, beside], HERE) == {"beside": "127.0.0.1:3"}
    assert others([HERE, FAR, beside], OPEN) == {"far": "10.0.0.2:1", "here": "127.0.0.1:1", "beside": "127.0.0.1:3"}


def test_another_machine_does_not_get_loopback_addresses() -> None:
    assert others([HERE, FAR, Peer("elsewhere", "127.0.0.1:1", "other"), Peer("old", "[::1]:1")], FAR) == {}


def test_unknown_interface_is_not_the_same_one() -> None:
    assert others([Peer("a", "127.0.0.1:1"), Peer("b", "127.0.0.1:2")], Peer("c", "127.0.0.1:3")) == {}


def test_picker_that_others_cannot_reach_learns_of_no_others() -> None:
    assert others([HERE, FAR], None) == {}


@pytest.mark.parametrize(
    ("address", "client", "expected"),
    [
        ("127.0.0.1:5", "127.0.0.1", HERE._replace(id="p", address="127.0.0.1:5")),
        ("0.0.0.0:5", "127.0.0.1", HERE._replace(id="p", address="127.0.0.1:5")),
        ("127.0.0.1:5", "10.0.0.7", None),
        ("10.0.0.9:5", "10.0.0.7", Peer("p", "10.0.0.9:5")),
        ("0.0.0.0:5", "10.0.0.7", Peer("p", "10.0.0.7:5")),
        ("[::]:5", "fd00::7", Peer("p", "[fd00::7]:5")),
    ],
)
def test_address_of_a_picker_depends_on_its_connection(address: str, client: str, expected: Peer | None) -> None:
    assert remote_peer("p", address, client) == expected


def test_announcement_is_read_by_other_members() -> None:
    assert list(peers.read(peers.written([HERE, FAR]))) == [FAR, HERE]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a 10.0.0.1:1",
        "a 10.0.0.1 x",
        "a unix:/x y",
        "a b:1 x",
        "a! 10.0.0.1:1 ",
        "a 10.0.0.1:1 x y",
        "a 169.254.169.254:80 ",
        "a 10.0.0.1:0 ",
        "a 10.0.0.1:70000 ",
    ],
)
def test_malformed_announcement_is_ignored(text: str) -> None:
    assert list(peers.read([text])) == []


def _peers(subscription: FeedSubscription) -> dict[str, str]:
    lines = map(json.loads, subscription._waiting)
    return [line["peers"] for line in lines if line["kind"] == "peers"][-1]


def test_pickers_learn_of_the_pickers_of_all_members() -> None:
    feed = Feed(lambda: pytest.fail("nothing is measured"))
    with feed.subscribe(OPEN, trusted=True) as here, feed.subscribe(FAR, trusted=True) as far:
        assert (_peers(here), _peers(far)) == ({"far": FAR.address}, {"open": OPEN.address})
        feed.use_announcements(peers.written([Peer("member", "10.0.0.3:1")]))
        assert _peers(here) == {"far": FAR.address, "member": "10.0.0.3:1"}
        assert _peers(far) == {"open": OPEN.address, "member": "10.0.0.3:1"}
        assert list(peers.read(feed.announcement())) == [FAR, OPEN]
        feed.use_announcements([])
        assert _peers(here) == {"far": FAR.address}
