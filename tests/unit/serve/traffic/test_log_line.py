"""Lines of the traffic log: what counts for which replica, and what does not count at all."""

from __future__ import annotations

import pytest

from lbctl.control.analysis.latency import bucket
from lbctl.ir.address import Address
from lbctl.ir.latencies import LatencyKey
from lbctl.ir.pools import Pool, Replica
from lbctl.serve.traffic.ledger import Counts, ReplicaKey
from lbctl.serve.traffic.log_line import MOST_BYTES, ReplicaAddresses, Try, tries_of
from lbctl.serve.traffic.log_receiver import LogReceiver
from lbctl.serve.traffic.timer_line import timers_of

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


def test_a_try_has_the_times_of_its_own_answer_if_they_say_how_fast_the_replica_is() -> None:
    def times(text: str) -> list[tuple[float | None, float | None]]:
        found = tries(text)
        assert not isinstance(found, str)
        return [(each.first_byte, each.total) for each in found[1]]

    assert times('site|"llama"|200|10.0.0.1:80|200|0.120|1.500') == [(120.0, 1500.0)]
    retried = 'site|"llama"|200|10.0.0.1:80, [::1]:80|502, 200|-, 0.030|0.010, 0.040'
    assert times(retried) == [(None, None), (30.0, 40.0)]
    assert times('site|"llama"|499|10.0.0.1:80|-|-|2.000') == [(2000.0, 2000.0)], "it has waited in vain so long"
    assert times('site|"llama"|429|10.0.0.1:80|429|0.001|0.001') == [(None, None)]
    assert times('site|"llama"|200|10.0.0.1:80|200|-, 0.1|0.040') == [(None, 40.0)], "a list of another length"
    fallback = 'site|"spare"|200|10.0.0.1:80 : 10.0.0.9:80|502 : 200|- : 0.005|0.001 : 0.006'
    assert times(fallback) == [(5.0, 6.0)]


TIMED = b'<134>1 2026-11-23T18:40:00.123456+00:00 - haproxy 77 - [lbctl@0 proxy="ha" '


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (b'backend="pool_llama" status="200" end="--" timers="5 1 120 30 156"] {"ts":', ("ha", "llama", 126.0, 156.0)),
        (
            b'backend="pool_llama" status="200" end="--" timers="0 0 12 30 42" retries="+1" pick="ab1"] -',
            ("ha", "llama", 12.0, 42.0),
        ),
        (
            (
                b'backend="pool_llama" status="200" end="--" timers="0 0 12 30 42" retries="0" '
                b'pick="late-0b5c9a1e-6f0d-4a52-9c83-1d2e3f4a5b6c"] -'
            ),
            ("ha", "llama", 12.0, 42.0),
        ),
        (b'backend="pool_llama" status="200" end="--" timers="0 0 12 +30 +42"]', ("ha", "llama", 12.0, 42.0)),
        (b'backend="pool_llama" status="503" end="--" timers="0 0 12 30 42"] -', ("ha", "llama", None, None)),
        (b'backend="pool_llama" status="-1" end="CH" timers="0 0 -1 -1 900"] -', ("ha", "llama", 900.0, 900.0)),
        (b'backend="pool_llama" status="504" end="sH" timers="0 0 -1 -1 900"] -', ("ha", "llama", None, None)),
        (b'backend="pool_llama" status="200" end="--" timers="5 1 120 30"] -', None),
    ],
)
def test_timers_of_a_haproxy(rest: bytes, expected: tuple[str, str, float | None, float | None] | None) -> None:
    assert timers_of(TIMED + rest) == expected


def test_latencies_are_kept_of_what_is_measured_alone_and_by_proxy() -> None:
    key = LatencyKey("llama", "first_byte")
    receiver = LogReceiver()
    receiver.follow(PROXIES, ADDRESSES, ["ha"], [key])
    receiver.count(TIMED + b'backend="pool_llama" status="200" end="--" timers="0 0 120 30 150"] -')
    receiver.count(TIMED.replace(b'"ha"', b'"no"') + b'backend="pool_llama" status="200" end="--" timers="0 0 1 3 4"]')
    receiver.count(f'{HEAD}site|"llama"|200|10.0.0.1:80|200|0.120|1.500'.encode())
    assert receiver.collect_latencies() == {"ha": {key: {bucket(120): 1}}, "site": {key: {bucket(120): 1}}}
    assert receiver.collect_latencies() == {}
    assert receiver.dropped == {"proxy": 1}
    assert receiver.collect() == {"site": {ReplicaKey("llama", "a"): Counts(1)}}, "HAProxy counts its requests itself"


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
