"""The cases: their replicas, their requests, and the faults of one replica.

A case has at least 2,000 requests for each system, in five runs with different seeds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import prompts, workloads
from tests.benchmarks.peers.client import Planned
from tests.benchmarks.peers.workloads import FLOOD, PREFIXED, UNRELATED, capacity
from tests.benchmarks.picking import traces
from tests.benchmarks.picking.traces import Arrival

MIXED_SPEEDS = (3.0, 1.2, 0.6)
"""GPUs with speeds of 5 : 2 : 1."""
_EQUAL_SPEEDS = (1.2,) * 4
_COUNTED = 400
"""Mean number of counted requests in a run."""
_WARM_UP, _FAULT = 0.15, 0.2
"""Fractions of a run: the part that does not count, and the time of a fault."""
_AGENT_SECONDS = 33.0
_UPGRADED = (1.2,) * 3
"""Speeds of the replicas that are upgraded."""
_DRAIN_SECONDS, _STOPPED_SECONDS = 11, 2
"""The drain exceeds the time until health checks have failed (6 s), and the longest answers (4 s)."""
_UPGRADE_SECONDS = 4.0 + len(_UPGRADED) * (_DRAIN_SECONDS + _STOPPED_SECONDS + 1)

TRACE_SOURCE = (
    "the first 1,000 lines of `FAST25-release/arxiv-trace/mooncake_trace.jsonl` in github.com/kvcache-ai/Mooncake"
)
"""Origin of the trace's file."""

GROUPS = {
    "mixed": "What if GPUs differ in speed?",
    "equal": "What if all GPUs are equal?",
    "prefixes": "What if prompts share prefixes?",
    "sessions": "What if requests belong to conversations?",
    "faults": "What if a replica is slow or stops?",
    "changes": "What if the router or the model servers restart?",
    "crowds": "What if there are too many requests?",
}
"""Title of each group of cases."""


