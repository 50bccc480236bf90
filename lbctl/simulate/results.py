"""A replay's figures: latencies, throughput, utilisation, cache hits, and failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from lbctl.base.percentiles import rank
from lbctl.simulate.compiled import FLOAT, filled, jit, smallest
from lbctl.simulate.queue_figures import QueueFigures, queue_figures
from lbctl.simulate.replay import Replay
from lbctl.simulate.state import DONE, SHED, Requests

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles in seconds."""

    p50: float
    """Median, in seconds."""
    p95: float
    """95th percentile, in seconds."""
    p99: float
    """99th percentile, in seconds."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one replay.

    Latencies are in seconds. For unanswered requests, the client's patience is used as the time to first token.
    """

    policy: str
    """`proxy:algorithm`."""
    requests: int
    """Number of requests in the trace."""
    failed: float
    """Share of requests whose clients gave up or whose replica died."""
    shed: float
    """Share of rejected requests: by limits, by the queue, or because too few replicas were healthy."""
    ttft: Latency
    """Time to first token."""
    tpot: Latency
    """Time per output token after the first."""
    total: Latency
    """Time to the last token, for requests that received it."""
    throughput: float
    """Tokens generated per second until the last response."""
    utilisation: dict[str, float]
    """Maps each replica that is not drained to the fraction of time during which its engine is working."""
    spread: float
    """Difference between the highest and lowest utilisation."""
    share: dict[str, float]
    """Maps each replica that is not drained to its share of the requests."""
    cache_hits: float | None
    """Share of prompt tokens found in the prefix cache; None if the trace does not contain prefixes."""
    preempted: int
    """Number of sequences that lost their cache and were prefilled again."""
    fleet: str = ""
    """Name of the fleet; empty if there is only one."""
    drained: tuple[str, ...] = ()
    """Drained replicas, which get no requests."""
    queue: QueueFigures | None = None
    """Figures for the picker's queue; None without a queue."""

    @property
    def row(self) -> str:
        """Name of the row: `fleet/policy`, or only the policy."""
        return f"{self.fleet}/{self.policy}" if self.fleet else self.policy

    @property
    def unanswered(self) -> float:
        """Share of requests without a complete answer."""
        return self.failed + self.shed


def summarise(replay: Replay) -> Summary:
    """Return the figures of a replay."""
    setup, requests, engines = replay.setup, replay.requests, replay.engines
    serving = {index: item.name for index, item in enumerate(setup.pool.replicas) if not item.drain}
    count = len(requests.arrived)
    ttft, tpot, total = (filled(FLOAT, count) for _ in range(3))
    done, several, shed, tokens, end = _durations(requests, setup.patience, ttft, tpot, total)
    end = end if done else replay.end
    busy = {name: min(1.0, float(engines.busy_seconds[at]) / end) if end else 0.0 for at, name in serving.items()}
    placed = Counter(requests.replica.tolist())
    return Summary(
        setup.policy.name,
        count,
        (count - done - shed) / count,
        shed / count,
        _latency(ttft),
        _latency(tpot[:several]),
        _latency(total[:done]),
        tokens / end if end else 0.0,
        busy,
        max(busy.values(), default=0.0) - min(busy.values(), default=0.0),
        {name: placed[index] / count for index, name in serving.items()},
        sum(requests.hit.tolist()) / sum(requests.prompt.tolist()) if any(requests.block_count) else None,
        int(sum(engines.preempted)),
        drained=tuple(item.name for item in setup.pool.replicas if item.drain),
        queue=queue_figures(replay),
    )


@jit
def _durations(
    requests: Requests, patience: float, ttft: Any, tpot: Any, total: Any
) -> tuple[int, int, int, int, float]:
    """Write the requests' times into the arguments.

    Returns the numbers of completed requests, completed requests with several tokens, and rejected requests, then the
    token sum and the end time.
    """
    done, several, shed, tokens, end = 0, 0, 0, 0, 0.0
    for request in range(len(requests.arrived)):
        state, first, last = requests.state[request], requests.first[request], requests.last[request]
        ttft[request] = patience
        if state == SHED:
            shed += 1
        if state != DONE:
            continue
        ttft[request] = first - requests.arrived[request]
        total[done] = last - requests.arrived[request]
        done += 1
        tokens += requests.answer[request]
        end = max(end, last)
        if requests.answer[request] > 1:
            tpot[several] = (last - first) / (requests.answer[request] - 1)
            several += 1
    return done, several, shed, tokens, end


def _latency(values: Any) -> Latency:
    count = len(values)
    if not count:
        return Latency(0.0, 0.0, 0.0)
    return Latency(*smallest(values, [rank(count, each) for each in PERCENTILES]))
