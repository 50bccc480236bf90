"""A rollout in the demo: a route whose requests go step by step to a new version, by key or by the script.

It has a listener, two replicas and a small load of its own, so it does not disturb the comparison of the groups. The
rollout is `manual`: each advance is a request to the API of `serve`, with its token.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from lbctl.demo.fleet import ANSWER, CANARY, PROMPT, SPREAD, STEPS, Site
from lbctl.demo.load import Load, poisson
from lbctl.demo.replica import HOST

_RATE = 3.0
"""Requests a second."""
_BLOCK = 60.0
_PATIENCE = 5.0
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that the rollout has taken."""

    percent: float
    """The share that the new version was given."""
    at: float
    """On the monotonic clock."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What clients saw of a step."""

    step: Step
    """The step."""
    requests: int
    """How many were sent until the next step."""
    failed: int
    """How many of them have failed."""
    observed: float
    """The part of the responses that came from the new version, from 0 to 1."""


class Canary:
    """The rollout of one run; `token` is the file of the API's token."""

    def __init__(self, site: Site, token: Path) -> None:
        self.steps: list[Step] = []
        self._load = Load([site.canary_port], "/v1/completions", _PATIENCE, keep=False)
        self._url = f"http://{HOST}:{site.api}/api/v1/rollouts"
        self._token = token

    async def advance(self) -> None:
        """Take the next step, if there is one and `serve` takes it."""
        if len(self.steps) == len(STEPS):
            return
        body = {"route": CANARY, "action": "promote" if self.steps else "start", "reason": "lbctl demo"}
        headers = {"authorization": f"Bearer {self._token.read_text(encoding='ascii').strip()}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers) as session,
                session.post(self._url, json=body) as response,
            ):
                response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError):
            return
        self.steps.append(Step(STEPS[len(self.steps)], time.monotonic()))

    async def run_load(self, began: float) -> None:
        """Send requests until cancelled."""
        seed = random.Random("lbctl demo canary")
        for number in range(1_000_000):
            arrivals = poisson(_RATE, _BLOCK, PROMPT, ANSWER, SPREAD, f"{seed.random()} {number}")
            await self._load.run(arrivals, began + number * _BLOCK)

    async def follow_script(self, began: float, duration: float) -> None:
        """Take each step at its part of the duration."""
        for part in (0.05, 0.35, 0.65):
            await asyncio.sleep(max(0.0, began + part * duration - time.monotonic()))
            await self.advance()

    def results(self) -> Iterator[StepResult]:
        """Yield what clients saw of each step so far."""
        ends = [*(step.at for step in self.steps[1:]), time.monotonic()]
        for step, end in zip(self.steps, ends, strict=True):
            outcomes = self._load.outcomes(step.at, end)
            yield StepResult(step, len(outcomes.sent), outcomes.failed, outcomes.shares().get("v2", 0.0))
