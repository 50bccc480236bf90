"""One running HAProxy brought to what a view wants, and kept there.

Each time it is asked what it has, only the differences are sent, and it is asked again: what was refused, or forgotten
in a reload of its own, shows there, and nothing is believed because it was sent. What the Runtime API cannot do is done
by file and reload. Where the proxy has none, weights go through the agent check, or by file and reload alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lbctl.apply.agent_check import AgentCheck, Down, Standing
from lbctl.apply.haproxy import commands, diff, running
from lbctl.apply.haproxy.applied import SOON, Applied, Progress
from lbctl.apply.haproxy.diff import Addresses, Cut
from lbctl.apply.haproxy.files import bare
from lbctl.apply.haproxy.reload import Reloaded, Reloader
from lbctl.apply.haproxy.running import Place, Running, UnreadableError
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import agents, desired, shape
from lbctl.targets.haproxy.desired import Desired
from lbctl.targets.prepare import Prepared
from lbctl.targets.target import Bundle

_SOON_ASKED = 0.3
_ASKED = 2.0
"""Seconds until HAProxy's questions are looked at again."""
_ROUNDS = 4
"""Added, moved, drained, deleted: no more is needed one after the other."""
_GOOD = ("New server registered.", "Server deleted.")
_STILL_BUSY = "still has connections"
_STAYS = "cannot be removed at runtime"


