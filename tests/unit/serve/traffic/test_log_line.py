"""Lines of the traffic log: requests by replica, latencies, and lines that do not count."""

from __future__ import annotations

import pytest

from lbctl.control.analysis.latency import bucket
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.rollout_metrics import LatencyKey
from lbctl.serve.traffic.ledger import Counts, ReplicaKey
from lbctl.serve.traffic.log_line import MAX_LINE_BYTES, ReplicaAddresses, Try, tries_of
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


def timed(backend: str, server: str, first_byte: int) -> bytes:
    timers = f"0 0 {first_byte} 30 {first_byte + 30}"
    return TIMED + f'backend="{backend}" status="200" end="--" server="{server}" timers="{timers}"] -'.encode()


def tries(text: str) -> tuple[str, list[Try]] | str:
    return tries_of(f"{HEAD}{text}".encode(), PROXIES, ADDRESSES)


def try_of(name: str, *, failed: bool = False, answered: bool | None = None, pool: str = "llama") -> Try:
    return Try(ReplicaKey(pool, name), failed, not failed if answered is None else answered)


def test_each_try_counts_for_its_replica_with_its_status() -> None:
    assert tries('site|"llama"|200|10.0.0.1:80|200') == ("site", [try_of("a")])
    assert tries('site|"llama"|200|10.0.0.1:80, [::1]:80|502, 200') == ("site", [try_of("a", failed=True), try_of("b")])
    assert tries('site|"llama"|429|10.0.0.1:80|429') == ("site", [try_of("a")])
    assert tries('site|"llama"|404|unix:/run/m.sock|404') == ("site", [try_of("socket")])
    assert tries('site|"llama"|500|10.0.0.8:81|500') == ("site", [try_of("named", failed=True)])
    assert tries('site|"llama"|200|192.0.2.1:82|200') == ("site", [try_of("unresolved")])


def test_errors_of_nginx_itself_count_for_the_pool() -> None:
    own = [try_of("", failed=True)]
    assert tries('site|"llama"|503|pool_llama|502') == ("site", own), "no replica is left"
    assert tries('site|"llama"|503||') == tries("site|llama|503||||") == ("site", own), "refused before"
    fallback = 'site|"llama"|503|10.0.0.9:80 : pool_llama|502 : 502'
    assert tries(fallback) == ("site", [try_of("x", failed=True, pool="spare"), *own])
    receiver = LogReceiver()
    receiver.use_proxies(PROXIES, ADDRESSES)
    receiver.count(f'{HEAD}site|"llama"|503|pool_llama|502'.encode())
    assert (receiver.collect(), receiver.collect_own_errors()) == ({"site": {}}, {"site": {"llama": 1}})
    assert receiver.collect_own_errors() == {}


def test_try_has_the_times_of_its_response() -> None:
    def times(text: str) -> list[tuple[float | None, float | None]]:
        parsed = tries(text)
        assert not isinstance(parsed, str)
        return [(each.first_byte, each.total) for each in parsed[1]]

    assert times('site|"llama"|200|10.0.0.1:80|200|0.120|1.500') == [(120.0, 1500.0)]
    retried = 'site|"llama"|200|10.0.0.1:80, [::1]:80|502, 200|-, 0.030|0.010, 0.040'
    assert times(retried) == [(None, None), (30.0, 40.0)]
    assert times('site|"llama"|499|10.0.0.1:80|-|-|2.000') == [(2000.0, 2000.0)], "the client waited for 2 s"
    assert times('site|"llama"|429|10.0.0.1:80|429|0.001|0.001') == [(None, None)]
    assert times('site|"llama"|200|10.0.0.1:80|200|-, 0.1|0.040') == [(None, 40.0)], "a list of another length"
    fallback = 'site|"spare"|200|10.0.0.1:80 : 10.0.0.9:80|502 : 200|- : 0.005|0.001 : 0.006'
    assert times(fallback) == [(5.0, 6.0)]


TIMED = b'<134>1 2026-11-23T18:40:00.123456+00:00 - haproxy 77 - [lbctl@0 proxy="ha" '


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (b'status="200" end="--" server="a" timers="5 1 120 30 156"] {"ts":', ("a", 126.0, 156.0)),
        (b'status="200" end="--" timers="5 1 120 30 156"] {"ts":', ("", 126.0, 156.0)),
        (b'status="200" end="--" server="a" timers="0 0 12 30 42" retries="+1" pick="ab1"] -', ("a", 12.0, 42.0)),
        (
            (
                b'status="200" end="--" server="a" timers="0 0 12 30 42" retries="0" '
                b'pick="late-0b5c9a1e-6f0d-4a52-9c83-1d2e3f4a5b6c"] -'
            ),
            ("a", 12.0, 42.0),
        ),
        (b'status="200" end="--" server="a" timers="0 0 12 +30 +42"]', ("a", 12.0, 42.0)),
        (b'status="503" end="--" server="<NOSRV>" timers="0 0 12 30 42"] -', ("<NOSRV>", None, None)),
        (b'status="-1" end="CH" server="a" timers="0 0 -1 -1 900"] -', ("a", 900.0, 900.0)),
        (b'status="504" end="sH" server="a" timers="0 0 -1 -1 900"] -', ("a", None, None)),
        (b'status="200" end="--" server="a" timers="5 1 120 30"] -', None),
    ],
)
def test_timers_of_haproxy_are_parsed(rest: bytes, expected: tuple[str, float | None, float | None] | None) -> None:
    timers = timers_of(TIMED + b'backend="pool_llama" ' + rest)
    assert timers == (expected and ("ha", "pool_llama", *expected, b'status="-1"' not in rest and b"504" not in rest))


