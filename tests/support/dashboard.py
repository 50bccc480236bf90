"""A control plane with an invented, changing fleet for the dashboard: `python -m tests.support.dashboard`."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from lbctl.api import schema
from lbctl.ir.address import Address
from lbctl.serve.api import status_rows
from lbctl.serve.api.authorization import ApiAccess
from lbctl.serve.api.dashboard.history import MIN_INTERVAL
from lbctl.serve.api.server import ApiServer
from tests.support import api

GPUS = ("H100-SXM", "H100-SXM", "A100-80GB", "L40S")
_ODD = {
    3: ("slow", "three times slower than its peers since 15:28"),
    7: ("hot", "87 °C: fuller or hotter than its peers"),
    11: ("draining", "drained by an operator: new NVLink bridge; 3 requests left"),
    17: ("ejected", "ejected by deep health: no progress for 30 s with 12 requests running"),
    23: ("down", "down by the active check of edge-haproxy: L4CON, connection refused"),
    29: ("ramping", "slow start: 40 % of its weight after 24 s"),
}


CACHED = schema.CachedTokens(
    1_440_000,
    288_000,
    {"device": 240_000, "host": 48_000},
    0.2,
    "the engines evict cache entries or have restarted",
    300,
)


class MovingFleet(api.Fleet):
    """A fleet with `replicas` in total; its values change with every call, and the first pool is the busiest."""

    def __init__(self, replicas: int = 36, pools: Sequence[str] = ("llama-70b", "qwen-32b", "embed")) -> None:
        super().__init__()
        self.moment = 0
        self.asked: list[tuple[str, schema.RolloutRequest]] = []
        """Requests for rollouts, with their actors."""
        self._begun = time.time()
        self._rollout = self._example_rollout()
        self._sizes = {name: replicas // len(pools) for name in pools}
        self._sizes[pools[0]] += replicas - sum(self._sizes.values())

    def live(self) -> Iterator[tuple[schema.LivePool, Sequence[schema.LiveReplica]]]:
        self.moment += 1
        for index, (name, size) in enumerate(self._sizes.items()):
            rows = [self._replica(name, index, number, size) for number in range(size)]
            rate = round(sum(row.requests_per_second or 0 for row in rows), 1)
            cached = None if index else CACHED
            yield (
                schema.LivePool(
                    name, f"example/{name}", "least_request", size, rate, 0.0, 0.12, 0.9, None, (), cached
                ),
                rows,
            )  # fmt: skip

    def _replica(self, pool: str, index: int, number: int, size: int) -> schema.LiveReplica:
        wave = math.sin(self.moment / 17 + 0.7 * number + index)
        state, reason = _ODD.get(number % 61 + 30 * (index > 0), ("in", ""))
        gone = state in ("draining", "ejected", "down")
        slow = 0.35 if state in ("slow", "ramping") else 1.0
        fair = 1 / size
        observed = 0.0 if gone else fair * slow * (1 + 0.06 * wave)
        busy = 0.02 if gone else min(1.0, 0.62 + 0.2 * wave + 0.3 * (state == "hot"))
        return schema.LiveReplica(
            pool=pool, name=f"{pool.split('-')[0]}-{number:02d}", address=f"10.0.{index}.{number % 250}:8000",
            gpu=GPUS[number % len(GPUS)], zone="abc"[number % 3], state=state, reason=reason,
            since=status_rows.timestamp(self._begun - 60 * (1 + number % 50)),
            capacity=1.0, weight=round(slow, 3), declared=round(fair, 4),
            share=0.0 if gone else round(fair * slow, 4), acknowledged=0.0 if gone else round(fair * slow, 4),
            observed=round(observed, 4), requests_per_second=round(observed * 4 * size / (1 + index), 1),
            errors=0.0, first_byte_p50=0.12, first_byte_p99=0.9,
            in_flight=int(9 + 5 * wave) if not gone else 3 * (state == "draining"),
            queue=float(max(0, int(4 * wave))) + 14 * (state == "hot"), kv_cache=round(busy * 0.9, 2),
            gpu_utilisation=round(busy, 2), temperature=round(58 + 14 * busy + 12 * (state == "hot")),
            cached_expected=None if index else 120_000, cached_found=None if index else 24_000,
        )  # fmt: skip

    def status(self) -> schema.Status:
        now = status_rows.timestamp(self._begun)
        held = schema.Override(
            "drain", "llama-70b", "llama-11", None, None, {}, "new NVLink bridge", "alice", now, None
        )
        warning = "fleet/pools.yaml:14:9: warning LB203 pools.embed.replicas[0].weight: weights differ by 40 times"
        diagnostic = schema.Diagnostic(
            "LB203", "warning", "weights differ", None, "pools.embed", "fleet/pools.yaml", 14, 9, warning
        )
        return replace(
            api.STATUS, since=status_rows.timestamp(self._begun - 3 * 86_400), overrides=(held,),
            proxies={"SYNCED": 3, "STALE": 1},
            snapshot=schema.Snapshot("9f86d081884c7d65", now, 0.0, "files", 3, sum(self._sizes.values())),
            fleet=replace(api.FILES, diagnostics=(diagnostic,)),
            control=tuple(
                schema.PoolControl(name, "adaptive", "acting", None, {}, {}) for name in self._sizes
            ),
        )  # fmt: skip

    def proxies(self) -> schema.Proxies:
        stale = replace(
            api.ENVOY,
            node="edge-3",
            since=status_rows.timestamp(self._begun - 90),
            state="STALE",
            last_good="77aa0011",
            reason="eds sent 2 s ago",
        )
        good = [
            replace(
                api.ENVOY,
                node=f"edge-{number}",
                since=status_rows.timestamp(self._begun - 7_000),
                last_good="9f86d081884c7d65",
            )
            for number in (1, 2)
        ]
        return schema.Proxies(
            (
                *good,
                stale,
                replace(
                    api.DRIVEN,
                    since=status_rows.timestamp(self._begun - 86_400),
                    node="edge-haproxy",
                    proxy="edge-haproxy",
                    last_good="9f86d081884c7d65",
                ),
            )
        )

    def rollouts(self) -> schema.Rollouts:
        return schema.Rollouts((self._rollout,))

    def splits(self) -> Sequence[schema.LiveSplit]:
        embed = schema.LiveSplit("embeddings", {"embed": 2, "embed-next": 1})
        return schema.LiveSplit("chat", self._rollout.split), embed

    async def act_on_rollout(self, request: schema.RolloutRequest, actor: str) -> schema.RolloutResult:
        """Record the request, and carry out an abort."""
        self.asked.append((actor, request))
        if request.action == "abort":
            split, now = {"llama-70b": 100, "qwen-32b": 0}, status_rows.timestamp(time.time())
            self._rollout = replace(
                self._rollout, phase="aborted", percent=None, split=split, since=now, reason=request.reason
            )
        return schema.RolloutResult(self._rollout)

    def history(self) -> schema.History:
        moments = ((3 * 86_400, "3f0aa3c0de", "files"), (7_200, "9f86d081", "reload"))
        return schema.History(
            tuple(
                schema.HistoryEntry(
                    digest=digest * 8, at=status_rows.timestamp(self._begun - ago), current=digest == "9f86d081",
                    commit=digest * 5, dirty=False, action="reload" if action == "reload" else "files",
                    actor="alice" if action == "reload" else "lbctl", reason=None, version=digest,
                    pools=3, replicas=sum(self._sizes.values()),
                )
                for ago, digest, action in moments
            )
        )  # fmt: skip

    async def audit(self, _query: Mapping[str, str]) -> schema.Audit:
        at = status_rows.timestamp(self._begun - 900)
        record = ("alice", "drain", "llama-70b/llama-11", "new NVLink bridge")
        return schema.Audit((schema.AuditRecord(1, at, *record, previous="", hash="9f86"),))

    def _example_rollout(self) -> schema.Rollout:
        steps = tuple(schema.RolloutStep(share, 300.0) for share in (5.0, 25.0, 50.0, 100.0))
        return schema.Rollout(
            "chat", "qwen-32b", "analysis", "progressing", 2, steps, 25.0, {"llama-70b": 75, "qwen-32b": 25},
            status_rows.timestamp(self._begun - 160), status_rows.timestamp(self._begun + 140),
            "weights of the new checkpoint", self._example_analysis(),
        )  # fmt: skip

    def _example_analysis(self) -> schema.RolloutAnalysis:
        new, old = schema.RolloutCounts(410, 21, 21 / 410), schema.RolloutCounts(1_230, 9, 9 / 1_230)
        latency = schema.RolloutMetric("first_byte p95", 412.0, 398.0, 1.04, 1.2, "good", None)
        verdicts: tuple[tuple[schema.RolloutVerdict, str | None], ...] = (
            ("inconclusive", "12 requests of the new side, and 50 are needed"),
            ("good", None),
            ("bad", "5.1 % errors against 0.7 %: worse beyond chance"),
        )
        evaluations = tuple(
            schema.RolloutEvaluation(
                status_rows.timestamp(self._begun - 90 + 30 * number), 2, verdict, reason, new, old, (latency,)
            )
            for number, (verdict, reason) in enumerate(verdicts)
        )
        counted: dict[schema.RolloutVerdict, int] = {"good": 9, "bad": 1, "inconclusive": 2}
        return schema.RolloutAnalysis("one good evaluation", new, old, 1, 2, counted, evaluations)


def remember(fleet: MovingFleet, seconds: float = 3_600.0) -> None:
    """Give the fleet a history of this many seconds."""
    now = time.time()
    for number in range(int(seconds / MIN_INTERVAL)):
        rows = [row for _, of_pool in fleet.live() for row in of_pool]
        fleet.dashboard.history.add(now - seconds + MIN_INTERVAL * number, rows, seconds)


@asynccontextmanager
async def serving(fleet: api.Fleet, token: Path | None = None, port: int = 0) -> AsyncIterator[int]:
    """Serve the API of this fleet on loopback with the task of its dashboard, and yield the port."""
    server = ApiServer(fleet, ApiAccess(Address("127.0.0.1", port), token))
    task = asyncio.create_task(fleet.dashboard.run())
    try:
        yield await server.start()
    finally:
        fleet.dashboard.end()
        task.cancel()
        await server.stop()


async def _main(replicas: int) -> None:
    fleet = MovingFleet(replicas)
    remember(fleet)
    async with serving(fleet, port=18080) as port:
        print(f"http://127.0.0.1:{port}/")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else 36))
