"""Lines of the traffic log: what counts for which replica, and what does not count at all."""

from __future__ import annotations

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.serve.traffic.ledger import Counts, ReplicaKey
from lbctl.serve.traffic.log_line import MOST_BYTES, ReplicaAddresses, Try, tries_of
from lbctl.serve.traffic.log_receiver import LogReceiver

HEAD = "<190>Nov 23 09:30:00 lbctl: "
POOLS = (
    Pool(
        "llama",
        (
            Replica("a", Address("10.0.0.1", 80)), Replica("b", Address("::1", 80)),
            Replica("named", Address("gpu.internal", 81)), Replica("socket", Address(path="/run/m.sock")),
            Replica("unresolved", Address("other.internal", 82)),
        ),
    ),
    Pool("spare", (Replica("x", Address("10.0.0.9", 80)), Replica("a", Address("10.0.0.1", 80)))),
)  # fmt: skip
ADDRESSES = ReplicaAddresses(POOLS, {"gpu.internal": ("10.0.0.7", "10.0.0.8")})
PROXIES = frozenset({"site"})


def tries(text: str) -> tuple[str, list[Try]] | str:
    return tries_of(f"{HEAD}{text}".encode(), PROXIES, ADDRESSES)


def of(name: str, *, failed: bool = False, pool: str = "llama") -> Try:
    return Try(ReplicaKey(pool, name), failed)


def test_each_try_counts_for_its_replica_and_fails_by_its_own_status() -> None:
    assert tries('site|"llama"|200|10.0.0.1:80|200') == ("site", [of("a")])
    assert tries('site|"llama"|200|10.0.0.1:80, [::1]:80|502, 200') == ("site", [of("a", failed=True), of("b")])
    assert tries('site|"llama"|429|10.0.0.1:80|429') == ("site", [of("a")])
    assert tries('site|"llama"|404|unix:/run/m.sock|404') == ("site", [of("socket")])
    assert tries('site|"llama"|500|10.0.0.8:81|500') == ("site", [of("named", failed=True)])
    assert tries('site|"llama"|200|192.0.2.1:82|200') == ("site", [of("unresolved")])


def test_a_request_without_answer_failed_unless_its_client_left() -> None:
    assert tries('site|"llama"|502|10.0.0.1:80|-') == ("site", [of("a", failed=True)])
    assert tries('site|"llama"|499|10.0.0.1:80|-') == ("site", [of("a")])


def test_a_try_before_a_fallback_counts_where_its_address_is_of_one_replica_alone() -> None:
    assert tries('site|"llama"|200|10.0.0.9:80 : 10.0.0.1:80|502 : 200') == (
        "site",
        [of("x", failed=True, pool="spare"), of("a")],
    )
    assert tries('site|"spare"|200|10.0.0.1:80 : 10.0.0.9:80|502 : 200') == ("site", [of("x", pool="spare")])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f'{HEAD}other|"llama"|200|10.0.0.1:80|200', "proxy"),
        (f'{HEAD}site|"nothing"|200|10.0.0.1:80|200', "replica"),
        (f'{HEAD}site|"llama"|200|10.0.0.2:80|200', "replica"),
        (f'{HEAD}site|"llama"|502|llama|502', "replica"),
        (f'{HEAD}site|"llama"|200|10.0.0.1:80, 10.0.0.1:80|200', "malformed"),
        (f'{HEAD}site|"llama"|200|10.0.0.1:80 : 10.0.0.1:80|200', "malformed"),
        (f'{HEAD}site|"llama"|20|10.0.0.1:80|200', "malformed"),
        (f'{HEAD}site|"llama"|200|10.0.0.1:80|200\n', "malformed"),
        (f'{HEAD}site|"llama"|200|10.0.0.1:80|200|more', "malformed"),
        (f'{HEAD}{"p" * 200}|"llama"|200|10.0.0.1:80|200', "malformed"),
        ('site|"llama"|200|10.0.0.1:80|200', "malformed"),
        ("", "malformed"),
        (f'{HEAD}site|"llama"|200|{"10.0.0.1:80, " * 80}10.0.0.1:80|{"200, " * 80}200', "malformed"),
        (f'{HEAD}site|"llama"|200|{"x" * MOST_BYTES}|200', "malformed"),
    ],
)
def test_what_is_not_exactly_a_line_about_the_fleet_does_not_count(line: str, reason: str) -> None:
    assert tries_of(line.encode(), PROXIES, ADDRESSES) == reason


def test_bytes_that_are_no_text_do_not_count() -> None:
    assert tries_of(b"<190>\xff\x00", PROXIES, ADDRESSES) == "malformed"


def test_lines_are_counted_until_they_are_collected_and_others_by_their_reason() -> None:
    receiver = LogReceiver()
    receiver.follow(PROXIES, ADDRESSES)
    for text in ('site|"llama"|200|10.0.0.1:80|200', 'site|"llama"|500|10.0.0.1:80|500', "x", 'no|"llama"|200|a|200'):
        receiver.count(f"{HEAD}{text}".encode())
    assert receiver.collect() == {"site": {ReplicaKey("llama", "a"): Counts(2, 1)}}
    assert receiver.collect() == {}
    assert receiver.dropped == {"malformed": 1, "proxy": 1}
