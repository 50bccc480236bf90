"""The demo's canaries, which are rollouts analysed by `serve`, each with a load started by a key or the script.

`serve` starts both rollouts together with the fleet, and each remains in its first step until there are requests to
compare. Starting a canary for the first time therefore only starts its load. Later starts send a request with the API
token to the `serve` API. The load ends once `serve` has promoted the new version or rolled it back.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from lbctl.demo.canary_fleet import ANSWER, NEW, PROMPT, REQUEST_RATE, CanaryPlan, CanarySite
from lbctl.demo.load import LoadGenerator, Outcomes, poisson
from lbctl.demo.replica import HOST
from lbctl.simulate.load import conversation

_BLOCK = 1.0
"""Number of seconds for which arrivals are generated at a time."""
_FIRST_BYTE_TIMEOUT = 5.0
_INTERVAL = 0.5
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_RUNNING = ("progressing", "paused")


@dataclass(frozen=True, slots=True)
class StepTaken:
    """A change to the step of a rollout."""

    percent: float
    """The new version's share, in percent."""
    at: float
    """Time at which the step was observed, on the monotonic clock."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The clients' results during one step."""

    step: StepTaken
    requests: int
    """Number of requests sent before the next step."""
    failed: int
    """Number of failed requests."""
    observed: float | None
    """Share of responses from the new version, from 0 to 1, or None without requests."""


@dataclass(slots=True)
class Canary:
    """The state of a canary since its last start. Times are in seconds on the monotonic clock."""

    site: CanarySite
    row: Mapping[str, Any] = field(default_factory=dict)
    """The canary's rollout as returned by the API, or empty before the first poll."""
    steps: list[StepTaken] = field(default_factory=list)
    started: float | None = None
    ended: float | None = None
    load: LoadGenerator = field(init=False)

    def __post_init__(self) -> None:
        self.load = LoadGenerator([self.site.port], "/v1/completions", _FIRST_BYTE_TIMEOUT, keep=False)

    @property
    def plan(self) -> CanaryPlan:
        """This canary's plan."""
        return self.site.plan

    @property
    def running(self) -> bool:
        """Whether the canary has been started and has been neither promoted nor rolled back."""
        return self.started is not None and self.ended is None

    @property
    def phase(self) -> str:
        """The rollout's phase, or `waiting` before the canary is first started."""
        return str(self.row.get("phase", "waiting")) if self.started is not None else "waiting"

    @property
    def last_evaluation(self) -> Mapping[str, Any] | None:
        """Last evaluation as returned by the API, or None if there has been none since the start."""
        evaluations: Sequence[Mapping[str, Any]] = (self.row.get("analysis") or {}).get("evaluations", ())
        return evaluations[-1] if evaluations and self.started is not None else None

    def begin(self) -> None:
        """Start the load, and forget the steps from an earlier start."""
        self.started, self.ended, self.steps = time.monotonic(), None, []

    def copy(self) -> Canary:
        """Return a copy of the current state that is not affected by later results."""
        copied = replace(self, steps=list(self.steps))
        copied.load.sent = list(map(replace, self.load.sent))
        return copied

    def update(self, row: Mapping[str, Any]) -> None:
        """Process the current row from the API, and record a new step or the end of the rollout."""
        self.row = row
        if not self.running:
            return
        if row["percent"] is not None and (not self.steps or self.steps[-1].percent != row["percent"]):
            self.steps.append(StepTaken(row["percent"], time.monotonic()))
        if row["phase"] not in _RUNNING:
            self.ended = time.monotonic()

    async def run_load(self) -> None:
        """Send requests while the rollout is running, until cancelled."""
        seed, lengths = random.Random(f"lbctl demo {self.plan.name}"), conversation(PROMPT, ANSWER)
        while True:
            if self.running:
                arrivals = poisson(REQUEST_RATE, _BLOCK, lengths, str(seed.random()))
                await self.load.run(arrivals, time.monotonic())
            else:
                await asyncio.sleep(0.1)

    def outcomes(self) -> Outcomes:
        """Return the outcomes of all requests since the start."""
        return self.load.outcomes(self.started or 0.0, self.ended or time.monotonic())

    def results(self) -> Iterator[StepResult]:
        """Yield the clients' results in each step so far."""
        ends = [*(step.at for step in self.steps[1:]), self.ended or time.monotonic()]
        for step, end in zip(self.steps, ends, strict=False):
            outcomes = self.load.outcomes(step.at, end)
            observed = outcomes.shares().get(NEW, 0.0) if outcomes.sent else None
            yield StepResult(step, len(outcomes.sent), outcomes.failed, observed)


class Canaries:
    """All canaries in a run, and the `serve` API that controls them.

    `token` is the file that contains the API's token.
    """

    def __init__(self, sites: Sequence[CanarySite], api: int, token: Path) -> None:
        self.all = tuple(map(Canary, sites))
        self._url = f"http://{HOST}:{api}/api/v1/rollouts"
        self._token = token
        self._lock = asyncio.Lock()
        """Lock held during a request, so that an older response cannot be processed after a newer one."""

    @property
    def by_key(self) -> Mapping[str, Canary]:
        """Maps each key to the canary that it starts."""
        return {canary.plan.key: canary for canary in self.all}

    async def start(self, canary: Canary) -> None:
        """Start a canary that is not running.

        If `serve` rejects the request, nothing happens and the key can be pressed again.
        """
        if canary.running:
            return
        if canary.started is not None:
            body = {"route": canary.plan.name, "action": "start", "reason": "lbctl demo"}
            answer = await self._ask("POST", body)
            if answer is None:
                return
            canary.row = answer["rollout"]
        canary.begin()

    async def run(self) -> None:
        """Poll the rollouts twice a second and generate the loads until cancelled."""
        async with asyncio.TaskGroup() as group:
            for canary in self.all:
                group.create_task(canary.run_load())
            while True:
                await self._read()
                await asyncio.sleep(_INTERVAL)

    async def _read(self) -> None:
        answer = await self._ask("GET")
        rows = {row["route"]: row for row in answer["rollouts"]} if answer else {}
        for canary in self.all:
            if canary.plan.name in rows:
                canary.update(rows[canary.plan.name])

    async def _ask(self, method: str, body: Mapping[str, str] | None = None) -> Mapping[str, Any] | None:
        """Return the API's response, or None if it does not respond or rejects the request."""
        try:
            token = self._token.read_text(encoding="ascii").strip()
            async with (
                self._lock,
                aiohttp.ClientSession(timeout=_TIMEOUT, headers={"authorization": f"Bearer {token}"}) as session,
                session.request(method, self._url, json=body) as response,
            ):
                response.raise_for_status()
                document: Mapping[str, Any] = await response.json()
                return document
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def run_script(self, began: float, duration: float) -> None:
        """Start each canary at its scheduled time."""
        for canary in sorted(self.all, key=lambda item: item.plan.start):
            await asyncio.sleep(max(0.0, began + canary.plan.start * duration - time.monotonic()))
            await self.start(canary)
