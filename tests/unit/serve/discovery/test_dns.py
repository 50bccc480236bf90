"""DNS discovery: names are resolved and followed, and failed lookups remove no addresses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lbctl.base.registry import Registry
from lbctl.ir.address import Address
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.runtime.net.resolve import UnresolvedError, resolve, usable_answer
from lbctl.serve.discovery.dns import DnsSource
from lbctl.serve.discovery.interface import Discovered, SourceFactory
from lbctl.serve.discovery.service import DiscoveryService
from tests.support.fleets import fleet_of, load_fleet
from tests.support.processes.dns import DnsServer, serving_dns

_NAME = "embedder.ml.internal"
_NO_ONE = "127.0.0.1:9"


def _pool(dns: DnsServer, **keys: Any) -> dict[str, Any]:
    section = {"name": _NAME, "port": 8080, "refresh": "100ms", "resolvers": [dns.address], **keys}
    return {"discovery": {"dns": section}}


def _topology(directory: Path, **pools: Any) -> Topology:
    routes = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in pools}
    return load_fleet(directory, fleet_of(routes=routes, pools=pools)).compiled.topology


def _dns(timeout: float) -> Registry[SourceFactory]:
    return Registry({"dns": lambda on_change, guard: DnsSource(on_change, guard, timeout=timeout)})


def _run(
    work: Callable[[DiscoveryService], Awaitable[None]], seeds: dict[str, list[str]] | None = None, timeout: float = 10
) -> None:
    """Run `work` with a new DiscoveryService."""

    async def run() -> None:
        discover = DiscoveryService(Guard(), _dns(timeout), settle=0.02)
        discover.seed(seeds or {})
        try:
            async with asyncio.timeout(60):
                await work(discover)
        finally:
            await discover.stop()

    asyncio.run(run())


async def _until(true: Callable[[], bool], pause: float = 0.01) -> None:
    while not true():
        await asyncio.sleep(pause)


def _addresses(discovered: Discovered, pool: str = "pool") -> list[str]:
    return [str(item.address) for item in discovered.pools[pool]]


def test_each_address_becomes_a_replica(tmp_path: Path) -> None:
    written = _topology(tmp_path, pool={"replicas": [{"address": f"10.0.0.{n}:8080", "gpu": "L4"} for n in (2, 1)]})

    async def work(discover: DiscoveryService) -> None:
        topology = _topology(tmp_path, pool=_pool(dns, gpu="L4"))
        discover.use_topology(topology)
        discovered = await discover.first(30)
        assert discovered.pools["pool"] == written.pools[0].replicas
        assert discovered.apply(topology).pools[0].replicas == written.pools[0].replicas
        assert discovered.apply(topology).listeners == topology.listeners

    with serving_dns(**{_NAME: ["10.0.0.2", "10.0.0.1"]}) as dns:
        _run(work)


def test_change_is_reported_only_when_addresses_change(tmp_path: Path) -> None:
    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, pool=_pool(dns)))
        assert _addresses(await discover.first(30)) == ["10.0.0.1:8080"]
        changes = discover.changes()
        following = asyncio.ensure_future(anext(changes))
        queries = dns.asked.total()
        await _until(lambda: dns.asked.total() >= queries + 3)
        assert not following.done()
        dns.names[_NAME] = ["10.0.0.9", "10.0.0.1"]
        assert _addresses(await following) == ["10.0.0.1:8080", "10.0.0.9:8080"]
        await changes.aclose()

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        _run(work)


def test_change_before_the_first_subscriber_is_not_lost(tmp_path: Path) -> None:
    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, pool=_pool(dns)))
        await discover.first(30)
        dns.names[_NAME] = ["10.0.0.2"]
        await _until(lambda: _addresses(discover.current) == ["10.0.0.2:8080"])
        assert _addresses(await anext(discover.changes())) == ["10.0.0.2:8080"]

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        _run(work)


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["silence", "unknown", "empty", "forbidden"])
def test_failed_lookup_keeps_the_addresses(tmp_path: Path, failure: str) -> None:
    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, pool=_pool(dns)))
        before = await discover.first(30)
        match failure:
            case "silence":
                dns.silent = True
            case "unknown":
                del dns.names[_NAME]
            case "empty":
                dns.names[_NAME] = []
            case _:
                dns.names[_NAME] = ["169.254.169.254"]
        await _until(lambda: discover.names()[0].error != "")
        state = discover.names()[0]
        assert discover.current == before
        assert state.addresses == ("10.0.0.1",)
        assert state.failed is not None
        assert state.answered is not None
        assert state.failed > state.answered
        assert words in state.error
        dns.silent = False
        dns.names[_NAME] = ["10.0.0.2"]
        await _until(lambda: discover.names()[0].error == "" and _addresses(discover.current) == ["10.0.0.2:8080"])

    words = {
        "silence": "no response within",
        "unknown": "the name does not exist",
        "empty": "no address",
        "forbidden": "169.254.169.254",
    }[failure]
    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        _run(work, timeout=0.5 if failure == "silence" else 10)


def test_wait_for_first_answers_times_out(tmp_path: Path) -> None:
    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, good=_pool(dns), bad=_pool(dns, resolvers=[_NO_ONE])))
        await _until(lambda: "good" in discover.current.pools)
        discovered = await discover.first(0.2)
        assert _addresses(discovered, "good") == ["10.0.0.1:8080"]
        assert "bad" not in discovered.pools

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        _run(work)


def test_saved_addresses_are_used_until_the_first_answer(tmp_path: Path) -> None:
    kept: dict[str, list[str]] = {}

    async def learn(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, pool=_pool(dns)))
        kept.update({name: list(addresses) for name, addresses in (await discover.first(30)).answers.items()})

    async def start_without_dns(discover: DiscoveryService) -> None:
        dns.silent = True
        discover.use_topology(_topology(tmp_path, pool=_pool(dns)))
        start = time.monotonic()
        assert _addresses(await discover.first(60)) == ["10.0.0.1:8080"]
        assert time.monotonic() - start < 30
        assert discover.names()[0].answered is None
        dns.silent = False
        dns.names[_NAME] = ["10.0.0.2"]
        assert _addresses(await anext(discover.changes())) == ["10.0.0.2:8080"]

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        _run(learn)
        _run(start_without_dns, json.loads(json.dumps(kept)), timeout=1)


def test_reload_starts_new_names_and_ends_old_ones(tmp_path: Path) -> None:
    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, one=_pool(dns)))
        await discover.first(30)
        discover.use_topology(_topology(tmp_path, two=_pool(dns, name="other.internal", port=9000)))
        assert discover.current.pools == {}
        assert _addresses(await discover.first(30), "two") == ["10.0.0.2:9000"]
        again = dns.asked["other.internal"]
        await _until(
            lambda: dns.asked["other.internal"] > again
        )  # a query sent before the reload arrived before this one
        queries = dns.asked[_NAME]
        again = dns.asked["other.internal"]
        await _until(lambda: dns.asked["other.internal"] >= again + 3)
        assert dns.asked[_NAME] == queries
        assert [item.name for item in discover.names()] == ["other.internal"]

    with serving_dns(**{_NAME: ["10.0.0.1"], "other.internal": ["10.0.0.2"]}) as dns:
        _run(work)


def test_restored_name_has_its_addresses_at_once(tmp_path: Path) -> None:
    async def work(discover: DiscoveryService) -> None:
        topology = _topology(tmp_path, pool=_pool(dns))
        discover.use_topology(topology)
        await discover.first(30)
        discover.use_topology(_topology(tmp_path, other={"replicas": [{"address": "10.0.0.9:1"}]}))
        dns.silent = True
        discover.use_topology(topology)
        assert _addresses(discover.current) == ["10.0.0.1:8080"]

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        _run(work)


def test_changed_port_or_limit_needs_no_new_answer(tmp_path: Path) -> None:
    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, pool=_pool(dns)))
        await discover.first(30)
        dns.silent = True
        discover.use_topology(_topology(tmp_path, pool=_pool(dns, port=9000, max_replicas=1, refresh="200ms")))
        assert _addresses(discover.current) == ["10.0.0.1:9000"]
        assert discover.names()[0].left_out == 1

    with serving_dns(**{_NAME: ["10.0.0.2", "10.0.0.1"]}) as dns:
        _run(work)


def test_two_pools_with_one_name_share_a_query(tmp_path: Path) -> None:
    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, a=_pool(dns, refresh="1h"), b=_pool(dns, port=9000, refresh="1h")))
        discovered = await discover.first(30)
        assert (_addresses(discovered, "a"), _addresses(discovered, "b")) == (["10.0.0.1:8080"], ["10.0.0.1:9000"])
        assert dns.asked.total() == 1
        assert discover.names()[0].pools == ("a", "b")

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        _run(work)


def test_name_with_only_ipv6_addresses_is_followed(tmp_path: Path) -> None:
    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, pool=_pool(dns), both=_pool(dns, name="both.internal")))
        discovered = await discover.first(30)
        assert _addresses(discovered) == ["[fd00::1]:8080"]
        assert _addresses(discovered, "both") == ["10.0.0.1:8080"]

    with serving_dns(**{_NAME: ["fd00::1"], "both.internal": ["fd00::1", "10.0.0.1"]}) as dns:
        _run(work)


def test_answer_may_exceed_a_datagram_of_512_bytes(tmp_path: Path) -> None:
    many = [f"10.0.1.{last}" for last in range(1, 61)]

    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, pool=_pool(dns, max_replicas=60)))
        assert len((await discover.first(30)).pools["pool"]) == 60

    with serving_dns(**{_NAME: many}) as dns:
        _run(work)


def test_system_resolver_is_the_default(tmp_path: Path) -> None:
    local = {"discovery": {"dns": {"name": "localhost", "port": 8080}}}
    fixed = {"replicas": [{"name": "a", "address": "localhost:8080"}, {"name": "b", "address": "10.0.0.1:8080"}]}

    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, local=local, fixed=fixed))
        discovered = await discover.first(30)
        assert _addresses(discovered, "local") == ["127.0.0.1:8080"]
        assert discovered.hosts == {"localhost": ("127.0.0.1",)}

    _run(work)


def test_host_of_the_trace_collector_is_followed(tmp_path: Path) -> None:
    tracing = {"otlp": "localhost:4317", "sample": "1%", "service": "lb"}
    loaded = load_fleet(tmp_path, fleet_of(listener={"tracing": tracing}))

    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(loaded.compiled.topology)
        assert (await discover.first(30)).hosts == {"localhost": ("127.0.0.1",)}

    _run(work)


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "::ffff:169.254.169.254", "::169.254.169.254",
     "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "fe80::1%eth0", "fd00:ec2::254", "0.0.0.0", "::", "224.0.0.1",
     "255.255.255.255"],
)  # fmt: skip
def test_addresses_that_no_replica_can_have_are_rejected(address: str) -> None:
    with pytest.raises(UnresolvedError, match="these addresses are not valid for a replica"):
        usable_answer([address])
    assert usable_answer([address, "10.0.0.1"]).addresses == ("10.0.0.1",)


def test_addresses_are_sorted_and_unique() -> None:
    assert usable_answer(["10.0.0.10", "10.0.0.9", "10.0.0.10", "::ffff:10.0.0.2"]).addresses == (
        "10.0.0.2",
        "10.0.0.9",
        "10.0.0.10",
    )


def test_dead_resolver_does_not_delay_other_names(tmp_path: Path) -> None:
    dead = {f"dead-{n}": _pool(DnsServer({}), name=f"n{n}.internal", resolvers=[_NO_ONE]) for n in range(50)}

    async def work(discover: DiscoveryService) -> None:
        discover.use_topology(_topology(tmp_path, **dead, zz=_pool(dns)))
        changes = discover.changes()
        assert _addresses(await anext(changes), "zz") == ["10.0.0.1:8080"]

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        _run(work, timeout=0.5)


def test_unexpected_failure_of_lookups_is_counted_and_retried(tmp_path: Path) -> None:
    failures: list[str] = []
    calls: list[float] = []

    def changed() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:  # the first is `use_topology`, the second the first answer
            raise RuntimeError("the listener failed")

    async def run() -> None:
        source = DnsSource(changed, Guard(failures.append, first_pause=0.01))
        source.use_topology(_topology(tmp_path, pool=_pool(dns)))
        await _until(lambda: bool(failures))
        dns.names[_NAME] = ["10.0.0.2"]
        await _until(lambda: source.answers()["pool"].saved == ("10.0.0.2",))
        await source.stop()

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        asyncio.run(asyncio.wait_for(run(), 120))
    assert failures == ["DNS lookups"]


def test_lookup_can_be_cancelled_at_any_moment() -> None:
    """A cancellation that arrives together with the answer must end the lookup too."""

    async def cancelled_after(turns: int) -> bool:
        questions = dns.asked.total()
        task = asyncio.ensure_future(resolve(_NAME, [Address("127.0.0.1", dns.port)], 5))
        await _until(lambda: dns.asked.total() > questions, pause=0)
        for _ in range(turns):
            await asyncio.sleep(0)
        if not task.cancel():
            return False
        with pytest.raises(asyncio.CancelledError):
            await task
        return True

    async def run() -> list[bool]:
        return [await cancelled_after(turns % 10) for turns in range(100)]

    with serving_dns(**{_NAME: ["10.0.0.1"]}) as dns:
        assert any(asyncio.run(run()))
