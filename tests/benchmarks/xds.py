"""Compare the control plane with its floor (`xds_floor`): the processor time of a change, and the time until the last
stream has it.

Both are measured in the same run, so that their ratio depends on the code and little on the machine. Clients run in
this process, and each server in a separate process. Pushes to the two servers alternate, and the figures are medians.
Figures without a floor are compared with a limit in seconds or megabytes.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc

from lbctl.xds.resource import CDS, EDS, LDS, RDS
from tests.benchmarks.fleets import fleet
from tests.benchmarks.picks import cpu
from tests.benchmarks.xds_clients import Client, all_have, clients
from tests.benchmarks.xds_process import Server, serve, server
from tests.support.processes.certs import Authority

HEAD = f"\n{'XDS':<58} {'LBCTL':>9} {'FLOOR':>9} {'RATIO':>7} {'LIMIT':>8}"
_SUBJECTS = ("floor", "lbctl")
_TIMEOUT = 60.0
_QUIET = 0.3
"""Seconds after the last response, in which the server processes the acknowledgements."""
_STREAMS = 100
_CROWD = 1000


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. `unit`: ms, s, MB, or empty for a count.

    `most`: limit of the ratio if there is a floor, else of the figure.
    """

    name: str
    lbctl: float
    unit: str = "ms"
    floor: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        ratio = self.lbctl / self.floor if self.floor else None
        judged = self.lbctl if ratio is None else ratio
        limit = ""
        if self.most is not None:
            limit = f"{self.most:g}{'×' if ratio is not None else ' ' + self.unit}"
            limit = f"{limit:>8} {'ok' if judged <= self.most else 'MISSED'}"
        floor = "" if self.floor is None else _figure(self.floor, self.unit)
        shown = "" if ratio is None else f"{ratio:.1f}×"
        return f"{self.name:<58} {_figure(self.lbctl, self.unit):>9} {floor:>9} {shown:>7} {limit}".rstrip()


Scenario = Callable[[Path, int], AsyncIterator["Line"]]


def chosen(word: str) -> list[Scenario]:
    """Return the scenarios whose name contains `word`."""
    return [item for item in (_reweighted, _one_changed, _crowd, _start, _reload) if word in f"xds{item.__name__}"]


async def lines(scenario: Scenario, runs: int) -> AsyncIterator[Line]:
    """Yield the figures of a scenario."""
    with tempfile.TemporaryDirectory() as directory:
        async for line in scenario(Path(directory), runs):
            yield line


async def _reweighted(directory: Path, runs: int) -> AsyncIterator[Line]:
    each = await _pushes(_written(directory, 10, 1000), 10, 10, runs)
    yield _compared(f"{_STREAMS} streams, 10 × 1,000, all reweighted: server CPU", each, lambda push: push.cpu, 3)
    yield _compared("    until the last stream has it", each, lambda push: push.last, 3)
    yield _compared("    before the first byte", each, lambda push: push.own)


async def _one_changed(directory: Path, runs: int) -> AsyncIterator[Line]:
    each = await _pushes(_written(directory, 10, 1000), 10, 1, runs)
    yield _compared(f"{_STREAMS} streams, one cluster of 10: server CPU", each, lambda push: push.cpu, 2)
    yield _compared("    until the last stream has it", each, lambda push: push.last, 2)


async def _crowd(directory: Path, runs: int) -> AsyncIterator[Line]:
    """Connect all clients at once, with TLS, twice: the second time the server knows the nodes."""
    path = _written(directory, 10, 100)
    authority = Authority(directory / "tls")
    pair = authority.issue("localhost")
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    took, memory = {}, {}
    for subject in _SUBJECTS:
        async with server(subject, path, "--tls", str(pair.certificate), str(pair.key)) as made:
            crowd = clients(_CROWD)
            for _ in range(2):
                took[subject] = await _connected(crowd, made, _all_of(10), credentials)
                memory[subject] = (await made.ask(do="cost"))["peak"]
                await _gone(crowd)
    yield Line(f"{_CROWD:,} streams of 10 × 100 come back at once, with TLS", took["lbctl"], "s", None, 5)
    yield Line("    the floor", took["floor"], "s")
    yield Line("    most memory of the server", memory["lbctl"], "MB", None, 300)
    yield Line("    most memory of the floor", memory["floor"], "MB")


async def _start(directory: Path, runs: int) -> AsyncIterator[Line]:
    """Measure the whole command, from its start until a proxy has all resources. Then change one pool in its file."""
    path = _written(directory, 1000, 10)
    async with serve(path, directory / "state") as made:
        client = Client("node-0")
        client.connect(await made.listening())
        async with asyncio.timeout(_TIMEOUT):
            last = await client.has(_all_of(1000))
        yield Line("lbctl serve, 1,000 pools × 10: serving after its start", last - made.started, "s", None, 2)
        yield Line("    its memory", made.memory, "MB")
        await _calm(made.process.pid)
        took = []
        for _ in range(runs):
            client.forget()
            since = time.monotonic()
            _change_one_pool(path)
            async with asyncio.timeout(_TIMEOUT):
                took.append(await client.has([(EDS, "pool-500")], since) - since)
            await asyncio.sleep(2)
        yield Line("    one pool changed in its file: until a proxy has it", statistics.median(took), "s", None, 0.5)
        yield Line("    … pools whose resources were sent", len({name for _, name in client.came}), "", None, 1)
        await client.disconnect()


