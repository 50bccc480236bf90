"""The simulated engines: a router that follows their KV-cache events knows their caches, and a restart empties them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from lbctl.demo.replica import HOST
from lbctl.ir.pools import PickPolicy
from lbctl.pick import features
from lbctl.pick.table import PoolTable
from lbctl.simulate.engine import SimulatedRequest
from tests.benchmarks.peers import prompts
from tests.benchmarks.peers.engines import CURVE, ChatReplica, PublishingCache
from tests.benchmarks.peers.kv_events import Publisher

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"


class _Recorded(Publisher):
    """Follows the events as a router does."""

    is_used = True

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, Mapping[str, Any]] = {}

    def publish(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            if event["type"] == "BlockStored":
                self.blocks[event["block_hashes"][0]] = event
            elif event["type"] == "BlockRemoved":
                for block in event["block_hashes"]:
                    del self.blocks[block]
            else:
                self.blocks.clear()


def _request(*blocks: int) -> SimulatedRequest:
    return SimulatedRequest(0.0, 512 * len(blocks) + 1, 1, blocks=blocks)


def test_events_describe_the_cache() -> None:
    publisher = _Recorded()
    cache = PublishingCache(4, publisher)
    for blocks in ((1, 2, 3), (1, 2, 4), (5, 6), (1, 2)):
        cache.use(_request(*blocks))
        assert publisher.blocks.keys() == cache._held.keys()
    assert publisher.blocks.keys() == {1, 2, 5, 6}


def test_event_has_the_parent_and_the_tokens_of_a_block() -> None:
    publisher = _Recorded()
    text = json.loads(prompts.body(1100, 1, (7, 8), "own"))["messages"][0]["content"]
    tokens, blocks = prompts.read(text)
    PublishingCache(10, publisher).use(_request(*blocks))
    rendered = json.loads(prompts.rendered(text))["token_ids"]
    assert len(rendered) == tokens == 1100
    assert [token for block in blocks for token in publisher.blocks[block]["token_ids"]] == rendered[:1024]
    assert [publisher.blocks[block]["parent_block_hash"] for block in blocks] == [None, blocks[0]]


def test_picker_and_engine_count_the_same_tokens() -> None:
    body = prompts.body(7200, 100, tuple(range(12)), "own")
    table = PoolTable("llama", PickPolicy(()), ())
    counted, blocks = prompts.read(json.loads(body)["messages"][0]["content"])
    assert (counted, len(blocks)) == (7200, 14)
    assert features.read(table, {}, body).prompt_tokens == pytest.approx(counted, rel=0.05)


def test_prompts_differ_after_their_common_blocks() -> None:
    bodies = {prompts.body(1536, 1, (1, 2), f"{number:x}") for number in range(2000)}
    assert len(bodies) == 2000
    assert len({prompts.body(512, 1, (block,), "") for block in range(2000)}) == 2000


def test_cached_tokens_are_prompt_tokens() -> None:
    replica = ChatReplica("r0", 1.0)
    replica._engine.counters.prefill_tokens, replica._engine.counters.cached_tokens = 1056.0, 6144.0
    assert b'vllm:prompt_tokens_total{model_name="m"} 7200.0\n' in replica.page()


def test_subscriber_gets_numbered_batches() -> None:
    asyncio.run(_subscribe())


async def _subscribe() -> None:
    publisher = Publisher()
    await publisher.start()
    reader, writer = await asyncio.open_connection(HOST, publisher.port)
    writer.write(_GREETING + _READY + b"\x00\x01\x01")
    assert (await reader.readexactly(64))[10:16] == b"\x03\x00NULL"
    flags, size = await reader.readexactly(2)
    assert flags == 4
    assert b"PUB" in await reader.readexactly(size)
    while not publisher.is_used:
        await asyncio.sleep(0.001)
    publisher.publish([{"type": "AllBlocksCleared"}])
    assert await reader.readexactly(2) == b"\x01\x00"
    assert await reader.readexactly(10) == b"\x01\x08" + bytes(8)
    _, size = await reader.readexactly(2)
    _, events, _ = msgspec.msgpack.decode(await reader.readexactly(size))
    assert events == [{"type": "AllBlocksCleared"}]
    writer.close()
    publisher.close()
    await asyncio.sleep(0.01)


def test_restarted_replica_is_empty_on_the_same_port() -> None:
    asyncio.run(_restart())


async def _restart() -> None:
    replica = ChatReplica("r0", 1.0)
    await replica.start()
    replica._cache.use(_request(1, 2))
    replica.is_draining = True
    await replica.stop()
    fresh = await replica.successor(1.0, CURVE)
    assert (fresh.port, fresh.publisher, fresh.counts) == (replica.port, replica.publisher, replica.counts)
    assert fresh._cache.hits(_request(1, 2)) == 0
    assert not fresh.is_draining
    await fresh.close()
    await asyncio.sleep(0.01)
