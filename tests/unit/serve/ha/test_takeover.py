"""What a takeover continues: weights from where the last leader has left them, by the rate limit."""

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
from lbctl.serve.state.interface import StoreUnreachableError
from tests.support.member import Running, running, until
from tests.support.processes.engines import PAGE
from tests.support.stores import RedisServer, shared_server
from tests.support.web import serving_get

STEP = {"fast": 0.010, "b": 0.020, "c": 0.020, "slow": 0.060}
"""Replica → seconds that each of its steps takes."""
UP, DOWN = 0.10, 0.20
"""How far a weight may move in one interval, of the capacity."""
FLEET = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools:
  chat:
    telemetry: {interval: 200ms, stale_after: 10s, sources: [{kind: vllm, url: "http://127.0.0.1:PORT/{name}"}]}
    weighting: {strategy: adaptive, adaptive: {smoothing: 1s}, max_step: {down: 20%, up: 10%}, deadband: 1%}
    replicas: [REPLICAS]
proxies: {edge: {kind: envoy}}
"""


@asynccontextmanager
async def pages() -> AsyncIterator[int]:
    """The port of a server with the page of each replica, which works at its own speed since the start."""
    started = time.monotonic()

    async def answer(request: web.Request) -> web.Response:
        took = STEP[request.match_info["name"]]
        steps = (time.monotonic() - started) / took
        numbers = {"running": 8, "waiting": 0, "cache": 0.25, "steps": steps, "tokens": 8 * steps, "prompts": steps}
        between = {"betweens": 8 * steps, "between_seconds": 8 * steps * took}
        return web.Response(
            text=PAGE.format(
                **numbers, **between, firsts=steps / 50, first_seconds=steps / 50 * took, finished=steps / 50
            )
        )

    async with serving_get("/{name}", answer) as port:
        yield port


def rates(output: LoopOutput) -> dict[str, float]:
    """Replica → its rate, of its capacity; that of all before there is evidence."""
    return dict.fromkeys(STEP, 1.0) | {name: weight.rate for name, weight in output.weights.get("chat", {}).items()}


def sampled(member: Running) -> list[dict[str, float]]:
    """The rates of each publication of this member from now on."""
    samples: list[dict[str, float]] = []

    def sample(_: PublishedFleet) -> None:
        samples.append(rates(member.services.publisher.loop_output))

    member.services.publisher.subscribe("sampler", sample)
    return samples


def test_a_takeover_moves_no_weight_by_more_than_max_step(tmp_path: Path) -> None:
    prefix, port = f"test:{secrets.token_hex(4)}", shared_server("redis").port

    async def work() -> None:
        async with AsyncExitStack() as stack:
            page_port = await stack.enter_async_context(pages())
            replicas = ", ".join(f'{{name: {name}, address: "10.9.9.{at}:8000"}}' for at, name in enumerate(STEP, 1))
            fleet = FLEET.replace("PORT", str(page_port)).replace("REPLICAS", replicas)
            leader = AsyncExitStack()
            first = await leader.enter_async_context(running("cp-1", tmp_path, port, prefix, fleet=fleet))
            await until(lambda: first.member.leads)
            second = await stack.enter_async_context(running("cp-2", tmp_path, port, prefix, fleet=fleet))
            samples = sampled(second)
            await until(lambda: rates(first.services.publisher.loop_output)["slow"] < 0.6)
            await until(lambda: samples[-1:] != [] and samples[-1]["slow"] < 0.6)
            await leader.aclose()
            await until(lambda: second.member.leads and modes(second) == {"acting"})
            first_decision = second.services.telemetry.loop.state.now
            await until(lambda: second.services.telemetry.loop.state.now > first_decision + 1.0)
            assert rates(second.services.publisher.loop_output)["slow"] < 0.6, "the new leader's evidence is the same"
            for earlier, later in pairwise(samples):
                for name in STEP:
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
      steps: [{percent: 10%, hold: 1s}, {percent: 50%, hold: 1s}, {percent: 100%, hold: 1s}]
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
def test_a_step_that_a_leader_has_recorded_and_not_saved_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepsInForce, "own", lambda _, states, __: tuple(map(step_id, states)))  # there is no proxy
    prefix, port = f"test:{secrets.token_hex(4)}", shared_server("redis").port

    async def recorded(member: Running, count: int) -> list[str]:
        while True:
            with suppress(StoreUnreachableError):  # on a machine that stands still for seconds
                records = [item.action for item in await member.state.audit()]
                if len(records) >= count:
                    return records
            await asyncio.sleep(0.02)

    async def never(_: Rollouts) -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        async with AsyncExitStack() as leader:
            first = await leader.enter_async_context(running("cp-1", tmp_path, port, prefix, fleet=ROLLOUT))
            await recorded(first, 1)
            async with running("cp-2", tmp_path, port, prefix, fleet=ROLLOUT) as second:
                first.state.save_rollouts = never  # type: ignore[method-assign]
                assert await recorded(first, 2) == STEPS[:2]
                await leader.aclose()
                assert await recorded(second, 4) == STEPS

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.slow
def test_a_member_that_has_joined_waits_where_the_store_ends_before_it_has_read_it(tmp_path: Path) -> None:
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
    return {pool.mode for pool in member.services.telemetry.loop.state.pools.values()}
