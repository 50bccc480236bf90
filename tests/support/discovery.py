"""A source of replicas for tests, in addition to DNS and files: the test sets its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lbctl.base.registry import Registry
from lbctl.ir.address import Address
from lbctl.ir.pools import Discovery, Replica
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery.interface import NameState, PoolAnswer, SourceFactory
from lbctl.serve.discovery.sources import SOURCES


@dataclass(frozen=True, slots=True)
class ToyDiscovery(Discovery):
    kind: ClassVar[str] = "toy"
    service: str = "llama"


def toy_replica(name: str, number: int, **keys: Any) -> Replica:
    return Replica(name, Address(f"10.0.0.{number}", 8000), **keys)


@dataclass
class ToySource:
    """A source with these replicas for each service. While `broken` is set, every call raises an exception."""

    changed: Callable[[], None]
    services: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    broken: bool = False
    pools: dict[str, str] = field(default_factory=dict)
    seeds: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def say(self, service: str, *replicas: Any) -> None:
        self.services[service] = replicas
        self.changed()

    def forget(self, service: str) -> None:
        del self.services[service]
        self.changed()

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        self._fail()
        self.seeds = {key: tuple(texts) for key, texts in saved.items() if key.startswith("toy:")}

    def use_topology(self, topology: Topology) -> None:
        self._fail()
        self.pools = {
            pool.name: pool.discovery.service for pool in topology.pools if isinstance(pool.discovery, ToyDiscovery)
        }

    async def first(self, timeout: float) -> None:
        self._fail()

    def names(self) -> tuple[NameState, ...]:
        return ()

    def answers(self) -> Mapping[str, PoolAnswer]:
        self._fail()
        return {
            pool: PoolAnswer(self.services[service], 1.0, key=f"toy:{service}", saved=("seen",))
            for pool, service in self.pools.items()
            if service in self.services
        }

    async def stop(self) -> None:
        """Do nothing: the source has no task."""

    def _fail(self) -> None:
        if self.broken:
            raise RuntimeError("the toy is broken")


def with_toy(sources: list[ToySource]) -> Registry[SourceFactory]:
    """Return all sources and the toy source. Each toy source that is created is appended to `sources`."""

    def toy(changed: Callable[[], None], _: Guard) -> ToySource:
        sources.append(ToySource(changed))
        return sources[-1]

    return Registry({**{kind: SOURCES.get(kind) for kind in SOURCES.names}, "toy": toy})
