"""What runs, as the API shows it: put together when somebody asks, from what the other parts know."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lbctl import __version__
from lbctl.base.diagnostics import dotted
from lbctl.ir.facts import of_fleet
from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import drained_of, weights_of
from lbctl.ir.topology import Topology
from lbctl.serve import insight, report
from lbctl.serve.by_hand import ByHand
from lbctl.serve.changes import Changes
from lbctl.serve.doors import Doors
from lbctl.serve.driving import Driving
from lbctl.serve.live import controlled
from lbctl.serve.metrics import Metrics
from lbctl.serve.publisher import Publisher, envoys
from lbctl.serve.settings import Options
from lbctl.serve.telemetry import Telemetry
from lbctl.xds.ledger import Ledger

NO_FLEET = "no fleet yet: the files cannot be served, and the state holds no earlier one"
_STARTING = "starting"
NOTHING = Topology((), (), ())


class Overview:
    """The `Serving` of the API. `since`: when the process began, in seconds since the epoch."""

    def __init__(
        self,
        options: Options,
        doors: Doors,
        publisher: Publisher,
        changes: Changes,
        ledger: Ledger,
        metrics: Metrics,
        telemetry: Telemetry,
        by_hand: ByHand,
        driving: Driving,
    ) -> None:
        self.ending = False
        self._since = time.time()
        self._options = options
        self._doors = doors
        self._publisher = publisher
        self._changes = changes
        self._ledger = ledger
        self._metrics = metrics
        self._telemetry = telemetry
        self._by_hand = by_hand
        self._driving = driving

    def ready(self) -> str:
        if self.ending:
            return "ending"
        if self._changes.reading is None:
            return _STARTING
        if self._publisher.served is None:
            return NO_FLEET
        return "" if self._doors.opened.xds or self._options.dry_run else _STARTING

    def status(self) -> dict[str, Any]:
        served, rows = self._publisher.served, self.proxies()
        return {
            "version": __version__,
            "since": report.when(self._since),
            "ready": not self.ready(),
            "waiting": self.ready() or None,
            "dry_run": self._options.dry_run,
            "snapshot": self._snapshot(),
            "fleet": self._fleet(),
            "restart": self._doors.restart_needed(served.loaded.source) if served else [],
            "proxies": dict(sorted(Counter(str(row["state"]) for row in rows if row["kind"] != "reader").items())),
            "unmatched": [
                {"node": row["node"], "reason": row["reason"]}
                for row in rows
                if row["kind"] == "envoy" and row["connected"] and row["reason"]
            ],
            "overrides": self.overrides(),
            "control": self._control(),
            "sources": self._sources(),
            "names": [report.name(item) for item in self._publisher.discover.names()],
            "listens": self._listens(),
        }

    def proxies(self) -> list[dict[str, Any]]:
        return [report.proxy(row) for row in (*self._ledger.proxies(), *self._driving.rows())]

    def pools(self) -> list[dict[str, Any]]:
        served = self._publisher.served
        return report.pools(served.whole, served.since, served.out) if served else []

    def fleet(self) -> dict[str, str]:
        """Every setting of the files that are served, but for the replicas': path → value."""
        served = self._publisher.served
        found = of_fleet(served.loaded.compiled.topology) if served else {}
        return {dotted(path): value for path, value in found.items()}

    def signals(self) -> list[dict[str, Any]]:
        served, scraper, now = self._publisher.served, self._telemetry.scraper, time.monotonic()
        return [
            row
            for pool in controlled(served.whole.topology if served else NOTHING)
            for row in insight.signals(
                pool,
                self._telemetry.loop.reports,
                {item.name: scraper.states(pool.name, item.name) for item in pool.replicas},
                now,
            )
        ]

    def decisions(self) -> list[dict[str, Any]]:
        served = self._publisher.served
        if served is None:
            return []
        told = insight.acknowledged(self.proxies(), served.edition.version)
        topology = served.whole.topology
        kinds = sorted({item.kind for item in (*envoys(topology), *self._publisher.beside(topology))})
        found = (
            self._decisions(
                insight.told(pool, weights_of(pool, served.whole), drained_of(pool, served.whole), kinds), pool
            )
            for pool in controlled(topology)
        )
        return [{**row, "acknowledged": told} for rows in found for row in rows]

    def overrides(self) -> list[dict[str, Any]]:
        return [insight.override(item) for item in self._publisher.overrides]

    def metrics(self) -> bytes:
        return self._metrics.page()

    async def reload(self, allow_shrink: bool) -> dict[str, Any]:
        await self._changes.reload(allow_shrink=allow_shrink)
        again = self._doors.offer_again()
        reading = self._changes.reading
        return {
            "result": reading.result if reading else "invalid",
            "refused": reading.refused if reading else None,
            "offered_again": again,
            "snapshot": self._snapshot(),
            "diagnostics": report.findings(reading.diagnostics if reading else ()),
        }

    async def hold(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"override": insight.override(await self._by_hand.put(asked)), "snapshot": self._snapshot()}

    async def let_go(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"removed": await self._by_hand.remove(asked), "snapshot": self._snapshot()}

    def _decisions(self, told: Mapping[str, insight.Told], pool: Pool) -> Iterator[dict[str, Any]]:
        now = time.monotonic()
        for item in self._telemetry.loop.decisions(pool.name):
            if item.replica in told:
                yield insight.decision(item, told[item.replica], self._publisher.overrides, now)

    def _control(self) -> list[dict[str, Any]]:
        """Every pool that is decided about: how, who is out, and who is held at the floor."""
        live = self._publisher.live
        return [
            {
                "pool": name,
                "strategy": item.pool.weighting.strategy,
                "mode": item.mode,
                "words": item.mode_words or None,
                "out": {replica: list(words) for replica, words in live.out.get(name, {}).items()},
                "floor": {
                    each.replica.name: list(each.health.words) for each in item.tracks if each.health.verdict == "floor"
                },
            }
            for name, item in self._telemetry.loop.state.pools.items()
        ]

    def _sources(self) -> dict[str, Any]:
        """Of all replicas that are watched: how many sources there are, and how many gave nothing when last asked."""
        served, states = self._publisher.served, self._telemetry.scraper.states
        topology = served.whole.topology if served else NOTHING
        return insight.sources(
            (pool.name, state)
            for pool in controlled(topology)
            for item in pool.replicas
            for state in states(pool.name, item.name)
        )

    def _snapshot(self) -> dict[str, Any] | None:
        served = self._publisher.served
        if served is None:
            return None
        topology = served.whole.topology
        return {
            "version": served.edition.version,
            "at": report.when(served.at),
            "age": round(max(0.0, time.time() - served.at), 3),
            "from": served.origin,
            "pools": len(topology.pools),
            "replicas": sum(len(pool.replicas) for pool in topology.pools),
        }

    def _fleet(self) -> dict[str, Any]:
        """`shrink`: what would take too many replicas away, in the files or in the answers to names."""
        reading = self._changes.reading
        pending = (*(reading.shrink if reading else ()), *self._publisher.held)
        return {
            "paths": list(self._options.paths),
            "valid": reading is not None and reading.valid,
            "read": report.when(reading.at if reading else None),
            "refused": reading.refused if reading else None,
            "shrink": report.findings(pending),
            "diagnostics": report.findings(reading.diagnostics if reading else ()),
        }

    def _listens(self) -> dict[str, Any]:
        settings, opened = self._doors.settings, self._doors.opened
        state = settings.control.state if settings and not self._options.dry_run else None
        return {"xds": opened.xds, "api": opened.api, "state": state}