@dataclass(frozen=True, slots=True)
class Event:
    """A command to the engines at this fraction of a run, with its arguments. `restart` restarts the systems
    instead."""

    at: float
    command: str
    replica: int = 0
    arguments: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case, with its texts on the page."""

    name: str
    title: str
    group: str
    description: str
    limit: str
    """Sentence about the limit of the rate or of the length of a run."""
    load: float
    """Rate of the requests, as a fraction of the capacity without caches."""
    replicas: tuple[float, ...]
    """Speeds."""
    seconds: float
    arrivals: Callable[[int], list[Arrival]]
    """Returns the requests for a seed."""
    modes: tuple[str, ...] = ("pick",)
    """The modes of lbctl that its documentation recommends for this case."""
    events: tuple[Event, ...] = ()
    since: float = _WARM_UP
    """Fraction of the run after which requests are counted."""
    after: tuple[float, ...] | None = None
    """Speeds that determine the right shares. None if no shares are right, as with caches or while a replica is
    away."""
    has_prefixes: bool = False
    """Whether prompts have common beginnings."""
    trace: str = ""
    """File of a trace, in the folder that `LBCTL_DATA` names."""

    @property
    def is_available(self) -> bool:
        """Return whether the file of the trace exists, if the case needs one."""
        return not self.trace or Path(os.environ.get("LBCTL_DATA", ""), self.trace).is_file()

    @property
    def has_shares(self) -> bool:
        """Whether the right shares of the replicas are known."""
        return self.after is not None

    def plan(self, seed: int) -> list[Planned]:
        """Return the requests of a run as they are sent."""
        own = random.Random(seed)
        return [
            Planned(
                item.at,
                prompts.body(item.prompt, item.answer, item.blocks, f"{own.getrandbits(60):x}"),
                item.session or f"{own.getrandbits(60):x}",
                item.answer,
            )
            for item in self.arrivals(seed)
        ]

    def is_measured(self, item: Planned) -> bool:
        """Return whether the tokens of a request count."""
        return item.at >= self.since * self.seconds

    def counts(self, item: Planned) -> bool:
        """Return whether the times of a request count too."""
        return self.is_measured(item) and item.session != FLOOD


# ── Unrelated requests ───────────────────────────────────────────────────────────────────────────────────────────────


def _case(
    arrivals: Callable[[float, float, int], list[Arrival]] = workloads.unrelated,
    lengths: tuple[float, float] = UNRELATED,
    counted: int = _COUNTED,
    **keys: Any,
) -> Case:
    """Return a case with a constant rate, which runs until enough requests count."""
    rate = keys["load"] * capacity(keys["replicas"], *lengths)
    seconds = counted / (rate * (1 - keys.get("since", _WARM_UP)))
    limit = (
        f"The rate is {rate:.0f} requests per second for each system, because the clients, the engines and all systems "
        "run on the same machine."
    )
    return Case(seconds=seconds, arrivals=partial(arrivals, rate, seconds), **{"limit": limit, **keys})


def _mixed(percent: int, since: float = _WARM_UP) -> Case:
    return _case(
        name=f"mixed-{percent}", title=f"Mixed GPUs, load {percent} %", group="mixed", load=percent / 100,
        replicas=MIXED_SPEEDS, after=MIXED_SPEEDS, modes=("static", "pick"), since=since,
        description=f"Three replicas with speeds of 5 : 2 : 1 receive unrelated requests at {percent} % of capacity.",
    )  # fmt: skip


_EQUAL = _case(
    name="equal-85", title="Equal GPUs, load 85 %", group="equal", load=0.85, replicas=_EQUAL_SPEEDS,
    after=_EQUAL_SPEEDS, modes=("static", "pick"), since=0.3,
    description="Four equal replicas receive unrelated requests at 85 % of capacity.",
)  # fmt: skip


# ── Prefixes and sessions ────────────────────────────────────────────────────────────────────────────────────────────


def _prefixes(percent: int) -> Case:
    return _case(
        workloads.prefixed, PREFIXED, _COUNTED if percent <= 100 else 600, name=f"prefixes-{percent}",
        title=f"Shared prefixes, load {percent} %", group="prefixes", load=percent / 100, replicas=(1.5,) * 8,
        has_prefixes=True,
        description="Eight equal replicas receive the prompts of llm-d's benchmark: 150 common prefixes of 6,144 "
        "tokens, each followed by 1,056 other tokens. Each response is 100 tokens long. The caches are initially "
        f"empty. The rate is {percent} % of the capacity without caches.",
    )  # fmt: skip


_SESSIONS: dict[str, Any] = {
    "load": 1.2, "replicas": (1.3,) * 4, "seconds": _AGENT_SECONDS,
    "arrivals": partial(workloads.agents, _AGENT_SECONDS), "has_prefixes": True,
    "limit": "The rate is 14 requests per second for each system, because the prompts that the machine forwards are "
    "7,000 tokens long on average.",
}  # fmt: skip
AGENTS = Case(
    name="agents", title="Agents with sessions", group="sessions", **_SESSIONS,
    description="The pool has four equal replicas. With each request, an agent sends one of three 4,096-token system "
    "prompts, followed by its entire history. `x-session-id` identifies the agent. Responses are at most 400 tokens "
    "long.",
)  # fmt: skip
_MOONCAKE = Case(
    name="mooncake", title="Mooncake's trace", group="sessions", load=1.0, replicas=(2.5,) * 4, seconds=28.0,
    arrivals=partial(workloads.mooncake, 500), has_prefixes=True, trace=traces.MOONCAKE,
    limit=f"The directory that `LBCTL_DATA` specifies contains `{traces.MOONCAKE}`, {TRACE_SOURCE}. Because the file "
    "is short, the five runs overlap.",
    description="Four equal replicas receive the requests of [Mooncake's "
    "trace](https://github.com/kvcache-ai/Mooncake) at three times its rate. Prompts are 10,000 tokens long on "
    "average. Requests do not include a session header. Responses are at most 400 tokens long.",
)  # fmt: skip


# ── Faults and changes ───────────────────────────────────────────────────────────────────────────────────────────────


def _fault(name: str, title: str, description: str, *events: Event, **more: Any) -> Case:
    keys = {"group": "faults", "load": 0.5, "replicas": (1.0,) * 4, "since": _FAULT, **more}
    return _case(name=name, title=title, description=description, events=events, **keys)


_HALVED = _fault(
    "halved", "GPU at half speed",
    "The pool has three replicas with speeds of 5 : 2 : 1 at a load of 50 %. The fastest one slows down to half its "
    "normal speed.",
    Event(_FAULT, "throttle", 0, (0.5,)),
    replicas=MIXED_SPEEDS, since=0.3, after=(MIXED_SPEEDS[0] / 2, *MIXED_SPEEDS[1:]),
)  # fmt: skip
_WEDGED = _fault(
    "wedged", "Wedged replica",
    "The pool has four equal replicas at a load of 50 %. One stops making progress, but its `/health` endpoint still "
    "responds.",
    Event(_FAULT, "wedge", 1, (1,)),
)  # fmt: skip
_KILLED = _fault(
    "killed", "Killed replica",
    "The pool has four equal replicas at a load of 50 %. One is killed and stays down for half of the run.",
    Event(_FAULT, "kill", 1), Event(0.7, "start", 1),
)  # fmt: skip
_COLD = _fault(
    "cold", "Cold replica",
    "The pool has three equal replicas at a load of 67 %. A fourth replica starts and runs at a quarter of its normal "
    "speed for a fifth of the run.",
    Event(0.0, "kill", 1), Event(_FAULT, "start", 1), Event(_FAULT, "throttle", 1, (0.25,)),
    Event(2 * _FAULT, "throttle", 1, (1.0,)),
)  # fmt: skip
_RESTART = Case(
    name="restart", title="Router restart", group="changes", **_SESSIONS, events=(Event(0.5, "restart"),),
    description="The requests are the same as in “Agents with sessions”. In the middle of the run, the router receives "
    "SIGTERM and is restarted after it has exited. For lbctl, `lbctl serve` and its picker are restarted. Manually "
    "configured proxies reload their configuration.",
)  # fmt: skip
_UPGRADE = Case(
    name="upgrade", title="Rolling upgrade", group="changes", load=0.4, replicas=_UPGRADED, since=0.1,
    seconds=_UPGRADE_SECONDS, arrivals=partial(workloads.unrelated, 0.4 * capacity(_UPGRADED), _UPGRADE_SECONDS),
    limit="The upgrade of each replica takes 13 s.",
    events=tuple(
        Event((2 + number * (_DRAIN_SECONDS + _STOPPED_SECONDS + 1) + delay) / _UPGRADE_SECONDS, command, number)
        for number in range(len(_UPGRADED))
        for delay, command in ((0, "drain"), (_DRAIN_SECONDS, "kill"), (_DRAIN_SECONDS + _STOPPED_SECONDS, "start"))
    ),
    description="The pool has three equal replicas at a load of 40 %. One after another, each fails its health checks "
    "for 11 s but still responds to requests, and then stops and is restarted after 2 s. A router that stops using a "
    "replica after three failed checks loses no requests.",
)  # fmt: skip


# ── Too many requests ────────────────────────────────────────────────────────────────────────────────────────────────

_FLOODED = _case(
    workloads.tenants, name="flood", title="One tenant floods", group="crowds", load=0.6, replicas=(1.2,) * 3,
    modes=("static", "pick"),
    limit="The rate is 49 requests per second for each system, because the clients, the engines and all systems run on "
    "the same machine.",
    description="The pool has three equal replicas. Nine tenants together use 60 % of capacity. A tenth tenant sends "
    "ten times as many requests as each of the others. For this tenant, only generated tokens are counted, not times. "
    "A rate limit has to match the capacity, and it rejects most of the flood even while replicas are idle. A queue "
    "sends the flood to idle replicas. HAProxy counts requests in a "
    "[sliding window](../reference/codes.md#lb441-rate-limits-not-supported-by-the-proxy), which does not carry over "
    "unused requests. It therefore also rejects some requests from tenants that are below their limit. If more than "
    "1 % of the requests are rejected, p99 is the time that is used for failed requests.",
)  # fmt: skip
_BURST = Case(
    name="burst", title="Burst of twice the capacity", group="crowds", load=2.0, replicas=(0.7,) * 4, seconds=20.0,
    since=0.1, arrivals=partial(workloads.burst, 2.0 * capacity((0.7,) * 4), 20.0),
    limit="During the burst, the rate is 60 requests per second for each system, and all systems run on the same "
    "machine.",
    description="The pool has four equal replicas at a load of 50 %. For 4 s, the load increases to 200 %.",
)  # fmt: skip

CASES = (
    _mixed(50), _mixed(70), _mixed(85, since=0.3), _EQUAL, *map(_prefixes, (50, 100, 150, 200)), AGENTS, _MOONCAKE,
    _HALVED, _WEDGED, _KILLED, _COLD, _RESTART, _UPGRADE, _FLOODED, _BURST,
)  # fmt: skip
