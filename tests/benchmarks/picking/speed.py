"""`python -m tests.benchmarks.picking.speed`: measure the time of a decision, and the memory of 100,000 prompts."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable

from lbctl.ir.pools import PickPolicy, Prefix, SessionKey
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import Books
from lbctl.pick.decide import pick
from lbctl.pick.features import Features, read
from lbctl.pick.table import Candidate, PoolTable

_POLICY = PickPolicy((SessionKey(header="x-session-id"), SessionKey(body="$.prompt_cache_key")), Prefix())


def main() -> None:
    words = " ".join(f"word{index}" for index in range(20_000))
    for replicas in (10, 100, 200, 1000):
        table = PoolTable("p", _POLICY, tuple(Candidate(f"r{index}", f"10.0.0.1:{index}") for index in range(replicas)))
        by_load, by_session = _decision(table, None), _decision(table, "x")
        print(f"{replicas:5} replicas: {by_load:6.1f} µs by load, {by_session:6.1f} µs by session")
    for size in (1024, 8192, 65536):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": words[:size]}]}).encode()
        print(f"{size:5} bytes of body: {_reading(table, body, size):6.1f} µs whole, ", end="")
        print(f"{_reading(table, body[: size // 2], size):6.1f} µs cut off")
    print(f"100,000 prompts of 8 KiB: {_memory(32):.0f} MB; of 32 KiB: {_memory(128):.0f} MB")


def _decision(table: PoolTable, session: str | None) -> float:
    books, memory, rng = Books(), AffinityMemory(), random.Random(1)
    number = 0

    def once() -> None:
        nonlocal number
        number += 1
        name = None if session is None else f"s{number % 5000}"
        features = Features("p", session=name, prompt_tokens=rng.random() * 4000)
        found = pick(features, table, books, memory, 0.0, rng)
        books.started(str(number), "p", found.ordered[0].name, found.tokens, 0.0)
        memory.remember(features, found.ordered[0].name, 0.0)
        books.finished(str(number - 200))

    return _timed(once, 3000)


def _reading(table: PoolTable, body: bytes, length: int) -> float:
    return _timed(lambda: read(table, {}, body, length), 300)


def _timed(function: Callable[[], object], times: int) -> float:
    for _ in range(times // 10):
        function()
    begin = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - begin) / times * 1e6


def _memory(blocks: int) -> float:
    memory, rng = AffinityMemory(), random.Random(1)
    tracemalloc.start()
    for _ in range(100_000):
        prefix = tuple(rng.getrandbits(64) for _ in range(blocks))
        memory.remember(Features("p", prefix=prefix, prompt_tokens=1.0), f"r{rng.randrange(200)}", 0.0)
    used = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    return used


if __name__ == "__main__":
    main()
