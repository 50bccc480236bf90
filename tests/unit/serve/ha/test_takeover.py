"""Takeovers continue with the weights and rollout steps of the last leader."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from lbctl.control.loop_output import LoopOutput
from lbctl.control.rollouts import Rollouts, step_id
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.store.interface import StoreUnreachableError
from tests.support.fleets import fleet_text, pool, replica
from tests.support.member import ENVOY, Running, running, until
from tests.support.processes.engines import PAGE
from tests.support.stores import RedisServer, shared_server
from tests.support.web import serving_get

STEP_SECONDS = {"fast": 0.010, "b": 0.020, "c": 0.020, "slow": 0.060}
"""Seconds that each step of a replica takes."""
UP, DOWN = 0.10, 0.20
"""Largest change of a weight in one interval, as a share of the capacity."""


def adaptive_fleet(port: int) -> str:
    """Return the YAML of a fleet with adaptive weights and the pages at this port as telemetry."""
    sources = [{"kind": "vllm", "url": f"http://127.0.0.1:{port}/{{name}}"}]
    adaptive = pool(
        *(replica(name, f"10.9.9.{number}:8000") for number, name in enumerate(STEP_SECONDS, 1)),
        telemetry={"interval": "200ms", "stale_after": "10s", "sources": sources},
        weighting={
            "strategy": "adaptive",
            "adaptive": {"smoothing": "1s"},
            "max_step": {"down": "20%", "up": "10%"},
            "deadband": "1%",
        },
    )
    return fleet_text(adaptive, proxies=ENVOY)


@asynccontextmanager
async def pages() -> AsyncIterator[int]:
    """Serve the metrics page of each replica, which works at its own speed since the start; yield the port."""
    started = time.monotonic()

    async def answer(request: web.Request) -> web.Response:
        seconds = STEP_SECONDS[request.match_info["name"]]
        steps = (time.monotonic() - started) / seconds
        numbers = {"running": 8, "waiting": 0, "cache": 0.25, "steps": steps, "tokens": 8 * steps, "prompts": steps}
        between = {"betweens": 8 * steps, "between_seconds": 8 * steps * seconds}
        return web.Response(
            text=PAGE.format(
                **numbers, **between, firsts=steps / 50, first_seconds=steps / 50 * seconds, finished=steps / 50
            )
        )

    async with serving_get("/{name}", answer) as port:
        yield port


def rates(output: LoopOutput) -> dict[str, float]:
    """Return the rate of each replica as a share of its capacity; 1.0 before there is evidence."""
    weights = output.weights.get("pool", {})
    return dict.fromkeys(STEP_SECONDS, 1.0) | {name: weight.rate for name, weight in weights.items()}


def sampled(member: Running) -> list[dict[str, float]]:
    """Return a list that collects the rates of each later publication of this member."""
    samples: list[dict[str, float]] = []

    def sample(served: PublishedFleet) -> None:
        samples.append(rates(served.inputs.decisions))

    member.services.publisher.subscribe("sampler", sample)
    return samples


async def _at_rest(member: Running) -> None:
    """Wait until the rates have not changed for a second."""
    before: dict[str, float] = {}
    while (now := rates(member.services.live.inputs.decisions)) != before:
        before = now
        await asyncio.sleep(1)


@pytest.mark.slow
def test_takeover_moves_no_weight_by_more_than_max_step(tmp_path: Path) -> None:
    prefix, port = f"test:{secrets.token_hex(4)}", shared_server("redis").port

    async def work() -> None:
        async with AsyncExitStack() as stack:
            page_port = await stack.enter_async_context(pages())
            fleet = adaptive_fleet(page_port)
            leader = AsyncExitStack()
            first = await leader.enter_async_context(running("cp-1", tmp_path, port, prefix, fleet=fleet))
            await until(lambda: first.member.leads)
            second = await stack.enter_async_context(running("cp-2", tmp_path, port, prefix, fleet=fleet))
            samples = sampled(second)
            await until(lambda: rates(first.services.live.inputs.decisions)["slow"] < 0.6)
            await _at_rest(first)
            await until(lambda: samples[-1:] == [rates(first.services.live.inputs.decisions)])
            del samples[:-1]  # a follower may skip a decision
            await leader.aclose()
            await until(lambda: second.member.leads and modes(second) == {"acting"})
            first_decision = second.services.loop.state.now
            await until(lambda: second.services.loop.state.now > first_decision + 1.0)
            assert rates(second.services.live.inputs.decisions)["slow"] < 0.6, "the new leader's evidence is the same"
            for earlier, later in pairwise(samples):
                for name in STEP_SECONDS:
                    assert -DOWN - 1e-6 <= later[name] - earlier[name] <= UP + 1e-6, (name, samples)

    asyncio.run(asyncio.wait_for(work(), 120))


ROLLOUT = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes:
  chat:
    match: {path_prefix: /}
    split: {old: 100, new: 0}
    rollout:
      to: new
      mode: timed
      steps: [{percent: 10%, hold: 100ms}, {percent: 50%, hold: 100ms}, {percent: 100%, hold: 100ms}]
pools:
  old: {model: {name: m}, replicas: [{name: a, address: "10.9.9.1:8000"}]}
  new: {model: {name: n}, replicas: [{name: b, address: "10.9.9.2:8000"}]}
proxies: {edge: {kind: envoy}}
"""
STEPS = [
    "rollout progressing (step 1, 10 %)", "rollout progressing (step 2, 50 %)", "rollout progressing (step 3, 100 %)",
    "rollout promoted (step 3, 100 %)",
]  # fmt: skip