def test_only_requested_latencies_are_kept_by_proxy() -> None:
    key = LatencyKey("llama", "first_byte")
    receiver = LogReceiver()
    receiver.use_proxies(PROXIES, ADDRESSES, ["ha"], measured=[key])
    receiver.count(timed("pool_llama", "a", 120))
    receiver.count(timed("pool_llama", "a", 1).replace(b'"ha"', b'"no"'))
    receiver.count(f'{HEAD}site|"llama"|200|10.0.0.1:80|200|0.120|1.500'.encode())
    assert receiver.collect_latencies() == {"ha": {key: {bucket(120): 1}}, "site": {key: {bucket(120): 1}}}
    assert receiver.collect_latencies() == {}
    assert receiver.dropped == {"proxy": 1}
    assert receiver.collect() == {"site": {ReplicaKey("llama", "a"): Counts(1)}}, "HAProxy counts its requests itself"


def test_client_that_left_does_not_imply_an_answer() -> None:
    receiver = LogReceiver()
    receiver.use_proxies(PROXIES, ADDRESSES)
    for status, address, code in ((200, "10.0.0.1:80", "200"), (499, "[::1]:80", "-"), (502, "10.0.0.7:81", "502")):
        receiver.count(f'{HEAD}site|"llama"|{status}|{address}|{code}'.encode())
    assert receiver.collect_answered() == {"site": {ReplicaKey("llama", "a")}}
    assert receiver.collect_answered() == {}
    receiver.use_proxies(PROXIES, ADDRESSES, ["ha"])
    receiver.count(TIMED + b'backend="pool_llama" status="-1" end="CH" server="a" timers="0 0 -1 -1 900"] -')
    receiver.count(f'{HEAD}site|"llama"|499|10.0.0.1:80|-|-|0.900'.encode())
    assert receiver.collect_first_bytes() == {}


def test_times_of_haproxy_are_the_times_of_its_servers() -> None:
    receiver = LogReceiver()
    a, b = ReplicaKey("llama", "a"), ReplicaKey("llama", "b")
    receiver.use_proxies(PROXIES, ADDRESSES, ["ha"], frozenset({a, b}))
    receiver.set_slots("ha", {("pool_llama", "SLOT1"): "b"})
    for backend, server in (
        *(("pool_llama", name) for name in ("a", "SLOT1", "SLOT2", "gone", "<NOSRV>")),
        *(("pool_other", "a"), ("listener_public", "<NOSRV>")),
    ):
        receiver.count(timed(backend, server, 12))
    counts = {bucket(12): 1}
    assert receiver.collect_first_bytes() == {"ha": {a: counts, b: counts, ReplicaKey("llama", ""): {bucket(12): 3}}}


def test_request_without_response_failed_unless_client_left() -> None:
    assert tries('site|"llama"|502|10.0.0.1:80|-') == ("site", [try_of("a", failed=True)])
    assert tries('site|"llama"|499|10.0.0.1:80|-') == ("site", [try_of("a", answered=False)])


def test_try_before_a_fallback_counts_if_its_address_is_unique() -> None:
    assert tries('site|"llama"|200|10.0.0.9:80 : 10.0.0.1:80|502 : 200') == (
        "site",
        [try_of("x", failed=True, pool="spare"), try_of("a")],
    )
    assert tries('site|"spare"|200|10.0.0.1:80 : 10.0.0.9:80|502 : 200') == ("site", [try_of("x", pool="spare")])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f'{HEAD}other|"llama"|200|10.0.0.1:80|200', "proxy"),
        (f'{HEAD}site|"nothing"|200|10.0.0.1:80|200', "replica"),
        (f'{HEAD}site|"llama"|200|10.0.0.2:80|200', "replica"),
        (f'{HEAD}site|"llama"|404|llama|404', "replica"),
        (f'{HEAD}site|"nothing"|503||', "replica"),
        (f'{HEAD}site|"llama"|200|10.0.0.1:80, 10.0.0.1:80|200', "malformed"),
        (f'{HEAD}site|"llama"|200|10.0.0.1:80 : 10.0.0.1:80|200', "malformed"),
        (f'{HEAD}site|"llama"|20|10.0.0.1:80|200', "malformed"),
        (f'{HEAD}site|"llama"|200|10.0.0.1:80|200\n', "malformed"),
        (f'{HEAD}site|"llama"|200|10.0.0.1:80|200|more', "malformed"),
        (f'{HEAD}{"p" * 200}|"llama"|200|10.0.0.1:80|200', "malformed"),
        ('site|"llama"|200|10.0.0.1:80|200', "malformed"),
        ("", "malformed"),
        (f'{HEAD}site|"llama"|200|{"10.0.0.1:80, " * 80}10.0.0.1:80|{"200, " * 80}200', "malformed"),
        (f'{HEAD}site|"llama"|200|{"x" * MAX_LINE_BYTES}|200', "malformed"),
    ],
)
def test_invalid_line_does_not_count(line: str, reason: str) -> None:
    assert tries_of(line.encode(), PROXIES, ADDRESSES) == reason


def test_bytes_outside_utf8_do_not_count() -> None:
    assert tries_of(b"<190>\xff\x00", PROXIES, ADDRESSES) == "malformed"


def test_collecting_resets_the_counts() -> None:
    receiver = LogReceiver()
    receiver.use_proxies(PROXIES, ADDRESSES)
    for text in ('site|"llama"|200|10.0.0.1:80|200', 'site|"llama"|500|10.0.0.1:80|500', "x", 'no|"llama"|200|a|200'):
        receiver.count(f"{HEAD}{text}".encode())
    assert receiver.collect() == {"site": {ReplicaKey("llama", "a"): Counts(2, 1)}}
    assert receiver.collect() == {}
    assert receiver.dropped == {"malformed": 1, "proxy": 1}
