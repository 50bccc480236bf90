"""Pools, observations and a driver of the control loop for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lbctl.control.effects import Effect, HealthChanged, ModeChanged, WeightsChanged
from lbctl.control.events import Event, FleetChanged, Observed, Ticked
from lbctl.control.inputs import Observation, ProxyRequests
from lbctl.control.state import ReplicaState, State
from lbctl.control.step import step
from lbctl.ir.address import Address
from lbctl.ir.pools import DeepCheck, PassiveCheck, Pool, Replica, Telemetry, Weighting
from lbctl.ir.weight import from_capacity
from lbctl.signals.derive import BatchEvidence, TokenEvidence
from lbctl.signals.merge import Signal, Signals

NOW = 1000.0
INTERVAL = 5.0
NAME = "llama"


def replica(name: str, **more: Any) -> Replica:
    return Replica(name, Address(f"{name}.internal", 8000), **({"gpu": "H100-SXM"} | more))


def pool(replicas: int | tuple[Replica, ...] = 4, **more: Any) -> Pool:
    """Return a pool with default settings and the evidence of vLLM; `weighting` and `deep` change those."""
    members = tuple(replica(f"r{place:05}") for place in range(replicas)) if isinstance(replicas, int) else replicas
    weighting = replace(Weighting(strategy="adaptive"), **more.pop("weighting", {}))
    deep = replace(DeepCheck(min_free_memory=2 * 2**30), **more.pop("deep", {}))
    telemetry = more.pop("telemetry", Telemetry())
    passive = more.pop("passive", PassiveCheck())
    return Pool(NAME, members, weighting=weighting, deep=deep, telemetry=telemetry, passive=passive, **more)


def seen(
    at: float, *, speed: float | None = 1.0, in_flight: int | None = None, answered: int = 0, reserves: bool = False,
    by_steps: bool = True, xids: tuple[tuple[str, int], ...] = (), batch: float = 32.0, tokens: float = 500.0,
    prompts: float = 100.0, **signals: float,
) -> Observation:  # fmt: skip
    """Return a sample of an engine at `speed` times the reference speed, with this batch size and prompt tokens."""
    evidence = None
    if speed is not None:
        step_time = (29.8 + 0.202 * batch + 0.0715 * prompts) / 1000 / speed
        evidence = TokenEvidence(at, tokens, tokens * step_time, batch, prompts)
    values = {name: Signal(value, at, 0) for name, value in signals.items()}
    return Observation(at, Signals(values, {}, evidence, xids, by_steps), ProxyRequests(in_flight, answered), reserves)


def batches(at: float, speed: float, items: float = 4.0) -> Observation:
    """Return a sample of an engine that processes batches."""
    evidence = BatchEvidence(at, 50.0, 50.0 * (1.0 + 0.2 * items) / speed, items)
    return Observation(at, Signals({}, {}, evidence))


def started(*pools: Pool) -> State:
    return step(State(), FleetChanged(NOW, pools))[0]


class Talk:
    """Drives the control loop with one pool: observations an interval apart, and their effects."""

    def __init__(self, fleet: Pool) -> None:
        self.pool = fleet
        self.now = NOW
        self.state, effects = step(State(), FleetChanged(NOW, (fleet,)))
        self.effects: list[Effect] = list(effects)
        self.given = {item.name: from_capacity(item.capacity) for item in fleet.replicas}
        self.verdicts = {item.name: "in" for item in fleet.replicas}
        self.mode = "acting"

    def say(self, event: Event) -> tuple[Effect, ...]:
        self.now = event.now
        self.state, effects = step(self.state, event)
        for effect in effects:
            self._note(effect)
        return effects

    def look(
        self, news: Mapping[str, Mapping[str, Any] | None], seconds: float = INTERVAL, suspected: str = ""
    ) -> tuple[Effect, ...]:
        """Send one observation to the loop. `news` maps a replica to the arguments of `seen`; None means no sample.

        `suspected`: the replica whose engine has stopped according to the picker, if any.
        """
        now = self.now + seconds
        samples = {name: seen(now, **arguments) for name, arguments in news.items() if arguments is not None}
        return self.say(Observed(now, NAME, samples, suspected=frozenset({suspected} if suspected else ())))

    def wait(self, seconds: float, interval: float = INTERVAL) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.say(Ticked(min(end, self.now + interval)))

    def track(self, name: str) -> ReplicaState:
        state = self.state.pools[NAME]
        return state.replicas[state.index[name]]

    @property
    def weights(self) -> dict[str, float]:
        """Return the rates of the decided weights."""
        return {name: item.rate for name, item in self.given.items()}

    def _note(self, effect: Effect) -> None:
        self.effects.append(effect)
        match effect:
            case WeightsChanged():
                self.given = dict(effect.weights)
            case HealthChanged():
                self.verdicts[effect.replica] = effect.verdict
            case ModeChanged():
                self.mode = effect.mode