class HaproxyDriver:
    """`proxy`: one of the fleet, with `runtime_api`, `agent_check`, `config` and `reload` as far as it has them.

    One thing at a time: callers wait for each other."""

    def __init__(self, proxy: Proxy, clock: Callable[[], float] = time.monotonic) -> None:
        self.proxy = proxy
        self._runtime = Runtime(proxy.runtime_api) if proxy.runtime_api else None
        self._agents = AgentCheck(_older(proxy)) if proxy.agent_check else None
        self._rendered: tuple[Prepared, Bundle] | None = None
        self._reloader = _reloader(proxy, self._runtime, clock)
        self._turn = asyncio.Lock()
        self._pid: int | None = None
        self._kept: set[Place] = set()
        self._loaded: tuple[str, int | None] | None = None

    async def close(self) -> None:
        if self._agents is not None:
            await self._agents.close()

    async def apply(
        self, prepared: Prepared, cut: Cut = (), addresses: Addresses | None = None, down: Down | None = None
    ) -> Applied:
        """By all ways that the proxy has, file and reload too. `prepared`: of the live snapshot. `cut`: what is left of
        these is ended. `addresses`: of `Snapshot`. `down`: for an agent check, what is out and why."""
        view = _served(prepared, self.proxy)
        async with self._turn:
            if self._runtime is not None:
                return await self._with_runtime(self._runtime, prepared, view, cut, addresses)
            return await self._by_file(prepared, view, down)

    async def converge(self, view: View, cut: Cut = (), addresses: Addresses | None = None) -> Applied:
        """By the Runtime API alone. For a view whose rendered text is known not to have changed, and for looking
        whether HAProxy has forgotten anything."""
        async with self._turn:
            return await self._converge(self._needed(), view, "", cut, addresses)

    def _needed(self) -> Runtime:
        if self._runtime is None:
            raise ValueError(f"{self.proxy.name} has no runtime_api")
        return self._runtime

    async def _with_runtime(
        self, runtime: Runtime, prepared: Prepared, view: View, cut: Cut, addresses: Addresses | None
    ) -> Applied:
        bundle = await asyncio.to_thread(prepared.target.render, view)
        wanted = shape.of(bundle)
        first = Progress()
        now = await self._read(runtime, first)
        told = await self._reload(bundle, now.pid) if now is not None and now.shape != wanted else None
        found = await self._converge(runtime, view, wanted, cut, addresses)
        found = replace(found, restarted=found.restarted or first.restarted)
        if found.pid is None:
            return await self._for_its_start(bundle, found)
        if found.reload and told is None:
            told = await self._reload(bundle, found.pid)
            if told and told.done:
                after = await self._converge(runtime, view, wanted, cut, addresses)
                found = replace(after, sent=(*found.sent, *after.sent))
        if told is None:
            return found if found.reload else await self._on_disk(bundle, found)
        if told.done:
            self._loaded = (bare(bundle), found.pid)
            return replace(found, reloaded=True)
        return replace(found, again=told.again or found.again, failure=told.failure, complaints=told.complaints)

    async def _reload(self, bundle: Bundle, pid: int | None) -> Reloaded | None:
        """None where it cannot be, or was, and nothing would come of it again."""
        if self._reloader is None or self._loaded == (bare(bundle), pid):
            return None
        return await self._reloader.reload(bundle)

    async def _on_disk(self, bundle: Bundle, found: Applied) -> Applied:
        """The next start finds the same servers; weights alone are not worth a write."""
        if self._reloader is None or self._reloader.files.difference(bundle).weights_alone:
            return found
        told = await self._reloader.write(bundle)
        return found if told.done else replace(found, failure=told.failure, complaints=told.complaints)

    async def _for_its_start(self, bundle: Bundle, found: Applied) -> Applied:
        if self._reloader is None or not self._reloader.files.difference(bundle).any:
            return found
        told = await self._reloader.write(bundle)
        return found if told.done else replace(found, failure=f"{found.failure}; {told.failure}")

    async def _by_file(self, prepared: Prepared, view: View, down: Down | None) -> Applied:
        """The agents first: what they answer is right whichever file runs, and health waits for no reload."""
        if self._rendered is None or self._rendered[0] is not prepared:
            self._rendered = prepared, await asyncio.to_thread(prepared.target.render, view)
        trouble = await self._agents.tell(view, down) if self._agents is not None else ()
        told = await self._reloaded(self._rendered[1])
        reloaded = told.done and told is not _NOTHING
        if self._agents is not None and reloaded:
            self._agents.reloaded()
        asked = self._agents.standing() if self._agents is not None else Standing()
        failure = "; ".join(filter(None, [told.failure, *trouble]))
        return Applied(
            done=told.done and not failure and asked == Standing(),
            reload=() if told.done else ("its file waits for the next reload",),
            reloaded=reloaded,
            again=told.again or (_SOON_ASKED if asked.due else _ASKED if self._agents else None),
            failure=failure,
            complaints=told.complaints,
            due=asked.due,
            wrong=asked.wrong,
        )

    async def _reloaded(self, bundle: Bundle) -> Reloaded:
        if self._reloader is None:
            return _NOTHING if self._agents else Reloaded(False, f"{self.proxy.name} has no config and reload")
        differs = self._reloader.files.difference(bundle)
        if not differs.any:
            return _NOTHING
        return await self._reloader.reload(bundle, weights_alone=differs.weights_alone)

    async def _converge(
        self, runtime: Runtime, view: View, wanted_shape: str, cut: Cut, addresses: Addresses | None
    ) -> Applied:
        wanted = desired.desired(view)
        found = Progress()
        for _ in range(_ROUNDS):
            now = await self._read(runtime, found)
            if now is not None:
                now = await self._with_limits(runtime, wanted, now, found)
            if now is None:
                return found.applied(again=SOON)
            found.plan = diff.plan(wanted, now, cut, addresses, self._kept)
            left = [each for each in found.plan.commands if each not in found.words]
            if not left:
                break
            await self._send(runtime, left, found)
        return found.applied(wanted_shape=wanted_shape)

    async def _read(self, runtime: Runtime, found: Progress) -> Running | None:
        texts = []
        for question in running.QUESTIONS:
            answer = await runtime.ask(question)
            if answer.failure:
                found.fail(answer.failure)
                return None
            texts.append(answer.texts[0])
        try:
            now = running.read(*texts)
        except UnreadableError as error:
            found.fail(f"{runtime.place}: {error}")
            return None
        if now.pid != self._pid:
            found.restarted = self._pid is not None
            self._kept.clear()
            self._pid = now.pid
        found.now = now
        return now

    async def _with_limits(self, runtime: Runtime, wanted: Desired, now: Running, found: Progress) -> Running | None:
        answers = await runtime.tell([commands.ask_limit(name) for name, _ in wanted.limits])
        if answers.failure:
            found.fail(answers.failure)
            return None
        names = (name for name, _ in wanted.limits)
        return replace(now, limits=running.limits(dict(zip(names, answers.texts, strict=True))))

    async def _send(self, runtime: Runtime, told: list[str], found: Progress) -> None:
        replies = await runtime.tell(told)
        for command, words in zip(told, replies.texts, strict=False):
            found.sent.append(command)
            if words in ("", *_GOOD) or " addr " in command:
                continue
            if command.startswith("del server "):
                if _STAYS in words:
                    self._kept.add(_place(command))
                elif _STILL_BUSY in words:
                    found.busy = True
            found.words[command] = words
        if replies.failure:
            found.fail(replies.failure)


_NOTHING = Reloaded(True)
"""Nothing was to be done."""


def _reloader(proxy: Proxy, runtime: Runtime | None, clock: Callable[[], float]) -> Reloader | None:
    return Reloader(proxy.config, proxy.reload, runtime, clock) if proxy.config and proxy.reload else None


def _older(proxy: Proxy) -> frozenset[int]:
    """The agents' ports in the file that lies there, which may run."""
    if proxy.config is None or proxy.agent_check is None:
        return frozenset()
    try:
        return agents.ports(Path(proxy.config).read_text(errors="replace"), proxy.agent_check)
    except OSError:
        return frozenset()


def _served(prepared: Prepared, proxy: Proxy) -> View:
    """As it lies beside the proxy's file; who serves knows the replicas, so HAProxy resolves nothing."""
    view = prepared.rooted(os.path.dirname(proxy.config) if proxy.config else "")  # noqa: PTH120 -- a str
    return replace(view, pools={name: replace(pool, discovery=None) for name, pool in view.pools.items()})


def _place(command: str) -> Place:
    backend, _, server = command.rpartition(" ")[2].partition("/")
    return backend, server
