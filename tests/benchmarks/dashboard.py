"""`python -m tests.benchmarks.dashboard`: measure how 50 open dashboards affect `lbctl serve` with 1,000 replicas.

Every replica reports new queue and cache figures every two seconds, so most rows of every frame change. A push is one
held weight: the time from the request to the API until an xDS client has the new endpoints.

Short phases with and without dashboards form pairs in alternating order, so that other work on the machine affects
both. The pushes of all phases of a kind are pooled. The range of a ratio covers 90 % of the ratios of resampled pairs,
because a 99th percentile depends on few pushes.

The dashboards read their streams in a separate process, as browsers do. The processor time of `serve` is measured
between pushes.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.benchmarks.xds_process import Serve, serve

POOLS, REPLICAS, DASHBOARDS = 10, 100, 50
PAIRS, PUSHES, PAUSE = 20, 75, 0.04
SETTLING, QUIET = 1.5, 2.0
"""Seconds at the beginning of a phase without measurements, and seconds in which processor time is measured."""
_DRAWS = 1000
_Latencies = dict[bool, list[list[float]]]
"""Whether dashboards are open → seconds of the pushes of each pair."""
_PAGE = "vllm:num_requests_running 8\nvllm:num_requests_waiting {queue}\nvllm:kv_cache_usage_perc {cache:.2f}\n"


async def _exporter() -> None:
    """Serve a metrics page with new figures each time until standard input ends. Print the port first."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=_PAGE.format(queue=random.randrange(20), cache=random.random()))

    app = web.Application()
    app.router.add_get("/{name}", page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


async def _dashboards(url: str) -> None:
    """Read the streams of all dashboards until standard input ends. Print the total number of bytes at the end."""
    received = 0

    async def read(session: aiohttp.ClientSession) -> None:
        nonlocal received
        async with session.get(f"{url}/api/v1/live") as answer:
            answer.raise_for_status()
            async for part in answer.content.iter_any():
                received += len(part)

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        tasks = [asyncio.create_task(read(session)) for _ in range(DASHBOARDS)]
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    print(received, flush=True)


def _fleet(exporter: str) -> str:
    source = f'{{kind: vllm, url: "http://127.0.0.1:{exporter}/{{name}}"}}'
    pools = []
    for pool in range(POOLS):
        replicas = ", ".join(
            f'{{name: p{pool}-r{number}, address: "127.0.{pool}.{1 + number}:9"}}' for number in range(REPLICAS)
        )
        pools.append(f"""\
  p{pool}:
    replicas: [{replicas}]
    telemetry: {{interval: 2s, timeout: 1500ms, stale_after: 10s, sources: [{source}]}}
    weighting: {{strategy: static}}
""")
    routes = "".join(f"  r{pool}: {{match: {{path_prefix: /{pool}/}}, pool: p{pool}}}\n" for pool in range(POOLS))
    return f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:8080"}}}}\nroutes:\n{routes}pools:\n{"".join(pools)}'


class _Run:
    """One `serve` process, followed by an xDS client."""

    def __init__(self, running: Serve, state: Path) -> None:
        self._running = running
        found = re.search(r"api=(http://\S+)", running.log.read_text())
        assert found
        self.url = found[1]
        self._headers = {"authorization": f"Bearer {(state / 'api-token').read_text().strip()}"}

    async def push(self, session: aiohttp.ClientSession, client: object, number: int) -> float:
        """Hold another weight, and return the seconds until the client has received it."""
        from lbctl.xds.resource import EDS

        pool = f"p{number % POOLS}"
        body = {"kind": "weight", "pool": pool, "replica": f"{pool}-r0", "value": 0.5 + (number % 97) / 100}
        started = time.monotonic()
        async with session.post(f"{self.url}/api/v1/overrides", json=body, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()
        return await client.has([(EDS, pool)], started) - started  # type: ignore[attr-defined,no-any-return]

    def processor(self) -> float:
        """Return the processor seconds that the process has used."""
        fields = Path(f"/proc/{self._running.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measure() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from lbctl.xds.resource import EDS
    from tests.benchmarks.xds_clients import clients

    latencies: _Latencies = {False: [], True: []}
    shares: dict[bool, list[float]] = {False: [], True: []}
    received = seconds = 0.0
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        exporter, port = await _child("--exporter")
        fleet, state = directory / "fleet.yaml", directory / "state"
        fleet.write_text(_fleet(port))
        running = await stack.enter_async_context(serve(fleet, state))
        client = clients(1)[0]
        client.connect(await running.listening())
        run = _Run(running, state)
        await client.has([(EDS, f"p{pool}") for pool in range(POOLS)])
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await asyncio.sleep(5)
        for phase in range(2 * PAIRS):
            looked_at = phase % 4 in (1, 2)
            browsers, _ = await _child("--dashboards", run.url) if looked_at else (None, "")
            begun = time.monotonic()
            await asyncio.sleep(SETTLING)
            before, started = run.processor(), time.monotonic()
            await asyncio.sleep(QUIET)
            shares[looked_at].append((run.processor() - before) / (time.monotonic() - started))
            latencies[looked_at].append([])
            for number in range(PUSHES):
                latencies[looked_at][-1].append(await run.push(session, client, phase * PUSHES + number))
                await asyncio.sleep(PAUSE)
            if browsers is not None:
                received += float(await _ended(browsers))
                seconds += time.monotonic() - begun
        await client.disconnect()
        await _ended(exporter)
    _report(latencies, shares, received / seconds / DASHBOARDS)


async def _child(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a part of this benchmark as a process. Return it with its first line of output."""
    command = [sys.executable, "-m", "tests.benchmarks.dashboard", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, (await asyncio.to_thread(process.stdout.readline)).strip()


async def _ended(process: subprocess.Popen[str]) -> str:
    """End a part, and return its remaining output."""
    return (await asyncio.to_thread(process.communicate))[0]


def _percentile(pairs: Sequence[list[float]], part: int) -> float:
    return statistics.quantiles(chain.from_iterable(pairs), n=100)[part - 1]


def _range(latencies: _Latencies, part: int) -> tuple[float, float]:
    """Return the range that contains 90 % of the ratios of resampled pairs."""
    chance, ratios = random.Random("pairs"), []
    for _ in range(_DRAWS):
        drawn = chance.choices(range(PAIRS), k=PAIRS)
        none, some = (_percentile([latencies[each][pair] for pair in drawn], part) for each in (False, True))
        ratios.append(some / none)
    ratios.sort()
    return ratios[_DRAWS // 20], ratios[-_DRAWS // 20]


def _report(latencies: _Latencies, shares: dict[bool, list[float]], rate: float) -> None:
    print(f"{POOLS * REPLICAS} replicas, {PAIRS} phases of {PUSHES} pushes each, {DASHBOARDS} dashboards or none\n")
    print(f"{'':<24} {'none':>10} {f'{DASHBOARDS} open':>10} {'ratio':>8} {'range':>13}")
    for name, part in (("push, p50", 50), ("push, p90", 90), ("push, p99", 99)):
        none, some = (_percentile(latencies[each], part) for each in (False, True))
        low, high = _range(latencies, part)
        times = f"{none * 1000:>7.1f} ms {some * 1000:>7.1f} ms"
        print(f"{name:<24} {times} {some / none:>8.2f} {low:>6.2f}–{high:.2f}")
    none, some = (statistics.mean(shares[each]) for each in (False, True))
    print(f"{'processor of serve':<24} {none * 100:>8.1f} % {some * 100:>8.1f} % {(some - none) * 100:>+6.1f} %")
    print(f"{'bytes to a dashboard':<24} {'':>10} {rate / 1000:>5.1f} kB/s")


def main() -> None:
    if sys.argv[1:2] == ["--exporter"]:
        asyncio.run(_exporter())
    elif sys.argv[1:2] == ["--dashboards"]:
        asyncio.run(_dashboards(sys.argv[2]))
    else:
        asyncio.run(_measure())


if __name__ == "__main__":
    main()