@pytest.mark.slow
def test_recorded_but_unsaved_rollout_step_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.serve.operator.rollouts._INTERVAL", 0.1)
    monkeypatch.setattr(StepsInForce, "own", lambda _, states, __: tuple(map(step_id, states)))  # there is no proxy
    monkeypatch.setattr("lbctl.serve.api.pool_rows._FIRST_CHECK", 0.0)  # no replica listens at its address
    prefix, port = f"test:{secrets.token_hex(4)}", shared_server("redis").port

    async def recorded(member: Running, count: int) -> list[str]:
        while True:
            with suppress(StoreUnreachableError):  # a busy machine may stall for seconds
                records = [item.action for item in await member.state.audit()]
                if len(records) >= count:
                    return records
            await asyncio.sleep(0.02)

    async def work() -> None:
        async with AsyncExitStack() as leader:
            first = await leader.enter_async_context(running("cp-1", tmp_path, port, prefix, fleet=ROLLOUT))
            save = first.state.save_rollouts

            async def save_no_second_step(states: Rollouts) -> None:
                if any(state.percent == 50 for state in states):
                    await asyncio.Event().wait()
                await save(states)

            first.state.save_rollouts = save_no_second_step  # type: ignore[method-assign]
            async with running("cp-2", tmp_path, port, prefix, fleet=ROLLOUT) as second:
                assert await recorded(first, 2) == STEPS[:2]
                await leader.aclose()
                assert await recorded(second, 4) == STEPS

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.slow
def test_joined_member_waits_for_a_store_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.store.open._RETRY", 0.1)
    server = RedisServer()
    server.start()

    async def work() -> None:
        async with AsyncExitStack() as stack:
            prefix = f"test:{secrets.token_hex(4)}"
            first = await stack.enter_async_context(running("cp-1", tmp_path, server.port, prefix, fleet=ROLLOUT))
            await until(lambda: first.member.leads)
            await asyncio.to_thread(server.stop)
            starting = asyncio.create_task(
                stack.enter_async_context(running("cp-2", tmp_path, server.port, prefix, fleet=ROLLOUT))
            )
            await asyncio.sleep(0.5)
            assert not starting.done()
            await asyncio.to_thread(server.start)
            second = await starting
            await until(lambda: first.member.leads or second.member.leads)

    try:
        asyncio.run(asyncio.wait_for(work(), 120))
    finally:
        server.close()


def modes(member: Running) -> set[str]:
    return {pool.mode for pool in member.services.loop.state.pools.values()}
