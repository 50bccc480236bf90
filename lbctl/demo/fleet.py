"""The demo's fleet, which has three groups of identical simulated replicas with three kinds of load balancing.

A group has six replicas with different GPUs, whose speeds come from lbctl's GPU table. All groups are behind one real
proxy, each with a separate listener, and get the same requests. The features that `serve` provides are enabled in a
pool's settings, and only the adaptive pool has telemetry. Telemetry and health checks run more often than by default,
so that effects that normally take several minutes are visible within one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lbctl.apply.reserved_ports import port_of, reserve
from lbctl.compile.gpus import GPUS as TABLE
from lbctl.demo import canary_fleet
from lbctl.demo.canary_fleet import PLANS, CanarySite, new_canary
from lbctl.demo.replica import HOST, PacedReplica
from lbctl.simulate.engine import CostModel, saturated_rate

Strategy = Literal["adaptive", "static", "round-robin"]
STRATEGIES: tuple[Strategy, ...] = ("adaptive", "static", "round-robin")
TITLES: Mapping[Strategy, str] = {
    "adaptive": "lbctl serve, adaptive",
    "static": "static weights by GPU",
    "round-robin": "round robin",
}
GPUS = ("H100-SXM", "A100-80GB", "L40S")
PROMPT, ANSWER = 300.0, 80.0
"""Mean lengths of prompts and responses, in tokens."""
LOAD = 0.5
"""Share of a group's capacity used by the requests."""
_SPEED = 2.0
"""Speed of the simulated replicas, relative to the cost model's profile."""
_SEQUENCES = 16
"""Maximum number of requests per batch. The batch is small, so that even a light load fills it."""
_PROFILE = CostModel()
_CACHE = 16_000
"""Cache size of the fastest replica, in tokens. The cache is small, so that even a light load fills it."""
CURVE = CostModel(
    _PROFILE.a / _SPEED, _PROFILE.b / _SPEED, _PROFILE.c / _SPEED, _PROFILE.p / _SPEED, _SEQUENCES, _CACHE
)
_CHECK = {"http": {"path": "/health"}, "interval": "1s", "timeout": "1s", "healthy_threshold": 2}
_PASSIVE = {"ejection_time": "5s"}
_TELEMETRY = {
    "interval": "1s", "timeout": "1s", "stale_after": "5s",
    "sources": [{"kind": "vllm", "url": "http://{address}/metrics"}],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupReplica:
    """A replica that exists in every group."""

    name: str
    """Name, which is the same in all groups."""
    gpu: str
    """GPU name in the `lbctl gpus` table."""
    speed: float
    """Speed, relative to the fastest replica."""


MEMBERS = tuple(
    GroupReplica(f"{gpu.partition('-')[0].lower()}-{number}", gpu, TABLE[gpu].throughput / TABLE[GPUS[0]].throughput)
    for gpu in GPUS
    for number in range(2)
)


@dataclass(frozen=True, slots=True)
class Site:
    """The demo's ports and replicas."""

    listeners: Mapping[Strategy, int]
    """Port of each group's listener."""
    api: int
    """Port of the `serve` API."""
    logs: int
    """UDP port to which nginx sends one line per request."""
    groups: Mapping[Strategy, Sequence[PacedReplica]]
    """Replicas of each group, in the order of `MEMBERS`."""
    canaries: Sequence[CanarySite]
    """Canaries, each with a separate listener and separate replicas."""
    reserved: Sequence[socket.socket] = ()
    """Bound sockets that reserve the TCP ports without listening."""

    @property
    def replicas(self) -> tuple[PacedReplica, ...]:
        """All replicas."""
        groups = (*self.groups.values(), *(canary.versions.values() for canary in self.canaries))
        return tuple(replica for group in groups for replica in group)

    @property
    def listener_ports(self) -> Mapping[str, int]:
        """Ports of all listeners, by name."""
        groups: dict[str, int] = dict(self.listeners.items())
        return groups | {canary.plan.name: canary.port for canary in self.canaries}


def arrival_rate() -> float:
    """Return each group's request rate, per second."""
    return LOAD * sum(saturated_rate(member.speed, PROMPT, ANSWER, CURVE) for member in MEMBERS)


def new_site() -> Site:
    """Return a site whose replicas are not listening yet."""
    groups = {name: [PacedReplica(item.name, item.speed, CURVE) for item in MEMBERS] for name in STRATEGIES}
    reserved = [reserve() for _ in range(1 + len(STRATEGIES) + len(PLANS))]
    api, *ports = map(port_of, reserved)
    listeners = dict(zip(STRATEGIES, ports, strict=False))
    canaries = [new_canary(plan, port, CURVE) for plan, port in zip(PLANS, ports[len(STRATEGIES) :], strict=True)]
    with reserve(kind=socket.SOCK_DGRAM) as alone:  # two UDP sockets on one port would share the datagrams
        logs = port_of(alone)
    return Site(listeners, api, logs, groups, canaries, reserved)


def write_fleet(site: Site, directory: Path) -> Path:
    """Write the fleet file for a site whose replicas are listening, and return its path."""
    actions: dict[str, dict[str, object]] = {name: {"pool": name} for name in site.listeners}
    pools: dict[str, object] = {name: _pool(name, replicas) for name, replicas in site.groups.items()}
    for canary in site.canaries:
        actions[canary.plan.name] = canary_fleet.route(canary)
        pools |= canary_fleet.pools(canary, _CHECK, GPUS[0])
    fleet = {
        "version": 1,
        "listeners": {
            name: {"bind": f"{HOST}:{port}", "access_log": {"format": "none"}}
            for name, port in site.listener_ports.items()
        },
        "routes": {
            name: {"match": {"path_prefix": "/"}, "listeners": [name], **action} for name, action in actions.items()
        },
        "pools": pools,
        "control": {"api": {"bind": f"{HOST}:{site.api}"}, "logs": {"bind": f"{HOST}:{site.logs}"}},
    }
    path = directory / "fleet.yaml"
    path.write_text(json.dumps(fleet, indent=2) + "\n", encoding="utf-8")
    return path


def _pool(strategy: Strategy, replicas: Sequence[PacedReplica]) -> dict[str, object]:
    members = [
        {"name": member.name, "address": f"{HOST}:{replica.port}", "gpu": member.gpu}
        | ({"weight": 1} if strategy == "round-robin" else {})
        for member, replica in zip(MEMBERS, replicas, strict=True)
    ]
    pool: dict[str, object] = {
        "model": {"name": "simulated"},
        "balance": {"algorithm": "round_robin" if strategy == "round-robin" else "least_request"},
        "replicas": members,
        "health": {"active": _CHECK, "passive": _PASSIVE},
    }
    if strategy == "adaptive":
        pool["health"] = {"active": _CHECK, "passive": _PASSIVE, "deep": {"stalled_after": "2s"}}
        pool["telemetry"] = _TELEMETRY
        pool["weighting"] = {"strategy": "adaptive", "adaptive": {"smoothing": "4s"}}
    return pool
