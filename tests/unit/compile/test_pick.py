"""The section `balance.pick`: its defaults, and what the proxies get of it."""

from __future__ import annotations

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import Balance, PickPolicy, Prefix, SessionKey
from lbctl.ir.snapshot import Snapshot, view
from tests.support.fleet import compiling

HEADERS = (SessionKey(header="x-session-id"), SessionKey(header="x-correlation-id"))
BODY = (SessionKey(body="$.prompt_cache_key"), SessionKey(body="$.user"))


def balance(text: str) -> Balance:
    made, found = compiling(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1"}}], balance: {text}}}}}\n')
    assert made is not None, found
    return made.topology.pools[0].balance


def test_pick_without_settings_reads_sessions_and_prompts_and_falls_back_to_least_request() -> None:
    assert balance("{algorithm: pick}") == Balance(
        "least_request", pick=PickPolicy((*HEADERS, *BODY), Prefix(256, 128), bound=1.25, timeout=200)
    )


def test_with_prefix_off_no_body_is_read_unless_a_session_key_of_the_body_is_written() -> None:
    off = balance("{algorithm: pick, pick: {prefix: off}}").pick
    assert off is not None
    assert (off.session, off.reads_bodies) == (HEADERS, False)
    written = balance("{algorithm: pick, pick: {prefix: off, session: [X-Chat, {body: $.user}]}}").pick
    assert written is not None
    assert (written.session, written.reads_bodies) == ((SessionKey(header="x-chat"), BODY[1]), True)


def test_otherwise_is_the_algorithm_that_proxies_render() -> None:
    hashed = balance("{algorithm: pick, pick: {otherwise: hash}, hash: {key: {header: x}, bounded_load: 1.5}}")
    assert (hashed.algorithm, hashed.bounded_load, hashed.name) == ("hash", 1.5, "pick")


def test_only_proxies_with_such_pools_get_the_picker_s_address() -> None:
    made, found = compiling(
        'version: 1\nlisteners: {a: {bind: "127.0.0.1:1"}, b: {bind: "127.0.0.1:2"}}\n'
        "routes: {r: {listeners: [a], pool: p}, s: {listeners: [b], pool: q}}\n"
        'pools: {p: {replicas: [{address: "a:1"}], balance: {algorithm: pick}}, q: {replicas: [{address: "a:2"}]}}\n'
        "proxies: {x: {kind: envoy, listeners: [a]}, y: {kind: envoy, listeners: [b]}}\n"
        'control: {picker: {bind: "127.0.0.1:7"}}\n'
    )
    assert made is not None, found
    x, y = made.topology.proxies
    assert view(Snapshot(made.topology), x).picker == Address("127.0.0.1", 7)
    assert view(Snapshot(made.topology, picker=Address("127.0.0.1", 8)), x).picker == Address("127.0.0.1", 8)
    assert view(Snapshot(made.topology), y).picker is None


@pytest.mark.parametrize(
    ("algorithm", "written", "seconds"), [("pick", "", 1), ("pick", "interval: 5s, ", 5), ("random", "", 5)]
)
def test_a_picked_pool_is_scraped_each_second_unless_its_interval_is_written(
    algorithm: str, written: str, seconds: int
) -> None:
    sources = f"{{{written}sources: [{{kind: vllm, url: 'http://{{host}}:{{port}}/metrics'}}]}}"
    made, found = compiling(
        f'version: 1\npools: {{p: {{replicas: [{{address: "a:1", telemetry: {sources}}}], telemetry: {sources}, '
        f"balance: {{algorithm: {algorithm}}}}}}}\n"
    )
    assert made is not None, found
    pool = made.topology.pools[0]
    assert [item.telemetry and item.telemetry.interval for item in (pool, *pool.replicas)] == [seconds * 1000] * 2
