"""Follows the decisions of `lbctl serve` for the adaptive pool by polling the API twice a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from lbctl.demo.faults import Faults
from lbctl.demo.replica import HOST

_INTERVAL = 0.5
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_LOWERED = 0.8
"""`serve` is considered to have reacted if a replica's share is below this fraction of its share before the fault."""


@dataclass(frozen=True, slots=True)
class ServedDecision:
    """The decision that `serve` has made about one replica."""

    share: float
    """The decided share of the pool's requests, from 0 to 1."""
    observed: float | None
    """Share of requests in the last minute, as counted by the proxy, from 0 to 1, or None without reports."""
    state: str
    """State in a single word, for example `in`, `slow` or `ejected`."""
    reason: str
    """Reason for the state, or an empty string for `in`."""


class DecisionObserver:
    """Collects the decisions of `serve`, by replica."""

    def __init__(self, api: int) -> None:
        self._url = f"http://{HOST}:{api}/api/v1/pools"
        self.decisions: Mapping[str, ServedDecision] = {}

    def share(self, replica: str) -> float | None:
        """Return a replica's share in the adaptive pool, or None if it is not known yet."""
        decision = self.decisions.get(replica)
        return decision.share if decision else None

    async def run(self, faults: Faults) -> None:
        """Poll the decisions until cancelled, and record in `faults` when they react to a fault."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while True:
                try:
                    async with session.get(self._url) as response:
                        self.decisions = _decisions(await response.json())
                except (aiohttp.ClientError, TimeoutError, ValueError):
                    pass  # the next poll follows; until then, the last decisions are shown
                self._note_reactions(faults)
                await asyncio.sleep(_INTERVAL)

    def _note_reactions(self, faults: Faults) -> None:
        for episode in faults.episodes:
            share, before = self.share(episode.fault.replica), episode.share_before
            open_ = episode.reacted is None and episode.ended is None
            if open_ and before and share is not None and share < _LOWERED * before:
                episode.reacted = time.monotonic()


def _decisions(document: Mapping[str, Any]) -> dict[str, ServedDecision]:
    rows: list[Mapping[str, Any]] = next(
        (pool["replicas"] for pool in document["pools"] if pool["name"] == "adaptive"), []
    )
    return {
        row["name"]: ServedDecision(row["share"], row["observed"], row["state"], row["state_reason"]) for row in rows
    }
