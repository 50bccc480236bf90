"""Runs the demo once: replicas, proxy and `serve`, load on all groups, faults, and their display."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.proxies import version_text
from lbctl.demo.canary import Canaries
from lbctl.demo.faults import FAULTS, Faults
from lbctl.demo.fleet import ANSWER, PROMPT, STRATEGIES, Site, Strategy, arrival_rate, new_site, write_fleet
from lbctl.demo.load import LoadGenerator, lateness, poisson
from lbctl.demo.observer import DecisionObserver
from lbctl.demo.replica import HOST
from lbctl.demo.report import FIRST_TOKEN_TIMEOUT, DemoReport, report
from lbctl.ir.address import Address
from lbctl.simulate.load import conversation
from lbctl.targets.load import load
from lbctl.up.prepare import Program, prepare_run
from lbctl.up.run import Programs, run

_SETTLING = 1.0
"""Seconds without load after startup, during which the health checks detect that all replicas are healthy."""
_STATE, _TOKEN = "state", "api-token"
_BLOCK = 60.0
"""Number of seconds for which arrivals are generated at a time."""


class DemoError(Exception):
    """It was not possible to run the demo's own fleet. The message contains the diagnostics."""


@dataclass(slots=True)
class DemoSession:
    """A running demo."""

    site: Site
    program: Program
    duration: float | None
    """Duration of the load in seconds, or None until `stop` is called."""
    observer: DecisionObserver
    faults: Faults
    loads: dict[Strategy, LoadGenerator]
    canaries: Canaries
    began: float = 0.0
    """Time on the monotonic clock."""
    late: list[float] = field(default_factory=list)
    """Lateness of the event loop in each second of the load (99th percentile)."""
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def proxy(self) -> str:
        """Kind and version of the proxy."""
        return f"{self.program.kind} {version_text(self.program.version)}".strip()

    @property
    def dashboard(self) -> str:
        """URL of the dashboard."""
        return f"http://{HOST}:{self.site.api}/"

    def stop(self) -> None:
        """End the load."""
        self._stopped.set()

    async def run_load(self) -> DemoReport:
        """Send the same requests to every group until the duration has elapsed or `stop` is called; return the report.

        Requests that have no response by then are counted before they are aborted.
        """
        self.began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._send(name)) for name in STRATEGIES]
            tasks.append(group.create_task(self._measure_lateness()))
            tasks.append(group.create_task(self.canaries.run()))
            try:
                async with asyncio.timeout(self.duration):
                    await self._stopped.wait()
            except TimeoutError:
                pass
            result = self._report()
            for task in tasks:
                task.cancel()
        return result

    def _report(self) -> DemoReport:
        return report(
            self.proxy, self.began, self.loads, self.faults, self.canaries.all, self.observer.decisions, self.late
        )  # fmt: skip

    async def _send(self, strategy: Strategy) -> None:
        seed, lengths = random.Random("lbctl demo"), conversation(PROMPT, ANSWER)
        for number in range(1_000_000):
            arrivals = poisson(arrival_rate(), _BLOCK, lengths, f"{seed.random()} {number}")
            await self.loads[strategy].run(arrivals, self.began + number * _BLOCK)

    async def _measure_lateness(self) -> None:
        while True:
            self.late.append(await lateness(1.0))

    async def run_script(self) -> None:
        """Start each canary, and start and end each fault, at its scheduled time."""
        assert self.duration is not None, "a script requires a duration"
        async with asyncio.TaskGroup() as group:
            group.create_task(self.canaries.run_script(self.began, self.duration))
            group.create_task(self._run_faults(self.duration))

    async def _run_faults(self, duration: float) -> None:
        moments = sorted((part * duration, fault.key, fault) for fault in FAULTS for part in fault.span)
        for moment, _, fault in moments:
            await asyncio.sleep(max(0.0, self.began + moment - time.monotonic()))
            await self.faults.toggle(fault)


async def demo(
    program: Program, place: Path, duration: float | None, show: Callable[[DemoSession], Coroutine[Any, Any, None]]
) -> DemoReport | None:
    """Run the demo with its files in `place`, and run `show` alongside the load.

    Return the report, or None if a signal ended the demo. Raises DemoError, UpError, OSError and MissingBinaryError.
    """
    results: list[DemoReport] = []
    site = new_site()
    async with _listening(site):
        session = _session(site, program, duration, place / _STATE)
        programs = await asyncio.to_thread(_prepared, site, program, place)

        async def body() -> None:
            await asyncio.sleep(_SETTLING)
            async with asyncio.TaskGroup() as group:
                observing = group.create_task(session.observer.run(session.faults))
                showing = group.create_task(show(session))
                results.append(await session.run_load())
                showing.cancel()
                observing.cancel()

        return results[0] if await run(programs, lambda _name, _line: None, body) else None


@asynccontextmanager
async def _listening(site: Site) -> AsyncIterator[None]:
    try:
        for replica in site.replicas:
            await replica.start()
        yield
    finally:
        for replica in site.replicas:
            await replica.close()
        for reserved in site.reserved:
            reserved.close()


def _session(site: Site, program: Program, duration: float | None, state: Path) -> DemoSession:
    observer = DecisionObserver(site.api)
    loads = {
        name: LoadGenerator([port], "/v1/completions", FIRST_TOKEN_TIMEOUT, keep=False)
        for name, port in site.listeners.items()
    }
    canaries = Canaries(site.canaries, site.api, state / _TOKEN)
    return DemoSession(site, program, duration, observer, Faults(site, observer.share), loads, canaries)


def _prepared(site: Site, program: Program, place: Path) -> Programs:
    diagnostics = Diagnostics()
    path = str(write_fleet(site, place))
    loaded = load([path], diagnostics)
    prepared = prepare_run(loaded, (path,), program, place, diagnostics) if loaded else None
    if prepared is None:
        raise DemoError("\n".join(map(str, diagnostics)))
    listeners = [Address(HOST, port) for port in site.listener_ports.values()]
    own_api = ("--api-bind", f"{HOST}:{site.api}")  # even if an environment variable sets another address
    return Programs(program.kind, prepared.command, prepared.paths, place / _STATE, place, listeners, own_api)
