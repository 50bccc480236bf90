"""What a replay means: latencies, throughput, utilisation, cache hits, failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lbctl.simulate.columns import DONE
from lbctl.simulate.replay import Replay

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles in seconds."""

    p50: float
    """The median."""
    p95: float
    """Of 95 %."""
    p99: float
    """Of 99 %."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one replay. A client that gave up counts with its patience as time to the first token."""

    policy: str
    """`proxy:algorithm`."""
    requests: int
    """Requests of the trace."""
    failed: float
    """The part of them whose clients gave up."""
    ttft: Latency
    """Time to the first token."""
    tpot: Latency
    """Time per further token."""
    total: Latency
    """Time to the last token."""
    throughput: float
    """Generated tokens per second, until the last answer."""
    utilisation: dict[str, float]
    """Replica → the part of the time in which its engine works."""
    share: dict[str, float]
    """Replica → its part of the requests."""
    cache_hits: float | None
    """The part of prompt tokens that was in the prefix cache; None where the trace has no prefixes."""
    preempted: int
    """Sequences that lost their cache and were read again."""

    @property
    def spread(self) -> float:
        """The largest less the smallest utilisation."""
        return max(self.utilisation.values()) - min(self.utilisation.values())


def summarise(replay: Replay) -> Summary:
    """Return the figures of a replay."""
    setup, requests, engines = replay.setup, replay.requests, replay.engines
    names = [replica.name for replica in setup.pool.replicas]
    arrived, first, last = list(requests.arrived), list(requests.first), list(requests.last)
    state, answers = list(requests.state), list(requests.answer)
    done = [index for index, each in enumerate(state) if each == DONE and last[index] >= 0.0]
    ttft = [setup.patience] * (len(arrived) - len(done)) + [first[index] - arrived[index] for index in done]
    tpot = [(last[index] - first[index]) / (answers[index] - 1) for index in done if answers[index] > 1]
    end = float(max((last[index] for index in done), default=replay.end))
    placed = [int(replica) for replica in requests.replica]
    hits = sum(int(hit) for hit in requests.hit) / max(1, sum(int(prompt) for prompt in requests.prompt))
    return Summary(
        setup.policy.name,
        len(arrived),
        1.0 - len(done) / len(arrived),
        _latency(ttft),
        _latency(tpot),
        _latency([last[index] - arrived[index] for index in done]),
        sum(int(answers[index]) for index in done) / end if end else 0.0,
        {
            name: min(1.0, float(busy) / end) if end else 0.0
            for name, busy in zip(names, engines.busy_seconds, strict=True)
        },
        {name: placed.count(index) / len(placed) for index, name in enumerate(names)},
        hits if any(requests.block_count) else None,
        sum(int(number) for number in engines.preempted),
    )


def _latency(values: Sequence[float]) -> Latency:
    ordered = sorted(values) or [0.0]
    return Latency(*(float(ordered[min(len(ordered) - 1, len(ordered) * each // 100)]) for each in PERCENTILES))