async def _reload(directory: Path, runs: int) -> AsyncIterator[Line]:
    """Measure a reload, with reading and publishing separate. The rest of the fleet should add little."""
    costs, read = {}, {}
    for pools in (100, 1000):
        path = _written(directory, pools, 10)
        async with server("lbctl", path) as made:
            crowd = clients(1)
            await _connected(crowd, made, _all_of(pools))
            crowd[0].forget()
            found = []
            for _ in range(runs):
                _change_one_pool(path)
                found.append(await made.ask(do="reload"))
            costs[pools] = statistics.median(item["took"] for item in found)
            read[pools] = statistics.median(item["read"] for item in found)
            await _gone(crowd)
    for pools in costs:
        yield Line(f"a reload with one changed pool of {pools:,}: build and publish", costs[pools])
        yield Line("    reading and compiling before that: processor time", read[pools])


@dataclass(frozen=True, slots=True)
class Push:
    """Times of a push in seconds. `cpu`: processor time of the server, including the acknowledgements.

    `last`: until the last stream has it. `own`: work before the first byte can be written.
    """

    cpu: float
    last: float
    own: float


async def _pushes(path: Path, pools: int, changed: int, runs: int) -> dict[str, list[Push]]:
    """Return the times of `runs` pushes of each server, in turns, after a warm-up push."""
    found: dict[str, list[Push]] = {name: [] for name in _SUBJECTS}
    crowds = {name: clients(_STREAMS) for name in _SUBJECTS}
    async with AsyncExitStack() as stack:
        made = {name: await stack.enter_async_context(server(name, path)) for name in _SUBJECTS}
        for name in _SUBJECTS:
            await _connected(crowds[name], made[name], _all_of(pools))
        for run in range(runs + 1):
            for name in _SUBJECTS:
                cost = await _push(made[name], crowds[name], _pools(changed), 1000 + 2000 * run)
                found[name] += [cost] if run else []
        for crowd in crowds.values():
            await _gone(crowd)
    return found


async def _push(made: Server, crowd: Sequence[Client], pools: Sequence[str], weight: int) -> Push:
    before = await made.ask(do="push", pools=pools, weight=weight)
    came = await all_have(crowd, [(EDS, name) for name in pools], before["started"], _TIMEOUT)
    await asyncio.sleep(_QUIET)
    after = await made.ask(do="cost")
    return Push(after["cpu"] - before["cpu"], came - before["started"], before["pushed"])


async def _connected(
    crowd: Sequence[Client],
    made: Server,
    wanted: Sequence[tuple[str, str]],
    credentials: grpc.ChannelCredentials | None = None,
) -> float:
    """Connect all clients at once. Return the seconds until the last one has all resources."""
    started = time.monotonic()
    for client in crowd:
        client.versions.clear()
        client.connect(made.target, credentials)
    last = await all_have(crowd, wanted, started, _TIMEOUT)
    await asyncio.sleep(_QUIET)
    return last - started


async def _gone(crowd: Sequence[Client]) -> None:
    await asyncio.gather(*(client.disconnect() for client in crowd))


def _pools(count: int) -> list[str]:
    return [f"pool-{number}" for number in range(count)]


def _all_of(pools: int) -> list[tuple[str, str]]:
    """Return all resources of a proxy of our fleets, as (type, name)."""
    of_pools = [(kind, name) for kind in (CDS, EDS) for name in _pools(pools)]
    return of_pools + [(kind, name) for kind in (LDS, RDS) for name in ("public", "internal")]


def _written(directory: Path, pools: int, replicas: int) -> Path:
    path = directory / f"{pools}x{replicas}.yaml"
    path.write_text(fleet(pools, replicas))
    return path


async def _calm(pid: int) -> None:
    """Wait until the process uses less than half of a core. After its start it checks every replica."""
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        before = cpu(pid)
        await asyncio.sleep(2)
        if cpu(pid) - before < 1:
            return


def _change_one_pool(path: Path) -> None:
    """Drain another replica in the pool in the middle, or end the drain."""
    name = "pool-500" if "pool-500:" in path.read_text() else "pool-50"
    head, mark, tail = path.read_text().partition(f"\n  {name}:\n")
    first, line, rest = tail.partition("- {name: r3, ")
    changed = rest.removeprefix("drain: true, ") if rest.startswith("drain: true, ") else "drain: true, " + rest
    beside = path.with_suffix(".new")
    beside.write_text(head + mark + first + line + changed)
    beside.replace(path)


def _compared(name: str, each: dict[str, list[Push]], take: Callable[[Push], float], most: float | None = None) -> Line:
    lbctl, floor = (statistics.median(map(take, each[subject])) for subject in ("lbctl", "floor"))
    return Line(name, lbctl, "ms", floor, most)


def _figure(value: float, unit: str) -> str:
    if unit == "ms":
        return f"{value * 1000:.1f} ms"
    return f"{value:.2f} s" if unit == "s" else f"{value:.0f} {unit}".rstrip()
